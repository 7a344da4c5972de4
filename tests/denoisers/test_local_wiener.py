"""The Wiener filter of the nearest images, against explicit loops and dense solves in float64."""

import numpy as np
import pytest
import torch

import scorelens
from scorelens.denoisers.local_wiener import local_wiener
from tests.ground_truth.brute_force import floats, wiener
from tests.ground_truth.cases import KINDS, SHAPES, image_set, pairwise

SIGMAS = scorelens.ddim_sigmas(10).tolist()


def brute_force_local_wiener(z, x, sigma, k, rho):
    """The k images nearest to the Wiener filter's answer; their mean, and their covariance mixed with that of all."""
    d = x.shape[1]
    everything, noise = np.cov(x, rowvar=False, ddof=1), sigma**2 * np.eye(d)
    out = []
    for zb, estimate in zip(z, wiener(z, x, sigma), strict=True):
        near = x[np.argsort([((estimate - xi) ** 2).sum() for xi in x], kind="stable")[:k]]
        mean = near.mean(axis=0)
        own = sum(np.outer(xi - mean, xi - mean) for xi in near) / max(1, k - 1)
        s = (1 - rho) * own + rho * everything
        out.append(mean + s @ np.linalg.solve(s + noise, zb - mean))
    return np.stack(out)


def noisy(images, sigma, count=5, dtype=torch.float64):
    return (images[:count] + sigma * scorelens.seeded_noise(images.shape, range(count))).to(dtype)


@pytest.mark.parametrize(("k", "rho", "kind", "size"), pairwise([1, 6, 40], [0.0, 0.1, 1.0], KINDS, SHAPES))
def test_local_wiener_equals_brute_force(k, rho, kind, size):
    """Fewer neighbours than pixels, and more."""
    images, n = image_set(kind, *size), size[0]
    model, x = local_wiener(images, neighbours=k, shrinkage=rho), floats(images.pixels)
    for sigma in SIGMAS:
        z = noisy(images, sigma)
        truth = brute_force_local_wiener(z.flatten(1).numpy(), x, sigma, min(k, n), rho)
        np.testing.assert_allclose(model(z, sigma).flatten(1).numpy(), truth, rtol=0, atol=1e-9)
        single = model(z.float(), sigma).flatten(1).numpy()
        again = brute_force_local_wiener(z.float().double().flatten(1).numpy(), x, sigma, min(k, n), rho)
        np.testing.assert_allclose(single, again, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("n", "shape"), SHAPES)
def test_with_all_images_it_is_the_wiener_filter(rho, n, shape):
    """Both covariances divide by N - 1: they are equal, at every noise level."""
    images = image_set("smooth", n, shape)
    model = local_wiener(images, neighbours=n, shrinkage=rho)
    for sigma in SIGMAS:
        z = noisy(images, sigma)
        torch.testing.assert_close(model(z, sigma), scorelens.build_denoiser("wiener", images)(z, sigma), rtol=0,
                                   atol=1e-9)


def test_clusters_are_denoised_by_their_own_statistics():
    """Two clusters far apart, each varying along its own pixel: near one, the variance between them is not seen."""
    rng = np.random.default_rng(0)
    pixels = np.full((80, 1, 1, 4), 40, np.uint8)
    pixels[:40, 0, 0, 0], pixels[40:, 0, 0, 1] = rng.integers(20, 60, 40), rng.integers(20, 60, 40)
    pixels[40:, 0, 0, 2:] = 220
    images = scorelens.ImageSet(pixels, "clusters")
    z = (images[:1] + torch.tensor([0.0, 0.5, 0.4, 0.4])).double()
    local = local_wiener(images, neighbours=40, shrinkage=0.0)(z, 0.3).flatten()
    torch.testing.assert_close(local[1:], images[0].flatten()[1:].double(), rtol=0, atol=1e-6)
    assert (scorelens.build_denoiser("wiener", images)(z, 0.3).flatten()[2:] - local[2:]).min() > 0.2


@pytest.mark.parametrize("sigma", [0.15, 0.6, 5.0])
def test_gradient_equals_finite_differences(sigma):
    images = image_set("smooth", 20, (1, 3, 4))
    model = local_wiener(images, neighbours=6)
    z = noisy(images, sigma, count=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: model(z, sigma), z, eps=1e-6, atol=1e-6, rtol=1e-4)


def test_batches_change_nothing():
    images = image_set("smooth", 53)
    model = local_wiener(images, neighbours=10)
    z = noisy(images, 0.5, count=7)
    torch.testing.assert_close(torch.cat([model(one, 0.5) for one in z.split(1)]), model(z, 0.5), rtol=0, atol=1e-12)


@pytest.mark.parametrize("neighbours", [5, 500])
@pytest.mark.parametrize("shape", [(1, 4, 5), (3, 5, 3)])
def test_every_property(neighbours, shape):
    model = local_wiener(image_set("smooth", 40, shape), neighbours=neighbours)
    assert model.converges_to_mean == (neighbours >= 40)
    scorelens.check_denoiser(model)


@pytest.mark.parametrize(("options", "message"), [
    ({"neighbours": 0}, "neighbours must be at least 1, got 0"), ({"shrinkage": -0.1}, "shrinkage must be between"),
    ({"shrinkage": 1.1}, "shrinkage must be between")])
def test_impossible_options_are_refused(options, message):
    with pytest.raises(scorelens.ScorelensError, match=message):
        local_wiener(image_set("smooth", 40), **options)
