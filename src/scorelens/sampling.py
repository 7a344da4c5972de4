"""Trajectories of any denoiser, as generators: they yield steps, the caller decides what to keep, show or stop.

And guidance, which makes one denoiser of two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens import distributed, progress
from scorelens.files import fresh_folder, write_json
from scorelens.types import Denoiser, ScorelensError, Shape
from scorelens.validation import check_memory, check_sigma, is_latent, outputs_at, shape_of, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Step:
    """One call of the denoiser: x0_hat = denoiser(z, sigma), raw (not clipped)."""

    sigma: float
    z: Tensor
    x0_hat: Tensor
    z_next: Tensor


@dataclass(frozen=True, eq=False)
class Samples:
    """`images`: the final, clipped images. `steps`: the trajectory, one entry per noise level."""

    images: Tensor
    steps: list[Step]
    seconds: list[float] = field(default_factory=list)  # of each step

    @property
    def prediction(self) -> Tensor:
        """The raw last x0_hat, on which published r2 is scored."""
        return self.steps[-1].x0_hat

    def first(self, count: int) -> Samples:
        """The first trajectories of several."""
        steps = [replace(step, z=step.z[:count], x0_hat=step.x0_hat[:count], z_next=step.z_next[:count])
                 for step in self.steps]
        return Samples(self.images[:count], steps, self.seconds)

    def table(self) -> str:
        """The noise level and time of each step, as Markdown."""
        from scorelens.report.samples import samples_table

        return samples_table([step.sigma for step in self.steps], self.seconds)

    def figure(self, title: str = "") -> Figure:
        """The final images in a grid."""
        from scorelens.report.figures import grid_figure

        return grid_figure(self.images.cpu(), title=title)

    def save(self, folder: str | Path, title: str = "", record: Mapping[str, Any] | None = None,
             figures: Mapping[str, Figure] | None = None, decode: Callable[[Tensor], Tensor] | None = None) -> Path:
        """Write images, trajectory, figures and run.json into a new folder (under torchrun, rank 0 does).

        Latents are shown as images by `decode`.
        """
        from scorelens.report.samples import write_samples

        if distributed.world().is_main:
            with fresh_folder(Path(folder)) as partial:
                sigmas = [step.sigma for step in self.steps]
                write_samples(self.images.cpu(), sigmas, torch.stack([step.z.cpu() for step in self.steps]),
                              torch.stack([step.x0_hat.cpu() for step in self.steps]), title, partial, decode)
                for name, figure in (figures or {}).items():
                    figure.savefig(partial / name, dpi=160)
                write_json(partial / "run.json", {"sigmas": sigmas, "step_seconds": self.seconds, **(record or {})})
        return Path(folder).expanduser()


@dataclass(frozen=True)
class Guided:
    """x0_hat = u + w (c - u): classifier-free guidance (Ho & Salimans 2022, whose weight is ours minus 1)."""

    conditional: Denoiser
    unconditional: Denoiser
    weight: float

    @property
    def shape(self) -> Shape | None:
        """(C, H, W) of the images, if one of both denoisers tells it."""
        return shape_of(self.conditional) or shape_of(self.unconditional)

    @property
    def latent(self) -> bool:
        """Whether it works on latents."""
        return is_latent(self.conditional) or is_latent(self.unconditional)

    @property
    def sigma_range(self) -> tuple[float, float]:
        """The noise levels that both denoisers take."""
        ranges = [getattr(each, "sigma_range", (0.0, math.inf)) for each in (self.conditional, self.unconditional)]
        return max(low for low, _ in ranges), min(high for _, high in ranges)

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        return self._combined(lambda denoiser: denoiser(z, sigma))  # type: ignore[arg-type]

    def at(self, z: Tensor, sigma: float, coordinates: Int[Tensor, "k"]) -> Float[Tensor, "b k"]:
        """x0_hat at some of its coordinates."""
        return self._combined(lambda denoiser: outputs_at(denoiser, z, sigma, coordinates))

    def _combined(self, call: Callable[[Denoiser], Tensor]) -> Tensor:
        if self.weight in (0, 1):  # the plain denoisers
            return call(self.conditional if self.weight else self.unconditional)
        c, u = call(self.conditional), call(self.unconditional)
        return u + self.weight * (c - u)


def guided(conditional: Denoiser, unconditional: Denoiser, weight: float = 2.0) -> Guided:
    """The guided denoiser x0_hat = u + weight (c - u) of any two denoisers.

    Args:
        conditional: c, a denoiser of a class: `network.conditional(labels)`, or a formula of its images only.
        unconditional: u, the denoiser of all images.
        weight: 0 is the unconditional denoiser, 1 the conditional one; above 1 the class is exaggerated.
    """
    if not math.isfinite(weight):
        raise ScorelensError(f"the weight of guidance must be a finite number, got {weight:g}")
    return Guided(conditional, unconditional, float(weight))


def ddim_step(z: Tensor, x0_hat: Tensor, sigma: float, sigma_next: float, clip: bool) -> Tensor:
    """z' = clip(x0_hat) + (sigma'/sigma) (z - x0_hat): only the first term is clipped, as diffusers does."""
    kept = x0_hat.clamp(-1, 1) if clip else x0_hat
    return kept + (sigma_next / sigma) * (z - x0_hat)


def _steps(denoiser: Denoiser, z: Tensor, sigmas: Sequence[float],
           advance: Callable[[Tensor, Tensor, float, float], Tensor]) -> Iterator[Step]:
    """The steps of a sampler: z' = advance(z, x0_hat, sigma, sigma'), down to sigma' = 0."""
    for sigma, sigma_next in pairwise([*sigmas, 0.0]):
        x0_hat = denoiser(z, sigma)
        step = Step(sigma, z, x0_hat, advance(z, x0_hat, sigma, sigma_next))
        yield step
        z = step.z_next


def ddim(denoiser: Denoiser, z: Tensor, sigmas: Sequence[float], clip: bool) -> Iterator[Step]:
    """Deterministic DDIM (Song et al. 2020, eta = 0). Without clipping it is Euler's method on dz/dsigma."""
    return _steps(denoiser, z, sigmas, partial(ddim_step, clip=clip))


def euler(denoiser: Denoiser, z: Tensor, sigmas: Sequence[float], clip: bool) -> Iterator[Step]:
    """Euler's method on dz/dsigma = (z - x0_hat)/sigma; `clip` is ignored."""
    return ddim(denoiser, z, sigmas, clip=False)


def heun(denoiser: Denoiser, z: Tensor, sigmas: Sequence[float], clip: bool) -> Iterator[Step]:
    """Heun's second-order method on dz/dsigma = (z - x0_hat)/sigma (Karras et al. 2022, Algorithm 1 without churn).

    The step to sigma' averages the slopes at both ends; the last one, to 0, is Euler's.
    """
    def advance(z: Tensor, x0_hat: Tensor, sigma: float, sigma_next: float) -> Tensor:
        z_next = ddim_step(z, x0_hat, sigma, sigma_next, clip)
        if sigma_next == 0:
            return z_next
        slopes = (z - x0_hat) / sigma + (z_next - denoiser(z_next, sigma_next)) / sigma_next
        return z + (sigma_next - sigma) * slopes / 2

    return _steps(denoiser, z, sigmas, advance)


def gradient_estimation(denoiser: Denoiser, z: Tensor, sigmas: Sequence[float], clip: bool, *,
                        gamma: float = 2.0) -> Iterator[Step]:
    """Gradient estimation (Permenter & Yuan 2024, mu = 0): Euler's step along gamma eps_k + (1 - gamma) eps_{k-1}.

    gamma = 1 is Euler, 2 the authors' choice. Second order would be gamma = 3/2 (Adams-Bashforth, on even steps): at 2
    a fine grid errs as much as Euler's, in the other direction, and the gain is at few steps. `clip` is ignored. The
    step to 0 also uses the previous eps, so the image is not the last x0_hat.
    """
    previous: list[Tensor] = []

    def advance(z: Tensor, x0_hat: Tensor, sigma: float, sigma_next: float) -> Tensor:
        eps = (z - x0_hat) / sigma
        direction = gamma * eps + (1 - gamma) * previous.pop() if previous else eps
        previous.append(eps)
        return z + (sigma_next - sigma) * direction

    return _steps(denoiser, z, sigmas, advance)


SAMPLERS = {"ddim": ddim, "euler": euler, "heun": heun, "gradient-estimation": gradient_estimation}


def trajectory(denoiser: Denoiser, noise: Tensor, sigmas: Iterable[float] | Tensor, *,
               sampler: str = "ddim", clip: bool | None = None) -> Iterator[Step]:
    """Steps from standard normal noise down the noise levels, and from the last one to sigma = 0.

    `noise` is DDPM's x_T: the start is z = x_T / sqrt(a) = x_T sqrt(1 + sigma_1^2). A final 0 in `sigmas` may be given.
    """
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    levels = _decreasing(sigmas)
    return SAMPLERS[sampler](denoiser, noise * math.sqrt(1 + levels[0] ** 2), levels, _clips(denoiser, clip))


def sample(denoiser: Denoiser, noise: Tensor, sigmas: Iterable[float] | Tensor, *, sampler: str = "ddim",
           clip: bool | None = None, label: str = "sampling") -> Samples:
    """The whole trajectory. The defaults equal diffusers' DDIMScheduler at its own, on `ddim_sigmas(n)`.

    Args:
        denoiser: any callable denoiser(z, sigma) -> x0_hat.
        noise: standard normal images, DDPM's x_T.
        sigmas: decreasing noise levels.
        sampler: ddim, or a solver of dz/dsigma = (z - x0_hat)/sigma: euler, heun, gradient-estimation.
        clip: clip x0_hat to [-1, 1] in ddim's steps, and the final images; by default, unless they are latents.
        label: of the progress bar.
    """
    levels = _decreasing(sigmas)
    check_memory(3 * len(levels) * noise.numel() * noise.element_size(), f"{len(levels)} steps of {len(noise)} images")
    clock, steps, seconds = time.perf_counter(), [], []
    for step in progress.steps(trajectory(denoiser, noise, levels, sampler=sampler, clip=clip), label, len(levels)):
        if not torch.isfinite(step.x0_hat).all():
            raise ScorelensError(f"{label}: the denoiser returned NaN or infinite values at sigma {step.sigma:g}")
        steps.append(step)
        seconds.append(time.perf_counter() - clock)
        clock = time.perf_counter()
    last = steps[-1].z_next
    return Samples(last.clamp(-1, 1) if _clips(denoiser, clip) else last, steps, seconds)


def _clips(denoiser: Denoiser, clip: bool | None) -> bool:
    return not is_latent(denoiser) if clip is None else clip


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
