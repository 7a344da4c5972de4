"""What must hold between denoisers and at their limits, whatever the data."""

import dataclasses

import numpy as np
import pytest
import torch

import scorelens
from scorelens.data.images import ImageSet
from tests.ground_truth.brute_force import floats
from tests.ground_truth.cases import image_set

SIGMAS = scorelens.ddim_sigmas(10).tolist()
POSTERIORS = ["optimal", "locality", "smoothed"]


def noisy(images, sigma, count=3, dtype=torch.float32):
    return (images[:count] + sigma * scorelens.seeded_noise(images.shape, range(count))).to(dtype)


def test_locality_with_all_ones_masks_is_optimal():
    images = image_set("smooth", 50, (3, 3, 4))
    whole = scorelens.build_denoiser("optimal", images)
    local = scorelens.build_denoiser("locality", images, threshold=0)
    for sigma in SIGMAS:
        z = noisy(images, sigma, dtype=torch.float64)
        torch.testing.assert_close(local(z, sigma), whole(z, sigma), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [*POSTERIORS, "wiener", "nearest"])
def test_identical_images_are_returned(name):
    pixels = np.broadcast_to(np.arange(20, dtype=np.uint8).reshape(1, 1, 4, 5) * 12, (6, 1, 4, 5)).copy()
    images = ImageSet(pixels, "identical")
    for sigma in SIGMAS:
        torch.testing.assert_close(scorelens.build_denoiser(name, images)(noisy(images, sigma), sigma), images[:3],
                                   rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["optimal", "nearest", "smoothed"])
def test_a_single_image_is_returned(name):
    images = image_set("random", 1)
    out = scorelens.build_denoiser(name, images)(scorelens.seeded_noise(images.shape, range(2)), 0.3)
    torch.testing.assert_close(out, images[[0, 0]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["wiener", "locality"])
def test_a_single_image_has_no_statistics(name):
    with pytest.raises(scorelens.ScorelensError, match="at least 2 images"):
        scorelens.build_denoiser(name, image_set("random", 1))


@pytest.mark.parametrize("name", [*POSTERIORS, "wiener"])
def test_overwhelming_noise_leaves_the_mean(name):
    images = image_set("smooth", 50)
    mean = images[:].double().mean(0)
    out = scorelens.build_denoiser(name, images)(noisy(images, 1e6, dtype=torch.float64), 1e6)
    torch.testing.assert_close(out, mean.expand_as(out), rtol=0, atol=1e-4)


def test_vanishing_noise_leaves_the_nearest_image():
    images = image_set("random", 50)
    z = noisy(images, 0.3)
    torch.testing.assert_close(scorelens.build_denoiser("optimal", images)(z, 1e-4),
                               scorelens.build_denoiser("nearest", images)(z, 1e-4), rtol=0, atol=0)


@pytest.mark.parametrize("name", [*POSTERIORS, "nearest"])
def test_order_of_the_data_changes_nothing(name):
    images = image_set("smooth", 50)
    order = np.random.default_rng(0).permutation(50)
    stats = {"stats": scorelens.fit_gaussian(images)} if name == "locality" else {}
    for sigma in SIGMAS:
        z = noisy(images, sigma)
        one, other = (scorelens.build_denoiser(name, i, **stats)(z, sigma) for i in (images, images.subset(order)))
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", POSTERIORS)
def test_chunks_and_batches_change_nothing(name):
    """A workspace of a few images, an uneven last chunk, a batch split in two: the same numbers."""
    images = image_set("smooth", 53)
    whole = scorelens.build_denoiser(name, images)
    tight = scorelens.build_denoiser(name, images, memory=5000)
    for sigma in SIGMAS:
        z = noisy(images, sigma, count=7)
        expected = whole(z, sigma)
        torch.testing.assert_close(tight(z, sigma), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.cat([whole(z[:3], sigma), whole(z[3:], sigma)]), expected, rtol=0, atol=1e-5)


def test_batch_mean_does_not_depend_on_the_workspace():
    images = image_set("smooth", 53)
    z = noisy(images, 0.5)
    one, other = (scorelens.build_denoiser("locality", images, softmax="batch-mean", softmax_batch=20, memory=m)(z, 0.5)
                  for m in (3000, 2**24))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_smoothed_without_perturbation_is_optimal():
    images = image_set("smooth", 50)
    z = noisy(images, 0.7)
    torch.testing.assert_close(scorelens.build_denoiser("smoothed", images, scale=0)(z, 0.7),
                               scorelens.build_denoiser("optimal", images)(z, 0.7), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("n", "shape"), [(200, (1, 3, 4)), (8, (1, 3, 4))])
def test_wiener_is_the_posterior_mean_of_gaussian_data(n, shape):
    """x ~ N(mu, S), z = x + sigma eps: E[x | z] = mu + S (S + sigma^2 I)^-1 (z - mu)."""
    images = image_set("smooth", n, shape)
    x = torch.from_numpy(floats(images.pixels))
    mu, s = x.mean(0), torch.cov(x.T)
    for sigma in SIGMAS:
        z = noisy(images, sigma, dtype=torch.float64)
        gain = torch.linalg.solve(s + sigma**2 * torch.eye(len(s), dtype=torch.float64), s)
        expected = mu + (z.flatten(1) - mu) @ gain
        torch.testing.assert_close(scorelens.build_denoiser("wiener", images)(z, sigma).flatten(1), expected,
                                   rtol=0, atol=1e-9)


def test_an_energy_cut_off_is_the_wiener_filter_of_the_components_kept():
    images = image_set("smooth", 60)
    stats = scorelens.fit_gaussian(images)
    squares = stats.eigenvalues.square()
    kept = next(k for k in range(21) if squares[k:].sum() <= 0.05 * squares.sum())
    z = noisy(images, 0.4)
    assert 1 <= kept < 20
    torch.testing.assert_close(scorelens.build_denoiser("wiener", images, energy=0.05)(z, 0.4),
                               scorelens.build_denoiser("wiener", images, rank=kept)(z, 0.4), rtol=0, atol=0)
    cut = dataclasses.replace(stats, eigenvalues=stats.eigenvalues * (torch.arange(20) < kept))
    torch.testing.assert_close(scorelens.build_denoiser("locality", images, energy=0.05)(z, 0.4),
                               scorelens.build_denoiser("locality", images, stats=cut)(z, 0.4), rtol=0, atol=0)


def test_half_precision_is_computed_in_single():
    images = image_set("smooth", 30)
    for name in scorelens.DENOISERS:
        model = scorelens.build_denoiser(name, images)
        z = noisy(images, 0.5, dtype=torch.bfloat16)
        torch.testing.assert_close(model(z, 0.5), model(z.float(), 0.5).bfloat16(), rtol=0, atol=0)
