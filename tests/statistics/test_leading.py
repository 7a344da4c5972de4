"""The randomized leading components, against the exact ones."""

import pytest
import torch

import scorelens
from scorelens.statistics import wiener_matrix
from tests.ground_truth.cases import image_set

IMAGES = image_set("smooth", 200, (3, 6, 7))


def test_leading_components_approach_the_exact_ones():
    exact, leading = scorelens.fit_gaussian(IMAGES), scorelens.fit_gaussian(IMAGES, components=12)
    assert leading.eigenvectors.shape == (126, 12)
    torch.testing.assert_close(leading.mean, exact.mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(leading.eigenvalues, exact.eigenvalues[:12], rtol=1e-4, atol=0)
    torch.testing.assert_close(leading.eigenvectors.T @ leading.eigenvectors, torch.eye(12).double(), rtol=0, atol=1e-5)


def test_what_is_missing_is_told():
    exact, leading = scorelens.fit_gaussian(IMAGES), scorelens.fit_gaussian(IMAGES, components=12)
    expected = 1 - (exact.eigenvalues[:12].sum() / exact.eigenvalues.sum()).item()
    assert leading.missing == pytest.approx(expected, abs=1e-4)
    assert expected > 0.01
    assert exact.missing == 0


def test_wiener_matrix_of_the_leading_components_is_that_of_the_truncated_exact_ones():
    exact, leading = scorelens.fit_gaussian(IMAGES), scorelens.fit_gaussian(IMAGES, components=12)
    torch.testing.assert_close(wiener_matrix(leading, 0.5), wiener_matrix(exact.truncated(rank=12), 0.5), rtol=0,
                               atol=1e-2)


@pytest.mark.parametrize("name", ["wiener", "locality"])
def test_denoisers_take_the_leading_components(name):
    whole, leading = (scorelens.build_denoiser(name, IMAGES, components=k) for k in (None, 100))
    z = IMAGES[:2] + 0.5 * scorelens.seeded_noise(IMAGES.shape, range(2))
    scorelens.check_denoiser(leading)
    assert (whole(z, 0.5) - leading(z, 0.5)).abs().mean() < 0.02


def test_images_too_large_for_a_covariance_say_so(monkeypatch):
    monkeypatch.setattr("scorelens.statistics.moments.LARGEST_EXACT", 100)
    with pytest.raises(scorelens.ScorelensError, match="components"):
        scorelens.fit_gaussian(IMAGES)
    assert len(scorelens.fit_gaussian(IMAGES, components=3).eigenvalues) == 3


@pytest.mark.parametrize("components", [0, 127])
def test_impossible_numbers_of_components_are_refused(components):
    with pytest.raises(scorelens.ScorelensError, match="components must be between 1 and 126"):
        scorelens.fit_gaussian(IMAGES, components=components)
