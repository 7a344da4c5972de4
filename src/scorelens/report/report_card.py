"""The report card as a table and a figure, from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scorelens.report.figures import INK, MUTED, quiet
from scorelens.report.tables import markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
LINEAR = "wiener"


def report_card_table(levels: Sequence[Row]) -> str:
    """One line for each noise level."""
    formulas = list(levels[0]["formulas"])
    header = ["sigma", "error", *formulas, "/ wiener", "95 % interval", "best formula", "/ best", "95 % interval"]
    return markdown(header, [[
        f"{level['sigma']:.3g}", f"{level['error']['mean']:.3g}",
        *(f"{level['formulas'][name]:.3g}" for name in formulas), *_ratio(level["to_linear"]), level["best"],
        *_ratio(level["to_best"])] for level in levels])


def ratio_line(levels: Sequence[Row], key: str = "to_linear") -> str:
    """The ratios of all noise levels in one line, highest noise first."""
    return " ".join(f"{level[key]['mean']:.3g}" if level[key]["mean"] >= 10 else f"{level[key]['mean']:.2f}"
                    for level in levels)


def report_card_figure(levels: Sequence[Row], name: str) -> Figure:
    """Errors relative to the linear filter's, against the noise level."""
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.subplots()
    sigmas = [level["sigma"] for level in levels]
    ratios = [level["to_linear"] for level in levels]
    axes.axhline(1, color=MUTED, lw=1)
    axes.text(min(sigmas), 1, "linear filter (wiener)", color=MUTED, fontsize=8, ha="left", va="bottom")
    for formula in levels[0]["formulas"]:
        if formula != LINEAR:  # (denoiser / wiener) / (denoiser / formula)
            relative = [level["to_linear"]["mean"] / level["ratios"][formula]["mean"] for level in levels]
            axes.plot(sigmas, relative, "--o", ms=3, lw=1.2, label=formula)
    axes.fill_between(sigmas, [r["low"] for r in ratios], [r["high"] for r in ratios], color=INK, alpha=0.15, lw=0)
    axes.plot(sigmas, [r["mean"] for r in ratios], "-o", color=INK, ms=4, lw=2, label=name)
    highest = max(r["high"] for r in ratios)
    axes.set(xscale="log", yscale="log" if highest > 3 else "linear", xlabel="noise level σ",
             ylabel="held-out error / that of the linear filter",
             ylim=(None if highest > 3 else 0, max(1.6, 1.1 * highest)))
    quiet(axes)
    axes.set_title(f"{name}: error on held-out images", fontsize=10, color=INK, loc="left")
    axes.legend(frameon=False, fontsize=8, loc="best")
    return figure


def _ratio(found: Mapping[str, float]) -> list[str]:
    return [_number(found["mean"]), f"{_number(found['low'])} … {_number(found['high'])}"]


def _number(ratio: float) -> str:
    """Three decimals; a ratio to nearly nothing has no digits that mean anything."""
    return f"{ratio:.3f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 1000 else "> 1000"
