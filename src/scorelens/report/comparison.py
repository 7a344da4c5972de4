"""The comparison of denoisers with a network, as a table, curves and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scorelens.report.figures import INK, quiet
from scorelens.report.html import Cell, Code, Definitions, Figure, Page, Section, Table, Text
from scorelens.report.tables import markdown

Row = Mapping[str, Any]
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
    """One line per method; an option that was chosen on other noise is marked with a star."""
    return markdown(HEADER, [_texts(row) for row in rows])


def _texts(row: Row) -> list[str]:
    steps = row.get("single_steps", {})
    own = [f"{row['novelty_rms']['mean']:.4f}", f"{row['memorized']['mean']:.0%}",
           *(_mean_r2(steps.get(path)) for path in ("reference_path", "own_path")),
           f"{1000 * row['seconds_per_image']:.2f}"]
    name = row["method"] + (" *" if row.get("chosen") else "")
    if "r2" not in row:
        return [name, *["–"] * 5, *own]
    r2 = row["r2"]
    return [name, f"{r2['mean']:.3f} ± {r2['std']:.3f}", f"{r2['low']:.3f} … {r2['high']:.3f}", f"{r2['median']:.3f}",
            f"{row['pearson']['median']:.3f}", f"{row['mse']['mean']:.4f}", *own]


def _page_table(rows: Sequence[Row], caption: str) -> Table:
    """The same table with what belongs together in one cell: options below the name, the interval below the r2."""
    best = max((row["r2"]["mean"] for row in rows if row["role"] == "denoiser"), default=None)
    lines: list[list[Cell | str]] = []
    for row in rows:
        _, r2, interval, *others = _texts(row)
        first, _, options = row["method"].partition(", ")
        star = " *" if row.get("chosen") else ""
        lines.append([Cell(first + star, note=options if row["role"] == "denoiser" else row["role"]),
                      Cell(r2, note=interval.strip("–"), strong=bool(best) and row.get("r2", {}).get("mean") == best),
                      *others])
    return Table([HEADER[0], "r2, 95 % interval", *HEADER[3:]], lines, caption)


def _mean_r2(steps: Sequence[Row] | None) -> str:
    return f"{np.mean([step['r2']['mean'] for step in steps]):.3f}" if steps else "–"


def single_step_curves(rows: Sequence[Row], path: Path, *, reference: str) -> None:
    """What single predictions leave unexplained, 1 - r2, by noise level: on the reference's path and on their own."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure as Canvas

    shown = [row for row in rows if "single_steps" in row]
    figure = Canvas(figsize=(10, 3.7), layout="constrained")
    titles = {"reference_path": f"at points of {reference}'s trajectory", "own_path": "at points of its own trajectory"}
    for axes, (which, title) in zip(figure.subplots(1, 2, sharey=True), titles.items(), strict=True):
        for k, row in enumerate(shown):
            steps = row["single_steps"][which]
            style = "-o" if row["role"] == "denoiser" else "--o"
            axes.loglog([s["sigma"] for s in steps], [1 - s["r2"]["mean"] for s in steps], style, ms=3, lw=1.5,
                          color=INK if row["role"] == "another seed" else colormaps["tab10"](k % 10),
                          label=row["method"])
        axes.set(xlabel="noise level σ")
        quiet(axes)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
    figure.axes[0].set_ylabel("unexplained share, 1 − r2")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(path, dpi=160)


def comparison_page(rows: Sequence[Row], folder: Path, record: Mapping[str, Any], *,
                    title: str = "", command: str = "") -> Page:
    """All that a comparison found, on one page."""
    reference, data = record["reference"]["name"], record["data"]
    drawn = [Figure(folder / name, caption, alt=caption) for name, caption in PICTURES.items()
             if (folder / name).exists()]
    start, stop = record["noise"]["seeds"]
    sections = [
        Section("Agreement", [Text(_findings(rows, reference)), _page_table(rows, _caption(rows, start, stop))]),
        Section("Pictures", drawn),
        Section("Definitions", [Definitions(DEFINITIONS)]),
        Section("Notes", [Text(record["notes"])]) if record.get("notes") else None,
        Section("To repeat this", [Code(command)]) if command else None]
    return Page(title or f"What predicts {reference}?",
                f"{data['count']:,} images of {data['name']} ({' × '.join(map(str, data['shape']))}), "
                f"{stop - start + 1} samples from the same noise, {len(record['sigmas'])} steps.",
                [section for section in sections if section], footer=f"Data fingerprint {data['fingerprint']}; noise "
                f"{record['noise']['hash']}; everything that ran is in run.json and rows.jsonl beside this page.")


def _caption(rows: Sequence[Row], start: int, stop: int) -> str:
    chosen = next((row["chosen"]["seeds"] for row in rows if row.get("chosen")), None)
    star = f" * Chosen by r2 on noise seeds {chosen[0]}–{chosen[1]}." if chosen else ""
    return f"Noise seeds {start}–{stop}.{star}"


def _findings(rows: Sequence[Row], reference: str) -> Sequence[str]:
    """What the table says, in sentences; each from its numbers."""
    denoisers = sorted((row for row in rows if row["role"] == "denoiser"), key=lambda row: -row["r2"]["mean"])
    if not denoisers:
        return []
    best, worst = denoisers[0], denoisers[-1]
    told = [f"Of the closed-form denoisers, {best['method']} predicts {reference} best: r2 {best['r2']['mean']:.3f} "
            f"({best['r2']['low']:.3f} to {best['r2']['high']:.3f}); {worst['method']} is last with "
            f"{worst['r2']['mean']:.3f}."]
    for row in rows:
        if row["role"] == "another seed":
            told.append(f"The same network trained from another seed reaches {row['r2']['mean']:.3f}: no prediction "
                        "from the data alone can be expected to do much better.")
    return told
