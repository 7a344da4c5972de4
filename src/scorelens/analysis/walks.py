"""The points at which fields are measured, and the numbers of what is found there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import torch
from torch import Tensor

from scorelens import progress
from scorelens.analysis.fields import anisotropy, cosine, equivariance, radius
from scorelens.analysis.probes import linearity
from scorelens.data.images import ImageSet
from scorelens.jacobian import Fields, Pixel, mean_fields
from scorelens.networks.adapters import Network
from scorelens.sampling import Step, trajectory
from scorelens.types import Denoiser
from scorelens.validation import check_sigma, wide_dtype

EPSILON = "@epsilon"  # after a model's name: the field of the noise that it predicts


class Walks:
    """The points at which fields are measured: on trajectories, each walked once."""

    def __init__(self, noise: Tensor, sigmas: Sequence[float], levels: int) -> None:
        self.noise, self.sigmas, self.levels = noise, sigmas, chosen_levels(sigmas, levels)
        self._walked: dict[str, list[Step]] = {}

    def points(self, name: str, models: Mapping[str, Denoiser]) -> list[Step]:
        """Of a network its own trajectory; of a formula the first network's, or its own if there is none."""
        guide = name if isinstance(models[name], Network) else next(
            (other for other, model in models.items() if isinstance(model, Network)), name)
        if guide not in self._walked:
            with torch.no_grad():
                walk = list(progress.steps(trajectory(models[guide], self.noise, self.sigmas), f"{guide}, walking",
                                           len(self.sigmas)))
            self._walked[guide] = [walk[k] for k in self.levels]
        return self._walked[guide]


class NoisyImages:
    """The points at which fields are measured: noisy images of the data, the same for all models."""

    def __init__(self, x0: Tensor, noise: Tensor, sigmas: Sequence[float]) -> None:
        self._points = [Step(sigma, x0 + sigma * noise, x0, x0) for sigma in sigmas]

    def points(self, name: str, models: Mapping[str, Denoiser]) -> list[Step]:
        return self._points


def at_levels(images: ImageSet, noise: Tensor, sigmas: Sequence[float]) -> NoisyImages:
    """Noisy images of the data at the levels given, from high to low."""
    levels = sorted((check_sigma(sigma) for sigma in sigmas), reverse=True)
    return NoisyImages(images[[k % len(images) for k in range(len(noise))]].to(noise), noise, levels)


def measured(name: str, models: Mapping[str, Denoiser], walks: Walks | NoisyImages, pixels: Sequence[Pixel],
             channel: int | None, wrt: Literal["z", "x_t"]) -> Fields:
    """The mean fields of one model."""
    model, points = models[name], walks.points(name, models)
    if not isinstance(model, Network):
        points = [_wide(step) for step in points]
    tracked = progress.track(points, f"{name}, fields", len(points), unit="level")
    of: Literal["x0", "epsilon"] = "epsilon" if name.endswith(EPSILON) else "x0"
    return mean_fields(model, tracked, pixels, channel=channel, of=of, wrt=wrt)


def _wide(step: Step) -> Step:
    """In float64 where the device has it: at low noise a formula's field is a small difference of large numbers."""
    return replace(step, z=step.z.to(wide_dtype(step.z)))


def linearity_rows(name: str, models: Mapping[str, Denoiser], walks: Walks | NoisyImages) -> list[dict[str, Any]]:
    """How far a model is from linear at each point, between each noisy image and the next of the batch."""
    rows = []
    points = walks.points(name, models)
    for point in progress.track(points, f"{name}, linearity", len(points), unit="level"):
        step = point if isinstance(models[name], Network) else _wide(point)
        found = linearity(models[name], step.z, step.z.roll(1, dims=0), step.sigma)
        rows.append({"model": name, "sigma": step.sigma, **asdict(found)})
    return rows


def field_rows(name: str, found: Fields, linear: Fields) -> list[dict[str, Any]]:
    """The numbers of each field, by noise level and pixel."""
    rows = []
    for sigma, fields, wiener in zip(found.sigmas, found.values.cpu(), linear.values, strict=True):
        alike = equivariance(fields, found.pixels)
        rows += [{"model": name, "sigma": sigma, "pixel": list(pixel), "cosine": cosine(field, row),
                  "radius": radius(field, pixel), "anisotropy": anisotropy(field, pixel), "equivariance": alike}
                 for pixel, field, row in zip(found.pixels, fields, wiener, strict=True)]
    return rows


def chosen_levels(sigmas: Sequence[float], count: int) -> list[int]:
    """Which steps of a trajectory are measured: `count` of them, evenly spread from first to last."""
    count = min(count, len(sigmas))
    return sorted({round(k * (len(sigmas) - 1) / max(1, count - 1)) for k in range(count)})


def nine_pixels(images: ImageSet) -> list[Pixel]:
    """A grid of output pixels, at a quarter, half and three quarters of each side."""
    _, h, w = images.shape
    return [(h * i // 4, w * j // 4) for i in (1, 2, 3) for j in (1, 2, 3)]
