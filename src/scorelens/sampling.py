"""Trajectories of any denoiser, as generators: they yield steps, the caller decides what to keep, show or stop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import check_sigma, unknown


@dataclass(frozen=True)
class Step:
    """One call of the denoiser: x0_hat = denoiser(z, sigma), raw (not clipped)."""

    sigma: float
    z: Tensor
    x0_hat: Tensor
    z_next: Tensor


@dataclass(frozen=True)
class Samples:
    """`images`: the final, clipped images. `steps`: the trajectory, one entry per noise level."""

    images: Tensor
    steps: list[Step]


def ddim_step(z: Tensor, x0_hat: Tensor, sigma: float, sigma_next: float, clip: bool) -> Tensor:
    """z' = clip(x0_hat) + (sigma'/sigma) (z - x0_hat): only the first term is clipped, as diffusers does."""
    kept = x0_hat.clamp(-1, 1) if clip else x0_hat
    return kept + (sigma_next / sigma) * (z - x0_hat)


def ddim(denoiser: Denoiser, z: Tensor, sigmas: Sequence[float], clip: bool) -> Iterator[Step]:
    """Deterministic DDIM (Song et al. 2020, eta = 0). Without clipping it is Euler's method on dz/dsigma."""
    for sigma, sigma_next in _pairs(sigmas):
        x0_hat = denoiser(z, sigma)
        z_next = ddim_step(z, x0_hat, sigma, sigma_next, clip)
        yield Step(sigma, z, x0_hat, z_next)
        z = z_next


def heun(denoiser: Denoiser, z: Tensor, sigmas: Sequence[float], clip: bool) -> Iterator[Step]:
    """Heun's second-order method on dz/dsigma = (z - x0_hat)/sigma (Karras et al. 2022, Algorithm 1 without churn).

    The step to sigma' averages the slopes at both ends; the last one, to 0, is Euler's.
    """
    for sigma, sigma_next in _pairs(sigmas):
        x0_hat = denoiser(z, sigma)
        z_next = ddim_step(z, x0_hat, sigma, sigma_next, clip)
        if sigma_next > 0:
            slopes = (z - x0_hat) / sigma + (z_next - denoiser(z_next, sigma_next)) / sigma_next
            z_next = z + (sigma_next - sigma) * slopes / 2
        yield Step(sigma, z, x0_hat, z_next)
        z = z_next


def euler(denoiser: Denoiser, z: Tensor, sigmas: Sequence[float], clip: bool) -> Iterator[Step]:
    """Euler's method on dz/dsigma = (z - x0_hat)/sigma; `clip` has no part in it."""
    return ddim(denoiser, z, sigmas, clip=False)


def gradient_estimation(denoiser: Denoiser, z: Tensor, sigmas: Sequence[float], clip: bool, *,
                        gamma: float = 2.0) -> Iterator[Step]:
    """Gradient estimation (Permenter & Yuan 2024, mu = 0): Euler's step along gamma eps_k + (1 - gamma) eps_{k-1}.

    gamma = 1 is Euler, 2 the authors' choice. Second order would be gamma = 3/2 (Adams-Bashforth, on even steps): at 2
    a fine grid errs as much as Euler's, to the other side, and the gain is at few steps. `clip` has no part in it; the
    step to 0 looks back as well, so the image is not the last x0_hat.
    """
    eps_last: Tensor | None = None
    for sigma, sigma_next in _pairs(sigmas):
        x0_hat = denoiser(z, sigma)
        eps = (z - x0_hat) / sigma
        eps_av = eps if eps_last is None else gamma * eps + (1 - gamma) * eps_last
        z_next = z + (sigma_next - sigma) * eps_av
        yield Step(sigma, z, x0_hat, z_next)
        z, eps_last = z_next, eps


SAMPLERS = {"ddim": ddim, "euler": euler, "heun": heun, "gradient-estimation": gradient_estimation}


def trajectory(denoiser: Denoiser, noise: Tensor, sigmas: Iterable[float] | Tensor, *,
               method: str = "ddim", clip: bool = True) -> Iterator[Step]:
    """Steps from standard normal noise down the noise levels, and from the last one to sigma = 0.

    `noise` is DDPM's x_T: the start is z = x_T / sqrt(a) = x_T sqrt(1 + sigma_1^2). A final 0 in `sigmas` may be given.
    """
    if method not in SAMPLERS:
        raise unknown("sampler", method, SAMPLERS)
    levels = _decreasing(sigmas)
    return SAMPLERS[method](denoiser, noise * math.sqrt(1 + levels[0] ** 2), levels, clip)


def sample(denoiser: Denoiser, noise: Tensor, sigmas: Iterable[float] | Tensor, *,
           method: str = "ddim", clip: bool = True) -> Samples:
    """The whole trajectory. The defaults equal diffusers' DDIMScheduler at its own, on `ddim_sigmas(n)`."""
    steps = list(trajectory(denoiser, noise, sigmas, method=method, clip=clip))
    return Samples(finished(steps[-1], clip), steps)


def finished(last: Step, clip: bool = True) -> Tensor:
    """The final images of a trajectory that has reached sigma = 0."""
    return last.z_next.clamp(-1, 1) if clip else last.z_next


def _decreasing(sigmas: Iterable[float] | Tensor) -> list[float]:
    """The positive noise levels; a final 0 is where the last step goes anyway."""
    levels = [float(sigma) for sigma in sigmas]
    if levels and levels[-1] == 0:
        levels.pop()
    if not levels:
        raise ScorelensError("no noise levels given: sigmas needs at least one number > 0")
    for sigma in levels:
        check_sigma(sigma)
    if any(a <= b for a, b in pairwise(levels)):
        raise ScorelensError(f"sigmas must decrease, got {', '.join(f'{s:g}' for s in levels)}")
    return levels


def _pairs(sigmas: Sequence[float]) -> Iterator[tuple[float, float]]:
    return zip(sigmas, [*sigmas[1:], 0.0], strict=True)
