"""The benchmark's figures, drawn from its rows and the arrays stored beside them; each as PNG and PDF."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scorelens.paper.numbers import PAPER_THRESHOLD, means
from scorelens.paper.presets import ANOTHER_SEED, GUIDANCE
from scorelens.paper.results import Results, family
from scorelens.paper.results import claim as find_claim
from scorelens.report.fields import Strip, field_figure, gain_figure
from scorelens.report.figures import INK, Row, labelled_rows, quiet
from scorelens.report.html import Figure
from scorelens.report.paper_tables import AUTO, label
from scorelens.report.report_card import error_figure
from scorelens.results import Row as Measured

COLUMNS = 3  # panels side by side
SUFFIXES = (".png", ".pdf")
FARTHEST = 10.0  # ratio beyond which points are drawn at the edge
ABLATIONS: dict[str, tuple[str, str, Mapping[str, Mapping[float, float]], str]] = {  # option, axis, paper, caption
    "threshold": ("threshold", "threshold τ", means(PAPER_THRESHOLD),
                  "r2 by the threshold of the masks, with its 95 % interval; dashed: the paper's"),
    "low-rank": ("energy", "share of the energy cut", {},
                 "r2 by the share of the energy that is cut (full rank at the left end), with its 95 % interval")}
Plot = Callable[[Any, str, Sequence[Measured]], None]  # draws the rows of a dataset on axes


@dataclass(frozen=True)
class Drawing:
    """The folder of the run, which holds the arrays of its rows, and the folder for figures."""

    folder: Path
    figures: Path

    def arrays(self, row: Measured) -> Mapping[str, np.ndarray]:
        path = self.folder / row.pictures
        return dict(np.load(path)) if path.is_file() else {}

    def save(self, name: str, caption: str, draw: Callable[[Path], None]) -> Figure:
        self.figures.mkdir(parents=True, exist_ok=True)
        for suffix in SUFFIXES:
            draw(self.figures / f"{name}{suffix}")
        return Figure(self.figures / f"{name}.png", caption, alt=caption)

    def mosaic(self, name: str, caption: str, rows: Sequence[Measured], key: str, first: tuple[str, str],
               columns: Sequence[str]) -> Iterator[Figure]:
        """The images stored under `key`, one line per row; above them a line with this title and key."""
        shown = [(label(family(row)), arrays) for row in rows if key in (arrays := self.arrays(row))]
        if not shown:
            return
        (title, first_key), count = first, min(len(columns), len(shown[0][1][key]))
        top = _floats(shown[0][1][first_key])[:count]
        lines = [Row(title, top.expand(count, *top.shape[1:])),
                 *(Row(method, _floats(arrays[key])[:count]) for method, arrays in shown)]
        yield self.save(_file_name(name), caption, lambda path: labelled_rows(lines, path, columns=columns[:count]))

    def panels(self, name: str, caption: str, by_dataset: Mapping[str, Sequence[Measured]],
               plot: Plot) -> Iterator[Figure]:
        """One panel for each dataset, and one legend."""
        if by_dataset:
            yield self.save(name, caption, lambda path: _panels(by_dataset, plot).savefig(path, dpi=160))


def samples(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """The first samples of every method, below the network's, for each dataset."""
    for dataset, rows in results.of(preset).items():
        settings = rows[0].settings
        yield from to.mosaic(f"samples-{dataset}", f"Samples on {dataset}: each column starts from the same noise",
                             rows, "samples", (Path(settings["reference"]).name, "reference"),
                             [f"seed {settings['seed'] + k}" for k in range(settings["num"])])


def novelty_curves(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    yield from to.panels(preset, "Mean squared distance from each prediction of x0 to the nearest training image, "
                         "along the trajectory", results.of(preset), _path_plot(results, preset, "novelty"))


def error_curves(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """The difference between predictions along the trajectory, and the predictions themselves."""
    yield from to.panels(preset, "Mean squared difference to the network's predictions of x0, each along its own "
                         "trajectory; bands show one standard deviation over samples", results.of(preset),
                         _path_plot(results, preset, "mse"))
    for dataset, rows in results.of(preset).items():
        yield from to.mosaic(f"steps-{dataset}", f"Predictions of x0 along one trajectory on {dataset}",
                             [row for row in rows if family(row) in ("locality", "wiener", "optimal")], "steps",
                             (Path(rows[0].settings["reference"]).name, "reference_steps"),
                             [f"σ = {step['sigma']:.3g}" for step in rows[0].metrics["path"]])


def ablation_curves(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """r2 by the value of an option, one curve per denoiser; rows without the option are at the left end, and where the
    value is chosen from the data, r2 is a horizontal line."""
    option, xlabel, paper, caption = ABLATIONS[preset]

    def plot(axes: Any, dataset: str, rows: Sequence[Measured]) -> None:
        fixed = [row for row in rows if row.options.get(option) != AUTO]
        smallest = min((row.options.get(option) or 1.0 for row in fixed), default=1.0)
        for chosen in (row for row in rows if row not in fixed):
            _level(axes, chosen.r2, "chosen from the data")
        for k, denoiser in enumerate(dict.fromkeys(row.denoiser for row in fixed)):
            curve = [row for row in fixed if row.denoiser == denoiser]
            _band(axes, [row.options.get(option) or smallest / 3 for row in curve], [row.r2 for row in curve], f"C{k}",
                  label(denoiser))
        if dataset in paper:
            axes.plot(*zip(*paper[dataset].items(), strict=True), "--", color="C7", lw=1.2, label="the paper's")
        axes.set(xscale="log", xlabel=xlabel, ylabel="r2")

    yield from to.panels(preset, caption, results.of(preset), plot)


def batch_curves(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """r2 by the number of images per softmax; the exact softmax is a horizontal line."""
    def plot(axes: Any, dataset: str, rows: Sequence[Measured]) -> None:
        for exact in (row for row in rows if row.options.get("softmax_batch") is None):
            _level(axes, exact.r2, "exact")
        points = sorted((row.options["softmax_batch"], row.r2) for row in rows if row.options.get("softmax_batch"))
        if points:  # without one, a logarithmic axis has nothing to show
            _band(axes, [x for x, _ in points], [r2 for _, r2 in points], "C1", "batch-mean")
            axes.set(xscale="log")
        axes.set(xlabel="images per softmax", ylabel="r2")

    yield from to.panels(preset, "r2 of locality by the number of images per softmax, with its 95 % interval",
                         results.of(preset), plot)


def heldout_figures(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """Errors by noise level, and the predictions of every model for one held-out image."""
    for dataset, rows in results.of(preset).items():
        errors = [{"model": label(family(row)), **level} for row in rows for level in row.metrics["levels"]]
        caption = f"{dataset}: error of one step on held-out images, by noise level"
        yield to.save(_file_name(f"errors-{dataset}"), caption,
                      partial(error_figure(errors, title=dataset).savefig, dpi=160))
        yield from to.mosaic(f"single-{dataset}", f"{dataset}: one held-out image, noised and denoised in one step; "
                             "the optimal denoiser returns a training image instead", rows, "predictions",
                             ("held-out image", "held_out"),
                             [f"σ = {level['sigma']:.3g}" for level in rows[0].metrics["levels"]])


def claim_figure(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """1 - r2 of single steps by held-out error, both relative to the least at their noise level."""
    by_dataset = results.of(preset)
    names = list(dict.fromkeys(row.label for row in results.rows_of(preset)))

    def plot(axes: Any, dataset: str, rows: Sequence[Measured]) -> None:
        errors = np.array([[level["error"] for level in row.metrics["levels"]] for row in rows])  # [methods, levels]
        missed = np.array([[1 - level["r2"]["mean"] for level in row.metrics["levels"]] for row in rows])
        x, y = (np.minimum(values / np.maximum(values.min(axis=0), 1e-12), FARTHEST) for values in (errors, missed))
        for row, across, up in zip(rows, x, y, strict=True):
            k = names.index(row.label)
            axes.plot(across, up, "os^"[k // 10 % 3], ms=4, color=f"C{k % 10}", alpha=0.7, label=row.label)
        axes.set(xscale="log", yscale="log", xlabel="held-out error / least", ylabel="(1 − r2) / least",
                 xlim=(0.95, 1.05 * FARTHEST), ylim=(0.95, 1.05 * FARTHEST))
        axes.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10+"])
        axes.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10+"])

    found = find_claim(by_dataset)
    rank = "" if found is None else ("; Spearman's correlation of less error with higher r2, within a dataset and "
                                     f"noise level: {found.correlation.mean:.2f} ({found.correlation.low:.2f} to "
                                     f"{found.correlation.high:.2f})")
    yield from to.panels(preset, "What a formula misses of the network's single steps, 1 − r2, against its error on "
                         "held-out images; each point is a method at a noise level, relative to the least of all "
                         f"methods there{rank}", by_dataset, plot)


def field_strips(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """The field of the centre pixel: the network's above the Wiener filter's, for each dataset."""
    rows = [(row, arrays) for row in results.rows_of(preset) if "centre" in (arrays := to.arrays(row))]
    strips = []
    for row, arrays in rows:
        pixels = list(dict.fromkeys(tuple(field["pixel"]) for field in row.metrics["fields"]))
        strips.append(Strip(row.label, arrays["centre"], pixels[len(pixels) // 2], row.settings["dataset"]))
    if strips:
        sigmas = list(dict.fromkeys(field["sigma"] for field in rows[-1][0].metrics["fields"]))
        yield to.save("fields", "Sensitivity fields of the centre pixel by noise level, each scaled to its own maximum",
                      lambda path: field_figure(strips, sigmas, path))


def mark_figures(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """The mark in the fields, and the gain along the mark."""
    rows = results.rows_of(preset)
    strips = [Strip(row.label, arrays["maps"], (-1, -1), f"γ = {row.metrics['gamma']:g}",
                    [mark["snr"] > 0.1 for mark in row.metrics["marks"]])
              for row in rows if "maps" in (arrays := to.arrays(row))]
    if strips:
        sigmas = [mark["sigma"] for mark in rows[0].metrics["marks"]]
        yield to.save("marks", "Fields of a pixel of the mark; framed where the mark's signal-to-noise ratio is above "
                      "0.1", lambda path: field_figure(strips, sigmas, path, root=True))
    if rows:
        figure = gain_figure([mark for row in rows for mark in row.metrics["marks"]])
        yield to.save("gain", "Gain of the networks along the mark, measured and predicted",
                      partial(figure.savefig, dpi=160))


def guidance_curves(results: Results, preset: str, to: Drawing) -> Iterator[Figure]:
    """r2 by the weight of guidance; and the cosine between directions of guidance by noise level."""
    methods = list(dict.fromkeys(row.denoiser for row in results.rows_of(preset)))

    def weights(axes: Any, dataset: str, rows: Sequence[Measured]) -> None:
        for k, denoiser in enumerate(methods):
            curve = sorted((row.options[GUIDANCE], row) for row in rows if row.denoiser == denoiser)
            _band(axes, [weight for weight, _ in curve], [row.r2 for _, row in curve], f"C{k}", label(denoiser))
        axes.set(xlabel="weight of guidance w", ylabel="r2", ylim=(max(-1.0, axes.get_ylim()[0]), 1.02))

    def directions(axes: Any, dataset: str, rows: Sequence[Measured]) -> None:
        for row in (row for row in rows if "directions" in row.metrics):
            points = row.metrics["directions"]
            axes.plot([point["sigma"] for point in points], [point["cosine"] for point in points], "-o", ms=2.5, lw=1.4,
                      color=f"C{methods.index(row.denoiser)}", label=label(row.denoiser))
        axes.set(xscale="log", xlabel="noise level σ, falling", ylabel="cosine of c − u")
        axes.invert_xaxis()

    by_dataset = results.of(preset)
    yield from to.panels(preset, "r2 of guided formulas with a network guided by the same weight, with its 95 % "
                         "interval", by_dataset, weights)
    yield from to.panels(f"{preset}-directions", "Cosine between a formula's direction of guidance and the network's, "
                         "along the conditional network's trajectory", by_dataset, directions)


FIGURES: dict[str, Callable[[Results, str, Drawing], Iterator[Figure]]] = {
    "table1": samples, "table-appendix": samples, "novelty": novelty_curves, "dynamics": error_curves,
    "threshold": ablation_curves, "low-rank": ablation_curves, "softmax": batch_curves,
    "held-out": heldout_figures, "claim": claim_figure, "sensitivity": field_strips,
    "manipulation": mark_figures, "guidance": guidance_curves}


def _path_plot(results: Results, preset: str, key: str) -> Plot:
    """Curves of "novelty" or "mse" along the trajectory."""
    methods = list(dict.fromkeys(map(family, results.rows_of(preset))))

    def plot(axes: Any, dataset: str, rows: Sequence[Measured]) -> None:
        for row in rows:
            k = methods.index(family(row))
            colour, line = (INK, "-o") if family(row) == ANOTHER_SEED else (f"C{k % 10}", ("-o", "--s")[k // 10 % 2])
            _curve(axes, row.metrics["path"], key, colour, label(family(row)), line)
        if key == "novelty":
            _curve(axes, rows[0].metrics["path"], "reference_novelty", INK, "the network", "--s")
        axes.set(xscale="log", xlabel="noise level σ, falling")
        axes.invert_xaxis()
        if key == "mse":
            some = any(step["mse"]["mean"] > 0 for row in rows for step in row.metrics["path"])
            axes.set(yscale="log" if some else "linear", ylabel="MSE to the network")
        else:  # 0 for training images
            axes.set_yscale("symlog", linthresh=0.01)
            axes.set(ylim=(0, None), ylabel="distance to the data")

    return plot


def _panels(by_dataset: Mapping[str, Sequence[Measured]], plot: Plot) -> Any:
    from matplotlib.figure import Figure as Canvas

    columns = min(COLUMNS, len(by_dataset))
    lines = -(-len(by_dataset) // columns)
    figure = Canvas(figsize=(3.3 * columns + 1.9, 2.7 * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in panels[len(by_dataset):]:
        axes.set_visible(False)
    for axes, (dataset, rows) in zip(panels, by_dataset.items(), strict=False):
        quiet(axes)
        axes.set_title(dataset, fontsize=10, color=INK, loc="left")
        plot(axes, dataset, rows)
    entries = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside right center", fontsize=8, frameon=False)
    return figure


def _curve(axes: Any, path: Sequence[Mapping[str, Any]], key: str, colour: str, name: str, line: str) -> None:
    sigmas = [step["sigma"] for step in path]
    mean, std = (np.array([step[key][statistic] for step in path]) for statistic in ("mean", "std"))
    axes.plot(sigmas, mean, line, ms=2.5, lw=1.4, color=colour, label=name)
    axes.fill_between(sigmas, np.maximum(mean - std, 0), mean + std, color=colour, alpha=0.08, lw=0)


def _band(axes: Any, x: Sequence[float], values: Sequence[Mapping[str, float]], colour: str, name: str) -> None:
    axes.plot(x, [value["mean"] for value in values], "-o", ms=3, lw=1.5, color=colour, label=name)
    axes.fill_between(x, [value["low"] for value in values], [value["high"] for value in values], color=colour,
                      alpha=0.15, lw=0)


def _level(axes: Any, value: Mapping[str, float], name: str) -> None:
    axes.axhspan(value["low"], value["high"], color=INK, alpha=0.1, lw=0)
    axes.axhline(value["mean"], color=INK, lw=1.2, label=name)


def _floats(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels).float() / 127.5 - 1


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in text)
