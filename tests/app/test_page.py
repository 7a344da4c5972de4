"""The page in a real browser: clicks, keys, sliders, files and addresses, on a desk and on a telephone."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="needs the extra app: pip install 'scorelens[app]'")

import scorelens
from scorelens.app.session import Session
from tests.app.serving import Slow, serving, until
from tests.browser import chromium, tab

pytestmark = [pytest.mark.browser, pytest.mark.skipif(chromium() is None, reason="needs a browser: install chromium")]

IDLE = "document.body.dataset.busy === 'false'"
R2 = "+document.querySelector('#card-locality .score').dataset.r2"
ERROR = "(e => e.hidden ? '' : e.innerText)(document.getElementById('error'))"
FIELD = "document.querySelector('.field[data-model=optimal] canvas').toDataURL()"
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27}


@pytest.fixture(scope="module")
def session():
    images = scorelens.load_images("digits", split="train", limit=600)
    return Session(images, ["optimal", "wiener", "locality:threshold=0.05", "kernel:bandwidth=0.3", "ls"],
                   ["digits-unet"])


@pytest.fixture(scope="module")
def home(session):
    with serving(session) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def chrome():
    with tab() as chrome:
        yield chrome


def visit(chrome, address, width=1400, dark=False, idle=True):
    """Open it afresh, even if only the part after # is new."""
    chrome.open("about:blank", width, 900)
    chrome.open(address, width, 900, dark=dark)
    if idle:
        see(chrome, IDLE)


def see(chrome, condition, seconds=240):
    """Wait until the page fulfils the condition."""
    looked = f"""new Promise((resolve, reject) => {{
        const began = Date.now();
        (function look() {{
            if ({condition}) resolve(true);
            else if (Date.now() - began > {1000 * seconds}) reject(new Error("waited in vain"));
            else setTimeout(look, 20);
        }})();
    }})"""
    assert chrome.evaluate(looked)


def settled(chrome, script):
    """Do it, and wait until all that follows is computed and drawn."""
    chrome.evaluate(f"document.body.dataset.busy = 'true'; {script}")
    see(chrome, IDLE)
    chrome.evaluate("new Promise(requestAnimationFrame)")


def press(chrome, key, shift=False):
    for kind in ("rawKeyDown", "keyUp"):
        chrome.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key],
                    modifiers=8 if shift else 0)


def click(chrome, selector, x=0.5, y=0.5):
    """A click of the mouse at these shares of an element's width and height."""
    box = chrome.evaluate(f"(e => (e.scrollIntoView({{block: 'center'}}), e.getBoundingClientRect().toJSON()))"
                          f"(document.querySelector({selector!r}))")
    where = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"], "button": "left", "clickCount": 1}
    for kind in ("mousePressed", "mouseReleased"):
        chrome.send("Input.dispatchMouseEvent", type=kind, **where)


def choose_file(chrome, path):
    root = chrome.send("DOM.getDocument")["root"]["nodeId"]
    node = chrome.send("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    chrome.send("DOM.setFileInputFiles", nodeId=node, files=[str(path)])


def told(chrome):
    """What the address says, a moment later: it is not written at once."""
    chrome.evaluate("new Promise(resolve => setTimeout(resolve, 200))")
    return dict(pair.split("=") for pair in chrome.evaluate("location.hash").lstrip("#").split("&"))


def test_the_page_loads_and_complains_of_nothing(chrome, home):
    visit(chrome, home)
    assert chrome.errors == [] and chrome.evaluate(ERROR) == ""
    loaded = chrome.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert loaded and all(name.startswith(home) for name in loaded)
    names = chrome.evaluate("[...document.querySelectorAll('.card:not([hidden]) h3')].map(e => e.textContent)")
    assert names == ["digits-unet", "optimal", "wiener", "locality", "kernel", "ls"]
    assert chrome.evaluate("document.querySelectorAll('#path-view td:not(.stale) canvas').length") == 60
    assert 0 < chrome.evaluate(R2) < 1
    fields = "[...document.querySelectorAll('.field:not([hidden]) strong')].map(e => e.textContent)"
    assert chrome.evaluate(fields) == ["Wiener filter", "digits-unet", "optimal", "locality", "kernel", "ls"]
    unnamed = "[...document.querySelectorAll('input, select, button')].filter(e => !(e.labels?.length || e.ariaLabel "
    assert chrome.evaluate(unnamed + "|| e.textContent.trim())).map(e => e.outerHTML)") == []


def test_a_click_on_a_pixel_of_any_image_shows_its_fields(chrome, home):
    visit(chrome, home + "#step=7")
    path = "#path-view tbody tr:nth-child(3) td:nth-child(6) canvas"
    for k, (image, step) in enumerate([("#card-locality .tile canvas", "7"), (path, "5"), (".field canvas", "5")]):
        before = chrome.evaluate(FIELD)
        click(chrome, image, x=(k + 0.5) / 8, y=6.5 / 8)
        see(chrome, f"{FIELD} !== {before!r} && {IDLE}")
        assert (told(chrome)["pixel"], told(chrome)["step"]) == (f"6,{k}", step)
        assert f"pixel (6, {k})" in chrome.evaluate("document.querySelector('#fields-view h2').textContent")


def test_a_slider_changes_r2_and_nothing_else_is_computed(chrome, home):
    visit(chrome, home)
    before = chrome.evaluate(R2)
    others = "[...document.querySelectorAll('.card:not(#card-locality) .score')].map(e => e.dataset.r2).join()"
    kept = chrome.evaluate(others)
    chrome.evaluate("document.getElementById('locality-threshold').focus()")
    press(chrome, "ArrowRight")
    see(chrome, f"{R2} !== {before} && {IDLE}")
    assert told(chrome)["locality.threshold"] == "0.07" and chrome.evaluate(others) == kept
    after = chrome.evaluate(R2)
    settled(chrome, "document.querySelectorAll('#card-locality .together button')[1].click()")
    assert chrome.evaluate(R2) != after and told(chrome)["locality.softmax"] == "batch-mean"


def test_the_noise_level_moves_everything(chrome, home):
    visit(chrome, home + "#step=3")
    before, field = chrome.evaluate(R2), chrome.evaluate(FIELD)
    settled(chrome, "(e => (e.value = 8, e.dispatchEvent(new Event('input'))))(document.getElementById('step'))")
    assert told(chrome)["step"] == "9" and chrome.evaluate(R2) != before and chrome.evaluate(FIELD) != field
    assert chrome.evaluate("document.querySelector('#step-view h2').textContent") == "Step 9 of 10, σ = 0.34"


def test_keys(chrome, home):
    visit(chrome, home + "#step=7&seed=3&pixel=4,4")
    for key, shift in (("ArrowRight", False), ("ArrowUp", False), ("ArrowUp", False), ("ArrowDown", True),
                       ("ArrowLeft", True)):
        press(chrome, key, shift)
    see(chrome, "location.hash.includes('seed=5') && location.hash.includes('step=8')")
    assert told(chrome)["pixel"] == "5,3"
    see(chrome, IDLE)


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "ring.png"
    Image.linear_gradient("L").resize((60, 40)).save(path)
    return path


def test_an_upload_is_denoised_and_its_address_shows_it_again(chrome, home, picture):
    visit(chrome, home + "#step=9")
    before = chrome.evaluate(R2)
    choose_file(chrome, picture)
    see(chrome, f"location.hash.includes('picture=') && {IDLE} && {R2} !== {before}")
    own = "document.querySelector('.card.own:not([hidden]) canvas')?.toDataURL()"
    score = "document.querySelector('#card-locality .score').innerText"
    shown, scored, address = chrome.evaluate(own), chrome.evaluate(score), chrome.evaluate("location.href")
    assert told(chrome)["step"] == "9" and shown and "rms to the picture" in scored and chrome.evaluate(ERROR) == ""
    visit(chrome, address)
    assert (chrome.evaluate(own), chrome.evaluate(score), chrome.evaluate("location.href")) == (shown, scored, address)
    settled(chrome, "document.getElementById('from-noise').click()")
    assert chrome.evaluate(R2) == before and "picture" not in told(chrome)


def test_a_dropped_picture(chrome, home):
    visit(chrome, home)
    chrome.evaluate("""(async () => {
        const canvas = new OffscreenCanvas(20, 20), data = new DataTransfer();
        canvas.getContext("2d").fillRect(0, 0, 20, 20);
        data.items.add(new File([await canvas.convertToBlob()], "black.png"));
        dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
    })()""")
    see(chrome, f"location.hash.includes('picture=AAAA') && {IDLE}")


def test_files_that_are_refused(chrome, home, tmp_path):
    large, text = tmp_path / "large.png", tmp_path / "notes.txt"
    with large.open("wb") as file:
        file.truncate(50 * 2**20)
    text.write_text("no picture at all")
    visit(chrome, home)
    for path, says in ((large, "The file large.png has 50 MB; the limit is 5 MB."),
                       (text, "Cannot use notes.txt: this file is not a PNG, JPEG or WebP picture.")):
        choose_file(chrome, path)
        see(chrome, f"{ERROR}.startsWith({says!r})")
        click(chrome, "#error button")
        see(chrome, f"{ERROR} === ''")
    assert "picture" not in told(chrome)


def test_the_address_restores_the_state(chrome, home):
    address = (home + "#seed=12&steps=20&step=15&pixel=1,2&reference=optimal&hidden=ls&locality.threshold=0.2"
               "&locality.softmax=batch-mean&kernel.bandwidth=0.45&ls.patch_size=5")
    visit(chrome, address)
    assert chrome.evaluate("location.href") == address
    value = "document.getElementById({!r}).value"
    assert [chrome.evaluate(value.format(name)) for name in ("seed", "step", "steps", "reference")] == [
        "12", "14", "20", "optimal"]
    assert chrome.evaluate("document.querySelector('#card-locality output').textContent") == "0.2"
    assert chrome.evaluate("document.querySelector('#card-optimal .score').innerText") == "reference"
    assert chrome.evaluate("document.getElementById('card-ls').hidden")
    assert "pixel (1, 2)" in chrome.evaluate("document.querySelector('#fields-view h2').textContent")


def test_what_does_not_fit_in_an_address_is_told(chrome, home):
    visit(chrome, home + "#seed=5&pixel=99,0&locality.threshold=7&no.such=1")
    assert chrome.evaluate(ERROR).startswith("Ignored settings in this URL that are not valid here: pixel=99,0, "
                                             "locality.threshold=7, no.such.")
    assert told(chrome)["seed"] == "5" and told(chrome)["pixel"] == "4,4"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_a_telephone(chrome, home, dark):
    visit(chrome, home, width=400, dark=dark)
    assert chrome.errors == []
    assert chrome.evaluate("document.documentElement.scrollWidth") == 400
    hidden = "(e => e.scrollWidth - e.clientWidth)(document.querySelector('.scroll'))"
    assert chrome.evaluate(hidden) > 100  # the whole path scrolls in its own box
    red, *_ = json.loads(chrome.evaluate("getComputedStyle(document.body).backgroundColor")
                         .replace("rgb(", "[").replace(")", "]"))
    assert red < 64 if dark else red > 240


def test_every_view_is_saved(chrome, home):
    visit(chrome, home + "#seed=4")
    chrome.evaluate("window.made = URL.createObjectURL; URL.createObjectURL = blob => (saved.push(blob), made(blob))")
    for view in ("step", "fields", "path"):
        text, image = saved(chrome, view)
        numbers = json.loads(text)
        assert numbers["seed"] == 4 and numbers["view"] == view and numbers["data"]["count"] == 600
        with Image.open(io.BytesIO(image)) as drawn:
            assert drawn.size[0] > 700 and np.mean(np.asarray(drawn.convert("L")) < 255) > 0.25  # the tiles, on white
        if view == "step":
            (row,) = (row for row in numbers["models"] if row["model"] == "locality")
            assert row["r2"] == chrome.evaluate(R2) and len(row["x0_hat"]) == 64


def saved(chrome, view):
    """The JSON and the PNG of a view."""
    chrome.evaluate("window.saved = []")
    chrome.evaluate(f"document.querySelectorAll('#{view}-view .saves button').forEach(button => button.click())")
    see(chrome, "saved.length === 2")
    contents = chrome.evaluate("""Promise.all(saved.map(blob => new Promise(resolve => {
        const reader = new FileReader();
        reader.onload = () => resolve(reader.result.split(",")[1]);
        reader.readAsDataURL(blob);
    })))""")
    return sorted((base64.b64decode(content) for content in contents), key=lambda data: data.startswith(b"\x89PNG"))


def test_progress_and_cancel(chrome, session, monkeypatch):
    slow = Slow(600.0)
    monkeypatch.setattr(session, "denoiser", lambda one: slow)
    with serving(session) as port:
        visit(chrome, f"http://127.0.0.1:{port}/#seed=77", idle=False)
        see(chrome, "document.getElementById('progress').value > 0 && !document.getElementById('cancel').hidden")
        see(chrome, "document.getElementById('status').textContent.includes('digits-unet: step 1 of 10')")
        press(chrome, "Escape")
        see(chrome, f"{IDLE} && document.getElementById('cancel').hidden")
        assert chrome.evaluate("document.getElementById('status').textContent").startswith("Cancelled.")
        until(lambda: not slow.active)
        assert slow.finished == 0 and chrome.errors == []


def test_an_app_that_is_gone_is_a_sentence(chrome, session):
    with serving(session) as port:
        visit(chrome, f"http://127.0.0.1:{port}/")
    chrome.evaluate("document.getElementById('seed-more').click()")
    see(chrome, f"{ERROR}.startsWith('The app does not respond.')")


def test_a_page_with_a_token_asks_with_it(chrome, session):
    with serving(session, token="geheim") as port:
        visit(chrome, f"http://127.0.0.1:{port}/?token=geheim#seed=4")
        assert 0 < chrome.evaluate(R2) < 1 and chrome.errors == []
        told(chrome)
        assert chrome.evaluate("location.search") == "?token=geheim"
