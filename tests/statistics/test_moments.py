import multiprocessing
import os

import numpy as np
import pytest
import torch

import scorelens
from scorelens.data.images import ImageSet
from scorelens.files import cache_folder
from scorelens.statistics import moments
from tests.ground_truth.brute_force import floats
from tests.ground_truth.cases import SHAPES, image_set


@pytest.mark.parametrize(("n", "shape"), SHAPES)
def test_moments_equal_numpy(n, shape):
    images = image_set("smooth", n, shape)
    x = floats(images.pixels)
    stats = scorelens.fit_gaussian(images, cache=False)
    covariance = stats.eigenvectors @ torch.diag(stats.eigenvalues) @ stats.eigenvectors.T
    np.testing.assert_allclose(stats.mean.numpy(), x.mean(0), rtol=0, atol=1e-14)
    np.testing.assert_allclose(covariance.numpy(), np.cov(x, rowvar=False), rtol=0, atol=1e-13)
    assert stats.count == n


@pytest.mark.slow
def test_second_moment_is_exact_for_any_pixels():
    """Extreme pixels, more than one chunk, more than one tile: integers, so equality."""
    rng = np.random.default_rng(0)
    pixels = rng.choice(np.array([0, 255], np.uint8), (2100, 3, 14, 13))
    total, second = moments._raw_moments(ImageSet(pixels, "extreme"))
    v = pixels.reshape(2100, -1).astype(np.int64) - 128
    assert np.array_equal(total.numpy(), v.sum(0))
    assert np.array_equal(second.numpy(), v.T @ v)


def test_components_are_orthonormal_and_sorted():
    stats = scorelens.fit_gaussian(image_set("smooth", 60), cache=False)
    torch.testing.assert_close(stats.eigenvectors.T @ stats.eigenvectors, torch.eye(20, dtype=torch.float64))
    assert (stats.eigenvalues.diff() <= 0).all()
    assert stats.eigenvalues.min() >= 0


def test_fewer_images_than_coordinates_leave_the_rest_exactly_zero():
    stats = scorelens.fit_gaussian(image_set("random", 6, (1, 4, 5)), cache=False)
    assert len(stats.eigenvalues) == 20
    assert (stats.eigenvalues[:5] > 0).all()
    assert (stats.eigenvalues[5:] == 0).all()


def test_energy_cut_off_counts_squared_variances():
    values = torch.tensor([3.0, 2.0, 1.0, 0.5], dtype=torch.float64)  # squares 9, 4, 1, 0.25: total 14.25
    stats = scorelens.GaussianStats(torch.zeros(4).double(), values, torch.eye(4).double(), 10)
    assert stats.truncated(energy=0.0).eigenvalues.tolist() == [3, 2, 1, 0.5]
    assert stats.truncated(energy=0.25 / 14.25 + 1e-9).eigenvalues.tolist() == [3, 2, 1, 0]
    assert stats.truncated(energy=1.25 / 14.25 - 1e-9).eigenvalues.tolist() == [3, 2, 1, 0]
    assert stats.truncated(energy=0.5).eigenvalues.tolist() == [3, 0, 0, 0]
    assert stats.truncated(rank=2).eigenvalues.tolist() == [3, 2, 0, 0]


@pytest.mark.parametrize(("cut", "message"), [({"rank": 5}, "rank"), ({"rank": -1}, "rank"),
                                              ({"energy": 1.0}, "energy"), ({"energy": -0.1}, "energy")])
def test_impossible_cut_offs_are_refused(cut, message):
    stats = scorelens.GaussianStats(torch.zeros(4).double(), torch.ones(4).double(), torch.eye(4).double(), 10)
    with pytest.raises(scorelens.ScorelensError, match=message):
        stats.truncated(**cut)


def test_cache_serves_the_same_content_and_nothing_else(monkeypatch):
    first = image_set("smooth", 30, seed=5)
    expected = scorelens.fit_gaussian(first)
    fits = []
    monkeypatch.setattr(moments, "_fit", lambda images: fits.append(images.name) or _original(images))
    renamed = ImageSet(first.pixels.copy(), "another name")
    torch.testing.assert_close(scorelens.fit_gaussian(renamed).eigenvalues, expected.eigenvalues, rtol=0, atol=0)
    assert fits == []
    changed = first.pixels.copy()
    changed[7, 0, 1, 1] ^= 1
    scorelens.fit_gaussian(ImageSet(changed, first.name))
    assert fits == [first.name]


_original = moments._fit


def test_a_damaged_cache_file_is_fitted_again():
    images = image_set("smooth", 30, seed=6)
    expected = scorelens.fit_gaussian(images)
    newest = max(cache_folder("gaussian").glob("*.safetensors"), key=os.path.getmtime)
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.warns(UserWarning, match="is damaged"):
        torch.testing.assert_close(scorelens.fit_gaussian(images).mean, expected.mean)
    torch.testing.assert_close(scorelens.fit_gaussian(images).mean, expected.mean)


def _fit_eigenvalues(seed):
    return scorelens.fit_gaussian(image_set("smooth", 30, seed=seed)).eigenvalues.numpy()


@pytest.mark.slow
def test_two_processes_may_fit_at_once():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        one, other = pool.map(_fit_eigenvalues, [7, 7], chunksize=1)
    np.testing.assert_array_equal(one, other)
    assert not [p for p in cache_folder("gaussian").iterdir() if p.name.startswith(".")]


def test_an_unusable_cache_folder_is_named(monkeypatch):
    monkeypatch.setenv("SCORELENS_CACHE", "/dev/null/cache")
    with pytest.raises(scorelens.ScorelensError, match="SCORELENS_CACHE"):
        scorelens.fit_gaussian(image_set("smooth", 30, seed=8))
