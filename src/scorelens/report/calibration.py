"""Fitted patch sizes as a table and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scorelens.report.figures import Figure, panels
from scorelens.report.tables import markdown

Fit = Mapping[str, Any]


def calibration_table(fits: Sequence[Fit]) -> str:
    """The score of every size at every noise level; the chosen one is in brackets."""
    rows = [[f"{fit['sigma']:.3g}", str(fit["size"]), *(f"[{score:.3f}]" if size == fit["size"] else f"{score:.3f} "
                                                        for size, score in fit["scores"].items())] for fit in fits]
    return markdown(["σ", "best", *(f"{size} " for size in fits[0]["scores"])], rows)


def calibration_figure(fits: Sequence[Fit], side: int, *, title: str, metric: str) -> Figure:
    """Left: the chosen size by noise level. Right: 1 - score by size, one line per noise level."""
    from matplotlib import colormaps

    figure, (chosen, scores) = panels(title, "", size=(9.2, 3.7))
    chosen.semilogx([fit["sigma"] for fit in fits], [min(fit["size"], side) for fit in fits], "-o", ms=5, color="C0")
    chosen.set(ylabel="patch size", ylim=(0, side * 1.05))
    for k, fit in enumerate(fits):
        sizes = [min(int(size), side) for size in fit["scores"]]
        errors = [max(1 - float(value), 1e-9) for value in fit["scores"].values()]
        color = colormaps["viridis"](k / max(1, len(fits) - 1))
        scores.semilogy(sizes, errors, lw=1.4, color=color, label=f"σ = {fit['sigma']:.3g}")
        scores.semilogy(min(fit["size"], side), min(errors), "o", ms=5, color=color)
    scores.set(xlabel="patch size", ylabel=f"1 − median {metric} of the score")
    scores.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
