"""Every closed form against independent float64 brute force, on all noise levels of the 10-step grid.

The tolerance is derived, not chosen: at most twice the error of the plain float32 formula with explicit differences,
plus 1e-6; in float64, 1e-9.
"""

import numpy as np
import pytest
import torch

import scorelens
from tests.ground_truth import brute_force
from tests.ground_truth.cases import KINDS, SHAPES, image_set

SIGMAS = scorelens.ddim_sigmas(10).tolist()
BATCH = 3


def noisy_batches(images, sigma):
    """z near training images, and z far from all of them (a sampling void), where many distances nearly tie."""
    eps = scorelens.seeded_noise(images.shape, range(BATCH))
    yield images[:BATCH] + sigma * eps
    yield max(sigma, 0.5) * eps


def truth_and_plain(name, z, images, sigma):
    """The answer in float64, and the same formula in float32."""
    results = []
    x64 = brute_force.floats(images.pixels)
    for dtype in (np.float64, np.float32):
        zs, xs = z.flatten(1).numpy().astype(dtype), x64.astype(dtype)
        if name == "optimal":
            answer = brute_force.optimal(zs, xs, sigma)
        elif name == "wiener":
            answer = brute_force.wiener(zs, xs, sigma)
        elif name == "smoothed":
            draws = torch.randn(10, *images.shape, generator=torch.Generator().manual_seed(0)).flatten(1).numpy()
            answer = brute_force.smoothed(zs, xs, sigma, draws.astype(dtype), 0.1)
        elif name == "locality":
            answer = brute_force.masked(zs, xs, sigma, brute_force.paper_masks(x64, sigma, 0.05))
        results.append(answer.reshape(z.shape))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimal", "locality", "wiener", "smoothed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "shape"), SHAPES)
def test_float32_error_is_at_most_twice_that_of_the_plain_formula(name, kind, n, shape):
    images = image_set(kind, n, shape)
    model = scorelens.build_denoiser(name, images, **({"threshold": 0.05} if name == "locality" else {}))
    for sigma in SIGMAS:
        for z in noisy_batches(images, sigma):
            truth, plain = truth_and_plain(name, z, images, sigma)
            error = np.abs(model(z, sigma).numpy() - truth).max()
            assert error <= 2 * np.abs(plain - truth).max() + 1e-6, f"sigma {sigma:.3g}"
            np.testing.assert_allclose(model(z.double(), sigma).numpy(), truth, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rule", ["paper", "published"])
@pytest.mark.parametrize("threshold", [0.005, 0.3])
def test_locality_masks_follow_either_rule(rule, threshold):
    """The published rule's masks may be empty: then the weights are uniform and the output is the mean."""
    images = image_set("smooth", 60, (1, 5, 4))
    x = brute_force.floats(images.pixels)
    for sigma in SIGMAS[2::3]:
        z = images[:BATCH].double() + sigma * scorelens.seeded_noise(images.shape, range(BATCH), dtype=torch.float64)
        keep = getattr(brute_force, f"{rule}_masks")(x, sigma, threshold)
        model = scorelens.build_denoiser("locality", images, threshold=threshold, mask_rule=rule)
        expected = brute_force.masked(z.flatten(1).numpy(), x, sigma, keep).reshape(z.shape)
        np.testing.assert_allclose(model(z, sigma).numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("batch", [7, 16, 1000])
def test_batch_mean_softmax_averages_batches_with_equal_weight(batch):
    images = image_set("smooth", 40)
    x, sigma = brute_force.floats(images.pixels), 0.4
    z = images[:BATCH].double() + sigma * scorelens.seeded_noise(images.shape, range(BATCH), dtype=torch.float64)
    model = scorelens.build_denoiser("locality", images, threshold=0.1, softmax="batch-mean", softmax_batch=batch)
    keep = brute_force.paper_masks(x, sigma, 0.1)
    expected = brute_force.batch_mean(z.flatten(1).numpy(), x, sigma, keep, batch).reshape(z.shape)
    np.testing.assert_allclose(model(z, sigma).numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["optimal", "locality"])
def test_temperature_divides_the_logits(name):
    """softmax(L / T) is the softmax at noise level sigma sqrt(T), with the masks of sigma."""
    images = image_set("smooth", 40)
    x, sigma, t = brute_force.floats(images.pixels), 0.4, 3.0
    z = images[:BATCH].double() + sigma
    keep = brute_force.paper_masks(x, sigma, 0.02) if name == "locality" else np.ones((20, 20), bool)
    expected = brute_force.masked(z.flatten(1).numpy(), x, sigma * np.sqrt(t), keep).reshape(z.shape)
    model = scorelens.build_denoiser(name, images, temperature=t)
    np.testing.assert_allclose(model(z, sigma).numpy(), expected, rtol=0, atol=1e-9)


def test_optimal_over_neighbours_averages_only_the_nearest():
    images = image_set("random", 40)
    x, sigma = brute_force.floats(images.pixels), 2.0
    z = images[:BATCH].double() + 0.3
    expected = []
    for zb in z.flatten(1).numpy():
        near = np.argsort(((zb - x) ** 2).sum(1))[:5]
        expected.append(brute_force.optimal(zb[None], x[near], sigma)[0])
    model = scorelens.build_denoiser("optimal", images, neighbours=5)
    np.testing.assert_allclose(model(z, sigma).flatten(1).numpy(), np.stack(expected), rtol=0, atol=1e-12)
