"""The comparison of denoisers with a network: table, figures and HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scorelens.report.figures import INK, labelled_rows, literal, panels
from scorelens.report.figures import Figure as Canvas
from scorelens.report.figures import Row as ImageRow
from scorelens.report.html import Cell, Definitions, Figure, Page, Section, Table, Text, write_page
from scorelens.report.tables import markdown
from scorelens.results import Row

HEADER = ("method", "r2", "95 % interval", "median", "Pearson", "MSE", "novelty", "memorized", "steps, ref.",
          "steps, own", "ms / image")
DEFINITIONS = {
    "r2": "1 − Σ(prediction − reference)² / Σ(reference − its mean)² over all pixels and channels of an image, for the "
          "raw prediction of the last step; mean ± standard deviation over the images, bootstrap interval of the mean, "
          "and median",
    "Pearson": "median over the images of the correlation of their pixels (Kamb & Ganguli's score)",
    "MSE": "mean squared difference to the reference, images in [−1, 1]",
    "novelty": "rms distance of a sample to the nearest training image",
    "memorized": "share of samples whose nearest training image is less than a third as far away as the second-nearest",
    "steps, ref. / own": "r2 of single predictions from the same noisy image, averaged over the noise levels: along "
                         "the reference's trajectory, and along the method's own",
    "ms / image": "sampling time of the whole batch, divided by its number of images",
}
PICTURES = {
    "samples.png": "Each column starts from the same noise; the rows are the networks and the methods that predict "
                   "them.",
    "single_steps.png": "Unexplained share of the reference's single predictions by noise level (lower is better).",
}


def comparison_table(rows: Sequence[Row]) -> str:
    """One line per method; a star marks options that were chosen on other noise."""
    return markdown(HEADER, [_texts(row) for row in rows])


def _texts(row: Row) -> list[str]:
    metrics, steps = row.metrics, row.metrics.get("single_steps", {})
    own = [f"{metrics['novelty_rms']['mean']:.4f}", f"{metrics['memorized']['mean']:.0%}",
           *(_mean_r2(steps.get(path)) for path in ("reference_path", "own_path")),
           f"{1000 * metrics['seconds_per_image']:.2f}"]
    name = row.label + _star(row)
    if "r2" not in metrics:
        return [name, *["–"] * 5, *own]
    r2 = row.r2
    return [name, f"{r2['mean']:.3f} ± {r2['std']:.3f}", f"{r2['low']:.3f} … {r2['high']:.3f}", f"{r2['median']:.3f}",
            f"{metrics['pearson']['median']:.3f}", f"{metrics['mse']['mean']:.4f}", *own]


def _mean_r2(steps: Sequence[Mapping[str, Any]] | None) -> str:
    return f"{np.mean([step['r2']['mean'] for step in steps]):.3f}" if steps else "–"


def _star(row: Row) -> str:
    return " *" if "chosen" in row.settings else ""


def _role(row: Row) -> str:
    return str(row.settings["role"])


def single_step_figure(rows: Sequence[Row], reference: str) -> Canvas:
    """1 - r2 of single predictions by noise level: along the reference's trajectory and along the method's own."""
    figure, both = panels(f"at points of {reference}'s trajectory", "at points of its own trajectory", size=(10, 3.7),
                          sharey=True)
    for axes, path in zip(both, ("reference_path", "own_path"), strict=True):
        for k, row in enumerate(row for row in rows if "single_steps" in row.metrics):
            steps = row.metrics["single_steps"][path]
            axes.loglog([s["sigma"] for s in steps], [1 - s["r2"]["mean"] for s in steps],
                        "-o" if _role(row) == "denoiser" else "--o", ms=3, lw=1.5, label=literal(row.label),
                        color=INK if _role(row) == "another seed" else f"C{k}")
    both[0].set_ylabel("unexplained share, 1 − r2")
    figure.legend(*both[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return figure


def write_comparison(rows: Sequence[Row], samples: Sequence[ImageRow], record: Mapping[str, Any], folder: Path,
                     title: str = "") -> None:
    """Write table.md, samples.png, single_steps.png and report.html."""
    reference, data, (first, last) = record["reference"]["name"], record["data"], record["noise"]["seeds"]
    (folder / "table.md").write_text(comparison_table(rows) + "\n", encoding="utf-8")
    labelled_rows(samples, folder / "samples.png",
                  title=f"Samples from the same noise: {reference} and the methods that predict it",
                  columns=[f"seed {first + k}" for k in range(len(samples[0].images))])
    if any("single_steps" in row.metrics for row in rows):
        single_step_figure(rows, reference).savefig(folder / "single_steps.png", dpi=160)
    figures = [Figure(folder / name, caption, alt=caption) for name, caption in PICTURES.items()
               if (folder / name).exists()]
    chosen = next((row.settings["chosen"]["seeds"] for row in rows if "chosen" in row.settings), None)
    star = f" * Chosen by r2 on noise seeds {chosen[0]}–{chosen[1]}." if chosen else ""
    sections = [
        Section("Agreement", [Text(_findings(rows, reference)),
                              _page_table(rows, f"Noise seeds {first}–{last}.{star}")]),
        Section("Pictures", figures), Section("Definitions", [Definitions(DEFINITIONS)]),
        *([Section("Notes", [Text(record["notes"])])] if record["notes"] else [])]
    page = Page(title or f"What predicts {reference}?",
                f"{data['count']:,} images of {data['name']} ({' × '.join(map(str, data['shape']))}), "
                f"{last - first + 1} samples from the same noise, {len(record['sigmas'])} steps.", sections,
                footer=f"Data fingerprint {data['fingerprint']}; noise {record['noise']['hash']}; all settings and "
                "numbers are in run.json and rows.jsonl beside this page.")
    write_page(page, folder / "report.html")


def _page_table(rows: Sequence[Row], caption: str) -> Table:
    """The table with options below the name and the interval below r2."""
    best = max((row.r2["mean"] for row in rows if _role(row) == "denoiser"), default=None)
    lines: list[list[Cell | str]] = []
    for row in rows:
        _, r2, interval, *others = _texts(row)
        note = row.label.partition(", ")[2] if _role(row) == "denoiser" else _role(row)
        strong = best is not None and row.metrics.get("r2", {}).get("mean") == best
        lines.append([Cell(row.denoiser + _star(row), note=note),
                      Cell(r2, note=interval.strip("–"), strong=strong), *others])
    return Table([HEADER[0], "r2, 95 % interval", *HEADER[3:]], lines, caption)


def _findings(rows: Sequence[Row], reference: str) -> Sequence[str]:
    """The main results in sentences."""
    denoisers = sorted((row for row in rows if _role(row) == "denoiser"), key=lambda row: -row.r2["mean"])
    if not denoisers:
        return []
    best, worst = denoisers[0], denoisers[-1]
    sentences = [f"Of the closed-form denoisers, {best.label} predicts {reference} best: r2 {best.r2['mean']:.3f} "
                 f"({best.r2['low']:.3f} to {best.r2['high']:.3f}); {worst.label} is last with {worst.r2['mean']:.3f}."]
    return sentences + [f"The same network trained from another seed reaches {row.r2['mean']:.3f}: no prediction from "
                        "the data alone can be expected to do much better."
                        for row in rows if _role(row) == "another seed"]
