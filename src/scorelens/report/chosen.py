"""What a denoiser chose on held-out images at each noise level: option values by their errors, or weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scorelens.report.figures import INK, Figure, panels
from scorelens.report.tables import markdown

Chosen = Sequence[Mapping[str, Any]]


def chosen_table(chosen: Chosen) -> str:
    """The chosen values with the least error, or the weights, at each noise level."""
    if "weights" in chosen[0]:
        names = list(chosen[0]["weights"])
        return markdown(["sigma", *names], [[f"{row['sigma']:.3g}", *(f"{row['weights'][name]:.2f}" for name in names)]
                                            for row in chosen])
    options = list(chosen[0]["errors"])
    return markdown(["sigma", *options, "held-out error"], [
        [f"{row['sigma']:.3g}", *(str(row[option]) for option in options),
         f"{min(row['errors'][options[-1]].values(), default=math.nan):.4g}"] for row in chosen])


def chosen_figure(chosen: Chosen) -> Figure:
    """Errors relative to the least, for each noise level and value, with the chosen values marked; or the weights."""
    if "weights" in chosen[0]:
        return _tables(chosen, {"threshold": [row["weights"] for row in chosen]}, "weights")
    options = [option for option, errors in chosen[0]["errors"].items() if errors]
    return _tables(chosen, {option: [row["errors"][option] for row in chosen] for option in options},
                   "held-out error / least error")


def _tables(chosen: Chosen, tables: Mapping[str, Sequence[Mapping[str, float]]], title: str) -> Figure:
    """One panel for each option: its values across, noise levels down."""
    width = sum(1.6 + 0.62 * len(rows[0]) for rows in tables.values())
    figure, each = panels(*(title for _ in tables), size=(max(width, 1.0), 0.9 + 0.34 * len(chosen)))
    for axes, (option, rows) in zip(each, tables.items(), strict=True):
        names, table = list(rows[0]), np.array([list(row.values()) for row in rows])
        axes.grid(False)
        _draw(axes, table, [names.index(str(row[option])) if option in row else None for row in chosen])
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks(range(len(chosen)), [f"{row['sigma']:.3g}" for row in chosen])
        axes.set(xlabel=option, ylabel="noise level σ")
    return figure


def _draw(axes: Any, table: np.ndarray, marked: Sequence[int | None]) -> None:
    """Weights (nothing marked) as they are; errors relative to the least of their row, which is marked."""
    weights = marked[0] is None
    least = np.maximum(table.min(axis=1, keepdims=True), 1e-30)
    shown = table if weights else np.log2(table / least)
    axes.imshow(shown, aspect="auto", cmap="Greens" if weights else "Blues_r", vmin=0, vmax=1)
    for (k, j), value in np.ndenumerate(shown):
        dark = value > 0.6 if weights else value < 0.4
        axes.text(j, k, f"{(table if weights else table / least)[k, j]:.2f}", ha="center", va="center", fontsize=7,
                  color="white" if dark else INK)
        if j == marked[k]:
            axes.plot([j - 0.46, j + 0.46, j + 0.46, j - 0.46, j - 0.46],
                      [k - 0.44, k - 0.44, k + 0.44, k + 0.44, k - 0.44], color="#ff8c00", lw=1.6)
