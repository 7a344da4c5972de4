import numpy as np
import pytest
import torch

import scorelens
from scorelens.data.images import ImageSet
from scorelens.statistics import locality_masks, wiener_matrix
from scorelens.statistics import masks as masks_module
from tests.ground_truth import brute_force
from tests.ground_truth.cases import image_set


@pytest.mark.parametrize("sigma", [0.01, 0.5, 60.0])
def test_wiener_matrix_is_covariance_over_covariance_plus_noise(sigma):
    images = image_set("smooth", 60)
    expected = brute_force.wiener_matrix(brute_force.floats(images.pixels), sigma)
    got = wiener_matrix(scorelens.fit_gaussian(images), sigma).numpy()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rule", ["paper", "published"])
@pytest.mark.parametrize("threshold", [0.0, 0.005, 0.05, 0.5, 1.0])
def test_masks_equal_brute_force(rule, threshold):
    images = image_set("smooth", 60)
    for sigma in (0.05, 0.5, 5.0):
        expected = getattr(brute_force, f"{rule}_masks")(brute_force.floats(images.pixels), sigma, threshold)
        got = locality_masks(scorelens.fit_gaussian(images), sigma, threshold, rule)
        if threshold < 1:  # at 1 only the largest entry is left, a tie with itself up to round-off
            np.testing.assert_array_equal(got.numpy(), expected)
        assert rule == "published" or got.any(dim=1).all()


def test_masks_shrink_to_the_pixel_as_the_noise_vanishes():
    masks = locality_masks(scorelens.fit_gaussian(image_set("smooth", 60)), 1e-6, 0.02)
    assert torch.equal(masks, torch.eye(20, dtype=torch.bool))


def test_a_pixel_that_never_varies_has_the_mask_of_the_one_before_it():
    """Its row of the matrix is round-off, and any mask is right: neighbours stay alike."""
    pixels = image_set("smooth", 60).pixels.copy()
    pixels[:, 0, 0, 0] = pixels[:, 0, 1, 2] = pixels[:, 0, 1, 3] = 37
    masks = locality_masks(scorelens.fit_gaussian(ImageSet(pixels, "constant corner")), 0.3, 0.02)
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[7], masks[6])
    assert torch.equal(masks[8], masks[6])
    assert not masks[9].all()


def test_rounding_near_the_threshold_is_decided_in_float64(monkeypatch):
    """The threshold is set exactly on an entry: the mask must have it, and must lose it a hair above."""
    images = image_set("smooth", 60)
    stats = scorelens.fit_gaussian(images)
    w = wiener_matrix(stats, 0.5).abs()
    for q, k in [(3, 4), (7, 12), (19, 1)]:
        ratio = (w[q, k] / w[q].max()).item()
        assert locality_masks(stats, 0.5, ratio * (1 - 1e-12))[q, k]
        assert not locality_masks(stats, 0.5, ratio * (1 + 1e-12))[q, k]


def test_masks_do_not_depend_on_the_rows_held_at_a_time(monkeypatch):
    stats = scorelens.fit_gaussian(image_set("smooth", 60))
    whole = [locality_masks(stats, 0.5, 0.1, rule) for rule in ("paper", "published")]
    monkeypatch.setattr("scorelens.statistics.masks.ROWS", 3)
    monkeypatch.setattr("scorelens.statistics.masks.PAIR_ELEMENTS", 40)
    for rule, expected in zip(("paper", "published"), whole, strict=True):
        assert torch.equal(locality_masks(stats, 0.5, 0.1, rule), expected)


def test_published_masks_can_be_empty():
    """The threshold is relative to the whole matrix, so a pixel with small entries loses even itself."""
    rng = np.random.default_rng(0)
    strong = rng.integers(0, 256, (200, 1))
    weak = 128 + (strong - 128) // 12
    pixels = np.concatenate([strong, weak], axis=1).astype(np.uint8).reshape(200, 1, 1, 2)
    masks = locality_masks(scorelens.fit_gaussian(ImageSet(pixels, "pair")), 0.3, 0.5, "published")
    assert masks.tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize(("arguments", "message"), [((0.3, -0.1), "threshold"), ((0.3, 1.1), "threshold"),
                                                    ((0.3, 0.1, "papers"), "did you mean 'paper'")])
def test_impossible_masks_are_refused(arguments, message):
    with pytest.raises(scorelens.ScorelensError, match=message):
        locality_masks(scorelens.fit_gaussian(image_set("smooth", 60)), *arguments)


def test_large_masks_are_kept_on_disk_by_content(monkeypatch, fresh_cache):
    """The second call computes nothing; other data, noise levels, thresholds, rules and ranks have their own."""
    monkeypatch.setattr(masks_module, "LARGE", 1)
    monkeypatch.setattr(masks_module, "ROWS", 7)  # blocks that the symmetric matrix is made of
    stats = scorelens.fit_gaussian(image_set("smooth", 60))
    variants = [(stats, 0.5, 0.05, "paper"), (stats, 0.6, 0.05, "paper"), (stats, 0.5, 0.1, "paper"),
                (stats, 0.5, 0.05, "published"), (stats.truncated(rank=5), 0.5, 0.05, "paper"),
                (scorelens.fit_gaussian(image_set("random", 60)), 0.5, 0.05, "paper")]
    first = [locality_masks(*variant) for variant in variants]
    with monkeypatch.context() as patch:
        patch.setattr(masks_module, "MASK_RULES", dict.fromkeys(masks_module.MASK_RULES))
        for variant, masks in zip(variants, first, strict=True):
            assert torch.equal(locality_masks(*variant), masks)
    monkeypatch.setattr(masks_module, "LARGE", 10**6)
    for variant, masks in zip(variants, first, strict=True):
        assert torch.equal(locality_masks(*variant), masks)
