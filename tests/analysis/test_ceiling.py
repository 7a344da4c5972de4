"""The ceiling of agreement with a network, against closed forms and simulated fits."""

import math

import pytest
import torch

import scorelens
from scorelens.analysis.ceiling import (
    ceiling_of,
    effective_noise,
    expected_agreement,
    explained,
    explained_table,
    halves,
)
from tests.ground_truth.cases import image_set

VARIANCES = 4 * torch.arange(1, 61, dtype=torch.float64) ** -1.0


def test_what_two_networks_share_reaches_the_ceiling():
    """A = f + e_A, B = f + e_B: r2 of B is 1 - 2 u, that of f is 1 - u."""
    generator = torch.Generator().manual_seed(0)
    shape = 64, 1, 32, 32
    f = torch.randn(shape, generator=generator, dtype=torch.float64)
    a, b = (f + 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    another, shared = scorelens.r2(b, a), scorelens.r2(f, a)
    share = explained(shared, another)
    assert ceiling_of(another).mean().item() == pytest.approx(shared.mean().item(), abs=0.01)
    assert share.of_ceiling.mean == pytest.approx(1, abs=0.01) and share.of_ceiling.low < 1 < share.of_ceiling.high
    assert share.of_another.mean == pytest.approx(0.8 / 0.6, abs=0.03)
    assert "1.0" in explained_table({"f": share})


def test_shares_are_ratios_of_means_paired_by_sample():
    formula, another = torch.tensor([0.2, 0.6, 0.7]), torch.tensor([0.4, 0.8, 0.9])
    share = explained(formula, another)
    assert share.of_another.mean == pytest.approx(1.5 / 2.1)
    assert share.of_ceiling.mean == pytest.approx(1.5 / (0.7 + 0.9 + 0.95))
    assert share.of_another.low == pytest.approx(0.5) and share.of_another.high == pytest.approx(0.7 / 0.9)
    with pytest.raises(scorelens.ScorelensError, match="of the same samples, got 3 and 2"):
        explained(formula, another[:2])


@pytest.mark.parametrize("sigma", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("count", [20, 1000])
def test_effective_noise_of_white_data_is_a_quadratic(sigma, count):
    """d equal variances v: kappa^2 + kappa (v - s - v d / N) - s v = 0."""
    d, v, s = 60, 0.7, sigma**2
    b = v - s - v * d / count
    expected = (-b + math.sqrt(b**2 + 4 * s * v)) / 2
    assert effective_noise(torch.full((d,), v, dtype=torch.float64), sigma, count) == pytest.approx(expected, rel=1e-9)


def test_effective_noise_of_infinite_data_is_the_noise():
    assert effective_noise(VARIANCES, 0.5, 10**12) == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("count", [40, 200])
def test_theory_equals_simulated_fits(sigma, count):
    """The mean filter is the true one at kappa, and two filters differ by twice the spread; mean 0 is known."""
    generator, d = torch.Generator().manual_seed(0), len(VARIANCES)
    filters = []
    for _ in range(200):
        x = torch.randn(count, d, generator=generator, dtype=torch.float64) * VARIANCES.sqrt()
        covariance = x.T @ x / count
        filters.append(torch.linalg.solve(covariance + sigma**2 * torch.eye(d, dtype=torch.float64), covariance))
    fitted = torch.stack(filters)  # symmetric: covariance and its resolvent commute
    kappa, theory = effective_noise(VARIANCES, sigma, count), expected_agreement(VARIANCES, sigma, count)
    torch.testing.assert_close(fitted.mean(dim=0).diagonal(), VARIANCES / (VARIANCES + kappa), rtol=0, atol=0.02)
    noisy = VARIANCES + sigma**2
    pairs = fitted[::2] - fitted[1::2]
    assert theory.difference == pytest.approx((pairs.square() * noisy).sum(dim=(1, 2)).mean().item(), rel=0.05)
    assert theory.variation == pytest.approx((fitted.square() * noisy).sum(dim=(1, 2)).mean().item(), rel=0.05)
    assert theory.ceiling == pytest.approx((1 + theory.r2) / 2)


def test_halves_of_the_same_images_twice_agree_more_than_halves_of_few():
    few, many = image_set("smooth", 60, (1, 4, 5)), image_set("smooth", 600, (1, 4, 5))
    sigmas = [0.5, 2.0]
    small, large = halves(few, sigmas), halves(many, sigmas)
    assert [each.sigma for each in large] == sigmas
    assert all(a.r2 < b.r2 < 1 for a, b in zip(small, large, strict=True))
    with pytest.raises(scorelens.ScorelensError, match="need at least 6 images, got 3"):
        halves(image_set("smooth", 3), sigmas)
