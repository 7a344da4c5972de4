"""The benchmark's figures, drawn from its rows and the arrays beside them; each as PNG and as PDF."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scorelens.paper.numbers import PAPER_THRESHOLD
from scorelens.paper.presets import ANOTHER_SEED
from scorelens.paper.results import Results, family
from scorelens.report.fields import Strip, field_figure, gain_figure
from scorelens.report.figures import INK, Row, labelled_rows, quiet
from scorelens.report.html import Figure
from scorelens.report.paper_tables import label
from scorelens.report.report_card import error_figure
from scorelens.results import Row as Measured

COLUMNS = 3  # panels beside each other
SUFFIXES = (".png", ".pdf")


@dataclass(frozen=True)
class Drawing:
    """Where figures go, and where the arrays of the rows are."""

    folder: Path  # of the run
    figures: Path

    def arrays(self, row: Measured) -> Mapping[str, np.ndarray]:
        path = self.folder / row.pictures
        return dict(np.load(path)) if path.is_file() else {}

    def save(self, name: str, caption: str, draw: Callable[[Path], None]) -> Figure:
        self.figures.mkdir(parents=True, exist_ok=True)
        for suffix in SUFFIXES:
            draw(self.figures / f"{name}{suffix}")
        return Figure(self.figures / f"{name}.png", caption, alt=caption)


def samples(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """The first samples of every method, below the network's, for each dataset."""
    for dataset, rows in results.of(preset).items():
        pictures = [(row, to.arrays(row)) for row in rows]
        pictures = [(row, arrays) for row, arrays in pictures if "samples" in arrays]
        if pictures:
            mosaic = [Row(Path(rows[0].settings["reference"]).name, _floats(pictures[0][1]["reference"])),
                      *(Row(label(family(row)), _floats(arrays["samples"])) for row, arrays in pictures)]
            columns = [f"seed {rows[0].settings['seed'] + k}" for k in range(len(mosaic[0].images))]
            yield to.save(f"samples-{_file(dataset)}", f"Samples on {dataset}: each column starts from one noise",
                          lambda path, m=mosaic, c=columns: labelled_rows(m, path, columns=c))  # type: ignore[misc]


def novelty_curves(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    yield from _path_curves(results, preset, to, "novelty", "distance to the data",
                            "Mean squared distance of each prediction of x0 to the nearest training image, along the "
                            "trajectory")


def error_curves(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """The difference of predictions along the trajectory, and what they look like."""
    yield from _path_curves(results, preset, to, "mse", "MSE to the network",
                            "Mean squared difference of the predictions of x0 to the network's, each on its own "
                            "trajectory; bands are one standard deviation over samples")
    for dataset, rows in results.of(preset).items():
        shown = [(row, to.arrays(row)) for row in rows if family(row) in ("locality", "wiener", "optimal")]
        shown = [(row, arrays) for row, arrays in shown if "steps" in arrays]
        if shown:
            steps = len(rows[0].metrics["path"])
            strips = [Row(Path(rows[0].settings["reference"]).name, _floats(shown[0][1]["reference_steps"][:steps])),
                      *(Row(label(family(row)), _floats(arrays["steps"][:steps])) for row, arrays in shown)]
            columns = [f"σ = {point['sigma']:.3g}" for point in rows[0].metrics["path"]]
            yield to.save(f"steps-{_file(dataset)}", f"Predictions of x0 along one trajectory on {dataset}",
                          lambda path, s=strips, c=columns: labelled_rows(s, path, columns=c))  # type: ignore[misc]


def threshold_curves(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    yield from _ablation_curves(results, preset, to, "threshold", "threshold τ",
                                {d: {t: v[0] for t, v in values.items()} for d, values in PAPER_THRESHOLD.items()},
                                "r2 by the threshold of the masks, with its 95 % interval; dashed: the paper's")


def energy_curves(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    yield from _ablation_curves(results, preset, to, "energy", "share of the energy cut", {},
                                "r2 by the share of the energy that is cut (full rank at the left end), with its 95 % "
                                "interval")


def batch_curves(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """r2 by the number of images in a softmax; the exact one is a line across."""
    found = results.of(preset)

    def draw(path: Path) -> None:
        figure, panels = _panels(list(found))
        for axes, rows in zip(panels, found.values(), strict=True):
            exact = next((row for row in rows if row.options.get("softmax_batch") is None), None)
            if exact is not None:
                axes.axhspan(exact.r2["low"], exact.r2["high"], color=INK, alpha=0.1, lw=0)
                axes.axhline(exact.r2["mean"], color=INK, lw=1.2, label="exact")
            points = sorted((float(row.options.get("softmax_batch") or 0), row.r2) for row in rows if row is not exact)
            _band(axes, [x for x, _ in points], [r2 for _, r2 in points], "C1", "batch-mean")
            axes.set_xscale("log")
            axes.set(xlabel="images in a softmax", ylabel="r2")
        _legend(figure, panels)
        figure.savefig(path, dpi=160)

    if found:
        yield to.save("softmax", "r2 of locality by the number of images in a softmax, with its 95 % interval", draw)


def tolerance_curves(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """What a tolerance costs: rms by noise level for each tolerance, on each dataset."""
    found = {dataset: [row for row in rows if "tolerance" in row.options]
             for dataset, rows in results.of(preset).items()}
    found = {dataset: rows for dataset, rows in found.items() if any(row.metrics["rms"] > 0 for row in rows)}

    def draw(path: Path) -> None:
        figure, panels = _panels(list(found))
        for axes, rows in zip(panels, found.values(), strict=True):
            for k, row in enumerate(rows):
                asked, steps = row.options["tolerance"], [step for step in row.metrics["path"] if step["rms"] > 0]
                axes.axhline(asked, color=f"C{k}", lw=0.8, ls="--")
                axes.plot([step["sigma"] for step in steps], [step["rms"] for step in steps], "o-", ms=3, color=f"C{k}",
                          label=f"tolerance {asked:g}")
            axes.set_xscale("log")
            axes.set_yscale("log")
            sigmas = [step["sigma"] for step in rows[0].metrics["path"]]
            axes.set_xlim(1.5 * max(sigmas), min(sigmas) / 1.5)
            axes.set(xlabel="noise level σ, falling", ylabel="largest rms of x0_hat")
        _legend(figure, panels)
        figure.savefig(path, dpi=160)

    if found:
        yield to.save("tolerance", "Largest rms of x0_hat against the exact plan, by noise level; dashed: what was "
                      "asked for. Where there is no point, or no panel, the exact plan did all the work", draw)


def heldout_figures(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """Errors by noise level, and one held-out image through every model."""
    for dataset, rows in results.of(preset).items():
        flat = [{"model": label(family(row)), **level} for row in rows for level in row.metrics["levels"]]
        yield to.save(f"errors-{_file(dataset)}", f"{dataset}: error of one step on held-out images, by noise level",
                      lambda path, f=flat, d=dataset: error_figure(f, title=d).savefig(path, dpi=160))  # type: ignore[misc]
        pictures = [(row, to.arrays(row)) for row in rows]
        pictures = [(row, arrays) for row, arrays in pictures if "predictions" in arrays]
        if pictures:
            count = len(rows[0].metrics["levels"])
            held_out = _floats(pictures[0][1]["held_out"])
            strips = [Row("held-out image", held_out.expand(count, *held_out.shape[1:])),
                      *(Row(label(family(row)), _floats(arrays["predictions"])) for row, arrays in pictures)]
            columns = [f"σ = {level['sigma']:.3g}" for level in rows[0].metrics["levels"]]
            yield to.save(f"single-{_file(dataset)}", f"{dataset}: one held-out image, noised and denoised in one "
                          "step; the optimal denoiser goes to a training image instead",
                          lambda path, s=strips, c=columns: labelled_rows(s, path, columns=c))  # type: ignore[misc]


def field_strips(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """The field of the centre: network above Wiener filter, for each dataset."""
    strips, sigmas = [], []
    for dataset, rows in results.of(preset).items():
        for row in rows:
            arrays = to.arrays(row)
            if "centre" in arrays:
                sigmas = list(dict.fromkeys(f["sigma"] for f in row.metrics["fields"]))
                pixels = list(dict.fromkeys(tuple(f["pixel"]) for f in row.metrics["fields"]))
                strips.append(Strip(row.label, arrays["centre"], pixels[len(pixels) // 2], dataset))
    if strips:
        yield to.save("fields", "Sensitivity fields of the centre pixel by noise level, each normalized by itself",
                      lambda path: field_figure(strips, sigmas, path))


def mark_figures(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """The mark in the fields, and how much of it passes."""
    rows = [row for found in results.of(preset).values() for row in found]
    strips = [Strip(row.label, to.arrays(row)["maps"], (-1, -1), f"γ = {row.metrics['gamma']:g}",
                    [mark["snr"] > 0.1 for mark in row.metrics["marks"]]) for row in rows if "maps" in to.arrays(row)]
    if strips:
        sigmas = [mark["sigma"] for mark in rows[0].metrics["marks"]]
        yield to.save("marks", "Fields of a pixel of the mark; framed where the mark's signal-to-noise ratio is above "
                      "0.1", lambda path: field_figure(strips, sigmas, path, root=True))
    if rows:
        marks = [mark for row in rows for mark in row.metrics["marks"]]
        yield to.save("gain", "How much of the mark a network passes, and the prediction",
                      lambda path: gain_figure(marks).savefig(path, dpi=160))


FIGURES: dict[str, Callable[[Results, str, Drawing], Iterator[Figure]]] = {
    "table1": samples, "table-appendix": samples, "novelty": novelty_curves, "dynamics": error_curves,
    "threshold": threshold_curves, "low-rank": energy_curves, "softmax": batch_curves,
    "tolerance": tolerance_curves, "held-out": heldout_figures, "sensitivity": field_strips,
    "manipulation": mark_figures}


def _path_curves(results: Results, preset: str, to: Drawing, key: str, ylabel: str, caption: str) -> Iterator[Figure]:
    found = results.of(preset)

    def draw(path: Path) -> None:
        figure, panels = _panels(list(found))
        methods = list(dict.fromkeys(family(row) for rows in found.values() for row in rows))
        for axes, rows in zip(panels, found.values(), strict=True):
            for row in rows:
                sigmas = [point["sigma"] for point in row.metrics["path"]]
                name = family(row)
                colour = INK if name == ANOTHER_SEED else f"C{methods.index(name)}"
                _curve(axes, sigmas, [point[key] for point in row.metrics["path"]], colour, label(name))
            if key == "novelty":
                points = rows[0].metrics["path"]
                _curve(axes, sigmas, [point["reference_novelty"] for point in points], "C9", "the network")
            axes.set_xscale("log")
            axes.invert_xaxis()
            if key == "mse":
                axes.set_yscale("log")
            else:  # which is 0 for training images themselves
                axes.set_yscale("symlog", linthresh=0.01)
                axes.set_ylim(bottom=0)
            axes.set(xlabel="noise level σ, falling", ylabel=ylabel)
        _legend(figure, panels)
        figure.savefig(path, dpi=160)

    if found:
        yield to.save(preset, caption, draw)


def _ablation_curves(results: Results, preset: str, to: Drawing, name: str, xlabel: str,
                     paper: Mapping[str, Mapping[float, float]], caption: str) -> Iterator[Figure]:
    found = results.of(preset)

    def draw(path: Path) -> None:
        figure, panels = _panels(list(found))
        for axes, (dataset, rows) in zip(panels, found.items(), strict=True):
            smallest = min((row.options.get(name) or 1.0 for row in rows), default=1.0)
            names = [row.denoiser for row in rows]  # whichever threshold was chosen, it is one curve
            for k, method in enumerate(dict.fromkeys(names)):
                mine = [row for row, own in zip(rows, names, strict=True) if own == method]
                _band(axes, [row.options.get(name) or smallest / 3 for row in mine], [row.r2 for row in mine], f"C{k}",
                      label(method))
            if dataset in paper:
                axes.plot(list(paper[dataset]), list(paper[dataset].values()), "--", color="C7", lw=1.2,
                          label="the paper's")
            axes.set_xscale("log")
            axes.set(xlabel=xlabel, ylabel="r2")
        _legend(figure, panels)
        figure.savefig(path, dpi=160)

    if found:
        yield to.save(preset, caption, draw)


def _panels(titles: Sequence[str]) -> tuple[Any, list[Any]]:
    """A panel for each dataset."""
    from matplotlib.figure import Figure as Canvas

    columns = min(COLUMNS, len(titles))
    lines = -(-len(titles) // columns)
    figure = Canvas(figsize=(3.3 * columns + 1.9, 2.7 * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in panels[len(titles):]:
        axes.set_visible(False)
    for axes, title in zip(panels, titles, strict=False):
        quiet(axes)
        axes.set_title(title, fontsize=10, color=INK, loc="left")
    return figure, panels[:len(titles)]


def _legend(figure: Any, panels: Sequence[Any]) -> None:
    """One legend for all panels."""
    entries = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside right center", fontsize=8, frameon=False)


def _curve(axes: Any, x: Sequence[float], values: Sequence[Mapping[str, float]], colour: str, name: str) -> None:
    mean, std = (np.array([value[key] for value in values]) for key in ("mean", "std"))
    axes.plot(x, mean, "-o", ms=2.5, lw=1.4, color=colour, label=name)
    axes.fill_between(x, np.maximum(mean - std, 0), mean + std, color=colour, alpha=0.08, lw=0)


def _band(axes: Any, x: Sequence[float], values: Sequence[Mapping[str, float]], colour: str, name: str) -> None:
    axes.plot(x, [value["mean"] for value in values], "-o", ms=3, lw=1.5, color=colour, label=name)
    axes.fill_between(x, [value["low"] for value in values], [value["high"] for value in values], color=colour,
                      alpha=0.15, lw=0)


def _floats(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels).float() / 127.5 - 1


def _file(name: str) -> str:
    """A dataset's name as part of a file name: it may be anything."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
