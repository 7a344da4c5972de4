"""The paper's propositions, as statements about losses: the closed forms are minimizers."""

import pytest
import torch

import scorelens
from scorelens.networks.adapters import from_epsilon
from tests.ground_truth.cases import image_set


def quadrature(images, sigma, draws=4000):
    """Noisy images of known origin: enough of them that losses differ by more than chance."""
    rng = torch.Generator().manual_seed(0)
    which = torch.randint(len(images), (draws,), generator=rng)
    x0 = images[:].double()[which]
    return x0, x0 + sigma * torch.randn(x0.shape, generator=rng, dtype=torch.float64)


@pytest.mark.slow
def test_the_posterior_mean_has_the_least_loss():
    """Prop. opt-denoiser-x0: no perturbation of the optimal denoiser, smooth or not, has a smaller E |f(z) - x0|^2."""
    images, sigma = image_set("smooth", 12, (1, 3, 4)), 0.5
    x0, z = quadrature(images, sigma)
    best = scorelens.build_denoiser("optimal", images)(z, sigma)
    loss = (best - x0).square().sum()
    others = ("wiener", "locality", "nearest", "smoothed", "kernel", "ls")
    rivals = [scorelens.build_denoiser(name, images)(z, sigma) for name in others]
    rivals += [best + 0.05, 0.98 * best, best + 0.05 * torch.sin(3 * z), best + 0.05 * (z - best)]
    for rival in rivals:
        assert loss < (rival - x0).square().sum()


def test_the_best_epsilon_implies_the_best_x0():
    """Prop. opt-denoiser-eps: E[eps | z] = (z - E[x0 | z]) / sigma, so that x0 = z - sigma eps recovers it."""
    images, sigma = image_set("smooth", 12, (1, 3, 4)), 0.5
    x0, z = quadrature(images, sigma)
    best = scorelens.build_denoiser("optimal", images)(z, sigma)
    epsilon, truth = (z - best) / sigma, (z - x0) / sigma
    loss = (epsilon - truth).square().sum()
    for rival in (epsilon + 0.05, 0.98 * epsilon, epsilon + 0.05 * torch.sin(3 * z)):
        assert loss < (rival - truth).square().sum()
    torch.testing.assert_close(from_epsilon(epsilon, z, sigma), best, rtol=0, atol=1e-12)
