"""`scorelens sensitivity`: which input pixels each output pixel listens to, of formulas and networks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from scorelens import progress
from scorelens.benchmark.fields import anisotropy, cosine, equivariance, radius, wiener_fields
from scorelens.benchmark.probes import linearity
from scorelens.commands.models import build_model
from scorelens.commands.run_folder import choose_device, noise_record, run_folder
from scorelens.data.images import ImageSet
from scorelens.data.neighbours import wide_dtype
from scorelens.networks.adapters import Network
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.report.fields import Strip, field_curves, field_figure, linearity_curves
from scorelens.report.tables import markdown
from scorelens.sampling import Step, trajectory
from scorelens.sensitivity import Fields, Pixel, mean_fields
from scorelens.statistics import fit_gaussian
from scorelens.types import Denoiser, ScorelensError, check_sigma

EPSILON = "@epsilon"  # after a model's name: the field of the noise that it predicts


@dataclass(frozen=True)
class Preset:
    """A figure of the paper: its models ({data} is the name of the data) and output pixels."""

    models: tuple[str, ...]
    pixels: tuple[str, ...] = ("centre",)


PRESETS = {
    "architectures": Preset(("{data}-unet-x0", "{data}-dit-x0", "wiener")),  # fig:sensitivity_diff_arch
    "faces": Preset(("{data}-unet", "wiener"), ("eye", "centre")),  # fig:sensitivity-fields-faces
    "parametrization": Preset(("{data}-unet-x0@epsilon", "{data}-unet-x0")),  # fig:sensitivity_different_ways
    "training": Preset(("{data}-unet", "{data}-unet-x0", "{data}-dit-x0", "wiener")),  # fig:sensitivity_eps_vs_x0
    "optimal": Preset(("optimal", "wiener")),  # the optimal denoiser's field explodes at low noise
}
PLACES = {"centre": (0.5, 0.5), "eye": (0.45, 0.36)}  # shares of height and width; eyes of aligned faces


def sensitivity(images: ImageSet, models: Sequence[str] = (), *,
                preset: Literal["architectures", "faces", "parametrization", "training", "optimal"] | None = None,
                pixels: Sequence[str] = (), channel: int | None = None, wrt: Literal["z", "x_t"] = "z",
                sigmas: Sequence[float] = (), num: int = 32, steps: int = 10, levels: int = 10, seed: int = 0,
                linear: bool = False, device: str = "auto", out: Path | None = None) -> Path:
    """Draw the sensitivity fields of denoisers and networks; returns the folder of the results.

    Args:
        models: denoisers (with options: locality:threshold=0.05), names of the zoo, folders saved by diffusers; with
            @epsilon after the name, the field of the noise that the prediction implies. By default wiener.
        preset: models and pixels of a figure of the paper.
        pixels: output pixels, each ROW,COLUMN or centre or eye. By default the centre.
        channel: of the output; by default the sum over all.
        wrt: with respect to z, or to DDPM's x_t.
        sigmas: measure at these noise levels, on noisy images of the data, instead of along trajectories.
        num: number of trajectories, or of noisy images, that fields are averaged over (the paper: 32).
        steps: noise levels of a trajectory (the paper: 1000).
        levels: at how many of them fields are measured.
        seed: the noise of trajectory k is drawn from seed + k.
        linear: probe also how linear each model is, and how symmetric its Jacobian.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/sensitivity-...
    """
    if num < 1 or levels < 1:
        raise ScorelensError(f"num and levels must be at least 1, got {num} and {levels}")
    chosen = PRESETS[preset] if preset else Preset(("wiener",))
    names = list(dict.fromkeys(models or [name.format(data=images.name) for name in chosen.models]))
    where = [parse_pixel(text, images) for text in pixels or chosen.pixels]
    loaded = {name: build_model(name.removesuffix(EPSILON), images) for name in names}
    place, seeds = choose_device(device), range(seed, seed + num)
    noise = seeded_noise(images.shape, seeds, device=place)
    with run_folder("sensitivity", f"{images.name}-{preset or _file_name(names[0])}", out, place) as run:
        walks = at_levels(images, noise, sigmas) if sigmas else Walks(noise, ddim_sigmas(steps).tolist(), levels)
        fields = {name: measured(name, loaded, walks, where, channel, wrt) for name in names}
        found = next(iter(fields.values()))
        wiener = wiener_fields(fit_gaussian(images), images.shape, found.sigmas, where, channel)
        rows = [row for name in names for row in field_rows(name, fields[name], wiener)]
        run.record.update(data=images.describe(), models=names, preset=preset, pixels=where, channel=channel, wrt=wrt,
                          sigmas=found.sigmas, steps=steps, noise=noise_record(seeds, noise), rows=rows)
        write_fields(run.folder, fields, rows, f"Sensitivity fields on {images.name}")
        if linear:
            run.record["linearity"] = [row for name in names for row in linearity_rows(name, loaded, walks)]
            linearity_curves(run.record["linearity"], run.folder / "linearity.png")
    print(f"{agreement_table(rows)}\n\ncosine with the Wiener field, mean over the pixels; pictures: "
          f"{run.final / 'fields.png'}, {run.final / 'curves.png'}")
    return run.final


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


def write_fields(folder: Path, fields: Mapping[str, Fields], rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """The numbers, the table, and the pictures: each field by its own largest value, and each row jointly."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "table.md").write_text(agreement_table(rows) + "\n")
    for name, found in fields.items():
        found.save(folder / f"{_file_name(name)}.npz")
    draw(fields, folder / "fields.png", title, "image")
    draw(fields, folder / "fields-joint.png", f"{title}, normalized jointly", "joint")
    field_curves(rows, folder / "curves.png")


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


def agreement_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Cosine with the Wiener field: models by noise level, mean over the pixels."""
    sigmas = list(dict.fromkeys(row["sigma"] for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    cells = []
    for model in models:
        values = [[row["cosine"] for row in rows if row["model"] == model and row["sigma"] == s] for s in sigmas]
        cells.append([model, *(f"{sum(v) / len(v):.3f}" for v in values)])
    return markdown(["model", *(f"σ = {sigma:.3g}" for sigma in sigmas)], cells)


def draw(fields: Mapping[str, Fields], path: Path, title: str, normalization: Literal["image", "joint"]) -> None:
    """One row per model and pixel."""
    pixels = next(iter(fields.values())).pixels
    strips = [Strip(name, found.values[:, k].sum(dim=1).cpu().numpy(), pixel,
                    f"pixel {pixel[0]}, {pixel[1]}" if len(pixels) > 1 else "")
              for k, pixel in enumerate(pixels) for name, found in fields.items()]
    field_figure(strips, next(iter(fields.values())).sigmas, path, title=title, normalization=normalization)


def parse_pixel(text: str, images: ImageSet) -> Pixel:
    """ROW,COLUMN within the image, or the name of a place."""
    _, h, w = images.shape
    if text in PLACES:
        return int(h * PLACES[text][0]), int(w * PLACES[text][1])
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().lstrip("-").isdigit() for part in parts):
        raise ScorelensError(f"pixel {text!r} is neither ROW,COLUMN nor {' nor '.join(PLACES)}")
    row, column = (int(part) for part in parts)
    if not (0 <= row < h and 0 <= column < w):
        raise ScorelensError(f"pixel {row},{column} is outside the image of {h}x{w}")
    return row, column


def chosen_levels(sigmas: Sequence[float], count: int) -> list[int]:
    """Which steps of a trajectory are measured: `count` of them, evenly spread from first to last."""
    count = min(count, len(sigmas))
    return sorted({round(k * (len(sigmas) - 1) / max(1, count - 1)) for k in range(count)})


def _file_name(model: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(model).name)
