"""Noise levels and noise. The only home of DDPM's timestep t and alpha: everyone else knows sigma alone.

x_t = sqrt(a) x0 + sqrt(1 - a) eps is z = x_t / sqrt(a) = x0 + sigma eps with sigma^2 = (1 - a) / a.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.types import ScorelensError

TRAIN_STEPS = 1000


def ddpm_alphas() -> Float[Tensor, "1000"]:
    """DDPM's a_t: linear betas 1e-4 ... 0.02 over 1000 steps.

    The product is taken in float32, as diffusers does, and its values are kept: the same grid to the last digit.
    """
    betas = torch.linspace(1e-4, 0.02, TRAIN_STEPS, dtype=torch.float32)
    return torch.cumprod(1 - betas, dim=0).double()


def ddim_timesteps(n: int) -> list[int]:
    """n timesteps with leading spacing: 10 steps are 900, 800, ..., 0."""
    if not 1 <= n <= TRAIN_STEPS:
        raise ScorelensError(f"the number of steps must be between 1 and {TRAIN_STEPS}, got {n}")
    return [k * (TRAIN_STEPS // n) for k in reversed(range(n))]


def ddim_sigmas(n: int) -> Float[Tensor, "{n}"]:
    """The paper's grid: the n noise levels at which the denoiser is called, decreasing; the last step goes to 0.

    >>> ddim_sigmas(10)[-1].item()  # t = 0
    0.010000...
    """
    alphas = ddpm_alphas()[ddim_timesteps(n)]
    return ((1 - alphas) / alphas).sqrt()


def seeded_noise(shape: Iterable[int], seeds: Iterable[int], *, device: torch.device | str = "cpu",
                 dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal images [len(seeds), *shape]. Image k depends on seed k alone: drawn one by one, on the CPU."""
    shape = tuple(shape)
    draws = [torch.randn(shape, generator=torch.Generator().manual_seed(int(seed))) for seed in seeds]
    if not draws:
        raise ScorelensError("no seeds given: there is no noise to draw")
    return torch.stack(draws).to(device=device, dtype=dtype)
