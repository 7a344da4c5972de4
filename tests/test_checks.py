"""`check_denoiser` passes every denoiser we ship, and for each property fails a model that lacks just that one."""

import pytest
import torch

import scorelens
from scorelens.checks import PROPERTIES
from tests.ground_truth.cases import image_set

IMAGES = image_set("smooth", 40, (3, 4, 5))


@pytest.mark.slow
@pytest.mark.parametrize("name", scorelens.DENOISERS)
@pytest.mark.parametrize("shape", [(1, 4, 5), (3, 5, 3)])
def test_every_denoiser_has_every_property(name, shape):
    scorelens.check_denoiser(scorelens.build_denoiser(name, image_set("smooth", 40, shape)))


@pytest.mark.slow
def test_digits_too():
    digits = scorelens.load_images("digits", limit=200)
    for name in scorelens.DENOISERS:
        scorelens.check_denoiser(scorelens.build_denoiser(name, digits), digits)


def test_a_plain_function_will_do():
    scorelens.check_denoiser(lambda z, sigma: z / (1 + sigma**2))


class Broken:
    """The Wiener filter, with one thing wrong."""

    converges_to_mean = True
    images = IMAGES

    def __init__(self, lacks):
        self.lacks, self.inner, self.calls = lacks, scorelens.build_denoiser("wiener", IMAGES), 0

    def __call__(self, z, sigma):
        self.calls += 1
        out = self.inner(z, sigma)
        if self.lacks == "input unchanged":
            z += 1
        return {
            "shape": lambda: out[:, :1],
            "dtype": lambda: out.float(),
            "device": lambda: out.to("meta"),
            "input unchanged": lambda: out,
            "deterministic": lambda: out + self.calls,
            "batch invariant": lambda: out - out.mean(dim=0),
            "finite": lambda: out / 0 if sigma < 0.02 else out,
            "levels": lambda: self.inner(z, sigma if isinstance(sigma, float) else sigma.max()),
            "mean limit": lambda: out + 0.1,
            "nothing": lambda: out,
        }[self.lacks]()


@pytest.mark.parametrize("lacks", PROPERTIES)
def test_a_model_without_a_property_fails_it_by_name(lacks):
    with pytest.raises(scorelens.PropertyError, match=f"^{lacks}: "):
        scorelens.check_denoiser(Broken(lacks))


def test_that_model_with_nothing_wrong_passes():
    scorelens.check_denoiser(Broken("nothing"))


def test_nearest_is_exempt_from_the_mean_limit():
    nearest = scorelens.build_denoiser("nearest", IMAGES)
    scorelens.check_denoiser(nearest)
    z = IMAGES[:1] + 1e5 * scorelens.seeded_noise(IMAGES.shape, [0])
    assert (nearest(z, 1e5) - IMAGES[:].mean(0)).abs().max() > 0.1


def test_something_that_returns_no_tensor():
    with pytest.raises(scorelens.PropertyError, match="shape: .*tensor"):
        scorelens.check_denoiser(lambda z, sigma: (z,))


@pytest.mark.parametrize("name", scorelens.DENOISERS)
@pytest.mark.parametrize(("z", "sigma", "message"), [
    (torch.zeros(1, 3, 4, 5), 0.0, "sigma"), (torch.zeros(1, 3, 4, 5), -1.0, "sigma"),
    (torch.zeros(1, 3, 4, 5), float("nan"), "sigma"), (torch.zeros(1, 3, 4, 5), torch.ones(2), "sigma"),
    (torch.zeros(1, 1, 4, 5), 1.0, "shape"), (torch.zeros(3, 4, 5), 1.0, "shape"),
    (torch.full((1, 3, 4, 5), torch.nan), 1.0, "NaN"), (torch.zeros(1, 3, 4, 5, dtype=torch.int64), 1.0, "floating")])
def test_impossible_input_is_refused_in_one_line(name, z, sigma, message):
    with pytest.raises(scorelens.ScorelensError, match=message) as caught:
        scorelens.build_denoiser(name, IMAGES)(z, sigma)
    assert "\n" not in str(caught.value)


def test_unknown_denoisers_and_options_are_refused_with_the_nearest_name():
    with pytest.raises(scorelens.ScorelensError, match="did you mean 'locality'"):
        scorelens.build_denoiser("lokality", IMAGES)
    with pytest.raises(scorelens.ScorelensError, match="did you mean 'threshold'"):
        scorelens.build_denoiser("locality", IMAGES, treshold=0.1)
