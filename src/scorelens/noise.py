"""Noise levels and seeded noise. Only this module and the network adapters use DDPM's timestep t and alpha.

x_t = sqrt(a) x0 + sqrt(1 - a) eps becomes z = x_t / sqrt(a) = x0 + sigma eps with sigma^2 = (1 - a) / a.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.types import ScorelensError
from scorelens.validation import check_memory, unknown

TRAIN_STEPS = 1000
SAVED_ALPHAS = ("alphas_cumprod", "alpha_bars", "alphas_bar", "alpha_bar", "alpha_hat", "alphas_hat", "abar")
ROUNDING = 1e-5  # relative tolerance at the ends of a schedule


def ddpm_alphas() -> Float[Tensor, "1000"]:
    """DDPM's a_t: linear betas 1e-4 ... 0.02 over 1000 steps."""
    return beta_schedule().alphas


def ddim_timesteps(n: int, steps: int = TRAIN_STEPS) -> list[int]:
    """n timesteps of a schedule with leading spacing: 10 of 1000 are 900, 800, ..., 0."""
    if not 1 <= n <= steps:
        raise ScorelensError(f"the number of steps must be between 1 and {steps}, got {n}")
    return [k * (steps // n) for k in reversed(range(n))]


def ddim_sigmas(n: int) -> Float[Tensor, "{n}"]:
    """The paper's grid: n decreasing noise levels at which the denoiser is called; the last step goes to 0.

    >>> round(ddim_sigmas(10)[-1].item(), 4)  # t = 0
    0.01
    """
    return beta_schedule().sigmas[ddim_timesteps(n)]


def seeded_noise(shape: Iterable[int], seeds: Iterable[int], *, device: torch.device | str = "cpu",
                 dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal images [len(seeds), *shape], drawn on the CPU. Image k depends only on seed k."""
    shape, seeds = tuple(shape), [int(seed) for seed in seeds] if not isinstance(seeds, range) else seeds
    check_memory(4 * len(seeds) * math.prod(shape), f"noise for {len(seeds):,} images")
    for seed in (seeds[0], seeds[-1]) if seeds else ():
        if not -2**63 <= seed < 2**63:
            raise ScorelensError(f"a seed must fit in 64 bits, got {seed}")
    draws = [torch.randn(shape, generator=torch.Generator().manual_seed(int(seed))) for seed in seeds]
    if not draws:
        raise ScorelensError("no seeds given; give at least one")
    return torch.stack(draws).to(device=device, dtype=dtype)


def own_sigmas(schedule: Schedule, n: int) -> Float[Tensor, "{n}"]:
    """n noise levels of a network's own timesteps (leading spacing), or the paper's grid if its time is continuous."""
    if isinstance(schedule, RescaledSchedule):
        return own_sigmas(schedule.inner, n) / schedule.unit
    if isinstance(schedule, DiscreteSchedule):
        return schedule.sigmas[ddim_timesteps(n, len(schedule.sigmas))]
    return ddim_sigmas(n)


def nearest_level(schedule: Schedule, sigma: float) -> float:
    """The noise level of the network's own timesteps that is nearest to sigma, or sigma if its time is continuous."""
    if isinstance(schedule, RescaledSchedule):
        return nearest_level(schedule.inner, schedule.unit * sigma) / schedule.unit
    if isinstance(schedule, DiscreteSchedule):
        return float(schedule.sigmas[(schedule.sigmas / sigma).log().abs().argmin()])
    return sigma


@runtime_checkable
class Schedule(Protocol):
    """A network's noise levels: it takes x_t = scale(sigma) * z and time(sigma), for sigma within `range`."""

    @property
    def kind(self) -> str: ...

    @property
    def range(self) -> tuple[float, float]: ...

    def time(self, sigma: float) -> float: ...

    def scale(self, sigma: float) -> float: ...


@dataclass(frozen=True, eq=False)
class DiscreteSchedule:
    """DDPM's timesteps t = 0 ... T-1 with a_t: x_t = sqrt(a) z. The last a may be 0 (pure noise, not in `range`)."""

    alphas: Float[Tensor, "steps"]
    kind: str

    def __post_init__(self) -> None:
        a = self.alphas
        if not (len(a) > 1 and (a.diff() < 0).all() and a[0] < 1 and a[-2] > 0 and a[-1] >= 0):
            raise ScorelensError(f"the {self.kind} betas are not a noise schedule: give two or more values in (0, 1)")

    @cached_property
    def sigmas(self) -> Float[Tensor, "steps"]:
        """The noise level of every timestep, increasing; the last may be infinite."""
        return ((1 - self.alphas) / self.alphas).sqrt()

    @cached_property
    def _levels(self) -> list[float]:
        return self.sigmas[self.sigmas.isfinite()].tolist()

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest noise level of the training."""
        return self._levels[0], self._levels[-1]

    def time(self, sigma: float) -> float:
        """Continuous t, by interpolation in log sigma; exact at the timesteps."""
        sigma, levels = _within(sigma, self.range), self._levels
        after = min(bisect_right(levels, sigma), len(levels) - 1)
        return after - 1 + math.log(sigma / levels[after - 1]) / math.log(levels[after] / levels[after - 1])

    def scale(self, sigma: float) -> float:
        return 1 / math.sqrt(1 + sigma ** 2)  # sqrt(a)

    def sigma(self, timestep: float | Tensor) -> float:
        """The noise level of a timestep (a number or a constant tensor [B]); linear in between, as in diffusers."""
        batch = torch.as_tensor(timestep, dtype=torch.float64).flatten()
        t, last = float(batch[0]), len(self.sigmas) - 1
        if not (bool((batch == t).all()) and 0 <= t <= last):
            raise ScorelensError(f"timestep must be one number from 0 to {last}, got {batch.tolist()}")
        below = min(int(t), last - 1)
        return float(torch.lerp(self.sigmas[below], self.sigmas[below + 1], t - below))


def _within(sigma: float, bounds: tuple[float, float]) -> float:
    """sigma, clipped to a network's noise levels if it exceeds them by rounding."""
    low, high = bounds
    if not low * (1 - ROUNDING) <= sigma <= high * (1 + ROUNDING):
        raise ScorelensError(f"sigma = {sigma:.5g} is outside this network's noise levels, {low:.5g} to {high:.5g}")
    return min(max(sigma, low), high)


def given_sigmas(sigmas: Sequence[float]) -> DiscreteSchedule:
    """The schedule whose timesteps have these noise levels."""
    return DiscreteSchedule(1 / (1 + torch.tensor(sigmas, dtype=torch.float64) ** 2), "given")


@dataclass(frozen=True)
class FlowSchedule:
    """Flow matching: x_s = (1 - s) x0 + s eps with 0 < s < 1, so sigma = s / (1 - s); the time is s * steps."""

    kind: ClassVar[str] = "flow"
    range: ClassVar[tuple[float, float]] = (0.0, math.inf)
    steps: int = TRAIN_STEPS

    def time(self, sigma: float) -> float:
        return self.steps * sigma / (1 + sigma)

    def scale(self, sigma: float) -> float:
        return 1 / (1 + sigma)  # 1 - s


@dataclass(frozen=True)
class SigmaSchedule:
    """For a network that takes sigma itself and an unscaled z, like EDM's D(z, sigma)."""

    kind: ClassVar[str] = "sigma"
    range: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def time(self, sigma: float) -> float:
        return sigma

    def scale(self, sigma: float) -> float:
        return 1.0


@dataclass(frozen=True)
class RescaledSchedule:
    """The schedule of a network of other data, u = unit x + constant: our sigma is its noise level unit * sigma."""

    inner: Schedule
    unit: float

    @property
    def kind(self) -> str:
        return self.inner.kind

    @property
    def range(self) -> tuple[float, float]:
        low, high = self.inner.range
        return low / self.unit, high / self.unit

    def time(self, sigma: float) -> float:
        return self.inner.time(self.unit * _within(sigma, self.range))

    def scale(self, sigma: float) -> float:
        return self.inner.scale(self.unit * sigma)


def named_schedule(text: str) -> Schedule:
    """The schedule of a text: a kind of `beta_schedule`, "cosine", "flow" or "sigma", optionally with :STEPS.

    >>> len(named_schedule("cosine:100").sigmas)
    100
    """
    kind, _, steps = text.partition(":")
    if (steps and not steps.isdecimal()) or (steps and kind == "sigma"):
        raise ScorelensError(f"the schedule {text!r} is not KIND or KIND:STEPS, such as linear or cosine:100")
    length = int(steps or TRAIN_STEPS)
    if kind == "sigma":
        return SigmaSchedule()
    if kind == "flow":
        return FlowSchedule(length)
    if kind not in ("cosine", *BETAS):
        raise unknown("schedule", kind, [*BETAS, "cosine", "flow", "sigma"])
    return beta_schedule("squaredcos_cap_v2" if kind == "cosine" else kind, steps=length)


def saved_schedule(tensors: Iterable[tuple[str, Tensor]]) -> tuple[str, DiscreteSchedule] | None:
    """The schedule among the tensors of a checkpoint, with the name of the tensor; None if there is none."""
    found = {name.rpartition(".")[2]: (name, value) for name, value in tensors if value.ndim == 1 and len(value) > 1}
    for last in SAVED_ALPHAS:
        if last in found:
            name, value = found[last]
            return name, DiscreteSchedule(value.double(), "given")
    if "betas" in found:
        name, value = found["betas"]
        return name, given_betas(value)
    return None


def beta_schedule(kind: str = "linear", *, start: float = 1e-4, end: float = 0.02, steps: int = TRAIN_STEPS,
                  zero_snr: bool = False) -> DiscreteSchedule:
    """A schedule of a kind in BETAS (diffusers' names); with `zero_snr` it ends in pure noise."""
    if kind not in BETAS:
        raise unknown("beta schedule", kind, BETAS)
    return given_betas(BETAS[kind](start, end, steps), kind=kind, zero_snr=zero_snr)


def given_betas(betas: Sequence[float] | Tensor, *, kind: str = "given", zero_snr: bool = False) -> DiscreteSchedule:
    """The schedule with these betas, one per timestep: a_t = prod_{s <= t} (1 - beta_s).

    Computed in float32, to equal diffusers' values to the last digit. With `zero_snr`, sqrt(a) is shifted to end at 0
    and rescaled to keep its first value (Lin et al. 2023, Algorithm 1).
    """
    betas = torch.as_tensor(betas, dtype=torch.float32)
    if zero_snr:
        roots = torch.cumprod(1 - betas, dim=0).sqrt()
        a = ((roots - roots[-1]) * (roots[0] / (roots[0] - roots[-1]))) ** 2
        betas = 1 - torch.cat([a[:1], a[1:] / a[:-1]])
    return DiscreteSchedule(torch.cumprod(1 - betas, dim=0).double(), kind)


def _cosine_betas(start: float, end: float, steps: int) -> Float[Tensor, "{steps}"]:
    """Nichol & Dhariwal 2021: a = cos^2, each beta capped at 0.999; `start` and `end` are ignored."""
    a = [math.cos((k / steps + 0.008) / 1.008 * math.pi / 2) ** 2 for k in range(steps + 1)]
    return torch.tensor([min(1 - a[k + 1] / a[k], 0.999) for k in range(steps)], dtype=torch.float32)


BETAS: dict[str, Callable[[float, float, int], Tensor]] = {
    "linear": partial(torch.linspace, dtype=torch.float32),  # DDPM (Ho et al. 2020)
    # latent diffusion (Rombach et al. 2022): sqrt(beta) is linear
    "scaled_linear": lambda start, end, steps: BETAS["linear"](start ** 0.5, end ** 0.5, steps) ** 2,
    "squaredcos_cap_v2": _cosine_betas,
}
