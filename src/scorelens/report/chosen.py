"""What a denoiser chose on held-out images at each noise level: option values by their errors, or weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scorelens.report.figures import INK, Figure, panels
from scorelens.report.tables import markdown

Chosen = Sequence[Mapping[str, Any]]


def chosen_table(chosen: Chosen) -> str:
    """The chosen value, or the weights, at each noise level."""
    option = _option(chosen)
    if option == "weights":
        names = list(chosen[0]["weights"])
        return markdown(["sigma", *names], [[f"{row['sigma']:.3g}", *(f"{row['weights'][name]:.2f}" for name in names)]
                                            for row in chosen])
    return markdown(["sigma", option, "held-out error"], [
        [f"{row['sigma']:.3g}", str(row[option]), f"{min(row['errors'].values()):.4g}"] for row in chosen])


def chosen_figure(chosen: Chosen) -> Figure:
    """Errors relative to the least, for each noise level and value, with the chosen values marked; or the weights."""
    option = _option(chosen)
    weights = option == "weights"
    names = list(chosen[0]["weights" if weights else "errors"])
    table = np.array([list(row["weights" if weights else "errors"].values()) for row in chosen])
    shown = table if weights else np.log2(table / np.maximum(table.min(axis=1, keepdims=True), 1e-30))
    title = "weight of each threshold" if weights else f"held-out error / least error, by {option}"
    figure, (axes,) = panels(title, size=(1.6 + 0.62 * len(names), 0.9 + 0.34 * len(chosen)),
                             xlabel="threshold" if weights else option)
    axes.grid(False)
    axes.imshow(shown, aspect="auto", cmap="Greens" if weights else "Blues_r", vmin=0, vmax=1)
    for (k, j), value in np.ndenumerate(shown):
        dark = value > 0.6 if weights else value < 0.4
        text = table[k, j] if weights else table[k, j] / max(table[k].min(), 1e-30)
        axes.text(j, k, f"{text:.2f}", ha="center", va="center", fontsize=7, color="white" if dark else INK)
        if not weights and names[j] == str(chosen[k][option]):
            axes.plot([j - 0.46, j + 0.46, j + 0.46, j - 0.46, j - 0.46],
                      [k - 0.44, k - 0.44, k + 0.44, k + 0.44, k - 0.44], color="#ff8c00", lw=1.6)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(chosen)), [f"{row['sigma']:.3g}" for row in chosen])
    axes.set_ylabel("noise level σ")
    return figure


def _option(chosen: Chosen) -> str:
    """The key of the chosen value: weights, or the name of an option."""
    return next(key for key in chosen[0] if key not in ("sigma", "errors"))
