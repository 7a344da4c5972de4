"""`scorelens sensitivity`: which input pixels each output pixel listens to, of formulas and networks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from scorelens import progress
from scorelens.benchmark.fields import anisotropy, cosine, equivariance, radius, wiener_fields
from scorelens.commands.models import build_model
from scorelens.commands.run_folder import choose_device, noise_record, run_folder
from scorelens.data.images import ImageSet
from scorelens.data.neighbours import wide_dtype
from scorelens.networks.adapters import Network
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.report.fields import Strip, field_curves, field_figure
from scorelens.report.tables import markdown
from scorelens.sampling import Step, trajectory
from scorelens.sensitivity import Fields, Pixel, mean_fields
from scorelens.statistics import fit_gaussian
from scorelens.types import Denoiser, ScorelensError

WIENER = "wiener"


def sensitivity(images: ImageSet, models: Sequence[str] = (WIENER,), *, pixels: Sequence[str] = ("centre",),
                channel: int | None = None, of: Literal["x0", "epsilon"] = "x0", wrt: Literal["z", "x_t"] = "z",
                num: int = 32, steps: int = 10, levels: int = 10, seed: int = 0,
                normalization: Literal["image", "joint"] = "image", device: str = "auto",
                out: Path | None = None) -> Path:
    """Draw the sensitivity fields of denoisers and networks; returns the folder of the results.

    Args:
        models: denoisers (with options: locality:threshold=0.05), names of the zoo, folders saved by diffusers.
        pixels: output pixels, each ROW,COLUMN or centre.
        channel: of the output; by default the sum over all.
        of: the field of x0_hat, or of the noise that it implies.
        wrt: with respect to z, or to DDPM's x_t.
        num: number of trajectories that fields are averaged over (the paper: 32).
        steps: noise levels of a trajectory (the paper: 1000).
        levels: at how many of them fields are measured.
        seed: the noise of trajectory k is drawn from seed + k.
        normalization: of the picture, each image by its own largest value, or all of a row jointly.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/sensitivity-...
    """
    if num < 1 or levels < 1:
        raise ScorelensError(f"num and levels must be at least 1, got {num} and {levels}")
    place, where = choose_device(device), [parse_pixel(text, images) for text in pixels]
    loaded = {name: build_model(name, images) for name in dict.fromkeys(models)}
    sigmas, seeds = ddim_sigmas(steps).tolist(), range(seed, seed + num)
    noise = seeded_noise(images.shape, seeds, device=place)
    how: dict[str, Any] = {"channel": channel, "of": of, "wrt": wrt}
    with run_folder("sensitivity", f"{images.name}-{'-'.join(Path(m).name for m in models)}", out, place) as run:
        stats = fit_gaussian(images)
        fields = measured_fields(loaded, noise, sigmas, chosen_levels(sigmas, levels), where, how)
        reference = next(iter(fields.values()))
        linear = wiener_fields(stats, images.shape, reference.sigmas, where, channel)
        rows = [row for name, found in fields.items() for row in field_rows(name, found, linear)]
        run.record.update(data=images.describe(), models=list(models), pixels=where, **how, sigmas=sigmas,
                          noise=noise_record(seeds, noise), rows=rows)
        (run.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for name, found in fields.items():
            found.save(run.folder / f"{_file_name(name)}.npz")
        (run.folder / "table.md").write_text(agreement_table(rows) + "\n")
        draw(fields, where, run.folder / "fields.png", images.name, normalization)
        field_curves(rows, run.folder / "curves.png")
    print(f"{agreement_table(rows)}\n\ncosine with the Wiener field, mean over the pixels; pictures: "
          f"{run.final / 'fields.png'}, {run.final / 'curves.png'}")
    return run.final


def measured_fields(models: Mapping[str, Denoiser], noise: torch.Tensor, sigmas: Sequence[float],
                    levels: Sequence[int], pixels: Sequence[Pixel], how: Mapping[str, Any]) -> dict[str, Fields]:
    """Networks are measured along their own trajectories; formulas along the first network's, or their own if none."""
    walks: dict[str, list[Step]] = {}
    found = {}
    for name, model in models.items():
        guide = name if isinstance(model, Network) else next(
            (other for other, m in models.items() if isinstance(m, Network)), name)
        if guide not in walks:
            with torch.no_grad():
                walk = list(progress.steps(trajectory(models[guide], noise, sigmas), f"{guide}, walking", len(sigmas)))
            walks[guide] = [walk[k] for k in levels]
        points = walks[guide] if isinstance(model, Network) else [_wide(step) for step in walks[guide]]
        tracked = progress.track(points, f"{name}, fields", len(levels), unit="level")
        found[name] = mean_fields(model, tracked, pixels, **how)
    return found


def _wide(step: Step) -> Step:
    """In float64 where the device has it: at low noise a formula's field is a small difference of large numbers."""
    return replace(step, z=step.z.to(wide_dtype(step.z)))


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


def draw(fields: Mapping[str, Fields], pixels: Sequence[Pixel], path: Path, data: str,
         normalization: Literal["image", "joint"]) -> None:
    """One row per model and pixel."""
    strips = [Strip(name, found.values[:, k].sum(dim=1).cpu().numpy(), pixel,
                    f"pixel {pixel[0]}, {pixel[1]}" if len(pixels) > 1 else "")
              for k, pixel in enumerate(pixels) for name, found in fields.items()]
    title = f"Sensitivity fields on {data}"
    field_figure(strips, next(iter(fields.values())).sigmas, path, title=title, normalization=normalization)


def parse_pixel(text: str, images: ImageSet) -> Pixel:
    """`centre`, or ROW,COLUMN within the image."""
    _, h, w = images.shape
    if text == "centre":
        return h // 2, w // 2
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().lstrip("-").isdigit() for part in parts):
        raise ScorelensError(f"pixel {text!r} is neither ROW,COLUMN nor centre")
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
