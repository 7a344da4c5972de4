"""Fitted patch sizes as a table and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scorelens.report.figures import INK, quiet
from scorelens.report.tables import markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Fit = Mapping[str, Any]


def calibration_table(fits: Sequence[Fit]) -> str:
    """The score of every size at every noise level; the best is in brackets."""
    rows = [[f"{fit['sigma']:.3g}", str(fit["size"]), *(f"[{score:.3f}]" if size == fit["size"] else f"{score:.3f} "
                                                        for size, score in fit["scores"].items())] for fit in fits]
    return markdown(["σ", "best", *(f"{size} " for size in fits[0]["scores"])], rows)


def calibration_figure(rows: Sequence[Fit], side: int, *, title: str, metric: str) -> Figure:
    """Left: the chosen size by noise level. Right: what every size misses, one line for each noise level."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(9.2, 3.7), layout="constrained")
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
    return figure
