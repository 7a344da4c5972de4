"""Noise levels and noise. The only home of DDPM's timestep t and alpha: everyone else knows sigma alone.

x_t = sqrt(a) x0 + sqrt(1 - a) eps is z = x_t / sqrt(a) = x0 + sigma eps with sigma^2 = (1 - a) / a.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.types import ScorelensError
from scorelens.validation import unknown

TRAIN_STEPS = 1000
ROUNDING = 1e-5  # relative: how far beyond the ends of a schedule a noise level still counts as the end


def ddpm_alphas() -> Float[Tensor, "1000"]:
    """DDPM's a_t: linear betas 1e-4 ... 0.02 over 1000 steps.

    The product is taken in float32, as diffusers does, and its values are kept: the same grid to the last digit.
    """
    return _products(linear_betas(1e-4, 0.02, TRAIN_STEPS))


def ddim_timesteps(n: int, steps: int = TRAIN_STEPS) -> list[int]:
    """n of a schedule's timesteps with leading spacing: 10 of 1000 are 900, 800, ..., 0."""
    if not 1 <= n <= steps:
        raise ScorelensError(f"the number of steps must be between 1 and {steps}, got {n}")
    return [k * (steps // n) for k in reversed(range(n))]


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


def own_sigmas(schedule: Schedule, n: int) -> Float[Tensor, "{n}"]:
    """The paper's grid on a network's own steps (leading spacing); where it has none, the paper's grid itself."""
    if isinstance(schedule, DiscreteSchedule):
        return schedule.sigmas[ddim_timesteps(n, len(schedule.sigmas))]
    return ddim_sigmas(n)


@runtime_checkable
class Schedule(Protocol):
    """How a network counts noise: it is called with x_t = scale(sigma) * z at its own time(sigma), within `range`."""

    @property
    def kind(self) -> str: ...

    @property
    def range(self) -> tuple[float, float]: ...

    def time(self, sigma: float) -> float: ...

    def scale(self, sigma: float) -> float: ...


@dataclass(frozen=True, eq=False)
class DiscreteSchedule:
    """DDPM's steps t = 0 ... T-1 with their a_t: x_t = sqrt(a) z. A last a of 0, pure noise, is no noise level of z."""

    alphas: Float[Tensor, "steps"]
    kind: str

    def __post_init__(self) -> None:
        a = self.alphas
        if not (len(a) > 1 and (a.diff() < 0).all() and a[0] < 1 and a[-2] > 0 and a[-1] >= 0):
            raise ScorelensError(f"these {self.kind} betas are no noise schedule: it takes two or more, in (0, 1)")

    @cached_property
    def sigmas(self) -> Float[Tensor, "steps"]:
        """The noise level of every step, increasing; the last may be infinite."""
        return ((1 - self.alphas) / self.alphas).sqrt()

    @cached_property
    def _levels(self) -> list[float]:
        return self.sigmas[self.sigmas.isfinite()].tolist()

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest noise level the network was trained on."""
        return self._levels[0], self._levels[-1]

    def time(self, sigma: float) -> float:
        """t, continuous: log sigma is interpolated between the steps; exact at them."""
        low, high = self.range
        if not low * (1 - ROUNDING) <= sigma <= high * (1 + ROUNDING):
            raise ScorelensError(f"sigma = {sigma:.5g} is outside this network's noise levels, {low:.5g} to {high:.5g}")
        sigma, levels = min(max(sigma, low), high), self._levels
        after = min(bisect_right(levels, sigma), len(levels) - 1)
        return after - 1 + math.log(sigma / levels[after - 1]) / math.log(levels[after] / levels[after - 1])

    def scale(self, sigma: float) -> float:
        return 1 / math.sqrt(1 + sigma ** 2)  # sqrt(a)

    def sigma(self, timestep: float | Tensor) -> float:
        """The noise level of a step, given once or [B] times; linear between two, as diffusers' schedulers do."""
        steps = torch.as_tensor(timestep, dtype=torch.float64).flatten()
        t, last = float(steps[0]), len(self.sigmas) - 1
        if not (bool((steps == t).all()) and 0 <= t <= last):
            raise ScorelensError(f"timestep must be one number from 0 to {last}, got {steps.tolist()}")
        below = min(int(t), last - 1)
        return float(torch.lerp(self.sigmas[below], self.sigmas[below + 1], t - below))


def given_sigmas(sigmas: Sequence[float]) -> DiscreteSchedule:
    """The schedule whose steps have these noise levels."""
    return DiscreteSchedule(1 / (1 + torch.tensor(sigmas, dtype=torch.float64) ** 2), "given")


@dataclass(frozen=True)
class FlowSchedule:
    """Flow matching's x_s = (1 - s) x0 + s eps, 0 < s < 1: sigma = s / (1 - s), and the network's time is s * steps."""

    kind: ClassVar[str] = "flow"
    range: ClassVar[tuple[float, float]] = (0.0, math.inf)
    steps: int = TRAIN_STEPS

    def time(self, sigma: float) -> float:
        return self.steps * sigma / (1 + sigma)

    def scale(self, sigma: float) -> float:
        return 1 / (1 + sigma)  # 1 - s


@dataclass(frozen=True)
class SigmaSchedule:
    """For a network that knows sigma, as EDM's D(z, sigma) does: its time is sigma itself, and z is not scaled."""

    kind: ClassVar[str] = "sigma"
    range: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def time(self, sigma: float) -> float:
        return sigma

    def scale(self, sigma: float) -> float:
        return 1.0


def beta_schedule(kind: str = "linear", *, start: float = 1e-4, end: float = 0.02, steps: int = TRAIN_STEPS,
                  zero_snr: bool = False) -> DiscreteSchedule:
    """The schedule of a kind in BETAS, named as diffusers names them; `zero_snr` ends it in pure noise."""
    if kind not in BETAS:
        raise unknown("beta schedule", kind, BETAS)
    return _discrete(BETAS[kind](start, end, steps), kind, zero_snr)


def given_betas(betas: Sequence[float], *, zero_snr: bool = False) -> DiscreteSchedule:
    """The schedule of these betas, one for each step."""
    return _discrete(torch.tensor(betas, dtype=torch.float32), "given", zero_snr)


def linear_betas(start: float, end: float, steps: int) -> Float[Tensor, "{steps}"]:
    """DDPM (Ho et al. 2020)."""
    return torch.linspace(start, end, steps, dtype=torch.float32)


def scaled_linear_betas(start: float, end: float, steps: int) -> Float[Tensor, "{steps}"]:
    """Latent diffusion (Rombach et al. 2022): sqrt(beta) is linear."""
    return linear_betas(start ** 0.5, end ** 0.5, steps) ** 2


def cosine_betas(start: float, end: float, steps: int) -> Float[Tensor, "{steps}"]:
    """Nichol & Dhariwal 2021: a = cos^2, each beta capped at 0.999; `start` and `end` have no part in it."""
    a = [math.cos((k / steps + 0.008) / 1.008 * math.pi / 2) ** 2 for k in range(steps + 1)]
    return torch.tensor([min(1 - a[k + 1] / a[k], 0.999) for k in range(steps)], dtype=torch.float32)


BETAS: dict[str, Callable[[float, float, int], Tensor]] = {
    "linear": linear_betas,
    "scaled_linear": scaled_linear_betas,
    "squaredcos_cap_v2": cosine_betas,
}


def zero_snr_betas(betas: Float[Tensor, "steps"]) -> Float[Tensor, "steps"]:
    """Lin et al. 2023, Algorithm 1: sqrt(a) is shifted to end in 0 and stretched to begin where it did."""
    roots = torch.cumprod(1 - betas, dim=0).sqrt()
    a = ((roots - roots[-1]) * (roots[0] / (roots[0] - roots[-1]))) ** 2
    return 1 - torch.cat([a[:1], a[1:] / a[:-1]])


def _discrete(betas: Float[Tensor, "steps"], kind: str, zero_snr: bool) -> DiscreteSchedule:
    return DiscreteSchedule(_products(zero_snr_betas(betas) if zero_snr else betas), kind)


def _products(betas: Float[Tensor, "steps"]) -> Float[Tensor, "steps"]:
    """a_t = prod_{s <= t} (1 - beta_s)."""
    return torch.cumprod(1 - betas, dim=0).double()
