"""Linearity and gain of denoisers whose Jacobian is known."""

import pytest
import torch

import scorelens
from scorelens.analysis.probes import gain_along, linearity
from scorelens.statistics.masks import wiener_matrix
from scorelens.types import ScorelensError
from tests.ground_truth.cases import image_set

SHAPE = (1, 4, 4)


def pair(scale=1.0):
    z = scorelens.seeded_noise(SHAPE, range(3), dtype=torch.float64)
    return z, z + scale * scorelens.seeded_noise(SHAPE, range(5, 8), dtype=torch.float64)


def linear(matrix):
    return lambda z, sigma: (z.flatten(1) @ matrix.T).view_as(z)


def random_matrix():
    return torch.randn(16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_wiener_filter_is_linear_and_symmetric():
    found = linearity(scorelens.build_denoiser("wiener", image_set("random", 12, SHAPE)), *pair(), 1.0)
    assert found.nonlinearity < 1e-12 and found.asymmetry < 1e-6


def test_asymmetry_by_its_definition():
    a = random_matrix()
    exact = ((a - a.T).norm() / (2 * a.norm())).item()
    assert linearity(linear(a), *pair(), 1.0, probes=200).asymmetry == pytest.approx(exact, rel=0.1)
    assert linearity(linear(a - a.T), *pair(), 1.0).asymmetry == pytest.approx(1)
    assert linearity(linear(a + a.T), *pair(), 1.0).asymmetry == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_nonlinearity_by_its_definition():
    """f(z) = z^2: f(z') - f(z) - J (z' - z) = (z' - z)^2."""
    z, other = pair()
    exact = ((other - z).pow(4).sum() / (other.square() - z.square()).square().sum()).item()
    found = linearity(lambda z, sigma: z.square(), z, other, 1.0, probes=2000)
    assert found.nonlinearity == pytest.approx(exact, rel=0.1)


def test_the_optimal_denoiser_is_linear_only_at_high_noise():
    images = image_set("random", 12, SHAPE)
    model = scorelens.build_denoiser("optimal", images)

    def at(sigma):
        x, noise = images[:6].double(), scorelens.seeded_noise(SHAPE, range(6), dtype=torch.float64)
        return linearity(model, x[:3] + sigma * noise[:3], x[3:] + sigma * noise[3:], sigma)

    assert at(50.0).nonlinearity < 0.02 < 0.3 < at(0.5).nonlinearity
    assert at(2.0).asymmetry < 1e-6  # a posterior covariance is symmetric


def test_gain_along_a_pattern():
    """u^T W u, for the Wiener filter."""
    images = image_set("random", 12, SHAPE)
    model, pattern = scorelens.build_denoiser("wiener", images), torch.arange(16.0).view(SHAPE)
    u = (pattern / pattern.norm()).flatten().double()
    expected = u @ wiener_matrix(model.stats, 0.8).double() @ u
    torch.testing.assert_close(gain_along(model, pair()[0], 0.8, pattern), expected.expand(3), rtol=1e-6, atol=1e-9)


def test_no_gradient_is_named():
    with pytest.raises(ScorelensError, match="no gradient"):
        linearity(lambda z, sigma: z.detach(), *pair(), 1.0)
