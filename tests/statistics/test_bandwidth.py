"""The bandwidth that denoises held-out images best, against leaving every image out by hand."""

import numpy as np
import pytest
import torch

import scorelens
from scorelens.statistics import bandwidth, locality_masks
from scorelens.statistics.bandwidth import GRID, held_out_bandwidth
from tests.ground_truth.brute_force import floats, softmax
from tests.ground_truth.cases import image_set


def denoised_without(j, z, x, sigma, h, seen, q, projector=1):
    """Output(s) q of the kernel denoiser of all images but j, from the pixels seen."""
    x = np.delete(x, j, axis=0)
    mu, covariance = x.mean(0), np.cov(x, rowvar=False, ddof=1)
    covariance = covariance if np.isscalar(projector) else projector @ covariance @ projector
    m = mu + np.sqrt(1 - h**2) * (x - mu)
    k = h**2 * covariance[np.ix_(seen, seen)] + sigma**2 * np.eye(len(seen))
    solved = np.linalg.solve(k, (z - m)[:, seen].T)  # [m, n]
    weights = softmax(-((z - m)[:, seen].T * solved).sum(axis=0) / 2)
    return (m[:, q] + (h**2 * covariance[np.ix_(q, seen)] @ solved).T).T @ weights


def draws(images):
    """The order and the noise of the rule: its one seed."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(images), generator=generator).numpy()
    eps = torch.randn(len(images), images.dim, generator=generator, dtype=torch.float64).numpy()
    return order, eps, generator


@pytest.mark.parametrize(("n", "shape"), [(12, (1, 4, 5)), (40, (1, 3, 4)), (15, (3, 2, 3))])
@pytest.mark.parametrize("sigma", [0.05, 0.5, 3.0])
def test_errors_equal_leaving_each_image_out_by_hand(n, shape, sigma):
    """Its kernel, and its part in the mean and the covariance: closed form against a fit to the others."""
    images = image_set("smooth", n, shape)
    order, eps, _ = draws(images)
    x, everything = floats(images.pixels)[order], np.arange(images.dim)
    z = x + sigma * eps
    expected = [sum(((denoised_without(j, z[j], x, sigma, h, everything, everything) - x[j]) ** 2).sum()
                    for j in range(n)) for h in GRID]
    (problem,) = bandwidth._problems(images, scorelens.fit_gaussian(images), None)
    errors = bandwidth._errors(*problem, sigma, n)
    np.testing.assert_allclose(errors.numpy(), expected, rtol=1e-8)
    assert held_out_bandwidth(images, scorelens.fit_gaussian(images), sigma) == GRID[int(np.argmin(expected))]


def test_a_truncated_covariance_loses_an_image_within_its_components():
    images, sigma = image_set("smooth", 40, (1, 3, 4)), 0.1
    order, eps, _ = draws(images)
    stats, x, everything = scorelens.fit_gaussian(images), floats(images.pixels)[order], np.arange(12)
    u = stats.eigenvectors[:, :4].numpy()
    z = x + sigma * eps
    expected = [sum(((denoised_without(j, z[j], x, sigma, h, everything, everything, u @ u.T) - x[j]) ** 2).sum()
                    for j in range(40)) for h in GRID]
    (problem,) = bandwidth._problems(images, stats.truncated(rank=4), None)
    np.testing.assert_allclose(bandwidth._errors(*problem, sigma, 40).numpy(), expected, rtol=1e-8)


def test_masked_errors_are_those_of_a_few_outputs_by_hand(monkeypatch):
    monkeypatch.setattr(bandwidth, "MASKS", 3)
    images, sigma = image_set("smooth", 30), 0.4
    stats = scorelens.fit_gaussian(images)
    masks = locality_masks(stats, sigma, 0.2)
    masks[:5, :5] = False  # outputs that do not see themselves are left out
    order, eps, generator = draws(images)
    x = floats(images.pixels)[order]
    chosen = np.arange(5, 20)[torch.randperm(15, generator=generator)[:3].numpy()]
    expected = np.zeros(len(GRID))
    for q in chosen:
        seen = masks[q].nonzero()[:, 0].numpy()
        for j in range(30):
            guesses = [denoised_without(j, x[j] + sigma * eps[j], x, sigma, h, seen, np.array([q])) for h in GRID]
            expected += (np.stack(guesses)[:, 0] - x[j, q]) ** 2
    errors = sum(bandwidth._errors(*problem, sigma, 30) for problem in bandwidth._problems(images, stats, masks))
    np.testing.assert_allclose(errors.numpy(), expected, rtol=1e-8)
    assert held_out_bandwidth(images, stats, sigma, masks) == GRID[int(np.argmin(expected))]


def gaussian_images(n, d=6, seed=0):
    rng = np.random.default_rng(seed)
    pixels = 128 + rng.standard_normal((n, d)) @ np.diag([30, 25, 20, 15, 10, 5]) @ np.linalg.qr(rng.random((d, d)))[0]
    return scorelens.ImageSet(pixels.round().clip(0, 255).astype(np.uint8).reshape(n, 1, 2, d // 2), "gaussian")


def test_gaussian_data_ask_for_the_wiener_filter():
    images = gaussian_images(200)
    assert held_out_bandwidth(images, scorelens.fit_gaussian(images), 0.1) >= 0.9


def test_clustered_data_ask_for_narrow_kernels():
    """Eight tight clusters: a Gaussian over all of them fills the space between."""
    rng = np.random.default_rng(0)
    centres = rng.integers(40, 215, (8, 20))
    pixels = (centres[rng.integers(0, 8, 200)] + rng.integers(-2, 3, (200, 20))).astype(np.uint8).reshape(-1, 1, 4, 5)
    images = scorelens.ImageSet(pixels, "clusters")
    assert held_out_bandwidth(images, scorelens.fit_gaussian(images), 0.1) <= 0.1


def test_it_is_kept_by_content_and_noise_level(fresh_cache):
    images, other = image_set("smooth", 40), image_set("random", 40)
    first = [held_out_bandwidth(i, scorelens.fit_gaussian(i), sigma) for i in (images, other) for sigma in (0.1, 1.0)]
    assert len(list((fresh_cache / "bandwidth").iterdir())) == 4
    again = [held_out_bandwidth(i, scorelens.fit_gaussian(i), sigma) for i in (images, other) for sigma in (0.1, 1.0)]
    assert first == again and len(list((fresh_cache / "bandwidth").iterdir())) == 4
    masks = torch.ones(20, 20, dtype=torch.bool)
    held_out_bandwidth(images, scorelens.fit_gaussian(images), 0.1, masks)
    assert len(list((fresh_cache / "bandwidth").iterdir())) == 5


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_it_works_where_gradients_are_off(context, fresh_cache):
    images = image_set("smooth", 40)
    stats = scorelens.fit_gaussian(images)
    with context():
        found = held_out_bandwidth(images, stats, 0.3)
    assert found in GRID


def test_two_images_leave_nothing_to_hold_out():
    images = image_set("smooth", 2)
    assert held_out_bandwidth(images, scorelens.fit_gaussian(images), 0.3) == 1.0
