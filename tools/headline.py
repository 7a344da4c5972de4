"""The README's figure: samples of trained networks and of formulas from the same noise, on Fashion-MNIST.

    nice -n 10 python -m tools.headline RUN [NAME ...]   measures what RUN lacks, of all models or the named ones, and
                                                         writes the rows and the figure of what has been measured

Fashion-MNIST (MIT licence) is read from $SCORELENS_DATA. Nothing is chosen by its result: the noise seeds are those of
the benchmark, and the figure shows the first of them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from perf.rows import DOCS, RESULTS
from torch import Tensor

from scorelens.analysis.comparison import agreement, originality
from scorelens.data import load_images
from scorelens.denoisers import build_denoiser
from scorelens.networks.load import load_network
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.paper.presets import DATASETS
from scorelens.report.figures import INK, MUTED
from scorelens.results import Row, append_row, environment, noise_record, read_rows, write_rows
from scorelens.sampling import Samples, Step, sample

DATA, REFERENCE, SECOND = "fashion-mnist", "fashion-mnist-unet", "fashion-mnist-unet-seed1"
PAPER = {"threshold": 0.005}  # the paper's, for this dataset
FORMULAS: dict[str, tuple[str, dict[str, Any]]] = {
    "wiener": ("wiener", {}), "optimal": ("optimal", {}), "locality": ("locality", PAPER), "kernel": ("kernel", {}),
    "locality-chosen": ("locality", {"threshold": DATASETS[DATA].chosen}), "multiscale": ("multiscale", {})}
ABOUT = {  # in the order of the figure
    REFERENCE: ("U-Net", "trained, seed 0"), SECOND: ("U-Net", "trained, seed 1"),
    "multiscale": ("multiscale", "masks of several sizes"),
    "locality-chosen": ("locality", "small masks, threshold 0.07"),
    "kernel": ("kernel", "between optimal and wiener"),
    "wiener": ("wiener", "linear: mean and covariance"),
    "locality": ("locality", "the paper's threshold, 0.005"),
    "optimal": ("optimal", "exact for the training set")}
GROUP = 0.14  # inches between networks and formulas
SEEDS, STEPS, SHOWN = range(128, 144), 10, 10


def measure(run: Path, wanted: list[str]) -> None:
    """Append a row for each network and formula that the run lacks, and keep its samples."""
    run.mkdir(parents=True, exist_ok=True)
    images = load_images(DATA)
    noise = seeded_noise(images.shape, SEEDS)
    for name in wanted or (REFERENCE, SECOND, *FORMULAS):
        if any(row.name == name for row in read_rows(run / "rows.jsonl")):
            continue
        denoiser, options = FORMULAS.get(name, (name, {}))
        clock = time.perf_counter()
        if not (run / f"{name}.npy").exists():
            model = build_denoiser(denoiser, images, **options) if name in FORMULAS else load_network(name)
            with torch.no_grad():
                drawn = sample(model, noise, ddim_sigmas(STEPS), label=name)
            np.save(run / f"{name}.npy", torch.stack([drawn.images, drawn.prediction]).numpy())
        found = samples(run, name)
        compared = {} if name == REFERENCE else agreement(found, samples(run, REFERENCE))
        append_row(run / "rows.jsonl", Row(
            name, denoiser, options, {"reference": REFERENCE, "num": len(SEEDS), "steps": STEPS},
            {**compared, **originality(found, images)}, images.describe(), noise=noise_record(SEEDS, noise),
            environment=environment(), seconds=time.perf_counter() - clock))
        print(name, compared.get("r2"), flush=True)


def samples(run: Path, name: str) -> Samples:
    """The samples of a model that was measured."""
    images, x0_hat = torch.from_numpy(np.load(run / f"{name}.npy"))[:, :len(SEEDS)]
    return Samples(images, [Step(0.0, x0_hat, x0_hat, images)])


def publish(run: Path) -> None:
    """Commit the rows that were measured, and draw their samples."""
    measured = {row.name: row for row in read_rows(run / "rows.jsonl")}
    measured = {name: measured[name] for name in ABOUT if name in measured}
    write_rows(RESULTS / "headline.jsonl", list(measured.values()))
    draw([(ABOUT[name], None if name == REFERENCE else row.r2["median"], samples(run, name).images[:SHOWN])
          for name, row in measured.items()], DOCS / "headline.png")


def draw(rows: list[tuple[tuple[str, str], float | None, Tensor]], path: Path) -> None:
    """One row of samples for each model, with its name on the left and r2 on the right."""
    from matplotlib.figure import Figure

    side, left, right, gap = 0.78, 2.3, 0.95, 0.05
    tops = [k * (side + gap) + GROUP * (k >= 2) for k in range(len(rows))]
    width, height = left + SHOWN * (side + gap) + right, tops[-1] + side + 0.42
    figure = Figure(figsize=(width, height), facecolor="white")
    for ((name, about), score, images), top in zip(rows, tops, strict=True):
        y = 1 - (0.36 + top + side / 2) / height
        figure.text((left - 0.15) / width, y + 0.11 / height, name, ha="right", va="center", fontsize=12.5, color=INK,
                    weight="bold")
        figure.text((left - 0.15) / width, y - 0.13 / height, about, ha="right", va="center", fontsize=9, color=MUTED)
        text = "1" if score is None else f"{score:.2f}"
        figure.text(1 - (right - 0.42) / width, y, text, ha="center", va="center", fontsize=14, color=INK)
        for k, image in enumerate(images):
            box = (left + k * (side + gap)) / width, y - side / 2 / height, side / width, side / height
            axes = figure.add_axes(box)
            axes.imshow((image[0] + 1) / 2, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_axis_off()
    figure.text(1 - (right - 0.42) / width, 1 - 0.17 / height, "r2", ha="center", va="center", fontsize=12.5,
                color=INK, weight="bold")
    figure.text(left / width, 1 - 0.17 / height, "each column starts from the same noise", va="center", fontsize=9.5,
                color=MUTED)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    measure(Path(sys.argv[1]).expanduser(), sys.argv[2:])
    publish(Path(sys.argv[1]).expanduser())
