"""How well a prediction from the data alone can agree with a trained network, which also depends on its seed.

Two networks that differ in the seed are f + e_A and f + e_B, where f is what they share and e is independent and as
large. Then E ||A - B||^2 = 2 E ||e||^2, while f itself is only E ||e||^2 away from A: with r2 = 1 - ||difference||^2 /
||variation of A||^2, another seed has r2 = 1 - 2 u and f has 1 - u. So no prediction can be expected to exceed
(1 + r2 of another seed) / 2, and r2 of a formula is a share of it. Networks trained on halves of the data differ in
their data too. For linear filters that part is known in closed form (Wang, Zavatone-Veth & Pehlevan, arXiv 2602.02908).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.metrics import Interval, bootstrap, bootstrap_ratio
from scorelens.noise import seeded_noise
from scorelens.report.tables import markdown
from scorelens.statistics import fit_gaussian, shrinkage
from scorelens.types import ScorelensError

STEPS = 200  # of bisection, to the last digit


def ceiling_of(another: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """The r2 that the best prediction can be expected to have, given r2 of another seed, for each sample."""
    return (1 + another) / 2


@dataclass(frozen=True)
class Explained:
    """r2 of a formula beside that of another seed on the same samples, and as shares of what can be explained."""

    formula: Interval
    another: Interval
    ceiling: Interval
    of_another: Interval  # r2 of the formula / r2 of another seed
    of_ceiling: Interval  # r2 of the formula / the ceiling


def explained(formula: Float[Tensor, "n"], another: Float[Tensor, "m"]) -> Explained:
    """The share of a network that a formula explains, from r2 of each sample; bootstrapped over samples, in pairs."""
    if formula.shape != another.shape:
        raise ScorelensError(f"r2 of the formula and of another seed must be of the same samples, got "
                             f"{len(formula)} and {len(another)}")
    formula, another = formula.double(), another.double()
    ceiling = ceiling_of(another)
    return Explained(bootstrap(formula), bootstrap(another), bootstrap(ceiling), bootstrap_ratio(formula, another),
                     bootstrap_ratio(formula, ceiling))


def explained_table(shares: Mapping[str, Explained]) -> str:
    """One line for each name, as Markdown."""
    def cell(interval: Interval) -> str:
        return f"{interval.mean:.3f} ({interval.low:.3f} … {interval.high:.3f})"

    header = ["", "r2", "another seed", "ceiling", "share of another seed", "share of the ceiling"]
    return markdown(header, [[name, *map(cell, (each.formula, each.another, each.ceiling, each.of_another,
                                                each.of_ceiling))] for name, each in shares.items()])


def effective_noise(variances: Float[Tensor, "k"], sigma: float, count: int) -> float:
    """kappa >= sigma^2: a Wiener filter fitted to `count` images is on average the true one at this noise variance.

    kappa = sigma^2 + kappa df1(kappa) / N with df1 = sum_k lambda_k / (lambda_k + kappa), solved by bisection.
    """
    variance = variances.double()
    low, high = sigma**2, sigma**2 + variance.sum().item() / count
    for _ in range(STEPS):
        kappa = (low + high) / 2
        excess = kappa - sigma**2 - (variance * kappa / (variance + kappa)).sum().item() / count
        low, high = (kappa, high) if excess < 0 else (low, kappa)
    return high


@dataclass(frozen=True)
class FilterAgreement:
    """Two Wiener filters, fitted to different images, on the same noisy images: squared differences per image."""

    sigma: float
    difference: float  # E ||A z - B z||^2
    variation: float  # E ||A (z - mu)||^2

    @property
    def r2(self) -> float:
        return 1 - self.difference / self.variation

    @property
    def ceiling(self) -> float:
        """r2 of the mean filter with one of them."""
        return (1 + self.r2) / 2


def expected_agreement(variances: Float[Tensor, "k"], sigma: float, count: int) -> FilterAgreement:
    """The agreement of filters fitted to two independent sets of `count` images from data with these variances.

    The fitted filter A has mean W = Lambda (Lambda + kappa)^-1, and for z of covariance B = Lambda + sigma^2,
    E ||(A - W) z||^2 = kappa^2 tr[Lambda (Lambda + kappa)^-2] tr[B Lambda (Lambda + kappa)^-2] / (N - df2),
    df2 = tr[Lambda^2 (Lambda + kappa)^-2], for many images and components.
    """
    variance, kappa = variances.double(), effective_noise(variances, sigma, count)
    gain, noisy = variance / (variance + kappa), variance + sigma**2
    slope = gain / (variance + kappa)  # Lambda (Lambda + kappa)^-2
    spread = kappa**2 * slope.sum() * (noisy * slope).sum() / (count - gain.square().sum())
    return FilterAgreement(sigma, 2 * spread.item(), ((noisy * gain.square()).sum() + spread).item())


def halves(images: ImageSet, sigmas: Sequence[float], *, count: int = 256, seed: int = 0) -> list[FilterAgreement]:
    """The measured agreement of Wiener filters fitted to two random halves of the images, on noisy images of a third
    part: `count` images that neither saw. Both filters act around the mean of the two halves, as the theory takes the
    mean for known: at high noise, predictions differ by little else."""
    count = min(count, len(images) // 3)
    if count < 1 or len(images) - count < 4:
        raise ScorelensError(f"{images.name}: two halves and a rest need at least 6 images, got {len(images)}")
    order = np.random.default_rng(seed).permutation(len(images))
    parts = [images.subset(np.sort(rows)) for rows in np.array_split(order[count:], 2)]
    first, second = (fit_gaussian(part) for part in parts)
    mean = (first.mean + second.mean) / 2
    x0, noise = images[order[:count]].flatten(1).double(), seeded_noise(images.shape, range(count)).flatten(1).double()

    def agreement(sigma: float) -> FilterAgreement:
        a, b = (((x0 + sigma * noise - mean) @ s.eigenvectors * shrinkage(s, sigma)) @ s.eigenvectors.T
                for s in (first, second))
        return FilterAgreement(sigma, (a - b).square().sum(dim=1).mean().item(),
                               a.square().sum(dim=1).mean().item())

    return [agreement(sigma) for sigma in sigmas]
