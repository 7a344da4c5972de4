"""The computations of the page: equal to those of the public functions, kept within bounds, and safe with strangers."""

import io
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

import scorelens
from scorelens import ScorelensError, progress
from scorelens.app.jobs import Job
from scorelens.app.messages import Failure, Field, Nearest, Prediction, Stage, encode
from scorelens.app.pictures import read_picture
from scorelens.app.session import LRUCache, Session, Start
from scorelens.data.images import to_uint8

DENOISERS = ["optimal", "wiener", "locality:threshold=0.05", "ls:patch_size=4", "kernel:bandwidth=0.3"]


@pytest.fixture(scope="module")
def images():
    return scorelens.load_images("digits", split="train")


@pytest.fixture(scope="module")
def session(images):
    return Session(images, DENOISERS, ["digits-unet"])


def choices(session, *names, **options):
    return [session.choose(name, options.get(name, {})) for name in names]


def told(messages, kind):
    with torch.no_grad():
        return [message for message in messages if isinstance(message, kind)]


def test_walks_are_those_of_the_public_functions(session, images):
    network, locality = choices(session, "digits-unet", "locality", locality={"threshold": 0.1})
    moments = told(session.compare([locality], network, Start(seed=3)), Prediction)
    noise, sigmas = scorelens.seeded_noise(images.shape, [3]), scorelens.ddim_sigmas(10)
    with torch.no_grad():
        ours = scorelens.sample(scorelens.build_denoiser("locality", images, threshold=0.1), noise, sigmas)
        theirs = scorelens.sample(scorelens.load_network("digits-unet"), noise, sigmas)
    assert [moment.model for moment in moments] == ["locality"] * 10
    for moment, mine, other in zip(moments, ours.steps, theirs.steps, strict=True):
        torch.testing.assert_close(moment.z, mine.z[0])
        torch.testing.assert_close(moment.x0_hat, mine.x0_hat[0])
        assert moment.r2 == pytest.approx(scorelens.r2(mine.x0_hat, other.x0_hat).item(), abs=1e-5)
        assert moment.mse == pytest.approx(scorelens.mse(mine.x0_hat, other.x0_hat).item(), abs=1e-5)
        assert moment.picture_mse is None


def test_the_nearest_images_are_those_of_the_prediction_as_it_is_shown(session, images):
    (wiener,) = choices(session, "wiener")
    messages = list(session.compare([wiener], wiener, Start(seed=1)))
    (nearest,), moments = told(messages, Nearest), told(messages, Prediction)
    assert max(moment.x0_hat.abs().max() for moment in moments) > 1.02
    found = scorelens.novelty(torch.stack([moment.x0_hat.clamp(-1, 1) for moment in moments]), images)
    assert [indices[0] for indices in nearest.indices] == found.index.tolist()
    assert [rms[0] for rms in nearest.rms] == pytest.approx(found.rms.tolist())
    index = nearest.indices[-1][0]
    assert (nearest.images[index] == images.pixels[index]).all()
    assert nearest.classes[index] == str(images.labels[index])


def test_a_picture_is_noised_and_denoised_at_every_level(session, images):
    picture = images.pixels[7]
    network, wiener = choices(session, "digits-unet", "wiener")
    start = Start(seed=2, steps=5, picture=picture.tobytes())
    moments = told(session.compare([network, wiener], network, start), Prediction)
    x0, eps = images[[7]], scorelens.seeded_noise(images.shape, [2])
    model = scorelens.build_denoiser("wiener", images)
    for moment in moments[5:]:
        z = x0 + moment.sigma * eps
        torch.testing.assert_close(moment.z, z[0])
        torch.testing.assert_close(moment.x0_hat, model(z, moment.sigma)[0])
        assert moment.picture_mse == pytest.approx(scorelens.mse(moment.x0_hat[None], x0).item(), abs=1e-6)


def test_fields_name_the_training_images_behind_the_pixel(session, images):
    """The weights, images and mask of what has posterior weights; nothing for networks and the Wiener filter."""
    network, *models = [session.choose(name, {}) for name in session.models]
    step = list(session.steps(network, Start()))[6]
    messages = told(session.fields([network, *models], network, Start(), step=6, pixel=(2, 5)), Field)
    behind = {message.model: message.behind for message in messages}
    assert behind[None] is None and behind[network.model.id] is None
    (locality,) = [choice for choice in models if choice.model.id == "locality"]
    denoiser, found = session.denoiser(locality), behind["locality"]
    who = scorelens.attribute(denoiser, step.z, step.sigma, pixels=[(2, 5)], top=4).behind
    assert found.indices == who.index[0, 0].tolist() and found.weights == who.weight[0, 0].tolist()
    assert all((found.images[index] == images.pixels[index]).all() for index in found.indices)
    assert torch.equal(found.mask > 0, denoiser.masks(step.sigma).keep[2 * 8 + 5].view(8, 8))


def test_fields_begin_with_the_row_of_the_wiener_matrix(session, images):
    network, *models = choices(session, "digits-unet", "wiener", "locality", "optimal")
    messages = told(session.fields([network, *models], network, Start(), step=6, pixel=(2, 5)), Field)
    assert [message.model for message in messages] == [None, "digits-unet", "locality", "optimal"]
    assert messages[0].cosine == pytest.approx(1)
    with torch.no_grad():
        path = scorelens.sample(scorelens.load_network("digits-unet"), scorelens.seeded_noise(images.shape, [0]),
                                scorelens.ddim_sigmas(10)).steps
    z, sigma = path[6].z.double(), path[6].sigma
    for message, name in zip([messages[0], *messages[2:]], ["wiener", "locality", "optimal"], strict=True):
        options = {"threshold": 0.05} if name == "locality" else {}
        field = scorelens.sensitivity(scorelens.build_denoiser(name, images, **options), z, sigma, pixel=(2, 5))
        torch.testing.assert_close(message.values.double(), field[0, 0], rtol=1e-4, atol=1e-7)


def test_a_model_that_fails_says_why_and_the_others_go_on(session):
    network, *models = choices(session, "digits-unet", "ls", "wiener")  # a window of 4 pixels has no centre
    messages = list(session.compare(models, network, Start(steps=5)))
    assert [(failure.model, "even" in failure.error) for failure in told(messages, Failure)] == [("ls", True)]
    assert {moment.model for moment in told(messages, Prediction)} == {"wiener"}
    (failure,) = told(session.fields(models, network, Start(steps=5), 2, (0, 0)), Failure)
    assert failure.model == "ls"


@pytest.mark.parametrize(("name", "options", "says"), [
    ("localty", {}, "did you mean 'locality'"),
    ("locality", {"treshold": 0.1}, "did you mean 'threshold'"),
    ("locality", {"threshold": 0.123}, "one of 0.001, "),
    ("locality", {"softmax": "fast"}, "one of exact, batch-mean"),
    ("ls", {"patch_size": "/etc/passwd.json"}, "patch_size cannot be"),  # no address reads a file
    ("optimal", {"temperature": 2}, "unknown option"),
    ("digits-unet", {"network": "some/hub-id"}, "unknown option"),
])
def test_only_what_is_offered_is_built(session, name, options, says):
    with pytest.raises(ScorelensError, match=says):
        session.choose(name, options)


def test_controls_hold_what_was_given_among_what_is_offered(session):
    controls = {(model["id"], control["name"]): control for model in session.describe()["models"]
                for control in model["controls"]}
    assert set(controls) == {("locality", "threshold"), ("locality", "softmax"), ("ls", "patch_size"),
                             ("kernel", "bandwidth")}
    assert controls["ls", "patch_size"] == {"name": "patch_size", "values": [1, 3, 4, 5, 7, 15], "value": 4}
    assert controls["kernel", "bandwidth"]["values"][:3] == ["auto", 0, 0.05]
    assert json.dumps(session.describe(), allow_nan=False)


def test_models_of_the_same_name_are_told_apart(images):
    session = Session(images, ["locality", "locality:threshold=0.3,rank=9", "wiener"])
    assert [(model.id, model.label) for model in session.models.values()] == [
        ("locality", "locality"), ("locality-2", "locality, rank 9"), ("wiener", "wiener")]
    assert session.choose("locality-2", {"threshold": 0.1}).spec.options == {
        "threshold": 0.1, "rank": 9, "softmax": "exact"}


def test_the_moments_are_those_that_the_models_ask_for(session, images):
    assert session.denoiser(*choices(session, "locality")) is session.denoiser(*choices(session, "locality"))
    assert len(session.stats.eigenvalues) == 64
    assert len(Session(images, ["optimal", "wiener:components=9"]).stats.eigenvalues) == 9


def test_what_was_walked_is_walked_once(images, monkeypatch):
    session, calls = Session(images, ["wiener"]), []
    monkeypatch.setattr(session, "denoiser", lambda one: lambda z, sigma: calls.append(sigma) or z / (1 + sigma))
    (wiener,) = choices(session, "wiener")
    for _ in range(3):
        assert len(told(session.compare([wiener], wiener, Start(steps=5)), Prediction)) == 5
    assert len(calls) == 5
    assert len(told(session.compare([wiener], wiener, Start(seed=1, steps=5)), Prediction)) == 5
    assert len(calls) == 10


def test_no_more_is_kept_than_fits():
    kept = LRUCache(10, len)
    for k in range(8):
        kept.put(k, "xxx")
        kept.get(0)
    assert len(kept) == 3 and kept.get(0) == "xxx" and kept.get(5) is None and kept.get(7) == "xxx"


@pytest.mark.parametrize(("start", "says"), [
    ({"seed": -1}, "seed"), ({"seed": 2**32}, "seed"), ({"steps": 7}, "one of 5, 10, 20, 50"),
])
def test_starts_are_checked(start, says):
    with pytest.raises(ScorelensError, match=says):
        Start(**start)


def test_a_point_outside_is_refused(session):
    (wiener,) = choices(session, "wiener")
    for step, pixel, says in ((0, (8, 0), "outside"), (0, (0, -1), "outside"), (10, (0, 0), "no step 11")):
        with pytest.raises(ScorelensError, match=says):
            list(session.fields([], wiener, Start(), step, pixel))


def test_lines_hold_finite_numbers_and_whole_arrays():
    moment = Prediction("m", 0, 1.0, torch.tensor([1.5, -2.0]), torch.zeros(1), math.nan, math.inf, None)
    line = json.loads(encode(moment))
    assert (line["kind"], line["r2"], line["mse"], line["picture_mse"]) == ("prediction", None, None, None)
    assert line["z"] == "AADAPwAAAMA="  # 0x3fc00000, 0xc0000000, little-endian


def test_a_cancelled_job_stops_within_its_step():
    def messages():
        for k in range(10):
            seen.append(k)
            if k == 3:
                assert json.loads(job.progress_line)["done"] == pytest.approx(0.2)
                job.cancel()
            progress.fraction(k / 10)
        yield Stage("never", 0, 1)

    seen: list[int] = []
    job = Job(messages())
    assert job.advance() is None and seen == [0, 1, 2, 3]
    assert job.advance() is None


def test_a_mistake_in_a_job_is_its_last_line(caplog):
    def messages(error):
        yield Stage("model", 0, 1)
        raise error

    for error, says in ((ScorelensError("no such thing"), "no such thing"), (ZeroDivisionError("x"), "internal error")):
        job = Job(messages(error))
        lines = [json.loads(line) for batch in iter(job.advance, None) for line in batch.splitlines()]
        assert [line["kind"] for line in lines] == ["stage", "failure"]
        assert lines[1]["error"].startswith(says) and lines[1]["model"] is None
    assert "ZeroDivisionError" in caplog.text


def picture(kind="PNG", size=(30, 20), mode="RGB", colour=(255, 0, 0)):
    stream = io.BytesIO()
    Image.new(mode, size, colour).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 7)])
def test_pictures_become_like_the_data(kind, shape):
    pixels = read_picture(picture(kind), shape)
    assert pixels.shape == shape and pixels.dtype == np.uint8
    expected = [76] if shape[0] == 1 else [255, 0, 0]  # the luma of red
    np.testing.assert_allclose(pixels.mean(axis=(1, 2)), expected, atol=3)


def test_a_picture_of_the_datas_own_size_is_kept_as_it_is(images):
    stream = io.BytesIO()
    Image.fromarray(images.pixels[5, 0]).save(stream, "PNG")
    pixels = read_picture(stream.getvalue(), images.shape)
    assert (pixels == images.pixels[5]).all() and (to_uint8(images[5]) == pixels).all()


@pytest.mark.parametrize(("data", "says"), [
    (b"just some text", "PNG, JPEG or WebP"),
    (b"", "PNG, JPEG or WebP"),
    (picture("GIF", mode="L", colour=0), "PNG, JPEG or WebP"),
    (picture("TIFF"), "PNG, JPEG or WebP"),
    (picture("PNG", (300, 200))[:200], "cannot be decoded"),
    (picture("PNG", (5000, 5000), "1", 0), "5000 x 5000 pixels; the limit is 16 million"),
    (picture("PNG", (15000, 12000), "1", 0), "too many pixels"),  # Pillow itself refuses this one
])
def test_what_is_no_fit_picture_is_refused_in_a_sentence(data, says):
    with pytest.raises(ScorelensError, match=says):
        read_picture(data, (1, 8, 8))
