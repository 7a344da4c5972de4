"""Sensitivity fields and marks as tables and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from scorelens.report.figures import INK, MUTED, Axes, Figure, literal, panels
from scorelens.report.tables import grouped, markdown

CELL_INCHES = 0.95
FIELD_CURVES = {"cosine": "cosine with the Wiener field", "radius": "reach, pixels", "equivariance": "equivariance"}
LINEARITY_CURVES = {"nonlinearity": "unexplained by its own Jacobian", "asymmetry": "asymmetry of the Jacobian"}
Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Strip:
    """The field of one output pixel at several noise levels, a row of the figure. `marked` levels get a frame."""

    name: str
    maps: Float[np.ndarray, "levels h w"]  # summed over the input channels
    pixel: tuple[int, int]
    note: str = ""
    marked: Sequence[bool] = ()


def field_figure(strips: Sequence[Strip], sigmas: Sequence[float], path: Path, *, title: str = "", joint: bool = False,
                 root: bool = False) -> None:
    """Save rows of fields by noise level, red above zero and blue below.

    Each field is divided by its largest absolute value, or by that of its row (`joint`); `root` then takes the square
    root of the absolute values.
    """
    from matplotlib.figure import Figure as Canvas

    left = max(1.3, 0.085 * max(len(line) for s in strips for line in (s.name, *s.note.split("\n"))))
    top, cell = 0.62 if title else 0.35, CELL_INCHES
    width, height = left + cell * len(sigmas) + 0.1, top + cell * len(strips) + 0.1
    figure = Canvas(figsize=(width, height))
    for i, strip in enumerate(strips):
        bottom = height - top - (i + 1) * cell
        for k, values in enumerate(strip.maps):
            axes = figure.add_axes(((left + k * cell) / width, bottom / height, 0.95 * cell / width,
                                    0.95 * cell / height))
            scale = float(np.abs(strip.maps if joint else values).max())
            shown = values / scale if scale > 0 else values
            _draw(axes, np.sign(shown) * np.sqrt(np.abs(shown)) if root else shown, strip.pixel,
                  k < len(strip.marked) and strip.marked[k])
            if i == 0:
                axes.set_title(f"σ = {sigmas[k]:.3g}", fontsize=8, color=MUTED, pad=3)
        figure.text((left - 0.1) / width, (bottom + cell / 2) / height, f"{literal(strip.name)}\n{strip.note}".strip(),
                    ha="right", va="center", fontsize=8.5, color=INK)
    figure.text(0.1 / width, 1 - 0.12 / height, literal(title), ha="left", va="top", fontsize=10.5, color=INK)
    figure.savefig(path, dpi=160)


def _draw(axes: Axes, values: np.ndarray, pixel: tuple[int, int], framed: bool) -> None:
    from matplotlib.patches import Rectangle

    axes.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    axes.add_patch(Rectangle((pixel[1] - 0.5, pixel[0] - 0.5), 1, 1, fill=False, ec=INK, lw=0.6))
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color="#2a8f4b" if framed else "#cccccc", linewidth=2.0 if framed else 0.5)


def gain_figure(rows: Sequence[Row]) -> Figure:
    """The gain along the mark, measured and predicted, and the mark's visibility, by noise level."""
    titles = "gain along the mark (dotted: predicted)", "visibility of the mark"
    figure, (gain, visibility) = panels(*titles, size=(9.5, 3.5))
    for k, (name, own) in enumerate(grouped(rows, "network").items()):
        sigmas, style = [row["sigma"] for row in own], {"ms": 3, "lw": 1.6, "color": f"C{k}"}
        gain.semilogx(sigmas, [row["gain"] for row in own], "-o", label=literal(name), **style)
        if own[0]["gamma"]:
            gain.semilogx(sigmas, [row["predicted"] for row in own], ":", lw=1.4, color=f"C{k}")
        visibility.semilogx(sigmas, [row["visibility"] for row in own], "-o", **style)
    gain.legend(frameon=False, fontsize=8)
    return figure


def curves_figure(rows: Sequence[Row], titles: Mapping[str, str] = FIELD_CURVES) -> Figure:
    """One panel per quantity: its mean over the pixels by noise level, one line per model."""
    figure, every = panels(*titles.values(), size=(2 + 3 * len(titles), 3.3))
    for axes, key in zip(every, titles, strict=True):
        for k, (model, own) in enumerate(grouped(rows, "model").items()):
            levels = grouped(own, "sigma")
            means = [np.mean([row[key] for row in each]) for each in levels.values()]
            axes.semilogx(list(levels), means, "-o", ms=3, lw=1.5, label=literal(model),
                          color=INK if model == "wiener" else f"C{k}")
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return figure


def cosine_table(rows: Sequence[Row]) -> str:
    """Cosine with the Wiener field: models by noise level, mean over the pixels."""
    cells = [[model, *(f"{np.mean([row['cosine'] for row in each]):.3f}" for each in grouped(own, "sigma").values())]
             for model, own in grouped(rows, "model").items()]
    return markdown(["model", *(f"σ = {sigma:.3g}" for sigma in grouped(rows, "sigma"))], cells)


def write_fields(fields: Mapping[str, Any], rows: Sequence[Row], linearity: Sequence[Row], title: str,
                 folder: Path) -> None:
    """Write rows, table, arrays and figures; fields are normalized one by one, and jointly by row."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "table.md").write_text(cosine_table(rows) + "\n", encoding="utf-8")
    for name, measured in fields.items():
        measured.save(folder / f"{file_name(name)}.npz")
    first = next(iter(fields.values()))
    strips = [Strip(name, measured.values[:, k].sum(dim=1).cpu().numpy(), pixel,
                    f"pixel {pixel[0]}, {pixel[1]}" if len(first.pixels) > 1 else "")
              for k, pixel in enumerate(first.pixels) for name, measured in fields.items()]
    field_figure(strips, first.sigmas, folder / "fields.png", title=title)
    field_figure(strips, first.sigmas, folder / "fields-joint.png", title=f"{title}, normalized jointly", joint=True)
    curves_figure(rows).savefig(folder / "curves.png", dpi=160)
    if linearity:
        curves_figure(linearity, LINEARITY_CURVES).savefig(folder / "linearity.png", dpi=160)


def file_name(model: str) -> str:
    """A model's name as a file name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(model).name)
