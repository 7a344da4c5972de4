"""Report cards as tables and figures, from their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scorelens.report.figures import INK, MUTED, Figure, literal, panels
from scorelens.report.tables import grouped, markdown

Row = Mapping[str, Any]


def report_card_table(levels: Sequence[Row]) -> str:
    """One line for each noise level."""
    formulas = list(levels[0]["formulas"])
    header = ["sigma", "error", *formulas, "/ wiener", "95 % interval", "best formula", "/ best", "95 % interval"]
    return markdown(header, [[
        f"{level['sigma']:.3g}", f"{level['error']['mean']:.3g}",
        *(f"{level['formulas'][name]:.3g}" for name in formulas), *_ratio(level["to_linear"]), level["best"],
        *_ratio(level["to_best"])] for level in levels])


def _ratio(interval: Mapping[str, float]) -> list[str]:
    mean, low, high = (_number(interval[key]) for key in ("mean", "low", "high"))
    return [mean, f"{low} … {high}"]


def _number(ratio: float) -> str:
    """Three decimals below 10, one below 1000; a larger ratio divides by an error of nearly 0."""
    if ratio >= 1000:
        return "> 1000"
    return f"{ratio:.3f}" if ratio < 10 else f"{ratio:.1f}"


def report_card_figure(levels: Sequence[Row], name: str) -> Figure:
    """Held-out errors relative to the linear filter's, by noise level."""
    figure, (axes,) = panels(f"{name}: error on held-out images", size=(7.0, 4.0))
    sigmas = [level["sigma"] for level in levels]
    mean, low, high = ([level["to_linear"][key] for level in levels] for key in ("mean", "low", "high"))
    axes.axhline(1, color=MUTED, lw=1)
    axes.text(min(sigmas), 1, "linear filter (wiener)", color=MUTED, fontsize=8, ha="left", va="bottom")
    for formula in levels[0]["formulas"]:
        if formula != "wiener":  # (denoiser / wiener) / (denoiser / formula)
            relative = [level["to_linear"]["mean"] / level["ratios"][formula]["mean"] for level in levels]
            axes.plot(sigmas, relative, "--o", ms=3, lw=1.2, label=formula)
    axes.fill_between(sigmas, low, high, color=INK, alpha=0.15, lw=0)
    axes.plot(sigmas, mean, "-o", color=INK, ms=4, lw=2, label=literal(name))
    wide = max(high) > 3
    axes.set(xscale="log", yscale="log" if wide else "linear", ylabel="held-out error / that of the linear filter",
             ylim=(None if wide else 0, max(1.6, 1.1 * max(high))))
    axes.legend(frameon=False, fontsize=8, loc="best")
    return figure


def error_figure(rows: Sequence[Row], *, title: str) -> Figure:
    """Single-step error on held-out images by noise level, with its interval, one line per model."""
    figure, (axes,) = panels(title, size=(6.4, 3.9))
    for k, (model, own) in enumerate(grouped(rows, "model").items()):
        sigmas = [row["sigma"] for row in own]
        mean, low, high = ([row["mse"][key] for row in own] for key in ("mean", "low", "high"))
        axes.loglog(sigmas, mean, "-o", ms=3, lw=1.6, color=f"C{k}", label=literal(model))
        axes.fill_between(sigmas, low, high, alpha=0.15, color=f"C{k}", lw=0)
    least = min(row["mse"]["mean"] for row in rows)  # an interval may reach far below all means
    axes.set(ylabel="MSE to the held-out image", ylim=(max(least / 5, 1e-12), None))
    axes.legend(frameon=False, fontsize=8)
    return figure
