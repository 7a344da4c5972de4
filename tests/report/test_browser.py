"""The page in a real browser, on a telephone and on a desk."""

from pathlib import Path

import pytest

from scorelens.report.html import write_page
from tests.browser import chromium, inspect, screenshot, tab
from tests.report.pages import page_of_everything

pytestmark = [pytest.mark.browser, pytest.mark.skipif(chromium() is None, reason="needs a browser: install chromium")]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    write_page(page_of_everything(tmp_path), tmp_path / "page.html")
    return tmp_path / "page.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_fits_and_complains_of_nothing(page: Path, width: int, dark: bool) -> None:
    seen = inspect(page, width, dark=dark)
    assert seen["errors"] == []
    assert (seen["images"], seen["missing"], seen["distorted"]) == (1, [], [])
    assert seen["scrollWidth"] <= seen["innerWidth"] == width


def test_wide_tables_and_code_scroll_inside_themselves(page: Path) -> None:
    """What does not fit is not cut off: it scrolls in its own box, and the names of the rows stay in sight."""
    with tab() as chrome:
        chrome.open(page.as_uri(), 400, 900)
        hidden = "[...document.querySelectorAll('.scroll, pre')].map(e => e.scrollWidth - e.clientWidth)"
        assert min(chrome.evaluate(hidden)) > 100
        chrome.evaluate("document.querySelector('.scroll').scrollLeft = 300")
        left = "document.querySelector('tbody th').getBoundingClientRect().left"
        assert chrome.evaluate(left) == chrome.evaluate(left.replace("tbody th", ".scroll"))


def test_shades_show_in_light_and_dark(page: Path) -> None:
    """A stronger shade is a more opaque red; the picture gets its card in the dark only."""
    colours = "[...document.querySelectorAll('td.loss')].map(e => getComputedStyle(e).backgroundColor)"
    card = "getComputedStyle(document.querySelector('img')).paddingLeft"
    with tab() as chrome:
        for dark in (False, True):
            chrome.open(page.as_uri(), 1400, 900, dark=dark)
            opacity = [float(colour.rstrip(")").split(",")[3]) for colour in chrome.evaluate(colours)]
            assert 0 < opacity[0] < opacity[1] < 0.5
            assert (chrome.evaluate(card) != "0px") == dark


def test_the_inspector_sees_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text("<img src=missing.png alt=gone><div style='width: 500px'>wide</div>"
                    "<script>console.error('said'); undefined_name</script>")
    seen = inspect(path, 400)
    assert seen["missing"] == ["gone"] and seen["scrollWidth"] > 400
    assert all(any(word in error for error in seen["errors"]) for word in ("said", "undefined_name", "missing.png"))


def test_screenshot(page: Path, tmp_path: Path) -> None:
    from PIL import Image

    screenshot(page, tmp_path / "dark.png", 400, 300, dark=True)
    with Image.open(tmp_path / "dark.png") as image:
        assert image.size == (400, 300) and max(image.convert("RGB").getpixel((0, 0))) < 64
