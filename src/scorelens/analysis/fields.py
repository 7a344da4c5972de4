"""Sensitivity fields of denoisers along trajectories or on noisy images, and numbers that describe them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens import progress
from scorelens.analysis.probes import linearity
from scorelens.data.images import ImageSet
from scorelens.files import fresh_folder, write_json
from scorelens.jacobian import Fields, Pixel, mean_fields
from scorelens.networks.adapters import Network
from scorelens.report.fields import cosine_table, curves_figure, write_fields
from scorelens.report.figures import Figure
from scorelens.sampling import Guided, Step, sample
from scorelens.statistics import GaussianStats, fit_gaussian, shrinkage
from scorelens.types import Denoiser, Shape
from scorelens.validation import check_sigma, wide_dtype

EPSILON = "@epsilon"  # suffix of a model's name: the field of the noise that it predicts
Field = Float[Tensor, "c h w"]


def wiener_fields(stats: GaussianStats, shape: Shape, sigmas: Sequence[float], pixels: Sequence[Pixel],
                  channel: int | None = None) -> Fields:
    """The Wiener filter's fields in closed form: rows of W, summed over the output channels unless one is given."""
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
    """The rms distance from the output pixel in pixels, weighted by the field's absolute values."""
    return math.sqrt(max(0.0, _second_moments(field, pixel).trace().item()))


def anisotropy(field: Field, pixel: Pixel) -> float:
    """1 - smaller / larger standard deviation of the field: 0 for a round one, 1 for a line."""
    narrow, wide = torch.linalg.eigvalsh(_second_moments(field, pixel)).clamp(min=0).sqrt().tolist()
    return 1 - narrow / wide if wide > 0 else 0.0


def _second_moments(field: Field, pixel: Pixel) -> Float[Tensor, "2 2"]:
    """Second moments of position about the pixel, weighted by the field's absolute values."""
    mass = field.double().abs().sum(dim=0)  # [H, W]
    rows, columns = torch.meshgrid(*(torch.arange(side, dtype=torch.float64, device=mass.device) - centre
                                     for side, centre in zip(mass.shape, pixel, strict=True)), indexing="ij")
    offsets = torch.stack([rows.flatten(), columns.flatten()])  # [2, H*W]
    total = mass.sum()
    return (offsets * mass.flatten()) @ offsets.T / total if total > 0 else torch.zeros(2, 2, dtype=torch.float64)


def equivariance(fields: Float[Tensor, "p c h w"], pixels: Sequence[Pixel]) -> float:
    """Mean cosine of the fields of different pixels, shifted to one pixel, where they overlap: 1 for a convolution."""
    scores = pixel_equivariance(fields, pixels)
    return sum(scores) / len(scores)


def pixel_equivariance(fields: Float[Tensor, "p c h w"], pixels: Sequence[Pixel]) -> list[float]:
    """For each pixel, the mean cosine of its field with those of the others, shifted to it."""
    every = list(zip(fields, pixels, strict=True))
    scores = {(i, j): cosine(*_overlap(*every[i], *every[j])) for i, j in combinations(range(len(every)), 2)}
    own = [[score for pair, score in scores.items() if k in pair] for k in range(len(every))]
    return [sum(some) / len(some) if some else 1.0 for some in own]


def _overlap(a: Field, at: Pixel, b: Field, bt: Pixel) -> tuple[Tensor, Tensor]:
    """The parts of both fields that overlap when the two pixels are shifted to the same position."""
    h, w = a.shape[1:]
    up, left = min(at[0], bt[0]), min(at[1], bt[1])
    down, right = min(h - at[0], h - bt[0]), min(w - at[1], w - bt[1])
    cut = [field[:, row - up:row + down, column - left:column + right] for field, (row, column) in ((a, at), (b, bt))]
    return cut[0], cut[1]


class Trajectories:
    """Points at which to measure fields: steps of trajectories, each sampled once."""

    def __init__(self, noise: Tensor, sigmas: Sequence[float], levels: int) -> None:
        self.noise, self.sigmas, self.levels = noise, sigmas, chosen_levels(sigmas, levels)
        self._sampled: dict[str, list[Step]] = {}

    def steps(self, name: str, models: Mapping[str, Denoiser]) -> list[Step]:
        """Steps of a network's own trajectory; for a formula, of the first network's or else its own."""
        networks = [other for other, model in models.items() if is_network(model)]
        guide = name if name in networks else (networks or [name])[0]
        if guide not in self._sampled:
            with torch.no_grad():
                steps = sample(models[guide], self.noise, self.sigmas, label=f"{guide}, trajectory").steps
            self._sampled[guide] = [steps[k] for k in self.levels]
        return self._sampled[guide]


class NoisyImages:
    """Points at which to measure fields: noisy images of the data, the same for all models, highest noise first."""

    def __init__(self, images: ImageSet, noise: Tensor, sigmas: Sequence[float]) -> None:
        x0 = images[[k % len(images) for k in range(len(noise))]].to(noise)
        self._steps = [Step(sigma, x0 + sigma * noise, x0, x0)
                       for sigma in sorted(map(check_sigma, sigmas), reverse=True)]

    def steps(self, name: str, models: Mapping[str, Denoiser]) -> list[Step]:
        return self._steps


Points = Trajectories | NoisyImages


def is_network(model: Denoiser) -> bool:
    """Whether it is a network, plain or guided, and not a formula."""
    return isinstance(model.conditional if isinstance(model, Guided) else model, Network)


def _points(name: str, models: Mapping[str, Denoiser], points: Points, label: str) -> Iterator[Step]:
    """The steps at which to measure a model; for a formula, whose rounding errors matter, in float64 if possible."""
    steps = points.steps(name, models)
    for step in progress.track(steps, f"{name}, {label}", len(steps), unit="level"):
        yield step if is_network(models[name]) else replace(step, z=step.z.to(wide_dtype(step.z)))


def measured_fields(name: str, models: Mapping[str, Denoiser], points: Points, pixels: Sequence[Pixel],
                    channel: int | None, wrt: Literal["z", "x_t"]) -> Fields:
    """The mean fields of one model."""
    of: Literal["x0", "epsilon"] = "epsilon" if name.endswith(EPSILON) else "x0"
    return mean_fields(models[name], _points(name, models, points, "fields"), pixels, channel=channel, of=of, wrt=wrt)


def linearity_rows(name: str, models: Mapping[str, Denoiser], points: Points) -> list[dict[str, Any]]:
    """Nonlinearity and asymmetry of a model at each noise level, between each noisy image and the next of the batch."""
    return [{"model": name, "sigma": step.sigma,
             **asdict(linearity(models[name], step.z, step.z.roll(1, dims=0), step.sigma))}
            for step in _points(name, models, points, "linearity")]


def field_rows(name: str, measured: Fields, linear: Fields) -> list[dict[str, Any]]:
    """Numbers that describe each field, by noise level and pixel."""
    rows = []
    for sigma, fields, wiener in zip(measured.sigmas, measured.values.cpu(), linear.values, strict=True):
        shared = equivariance(fields, measured.pixels)
        rows += [{"model": name, "sigma": sigma, "pixel": list(pixel), "cosine": cosine(field, row),
                  "radius": radius(field, pixel), "anisotropy": anisotropy(field, pixel), "equivariance": shared}
                 for pixel, field, row in zip(measured.pixels, fields, wiener, strict=True)]
    return rows


def chosen_levels(sigmas: Sequence[float], count: int) -> list[int]:
    """Indices of `count` steps of a trajectory, evenly spread from first to last."""
    count = min(count, len(sigmas))
    return sorted({round(k * (len(sigmas) - 1) / max(1, count - 1)) for k in range(count)})


def nine_pixels(images: ImageSet) -> list[Pixel]:
    """A grid of output pixels, at a quarter, half and three quarters of each side."""
    _, h, w = images.shape
    return [(h * i // 4, w * j // 4) for i in (1, 2, 3) for j in (1, 2, 3)]


@dataclass(frozen=True, eq=False)
class FieldComparison:
    """The mean fields of several models, and numbers that describe them beside the Wiener filter's."""

    fields: Mapping[str, Fields]
    wiener: Fields  # in closed form
    rows: list[dict[str, Any]]  # by model, noise level and pixel
    linearity: list[dict[str, Any]]  # by model and noise level; empty if not measured
    title: str

    def table(self) -> str:
        """Cosine with the Wiener field by noise level, mean over the pixels, as Markdown."""
        return cosine_table(self.rows)

    def figure(self) -> Figure:
        """Cosine with the Wiener field, reach and equivariance by noise level."""
        return curves_figure(self.rows)

    def save(self, folder: str | Path, record: Mapping[str, Any] | None = None) -> Path:
        """Write rows.jsonl, run.json, table.md, the fields as arrays, and figures into a new folder."""
        with fresh_folder(Path(folder)) as partial:
            write_json(partial / "run.json", {**(record or {}), "rows": self.rows, "linearity": self.linearity})
            write_fields(self.fields, self.rows, self.linearity, self.title, partial)
        return Path(folder).expanduser()


def compare_fields(models: Mapping[str, Denoiser], images: ImageSet, pixels: Sequence[Pixel], points: Points, *,
                   channel: int | None = None, wrt: Literal["z", "x_t"] = "z", linear: bool = False,
                   ) -> FieldComparison:
    """Measure the fields of denoisers and networks at output pixels, beside the Wiener filter's.

    Args:
        models: denoisers by name; the suffix @epsilon means the field of the predicted noise.
        images: the data of the Wiener filter.
        pixels: (row, column) of the outputs.
        points: where to measure: along Trajectories, or on NoisyImages.
        channel: of the output; by default the sum over all.
        wrt: with respect to z, or to DDPM's x_t.
        linear: also measure how linear each model is, and how symmetric its Jacobian.
    """
    fields = {name: measured_fields(name, models, points, pixels, channel, wrt) for name in models}
    sigmas = next(iter(fields.values())).sigmas
    wiener = wiener_fields(fit_gaussian(images), images.shape, sigmas, pixels, channel)
    rows = [row for name in models for row in field_rows(name, fields[name], wiener)]
    probes = [row for name in models for row in linearity_rows(name, models, points)] if linear else []
    return FieldComparison(fields, wiener, rows, probes, f"Sensitivity fields on {images.name}")
