"""Draws the figures of docs/concepts.md.

    python -m tools.concepts

Fashion-MNIST (MIT licence) is read from $SCORELENS_DATA; the first figure needs no data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from perf.rows import DOCS

from scorelens import build_denoiser, fit_gaussian, load_images, load_network, sensitivity
from scorelens.data.images import ImageSet
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.report.figures import INK, MUTED, panels
from scorelens.sampling import sample
from scorelens.statistics.masks import locality_masks

FOLDER = DOCS / "figures" / "concepts"
BLUE, ORANGE = "#1f6fb4", "#c8502d"
PIXEL, LEVELS = (10, 14), (25.7, 6.17, 2.04, 0.724, 0.342)


def voids(path: Path) -> None:
    """Images of two pixels are points in the plane: where do all noise seeds end?"""
    rng = np.random.default_rng(3)
    angle = rng.uniform(0, 2 * np.pi, 24)
    points = np.stack([0.75 * np.cos(angle), 0.45 * np.sin(angle)], 1) + 0.04 * rng.standard_normal((24, 2))
    images = ImageSet(points.reshape(24, 1, 1, 2).astype(np.float32), "points")
    noise, sigmas = seeded_noise((1, 1, 2), range(160)), ddim_sigmas(40)
    names = "optimal: only training points", "wiener: one Gaussian", "kernel: fills the gaps"
    figure, every = panels(*names, size=(10.5, 3.9), xlabel="first pixel", sharey=True)
    for axes, name in zip(every, ("optimal", "wiener", "kernel"), strict=True):
        options = {"bandwidth": 0.35} if name == "kernel" else {}
        found = sample(build_denoiser(name, images, **options), noise, sigmas)
        paths = torch.stack([step.z.flatten(1) for step in found.steps[16:]] + [found.images.flatten(1)])
        for k in range(0, 160, 2):
            axes.plot(*paths[:, k].T, color=MUTED, lw=0.4, alpha=0.5)
        axes.plot(*found.images.flatten(1).T, ".", color=ORANGE, ms=5, label="samples", alpha=0.7)
        axes.plot(*points.T, "o", color=BLUE, ms=5, label="training images", mfc="none", mew=1.4)
        axes.set(xlim=(-1.1, 1.1), ylim=(-1.0, 1.0), aspect="equal")
    every[0].set_ylabel("second pixel")
    every[0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(path, dpi=150)


def tiles(rows: dict[str, Any], columns: list[str], path: Path, *, cmap: str = "gray", symmetric: bool = False) -> None:
    """A grid of images: a name before each row, a caption above each column."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.35 * len(columns) + 2.4, 1.42 * len(rows) + 0.4))
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    figure.subplots_adjust(left=2.3 / figure.get_figwidth(), right=0.99, top=1 - 0.36 / figure.get_figheight(),
                           bottom=0.02, wspace=0.05, hspace=0.06)
    for line, (name, images) in zip(grid, rows.items(), strict=True):
        line[0].text(-0.12, 0.5, name, transform=line[0].transAxes, ha="right", va="center", fontsize=11, color=INK)
        for axes, image in zip(line, images, strict=True):
            limit = float(image.abs().max()) or 1.0
            axes.imshow(image, cmap=cmap, vmin=-limit if symmetric else -1, vmax=limit if symmetric else 1,
                        interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            for spine in axes.spines.values():
                spine.set_color("#dddddd")
    for axes, text in zip(grid[0], columns, strict=True):
        axes.set_title(text, fontsize=10, color=MUTED)
    figure.savefig(path, dpi=150)


def one_step(images: ImageSet, path: Path) -> None:
    """A held-out image, noised, and what three denoisers make of it in one step."""
    x0 = load_images("fashion-mnist", split="test")[[13]]
    noise = seeded_noise(images.shape, [5])
    models = {"trained U-Net": load_network("fashion-mnist-unet"), "optimal": build_denoiser("optimal", images),
              "wiener": build_denoiser("wiener", images)}
    rows = {"noisy image z": [((x0 + s * noise) / (1 + s)).clamp(-1, 1)[0, 0] for s in LEVELS]}
    with torch.no_grad():
        rows |= {name: [model(x0 + s * noise, s)[0, 0].clamp(-1, 1) for s in LEVELS] for name, model in models.items()}
    columns = [f"σ = {sigma:g}" for sigma in LEVELS]
    tiles({"held-out image": [x0[0, 0]] * len(LEVELS), **rows}, columns, path)


def pass_through(images: ImageSet, path: Path) -> None:
    """The share of each principal component that the Wiener filter keeps."""
    variances = fit_gaussian(images).eigenvalues.double()
    figure, (axes,) = panels("share of component k that the Wiener filter lets through", size=(6.4, 3.2),
                             xlabel="principal component k of Fashion-MNIST")
    for sigma, shade in zip(LEVELS, np.linspace(0.25, 1, len(LEVELS)), strict=True):
        kept = variances / (variances + sigma**2)
        axes.semilogx(np.arange(1, len(kept) + 1), kept, color=BLUE, alpha=shade, lw=1.8, label=f"σ = {sigma:g}")
    axes.set_ylim(0, 1.03)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    figure.savefig(path, dpi=150)


def fields(images: ImageSet, path: Path) -> None:
    """Which input pixels one output pixel uses: network, Wiener row and mask."""
    stats, network = fit_gaussian(images), load_network("fashion-mnist-unet")
    wiener = build_denoiser("wiener", images)
    q = PIXEL[0] * images.shape[2] + PIXEL[1]
    rows: dict[str, list[Any]] = {"U-Net: sensitivity": [], "Wiener filter: row": [], "mask, threshold 0.02": []}
    x0, noise = images[list(range(16))], seeded_noise(images.shape, range(16))
    for sigma in LEVELS:
        rows["U-Net: sensitivity"].append(sensitivity(network, x0 + sigma * noise, sigma, PIXEL).mean(0)[0])
        rows["Wiener filter: row"].append(sensitivity(wiener, x0[:1], sigma, PIXEL)[0, 0])
        rows["mask, threshold 0.02"].append(locality_masks(stats, sigma, 0.02)[q].view(images.shape[1:]).float())
    tiles(rows, [f"σ = {sigma:g}" for sigma in LEVELS], path, cmap="RdBu_r", symmetric=True)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    voids(FOLDER / "voids.png")
    training = load_images("fashion-mnist")
    pass_through(training, FOLDER / "pass-through.png")
    fields(training, FOLDER / "fields.png")
    one_step(training, FOLDER / "one-step.png")
