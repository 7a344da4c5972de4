"""`scorelens voids`: what denoisers do between the training images, where no training data were seen.

Held-out images are noised at every level and denoised in one step. A denoiser that generalizes passes them through as
the noise vanishes; the optimal one teleports them to the nearest training image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scorelens.analysis.models import build_model
from scorelens.analysis.voids import Pictured, denoised
from scorelens.cli.run_folder import run_folder
from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device
from scorelens.metrics import novelty
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.report.figures import Row, labelled_rows
from scorelens.report.tables import markdown
from scorelens.report.voids import void_curves
from scorelens.results import noise_record
from scorelens.types import ScorelensError

SHOWN = 10  # noise levels in the picture


def voids(images: ImageSet, test: ImageSet, models: Sequence[str] = ("optimal", "wiener", "locality"), *, num: int = 64,
          steps: int = 20, seed: int = 0, shown: int = 0, device: str = "auto", out: Path | None = None) -> Path:
    """Denoise held-out images in a single step, at every noise level; returns the folder of the results.

    Args:
        models: denoisers (with options: locality:threshold=0.05), names of the zoo, folders saved by diffusers.
        num: number of held-out images.
        steps: number of noise levels, on the paper's grid.
        seed: the noise of image k is drawn from seed + k.
        shown: which of the images the picture shows.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/voids-...
    """
    if not 1 <= num <= len(test):
        raise ScorelensError(f"num must be between 1 and the {len(test)} held-out images, got {num}")
    if not 0 <= shown < num:
        raise ScorelensError(f"shown must be between 0 and {num - 1}, got {shown}")
    place, sigmas, seeds = choose_device(device), ddim_sigmas(steps).tolist(), range(seed, seed + num)
    x0, noise = test[:num].to(place), seeded_noise(test.shape, seeds, device=place)
    loaded = {name: build_model(name, images) for name in dict.fromkeys(models)}
    with run_folder("voids", images.name, out, place) as run:
        pictured: Pictured = {}
        rows = list(denoised(loaded, x0, noise, sigmas, shown, pictured))
        run.record.update(data=images.describe(), test=test.describe(), models=list(models), sigmas=sigmas,
                          noise=noise_record(seeds, noise), rows=rows)
        (run.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run.folder / "table.md").write_text(error_table(rows) + "\n")
        void_curves(rows, run.folder / "curves.png", title=f"{num} held-out images of {images.name}, one step")
        draw(x0[shown], noise[shown], sigmas, pictured, images, run.folder / "teleporting.png")
    print(f"{error_table(rows)}\n\nMSE of one step on held-out images; pictures: {run.final / 'curves.png'}, "
          f"{run.final / 'teleporting.png'}")
    return run.final


def error_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """MSE: models by noise level."""
    sigmas = list(dict.fromkeys(row["sigma"] for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    found = {(row["model"], row["sigma"]): f"{row['mse']['mean']:.2g}" for row in rows}
    return markdown(["model", *(f"σ = {sigma:.3g}" for sigma in sigmas)],
                    [[model, *(found[model, sigma] for sigma in sigmas)] for model in models])


def draw(x0: Tensor, noise: Tensor, sigmas: Sequence[float], pictured: Pictured, images: ImageSet, path: Path) -> None:
    """One held-out image: noisy, as each model sees it by noise level, and the nearest training image."""
    levels = sorted({round(k * (len(sigmas) - 1) / max(1, SHOWN - 1)) for k in range(SHOWN)})
    scales = [(1 + sigmas[k] ** 2) ** -0.5 for k in levels]  # x_t, as DDPM has it: z itself soon leaves any range
    noisy = torch.stack([scale * (x0 + sigmas[k] * noise) for k, scale in zip(levels, scales, strict=True)]).cpu()
    nearest = images[novelty(x0[None].cpu(), images).index]
    rows = [Row("held-out image", x0[None].cpu().expand(len(levels), *x0.shape)), Row("noisy", noisy),
            *[Row(name, torch.stack([found[k] for k in levels])) for name, found in pictured.items()],
            Row("nearest training image", nearest.expand(len(levels), *x0.shape))]
    labelled_rows(rows, path, title="Denoised in one step", columns=[f"σ = {sigmas[k]:.3g}" for k in levels])
