"""Pictures of sensitivity fields, drawn from the arrays that a run wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from scorelens.report.figures import INK, MUTED, quiet
from scorelens.report.tables import markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL_INCHES = 0.95
Row = Mapping[str, Any]
Normalization = Literal["image", "joint"]


@dataclass(frozen=True, eq=False)
class Strip:
    """The field of one output pixel at several noise levels: a row of the figure. `marked` levels get a frame."""

    name: str
    maps: Float[np.ndarray, "levels h w"]  # summed over the input channels
    pixel: tuple[int, int]
    note: str = ""
    marked: Sequence[bool] = ()


def field_figure(strips: Sequence[Strip], sigmas: Sequence[float], path: Path, *, title: str = "",
                 normalization: Normalization = "image", root: bool = False) -> None:
    """Rows of fields by noise level, red above zero and blue below; `root` shows the square root of the values."""
    from matplotlib.figure import Figure

    left = max(1.3, 0.085 * max(len(line) for s in strips for line in (s.name, *s.note.split("\n"))))
    top, cell = 0.62 if title else 0.35, CELL_INCHES
    width, height = left + cell * len(sigmas) + 0.1, top + cell * len(strips) + 0.1
    figure = Figure(figsize=(width, height))
    for i, strip in enumerate(strips):
        bottom = height - top - (i + 1) * cell
        largest = float(np.abs(strip.maps).max())
        for k, values in enumerate(strip.maps):
            axes = figure.add_axes(((left + k * cell) / width, bottom / height, 0.95 * cell / width,
                                    0.95 * cell / height))
            scale = largest if normalization == "joint" else float(np.abs(values).max())
            _draw(axes, values, strip, k, scale, root)
            if i == 0:
                axes.set_title(f"σ = {sigmas[k]:.3g}", fontsize=8, color=MUTED, pad=3)
        figure.text((left - 0.1) / width, (bottom + cell / 2) / height, f"{strip.name}\n{strip.note}".strip(),
                    ha="right", va="center", fontsize=8.5, color=INK)
    figure.text(0.1 / width, 1 - 0.12 / height, title, ha="left", va="top", fontsize=10.5, color=INK)
    figure.savefig(path, dpi=160)


def _draw(axes: Axes, values: np.ndarray, strip: Strip, level: int, scale: float, root: bool) -> None:
    from matplotlib.patches import Rectangle

    shown = values / scale if scale > 0 else values
    axes.imshow(np.sign(shown) * np.sqrt(np.abs(shown)) if root else shown, cmap="RdBu_r", vmin=-1, vmax=1,
                interpolation="nearest")
    row, column = strip.pixel
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec=INK, lw=0.6))
    framed = level < len(strip.marked) and strip.marked[level]
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color="#2a8f4b" if framed else "#cccccc", linewidth=2.0 if framed else 0.5)


def visibility_table(gammas: Mapping[str, float], visibility: Mapping[str, float], limit: float) -> str:
    """One line for each network."""
    return markdown(["network", "gamma", "visibility", "visible"],
                    [[name, f"{gamma:g}", f"{visibility[name]:.3f}", "yes" if visibility[name] > limit else "no"]
                     for name, gamma in gammas.items()])


def gain_figure(rows: Sequence[Row]) -> Figure:
    """The gain along the mark, measured and predicted, and how visible it is, against the noise level."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(9.5, 3.5), layout="constrained")
    gain, seen = figure.subplots(1, 2)
    for k, name in enumerate(dict.fromkeys(row["network"] for row in rows)):
        mine = [row for row in rows if row["network"] == name]
        sigmas, colour = [row["sigma"] for row in mine], colormaps["tab10"](k % 10)
        gain.semilogx(sigmas, [row["gain"] for row in mine], "-o", ms=3, lw=1.6, color=colour, label=name)
        if mine[0]["gamma"]:
            gain.semilogx(sigmas, [row["predicted"] for row in mine], ":", lw=1.4, color=colour)
        seen.semilogx(sigmas, [row["visibility"] for row in mine], "-o", ms=3, lw=1.6, color=colour)
    for axes, title in ((gain, "gain along the mark (dotted: predicted)"), (seen, "visibility of the mark")):
        axes.set(xlabel="noise level σ")
        quiet(axes)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
    gain.legend(frameon=False, fontsize=8)
    return figure


def curves_figure(rows: Sequence[Row]) -> Figure:
    """Likeness to the Wiener filter, reach and equivariance against the noise level, one line per model."""
    return _curves(rows, {"cosine": "cosine with the Wiener field", "radius": "reach, pixels",
                          "equivariance": "equivariance"})


def _curves(rows: Sequence[Row], panels: Mapping[str, str]) -> Figure:
    """One panel per quantity: its mean over the pixels against the noise level, one line per model."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(2 + 3 * len(panels), 3.3), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for k, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
            mine = [row for row in rows if row["model"] == model]
            levels = list(dict.fromkeys(row["sigma"] for row in mine))
            means = [np.mean([row[key] for row in mine if row["sigma"] == sigma]) for sigma in levels]
            axes.semilogx(levels, means, "-o", ms=3, lw=1.5, label=model,
                          color=INK if model == "wiener" else colormaps["tab10"](k % 10))
        axes.set(xlabel="noise level σ")
        quiet(axes)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return figure


def cosine_table(rows: Sequence[Row]) -> str:
    """Cosine with the Wiener field: models by noise level, mean over the pixels."""
    sigmas = list(dict.fromkeys(row["sigma"] for row in rows))
    values: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        values.setdefault((row["model"], row["sigma"]), []).append(row["cosine"])
    cells = [[model, *(f"{np.mean(values[model, sigma]):.3f}" for sigma in sigmas)]
             for model in dict.fromkeys(row["model"] for row in rows)]
    return markdown(["model", *(f"σ = {sigma:.3g}" for sigma in sigmas)], cells)


def write_fields(fields: Mapping[str, Any], rows: Sequence[Row], linearity: Sequence[Row], title: str,
                 folder: Path) -> None:
    """The numbers, the table, and the pictures: each field by its own largest value, and each row jointly."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "table.md").write_text(cosine_table(rows) + "\n")
    for name, measured in fields.items():
        measured.save(folder / f"{file_name(name)}.npz")
    first = next(iter(fields.values()))
    strips = [Strip(name, measured.values[:, k].sum(dim=1).cpu().numpy(), pixel,
                    f"pixel {pixel[0]}, {pixel[1]}" if len(first.pixels) > 1 else "")
              for k, pixel in enumerate(first.pixels) for name, measured in fields.items()]
    field_figure(strips, first.sigmas, folder / "fields.png", title=title)
    field_figure(strips, first.sigmas, folder / "fields-joint.png", title=f"{title}, normalized jointly",
                 normalization="joint")
    curves_figure(rows).savefig(folder / "curves.png", dpi=160)
    if linearity:
        panels = {"nonlinearity": "unexplained by its own Jacobian", "asymmetry": "asymmetry of the Jacobian"}
        _curves(linearity, panels).savefig(folder / "linearity.png", dpi=160)


def file_name(model: str) -> str:
    """A model's name as a file name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(model).name)
