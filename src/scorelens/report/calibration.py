"""The picture of fitted patch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scorelens.report.figures import INK, quiet


def calibration_curves(rows: Sequence[Mapping[str, Any]], path: Path, side: int, *, title: str, metric: str) -> None:
    """Left: the chosen size by noise level. Right: what every size misses, one line for each noise level."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 3.7), layout="constrained")
    chosen, scores = figure.subplots(1, 2)
    chosen.semilogx([row["sigma"] for row in rows], [min(row["size"], side) for row in rows], "-o", ms=5, color="C0")
    chosen.set(xlabel="noise level σ", ylabel="patch size", ylim=(0, side * 1.05))
    for k, row in enumerate(rows):
        sizes = [min(int(size), side) for size in row["scores"]]
        misses = [max(1 - float(value), 1e-9) for value in row["scores"].values()]
        colour = colormaps["viridis"](k / max(1, len(rows) - 1))
        scores.semilogy(sizes, misses, lw=1.4, color=colour, label=f"σ = {row['sigma']:.3g}")
        scores.semilogy(min(row["size"], side), min(misses), "o", ms=5, color=colour)
    scores.set(xlabel="patch size", ylabel=f"1 − median {metric} of the score")
    scores.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axes in (chosen, scores):
        quiet(axes)
    chosen.set_title(title, fontsize=10, color=INK, loc="left")
    figure.savefig(path, dpi=160)
