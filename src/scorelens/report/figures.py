"""Styled panels, mosaics of images, and spectra."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from scorelens.data.images import to_uint8
from scorelens.validation import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:
    Axes = Figure = Any  # matplotlib is imported when a figure is drawn

TILE_INCHES = 0.62  # side of an image in a labelled mosaic
INK, MUTED = "#222222", "#777777"


@dataclass(frozen=True)
class Row:
    """A row of images [K, C, H, W] in [-1, 1] with its name; an `attached` row belongs to the one above it."""

    name: str
    images: Tensor
    attached: bool = False


def literal(text: str) -> str:
    """Text for a figure as it is: matplotlib reads what is between dollars as a formula, and fails on others."""
    return printable(text).replace("$", r"\$") if "$" in text or not text.isprintable() else text


def panels(*titles: str, size: tuple[float, float], xlabel: str = "noise level σ",
           **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with one styled panel for each title, side by side; the options are those of `Figure.subplots`."""
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=size, layout="constrained")
    every = list(figure.subplots(1, len(titles), squeeze=False, **options)[0])
    for axes, title in zip(every, titles, strict=True):
        quiet(axes)
        axes.set_title(literal(title), fontsize=10, color=INK, loc="left")
        axes.set_xlabel(xlabel)
    return figure, every


def quiet(axes: Axes) -> None:
    """Style axes plainly: two spines, a pale grid, small numbers."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#e6e6e6", lw=0.6)
    axes.tick_params(labelsize=8)
    axes.title.set_fontsize(10)


def mosaic(rows: Sequence[Row]) -> tuple[UInt8[np.ndarray, "height width 3"], list[float]]:
    """The rows as one RGB image with white gaps, and the vertical centre of each row."""
    tiles = [_rgb(to_uint8(row.images)) for row in rows]
    h, w = tiles[0].shape[1:3]
    gap = max(1, round(0.08 * max(h, w)))
    wide = 3 * gap if any(row.attached for row in rows) else gap
    tops = np.cumsum([0, *(h + (gap if row.attached else wide) for row in rows[1:])])
    columns = max(len(row) for row in tiles)
    canvas = np.full((tops[-1] + h, columns * (w + gap) - gap, 3), 255, np.uint8)
    for top, row in zip(tops, tiles, strict=True):
        for k, tile in enumerate(row):
            canvas[top:top + h, k * (w + gap):k * (w + gap) + w] = tile
    return canvas, [float(top + h / 2) for top in tops]


def labelled_rows(rows: Sequence[Row], path: Path, *, title: str = "", columns: Sequence[str] = ()) -> None:
    """Save a mosaic with a name before each row (small for attached rows) and, if given, above each column."""
    picture, middles = mosaic(rows)
    longest = max(len(line) for row in rows for line in row.name.split("\n"))
    figure, axes = _canvas(picture, TILE_INCHES * max(len(row.images) for row in rows), left=max(1.45, 0.09 * longest),
                           top=0.1 + 0.35 * bool(title) + 0.2 * bool(columns))
    width = picture.shape[1]
    for row, y in zip(rows, middles, strict=True):
        axes.text(-0.02 * width, y, "\n".join(map(literal, row.name.split("\n"))), ha="right", va="center",
                  fontsize=7 if row.attached else 10, color=MUTED if row.attached else INK)
    for k, name in enumerate(columns):
        axes.annotate(literal(name), ((k + 0.5) / len(columns) * width, -0.5), xytext=(0, 3),
                      textcoords="offset points", ha="center", va="bottom", fontsize=7, color=MUTED)
    if title:
        figure.text(0.1 / figure.get_figwidth(), 1 - 0.1 / figure.get_figheight(), literal(title), ha="left", va="top",
                    fontsize=10.5, color=INK)
    figure.savefig(path, dpi=160)


def grid_figure(images: Tensor, *, title: str = "") -> Figure:
    """Images in a nearly square grid."""
    columns = math.ceil(math.sqrt(len(images)))
    rows = [Row("", images[start:start + columns]) for start in range(0, len(images), columns)]
    figure, _ = _canvas(mosaic(rows)[0], max(0.9 * columns, 3.0), left=0.1, top=0.4 if title else 0.1)
    if title:
        figure.text(0.5, 0.985, literal(title), ha="center", va="top", fontsize=9, color=INK)
    return figure


def spectrum(mean: Tensor, eigenvalues: Sequence[float], name: str, path: Path) -> None:
    """Save the mean image, the eigenvalues of the covariance, and the share of variance in the first k components."""
    values = np.asarray(eigenvalues)
    values = values[values > values[0] * 1e-12] if values[0] > 0 else values[:1]
    k = np.arange(1, len(values) + 1)
    titles = "mean image", "variance λ² of component k", "share of the variance, %"
    figure, (picture, decay, share) = panels(*titles, size=(9.5, 2.9), width_ratios=[1, 1.4, 1.4])
    picture.imshow(mosaic([Row("", mean[None])])[0], interpolation="nearest")
    picture.set_axis_off()
    decay.loglog(k, values, color="#1f6fb4", lw=1.6)
    decay.set(xlabel="component k")
    share.semilogx(k, 100 * np.cumsum(values) / max(values.sum(), 1e-300), color="#c8502d", lw=1.6)
    share.set(xlabel="first k components", ylim=(0, 104))
    figure.suptitle(literal(name), fontsize=11, color=INK, x=0.01, ha="left")
    figure.savefig(path, dpi=160)


def spectra_figure(spectra: Mapping[str, Sequence[float]], path: Path, leading: int = 100) -> None:
    """Save the eigenvalues of several datasets: all of them, and the leading ones (the paper's appendix)."""
    figure, every = panels("all components", f"first {leading}", size=(9.5, 3.6), xlabel="component k")
    for axes, count in zip(every, (None, leading), strict=True):
        for name, eigenvalues in spectra.items():
            values = np.asarray(eigenvalues)[:count]
            values = values[values > eigenvalues[0] * 1e-12]
            axes.loglog(np.arange(1, len(values) + 1), values, lw=1.6, label=literal(name))
        axes.set_ylabel("variance λ²")
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(path, dpi=160)


def _canvas(picture: np.ndarray, width: float, left: float, top: float) -> tuple[Figure, Axes]:
    """A figure that shows the picture `width` inches wide, with margins for text on the left and at the top."""
    from matplotlib.figure import Figure as Canvas

    height = width * picture.shape[0] / picture.shape[1]
    size = (width + left + 0.1, height + top + 0.1)
    figure = Canvas(figsize=size)
    axes = figure.add_axes((left / size[0], 0.1 / size[1], width / size[0], height / size[1]))
    axes.imshow(picture, interpolation="nearest", aspect="auto")
    axes.set_axis_off()
    return figure, axes


def _rgb(images: UInt8[np.ndarray, "k c h w"]) -> UInt8[np.ndarray, "k h w 3"]:
    """RGB: one channel is grey, two are red and green, of more than three the first three are shown."""
    if images.shape[1] == 1:
        images = images.repeat(3, axis=1)
    elif images.shape[1] == 2:
        images = np.concatenate([images, np.zeros_like(images[:, :1])], axis=1)
    return images[:, :3].transpose(0, 2, 3, 1)
