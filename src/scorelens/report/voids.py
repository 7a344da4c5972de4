"""Pictures of what denoisers do with images they have not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scorelens.report.figures import INK, quiet


def void_curves(rows: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> None:
    """The error of one step against the noise level, with its interval."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.9), layout="constrained")
    axes = figure.subplots()
    for k, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
        mine = [row for row in rows if row["model"] == model]
        sigmas, colour = [row["sigma"] for row in mine], colormaps["tab10"](k % 10)
        axes.loglog(sigmas, [row["mse"]["mean"] for row in mine], "-o", ms=3, lw=1.6, color=colour, label=model)
        axes.fill_between(sigmas, [row["mse"]["low"] for row in mine], [row["mse"]["high"] for row in mine], alpha=0.15,
                          color=colour, lw=0)
    least = min(row["mse"]["mean"] for row in rows)  # an interval may reach far below all means
    axes.set(xlabel="noise level σ", ylabel="MSE to the held-out image", ylim=(max(least / 5, 1e-12), None))
    quiet(axes)
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=160)
