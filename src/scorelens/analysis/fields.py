"""Sensitivity fields of denoisers, measured along trajectories or on noisy images, and their properties as numbers: how
alike two fields are, how far one reaches, how equivariant they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens import progress
from scorelens.analysis.probes import linearity
from scorelens.data.images import ImageSet
from scorelens.files import fresh_folder, write_json
from scorelens.jacobian import Fields, Pixel, mean_fields
from scorelens.networks.adapters import Network
from scorelens.sampling import Step, sample
from scorelens.statistics import GaussianStats, fit_gaussian, shrinkage
from scorelens.types import Denoiser, Shape
from scorelens.validation import check_sigma, wide_dtype

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILON = "@epsilon"  # after a model's name: the field of the noise that it predicts
Field = Float[Tensor, "c h w"]


def wiener_fields(stats: GaussianStats, shape: Shape, sigmas: Sequence[float], pixels: Sequence[Pixel],
                  channel: int | None = None) -> Fields:
    """The Wiener filter's fields, in closed form: rows of W, summed over the output channels unless one is given."""
    c, h, w = shape
    u = stats.eigenvectors  # [D, K]
    rows = u.view(c, h, w, -1)[:, [p[0] for p in pixels], [p[1] for p in pixels]]  # [C, P, K]
    rows = rows.sum(dim=0) if channel is None else rows[channel]
    values = [((rows * shrinkage(stats, sigma)) @ u.T).view(len(pixels), *shape) for sigma in sigmas]
    return Fields(list(sigmas), list(pixels), torch.stack(values), samples=1)


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine similarity of two fields over all channels and pixels; 0 if either vanishes."""
    a, b = a.double().flatten(), b.double().flatten()
    norm = a.norm() * b.norm()
    return (a @ b / norm).item() if norm > 0 else 0.0


def radius(field: Field, pixel: Pixel) -> float:
    """The rms distance from the output pixel at which the field's absolute values lie, in pixels."""
    moments = _second_moments(field, pixel)
    return math.sqrt(max(0.0, moments.trace().item()))


def anisotropy(field: Field, pixel: Pixel) -> float:
    """1 - narrow / wide: 0 for a round field, towards 1 for a line."""
    narrow, wide = torch.linalg.eigvalsh(_second_moments(field, pixel)).clamp(min=0).sqrt().tolist()
    return 1 - narrow / wide if wide > 0 else 0.0


def _second_moments(field: Field, pixel: Pixel) -> Float[Tensor, "2 2"]:
    """Second moments of position about the pixel, weighted by the absolute values."""
    mass = field.double().abs().sum(dim=0)  # [H, W]
    rows, columns = torch.meshgrid(*(torch.arange(side, dtype=torch.float64, device=mass.device) - centre
                                     for side, centre in zip(mass.shape, pixel, strict=True)), indexing="ij")
    place = torch.stack([rows.flatten(), columns.flatten()])  # [2, H*W]
    total = mass.sum()
    return (place * mass.flatten()) @ place.T / total if total > 0 else torch.zeros(2, 2, dtype=torch.float64)


def equivariance(fields: Float[Tensor, "p c h w"], pixels: Sequence[Pixel]) -> float:
    """Mean cosine of the fields of different pixels, moved on top of each other, where both are defined.

    1 if the field is the same everywhere, as a convolution's is.
    """
    pairs = list(combinations(range(len(pixels)), 2))
    scores = [cosine(*_overlap(fields[i], pixels[i], fields[j], pixels[j])) for i, j in pairs]
    return sum(scores) / len(scores) if scores else 1.0


def _overlap(a: Field, at: Pixel, b: Field, bt: Pixel) -> tuple[Tensor, Tensor]:
    """The parts of both fields that lie on the image when the two pixels are moved on top of each other."""
    h, w = a.shape[1:]
    up, left = min(at[0], bt[0]), min(at[1], bt[1])
    down, right = min(h - at[0], h - bt[0]), min(w - at[1], w - bt[1])
    cut = [field[:, row - up:row + down, column - left:column + right] for field, (row, column) in ((a, at), (b, bt))]
    return cut[0], cut[1]


class Trajectories:
    """Points at which fields are measured: steps of trajectories, each sampled once."""

    def __init__(self, noise: Tensor, sigmas: Sequence[float], levels: int) -> None:
        self.noise, self.sigmas, self.levels = noise, sigmas, chosen_levels(sigmas, levels)
        self._sampled: dict[str, list[Step]] = {}

    def steps(self, name: str, models: Mapping[str, Denoiser]) -> list[Step]:
        """Steps of a network's own trajectory; for a formula those of the first network, else its own."""
        guide = name if isinstance(models[name], Network) else next(
            (other for other, model in models.items() if isinstance(model, Network)), name)
        if guide not in self._sampled:
            with torch.no_grad():
                steps = sample(models[guide], self.noise, self.sigmas, label=f"{guide}, trajectory").steps
            self._sampled[guide] = [steps[k] for k in self.levels]
        return self._sampled[guide]


class NoisyImages:
    """Points at which fields are measured: noisy images of the data, the same for all models."""

    def __init__(self, x0: Tensor, noise: Tensor, sigmas: Sequence[float]) -> None:
        self._steps = [Step(sigma, x0 + sigma * noise, x0, x0) for sigma in sigmas]

    def steps(self, name: str, models: Mapping[str, Denoiser]) -> list[Step]:
        return self._steps


Points = Trajectories | NoisyImages


def at_levels(images: ImageSet, noise: Tensor, sigmas: Sequence[float]) -> NoisyImages:
    """Noisy images of the data at the levels given, from high to low."""
    levels = sorted((check_sigma(sigma) for sigma in sigmas), reverse=True)
    return NoisyImages(images[[k % len(images) for k in range(len(noise))]].to(noise), noise, levels)


def measured_fields(name: str, models: Mapping[str, Denoiser], points: Points, pixels: Sequence[Pixel],
                    channel: int | None, wrt: Literal["z", "x_t"]) -> Fields:
    """The mean fields of one model."""
    model, steps = models[name], points.steps(name, models)
    if not isinstance(model, Network):
        steps = [_wide(step) for step in steps]
    tracked = progress.track(steps, f"{name}, fields", len(steps), unit="level")
    of: Literal["x0", "epsilon"] = "epsilon" if name.endswith(EPSILON) else "x0"
    return mean_fields(model, tracked, pixels, channel=channel, of=of, wrt=wrt)


def _wide(step: Step) -> Step:
    """In float64 where the device has it: at low noise a formula's field is a small difference of large numbers."""
    return replace(step, z=step.z.to(wide_dtype(step.z)))


def linearity_rows(name: str, models: Mapping[str, Denoiser], points: Points) -> list[dict[str, Any]]:
    """How far a model is from linear at each point, between each noisy image and the next of the batch."""
    rows = []
    steps = points.steps(name, models)
    for point in progress.track(steps, f"{name}, linearity", len(steps), unit="level"):
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


@dataclass(frozen=True, eq=False)
class FieldComparison:
    """The mean fields of several models, and their properties beside those of the Wiener filter."""

    fields: Mapping[str, Fields]
    rows: list[dict[str, Any]]  # by model, noise level and pixel
    linearity: list[dict[str, Any]]  # by model and noise level; empty if not probed
    title: str

    def table(self) -> str:
        """Cosine with the Wiener field by noise level, mean over the pixels, as Markdown."""
        from scorelens.report.fields import cosine_table

        return cosine_table(self.rows)

    def figure(self) -> Figure:
        """Likeness to the Wiener filter, reach and equivariance against the noise level."""
        from scorelens.report.fields import curves_figure

        return curves_figure(self.rows)

    def save(self, folder: str | Path, record: Mapping[str, Any] | None = None) -> Path:
        """Write rows.jsonl, run.json, table.md, the fields as arrays, and pictures into a new folder."""
        from scorelens.report.fields import write_fields

        with fresh_folder(Path(folder)) as partial:
            write_json(partial / "run.json", {**(record or {}), "rows": self.rows, "linearity": self.linearity})
            write_fields(self.fields, self.rows, self.linearity, self.title, partial)
        return Path(folder)


def compare_fields(models: Mapping[str, Denoiser], images: ImageSet, pixels: Sequence[Pixel], points: Points, *,
                   channel: int | None = None, wrt: Literal["z", "x_t"] = "z", linear: bool = False,
                   ) -> FieldComparison:
    """Measure the fields of denoisers and networks at these output pixels, beside the Wiener filter's.

    Args:
        models: by name; with @epsilon after it, the field of the noise that the prediction implies.
        images: whose Wiener filter they are compared with.
        pixels: (row, column) of outputs.
        points: where to measure: Trajectories, or noisy images (at_levels).
        channel: of the output; by default the sum over all.
        wrt: with respect to z, or to DDPM's x_t.
        linear: also probe how linear each model is, and how symmetric its Jacobian.
    """
    fields = {name: measured_fields(name, models, points, pixels, channel, wrt) for name in models}
    sigmas = next(iter(fields.values())).sigmas
    wiener = wiener_fields(fit_gaussian(images), images.shape, sigmas, pixels, channel)
    rows = [row for name in models for row in field_rows(name, fields[name], wiener)]
    probed = [row for name in models for row in linearity_rows(name, models, points)] if linear else []
    return FieldComparison(fields, rows, probed, f"Sensitivity fields on {images.name}")
