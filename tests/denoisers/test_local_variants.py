"""The relatives of the locality model: other weights, other sources, other masks."""

import numpy as np
import pytest
import torch

import scorelens
from scorelens.denoisers.measured import measured_sensitivity
from scorelens.denoisers.pspc import SHARES, SIZES, edm_sigmas
from scorelens.statistics.masks import mass_masks, recentred
from tests.ground_truth import brute_force
from tests.ground_truth.cases import image_set

SIGMAS = [0.1, 1.0]
SHAPES = [(1, 4, 5), (3, 4, 3)]


def noisy(images, sigma, count=3):
    return (images[:count] + sigma * scorelens.seeded_noise(images.shape, range(count))).double()


def check(model, expected, z, sigma):
    np.testing.assert_allclose(model(z, sigma).flatten(1).numpy(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_soft_locality_weighs_pixels_by_the_wiener_matrix(shape):
    images = image_set("smooth", 40, shape)
    x = brute_force.floats(images.pixels)
    model = scorelens.build_denoiser("soft-locality", images, memory=5000)
    for sigma in SIGMAS:
        w, z = np.abs(brute_force.wiener_matrix(x, sigma)), noisy(images, sigma)
        precisions = w / w.max(axis=1, keepdims=True)
        check(model, brute_force.weighted(z.flatten(1).numpy(), x, sigma, precisions), z, sigma)


@pytest.mark.parametrize("shape", SHAPES)
def test_equivariant_locality_is_locality_over_all_translations_with_the_masks_of_the_data(shape):
    images = image_set("smooth", 15, shape)
    x = brute_force.floats(images.pixels)
    model = scorelens.build_denoiser("locality-equivariant", images, threshold=0.1, memory=50_000)
    for sigma in SIGMAS:
        z, keep = noisy(images, sigma), brute_force.paper_masks(x, sigma, 0.1)
        moved = brute_force.translations(x, shape)
        check(model, brute_force.masked(z.flatten(1).numpy(), moved, sigma, keep), z, sigma)


def golden_subset(z, x, images, sigma, seed=0):
    """Draw, pool, keep; then keep by all pixels."""
    n = len(x)
    g = 1 - sigma / np.sqrt(1 + sigma**2)
    smallest, largest = round(n / 20), round(n / 10)
    drawn = np.random.default_rng(seed).permutation(n)[:round(largest + (n - largest) * g)]
    c, h, w = images.shape

    def pooled(v):
        blocks = v.reshape(c, h // 2, 2, w // 2, 2)
        return blocks.mean(axis=(2, 4)).ravel()

    coarse = sorted(drawn, key=lambda i: ((pooled(z) - pooled(x[i])) ** 2).sum())[:largest]
    return sorted(coarse, key=lambda i: ((z - x[i]) ** 2).sum())[:round(largest - (largest - smallest) * g)]


def test_golden_subset_is_locality_over_few_images():
    images = image_set("smooth", 200, (1, 4, 6))
    x = brute_force.floats(images.pixels)
    model = scorelens.build_denoiser("golden", images, threshold=0.2)
    for sigma in [0.1, 1.0, 20.0]:
        z, keep = noisy(images, sigma), brute_force.published_masks(x, sigma, 0.2)
        expected = [brute_force.masked(zb[None], x[golden_subset(zb, x, images, sigma)], sigma, keep)[0]
                    for zb in z.flatten(1).numpy()]
        check(model, np.stack(expected), z, sigma)


def test_golden_subset_of_all_images_is_locality():
    images = image_set("smooth", 50, (3, 4, 5))
    whole = scorelens.build_denoiser("locality", images, threshold=0.1, mask_rule="published")
    golden = scorelens.build_denoiser("golden", images, threshold=0.1, smallest=1.0, largest=1.0)
    for sigma in SIGMAS:
        z = noisy(images, sigma)
        torch.testing.assert_close(golden(z, sigma), whole(z, sigma), rtol=0, atol=1e-9)


def test_mass_masks_keep_the_fewest_entries_that_hold_the_share():
    sensitivity = torch.tensor([[0.1, 0.4, 0.3, 0.2], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert mass_masks(sensitivity, 0.5).tolist() == [[False, True, True, False], [True, False, False, False]]
    assert mass_masks(sensitivity, 0.7).tolist()[0] == [False, True, True, False]
    assert mass_masks(sensitivity, 0.71).tolist()[0] == [False, True, True, True]
    assert mass_masks(sensitivity, 1.0).tolist() == [[True] * 4, [True, False, False, False]]
    with pytest.raises(scorelens.ScorelensError, match="share"):
        mass_masks(sensitivity, 0.0)


def test_recentred_fields_are_one_field_moved():
    """Fields that are translations of one kernel come back as they were, at every pixel."""
    kernel = torch.rand(9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def field(row, column):
        return kernel[4 - row:9 - row, 4 - column:9 - column]

    pixels = [(0, 0), (4, 4), (0, 4), (4, 0), (2, 1)]
    shared = recentred(torch.stack([field(*pixel) for pixel in pixels]), pixels)
    for row in range(5):
        for column in range(5):
            torch.testing.assert_close(shared[row, column], field(row, column), rtol=0, atol=1e-12)


def wiener_sensitivity(x, sigma, shape):
    """|d sum_c x0_hat[c, q] / d z[c', k]| summed over c': the Wiener filter's is the same at every z."""
    c, h, w = shape
    matrix = brute_force.wiener_matrix(x, sigma).reshape(c, h * w, c, h * w)
    return np.abs(matrix.sum(axis=0)).sum(axis=1)


def mass(sensitivity, share):
    keep = np.zeros(sensitivity.shape, bool)
    for row, values in zip(keep, sensitivity, strict=True):
        order = np.argsort(-values, kind="stable")
        row[order[:np.searchsorted(values[order].cumsum(), share * values.sum() * (1 - 1e-12)) + 1]] = True
    return keep


@pytest.mark.parametrize("shape", SHAPES)
def test_measured_masks_of_the_wiener_filter(shape):
    """A mask for each place, shared by its channels, from the filter's own rows."""
    images = image_set("smooth", 40, shape)
    x, c = brute_force.floats(images.pixels), shape[0]
    model = scorelens.build_denoiser("measured", images, network=scorelens.build_denoiser("wiener", images), share=0.6,
                                     per_pixel=True, samples=2)
    for sigma in SIGMAS:
        z, keep = noisy(images, sigma), np.tile(mass(wiener_sensitivity(x, sigma, shape), 0.6), (c, c))
        check(model, brute_force.masked(z.flatten(1).numpy(), x, sigma, keep), z, sigma)


def test_shared_fields_are_alike_up_to_translation():
    images = image_set("smooth", 40, (3, 5, 6))
    fields = measured_sensitivity(images, None, False, 2, 0)(0.5).view(5, 6, 5, 6)
    torch.testing.assert_close(fields[1, 1, 0:3, 0:3], fields[2, 3, 1:4, 2:5], rtol=1e-12, atol=0)


def test_pspc_flex_writes_whole_masks():
    shape = (3, 4, 3)
    images = image_set("smooth", 40, shape)
    x = brute_force.floats(images.pixels)
    model = scorelens.build_denoiser("pspc-flex", images, share=0.6, samples=2, memory=8000)
    for sigma in SIGMAS:
        windows = np.tile(mass(wiener_sensitivity(x, sigma, shape), 0.6) | np.eye(12, dtype=bool), (1, 3))
        z = noisy(images, sigma)
        check(model, brute_force.composite(z.flatten(1).numpy(), x, sigma, windows), z, sigma)


def test_pspc_published_settings():
    sigmas = edm_sigmas(18)
    assert len(SIZES) == len(SHARES) == 18
    assert sigmas[0] == pytest.approx(80) and sigmas[-1] == pytest.approx(0.002)
    images = image_set("smooth", 9, (1, 32, 32))
    model = scorelens.build_denoiser("pspc-square", images)
    assert [model.posterior(sigma).queries.size for sigma in sigmas] == list(SIZES)
    flex = scorelens.build_denoiser("pspc-flex", image_set("smooth", 20, (1, 4, 5)), samples=1)
    assert flex.posterior(80.0).queries.keep.all() and not flex.posterior(0.002).queries.keep.all()


def test_a_field_of_one_pixel_is_that_of_the_whole_image():
    """`at` computes a few outputs alone, for masks by coordinate and by place, over images and translations."""
    images = image_set("smooth", 20, (3, 4, 3))
    pixels = torch.tensor([3, 17, 35])
    z = noisy(images, 0.4)
    for name, options in [("locality", {}), ("soft-locality", {}), ("locality-equivariant", {}), ("measured", {})]:
        model = scorelens.build_denoiser(name, images, **options)
        torch.testing.assert_close(model.at(z, 0.4, pixels), model(z, 0.4).flatten(1)[:, pixels], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "options", "message"), [
    ("golden", {"smallest": 0.5, "largest": 0.2}, "smallest"), ("golden", {"largest": 1.5}, "largest"),
    ("measured", {"samples": 0}, "samples"), ("pspc-square", {"patch_size": 0}, "at least 1")])
def test_impossible_options_are_refused(name, options, message):
    with pytest.raises(scorelens.ScorelensError, match=message):
        scorelens.build_denoiser(name, image_set("smooth", 20, (1, 4, 5)), **options)
