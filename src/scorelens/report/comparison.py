"""The comparison of denoisers with a network, as a table, curves and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from scorelens.report.figures import INK, labelled_rows, quiet
from scorelens.report.figures import Row as PictureRow
from scorelens.report.html import Cell, Definitions, Figure, Page, Section, Table, Text, write_page
from scorelens.report.tables import markdown
from scorelens.results import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

HEADER = ("method", "r2", "95 % interval", "median", "Pearson", "MSE", "novelty", "memorized", "steps, ref.",
          "steps, own", "ms / image")
DEFINITIONS = {
    "r2": "1 − Σ(prediction − reference)² / Σ(reference − its mean)², of one image over all pixels and channels, on "
          "the raw prediction of the last step; mean ± standard deviation over the images, the bootstrap interval of "
          "the mean, and the median",
    "Pearson": "median over the images of the correlation of their pixels (Kamb & Ganguli's score)",
    "MSE": "mean squared difference to the reference, images in [−1, 1]",
    "novelty": "rms distance of a sample to the nearest training image",
    "memorized": "share of samples at less than a third of the distance to the second-nearest training image",
    "steps, ref. / own": "r2 of single predictions from the same noisy image, averaged over the noise levels: at "
                         "points of the reference's trajectory, and of the method's own",
    "ms / image": "time of a whole sample, divided by the number of images sampled at once",
}
PICTURES = {
    "samples.png": "Each column starts from one noise; the rows are the networks and the methods that predict them.",
    "single_steps.png": "What each method leaves unexplained of the reference's single predictions, by noise level "
                        "(lower is better).",
}


def comparison_table(rows: Sequence[Row]) -> str:
    """One line per method; a star marks options that were chosen on other noise."""
    return markdown(HEADER, [_texts(row) for row in rows])


def _texts(row: Row) -> list[str]:
    found, steps = row.metrics, row.metrics.get("single_steps", {})
    own = [f"{found['novelty_rms']['mean']:.4f}", f"{found['memorized']['mean']:.0%}",
           *(_mean_r2(steps.get(path)) for path in ("reference_path", "own_path")),
           f"{1000 * found['seconds_per_image']:.2f}"]
    name = row.label + _star(row)
    if "r2" not in found:
        return [name, *["–"] * 5, *own]
    r2 = row.r2
    return [name, f"{r2['mean']:.3f} ± {r2['std']:.3f}", f"{r2['low']:.3f} … {r2['high']:.3f}", f"{r2['median']:.3f}",
            f"{found['pearson']['median']:.3f}", f"{found['mse']['mean']:.4f}", *own]


def _star(row: Row) -> str:
    return " *" if "chosen" in row.settings else ""


def _role(row: Row) -> str:
    return str(row.settings["role"])


def _page_table(rows: Sequence[Row], caption: str) -> Table:
    """The same table with related numbers in one cell: options below the name, the interval below r2."""
    best = max((row.r2["mean"] for row in rows if _role(row) == "denoiser"), default=None)
    lines: list[list[Cell | str]] = []
    for row in rows:
        _, r2, interval, *others = _texts(row)
        note = row.label.partition(", ")[2] if _role(row) == "denoiser" else _role(row)
        strong = best is not None and row.metrics.get("r2", {}).get("mean") == best
        lines.append([Cell(row.denoiser + _star(row), note=note),
                      Cell(r2, note=interval.strip("–"), strong=strong), *others])
    return Table([HEADER[0], "r2, 95 % interval", *HEADER[3:]], lines, caption)


def _mean_r2(steps: Sequence[Mapping[str, Any]] | None) -> str:
    return f"{np.mean([step['r2']['mean'] for step in steps]):.3f}" if steps else "–"


def single_step_figure(rows: Sequence[Row], reference: str) -> Canvas:
    """What single predictions leave unexplained, 1 - r2, by noise level: on the reference's path and on their own."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure as Canvas

    shown = [row for row in rows if "single_steps" in row.metrics]
    figure = Canvas(figsize=(10, 3.7), layout="constrained")
    titles = {"reference_path": f"at points of {reference}'s trajectory", "own_path": "at points of its own trajectory"}
    for axes, (which, title) in zip(figure.subplots(1, 2, sharey=True), titles.items(), strict=True):
        for k, row in enumerate(shown):
            steps = row.metrics["single_steps"][which]
            axes.loglog([s["sigma"] for s in steps], [1 - s["r2"]["mean"] for s in steps],
                        "-o" if _role(row) == "denoiser" else "--o", ms=3, lw=1.5, label=row.label,
                        color=INK if _role(row) == "another seed" else colormaps["tab10"](k % 10))
        axes.set(xlabel="noise level σ")
        quiet(axes)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
    figure.axes[0].set_ylabel("unexplained share, 1 − r2")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return figure


def write_comparison(rows: Sequence[Row], samples: Sequence[tuple[str, Tensor]], record: Mapping[str, Any],
                     folder: Path, title: str = "") -> None:
    """table.md, samples.png, single_steps.png and report.html. A row of samples without a name belongs to the one above
    it: the nearest training images."""
    reference, first = record["reference"]["name"], record["noise"]["seeds"][0]
    (folder / "table.md").write_text(comparison_table(rows) + "\n")
    pictures = [PictureRow(name or "nearest training image", images, attached=not name) for name, images in samples]
    labelled_rows(pictures, folder / "samples.png",
                  title=f"Samples from the same noise: {reference} and what predicts it",
                  columns=[f"seed {first + k}" for k in range(len(samples[0][1]))])
    if any("single_steps" in row.metrics for row in rows):
        single_step_figure(rows, reference).savefig(folder / "single_steps.png", dpi=160)
    write_page(comparison_page(rows, folder, record, title), folder / "report.html")


def comparison_page(rows: Sequence[Row], folder: Path, record: Mapping[str, Any], title: str = "") -> Page:
    """Everything a comparison found, on one page."""
    reference, data = record["reference"]["name"], record["data"]
    drawn = [Figure(folder / name, caption, alt=caption) for name, caption in PICTURES.items()
             if (folder / name).exists()]
    start, stop = record["noise"]["seeds"]
    sections = [
        Section("Agreement", [Text(_findings(rows, reference)), _page_table(rows, _caption(rows, start, stop))]),
        Section("Pictures", drawn),
        Section("Definitions", [Definitions(DEFINITIONS)]),
        *([Section("Notes", [Text(record["notes"])])] if record["notes"] else [])]
    return Page(title or f"What predicts {reference}?",
                f"{data['count']:,} images of {data['name']} ({' × '.join(map(str, data['shape']))}), "
                f"{stop - start + 1} samples from the same noise, {len(record['sigmas'])} steps.", sections,
                footer=f"Data fingerprint {data['fingerprint']}; noise {record['noise']['hash']}; everything that ran "
                "is in run.json and rows.jsonl beside this page.")


def _caption(rows: Sequence[Row], start: int, stop: int) -> str:
    chosen = next((row.settings["chosen"]["seeds"] for row in rows if "chosen" in row.settings), None)
    star = f" * Chosen by r2 on noise seeds {chosen[0]}–{chosen[1]}." if chosen else ""
    return f"Noise seeds {start}–{stop}.{star}"


def _findings(rows: Sequence[Row], reference: str) -> Sequence[str]:
    """What the table says, in sentences."""
    denoisers = sorted((row for row in rows if _role(row) == "denoiser"), key=lambda row: -row.r2["mean"])
    if not denoisers:
        return []
    best, worst = denoisers[0], denoisers[-1]
    sentences = [f"Of the closed-form denoisers, {best.label} predicts {reference} best: r2 {best.r2['mean']:.3f} "
                 f"({best.r2['low']:.3f} to {best.r2['high']:.3f}); {worst.label} is last with {worst.r2['mean']:.3f}."]
    sentences += [f"The same network trained from another seed reaches {row.r2['mean']:.3f}: no prediction from the "
                  "data alone can be expected to do much better." for row in rows if _role(row) == "another seed"]
    return sentences
