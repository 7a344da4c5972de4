"""`check_denoiser`: tests of the properties that every denoiser must have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.types import Denoiser, ScorelensError, Shape
from scorelens.validation import shape_of

DEFAULT_SHAPE: Shape = (1, 8, 8)
MEDIUM = 1.0  # for properties that hold at any noise level
STRONG = 1e5  # noise so strong that the posterior mean is the mean of the data


class PropertyError(ScorelensError, AssertionError):
    """A denoiser lacks a property; the message starts with the name of the property."""


@dataclass(frozen=True)
class _Subject:
    denoiser: Denoiser
    shape: Shape
    images: ImageSet | None

    def noisy(self, sigma: float, count: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
        """Training images (zeros if there are none) plus noise."""
        x0 = torch.zeros(count, *self.shape)
        if self.images is not None:
            x0 = self.images[[k % len(self.images) for k in range(count)]]
        return (x0 + sigma * seeded_noise(self.shape, range(count))).to(dtype)

    def separately(self, z: Tensor, levels: Sequence[float]) -> Tensor:
        """The outputs of one call for each image."""
        return torch.cat([self.denoiser(z[k:k + 1], sigma) for k, sigma in enumerate(levels)])

    @property
    def ends(self) -> tuple[float, float]:
        """The highest and the lowest noise level of the paper's grid, inside the range of the denoiser."""
        low, high = getattr(self.denoiser, "sigma_range", (0.0, math.inf))
        grid = ddim_sigmas(10).tolist()
        return min(grid[0], high), max(grid[-1], low)


def check_denoiser(model: Denoiser, images: ImageSet | None = None) -> None:
    """Raise an error that names the first property that `model` lacks.

    `images` are the data it was derived from, by default `model.images` if it exists. A model with the attribute
    `converges_to_mean` must return the mean of the data at very strong noise. One that takes a tensor [B] of noise
    levels must give each image its own.
    """
    images = images if images is not None else getattr(model, "images", None)
    shape = images.shape if images is not None else shape_of(model) or DEFAULT_SHAPE
    subject = _Subject(model, tuple(shape), images)
    for name, check in PROPERTIES.items():
        if problem := check(subject):
            raise PropertyError(f"{name}: {problem}")


def _same(name: str) -> Callable[[_Subject], str | None]:
    """A check that shape, dtype or device of the output is that of the input."""
    def check(s: _Subject) -> str | None:
        for dtype in (torch.float32, torch.float64):
            z = s.noisy(MEDIUM, dtype=dtype)
            out = s.denoiser(z, MEDIUM)
            if not isinstance(out, Tensor):
                return f"the output must be a tensor, got {type(out).__name__}"
            given, returned = getattr(z, name), getattr(out, name)
            if given != returned:
                return f"input {given}, output {returned}: they must be equal"
        return None

    return check


def _input_unchanged(s: _Subject) -> str | None:
    z = s.noisy(MEDIUM)
    before = z.clone()
    s.denoiser(z, MEDIUM)
    return None if torch.equal(z, before) else "the denoiser modified its input z in place"


def _deterministic(s: _Subject) -> str | None:
    z = s.noisy(MEDIUM)
    gap = (s.denoiser(z, MEDIUM) - s.denoiser(z, MEDIUM)).abs().max().item()
    return None if gap == 0 else f"two calls with the same input differ by {gap:.3g}"


def _batch_invariant(s: _Subject) -> str | None:
    z = s.noisy(MEDIUM)
    gap = (s.denoiser(z, MEDIUM) - s.separately(z, [MEDIUM] * len(z))).abs().max().item()
    return None if gap < 1e-3 else f"outputs for an image alone and in a batch of {len(z)} differ by {gap:.3g}"


def _finite(s: _Subject) -> str | None:
    for sigma in s.ends:
        if not torch.isfinite(s.denoiser(s.noisy(sigma), sigma)).all():
            return f"NaN or infinite output at sigma = {sigma:.4g}, an end of its range"
    return None


def _levels(s: _Subject) -> str | None:
    """A tensor [B] of noise levels, if the denoiser does not refuse it, gives each image its own."""
    levels = [MEDIUM, s.ends[0], MEDIUM]
    z = torch.stack([s.noisy(sigma)[k] for k, sigma in enumerate(levels)])
    try:
        together = s.denoiser(z, torch.tensor(levels, dtype=torch.float64))  # type: ignore[arg-type]
    except (ValueError, TypeError, RuntimeError):
        return None
    gap = (together - s.separately(z, levels)).abs().max().item()
    return None if gap < 1e-3 else f"with a noise level for each image, outputs differ from separate calls by {gap:.3g}"


def _mean_limit(s: _Subject) -> str | None:
    if s.images is None or not getattr(s.denoiser, "converges_to_mean", False):
        return None
    total = sum((x.double().sum(dim=0) for x in s.images.chunks()), torch.zeros(s.shape, dtype=torch.float64))
    gap = (s.denoiser(s.noisy(STRONG), STRONG) - total / len(s.images)).abs().max().item()
    return None if gap < 1e-2 else f"at sigma = {STRONG:g} the output differs from the mean of the data by {gap:.3g}"


PROPERTIES: dict[str, Callable[[_Subject], str | None]] = {
    "shape": _same("shape"),
    "dtype": _same("dtype"),
    "device": _same("device"),
    "input unchanged": _input_unchanged,
    "deterministic": _deterministic,
    "batch invariant": _batch_invariant,
    "finite": _finite,
    "levels": _levels,
    "mean limit": _mean_limit,
}
