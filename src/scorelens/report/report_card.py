"""The report card as a table and a figure, from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scorelens.report.figures import INK, MUTED, labelled_rows, quiet
from scorelens.report.figures import Row as PictureRow
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


def error_figure(rows: Sequence[Row], *, title: str) -> Figure:
    """The error of one step on held-out images against the noise level, with its interval, one line per model."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(6.4, 3.9), layout="constrained")
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
    return figure


def one_step_picture(x0: Tensor, noise: Tensor, nearest: Tensor, sigmas: Sequence[float],
                     predictions: Mapping[str, Tensor], path: Path) -> None:
    """One held-out image: noisy, denoised in one step by each model at each level, and its nearest training image."""
    count = len(sigmas)
    scales = [(1 + sigma**2) ** -0.5 for sigma in sigmas]  # x_t, as DDPM has it: z itself leaves any range
    noisy = torch.stack([scale * (x0 + sigma * noise) for sigma, scale in zip(sigmas, scales, strict=True)])
    rows = [PictureRow("held-out image", x0.expand(count, *x0.shape)), PictureRow("noisy", noisy),
            *(PictureRow(name, images) for name, images in predictions.items()),
            PictureRow("nearest training image", nearest.expand(count, *x0.shape))]
    labelled_rows(rows, path, title="Denoised in one step", columns=[f"σ = {sigma:.3g}" for sigma in sigmas])


def _ratio(found: Mapping[str, float]) -> list[str]:
    return [_number(found["mean"]), f"{_number(found['low'])} … {_number(found['high'])}"]


def _number(ratio: float) -> str:
    """Three decimals; a ratio to nearly nothing has no digits that mean anything."""
    return f"{ratio:.3f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 1000 else "> 1000"
