"""docs/sensitivity.md: where networks look, from the rows of tools/fields.py and tools/figures.py."""

from __future__ import annotations

from typing import Any

from perf.rows import DOCS, rows_of

from scorelens.analysis.marks import MARK_LEVELS, MARK_VISIBLE, visible_by_network
from scorelens.report.tables import markdown
from tools.figures import FIGURES

FIELDS_INTRODUCTION = """# Where networks look

The sensitivity field of an output pixel is the derivative of its prediction with respect to the noisy input. The paper
shows by pictures that a network's field is the Wiener filter's, that is, a property of the data; here are the numbers.
Each is a mean over nine output pixels and 16 samples (digits: 32) along the network's own trajectory of 10 steps;
this page is written from `perf/results/fields.jsonl` (`python -m tools.fields`).
"""
FIELD_TABLES = {
    "cosine": ("Likeness to the Wiener filter", "Cosine of a network's mean field and the Wiener row of its pixel."),
    "equivariance": ("Equivariance", "Mean cosine of the fields of different pixels, moved on top of each other: 1 if "
                     "the field is the same everywhere, as a convolution's."),
    "radius": ("Reach", "Root mean squared distance from the output pixel, in pixels."),
    "nonlinearity": ("Nonlinearity", "Share of the change between two noisy images that the Jacobian at the first does "
                     "not predict; 0 for a linear denoiser."),
    "asymmetry": ("Asymmetry of the Jacobian", "‖J − Jᵀ‖ / 2‖J‖; 0 for a gradient field, as every exact denoiser is."),
}


SUMMARY = """## By dataset

Means over the noise levels between {low:g} and {high:g}. Fields that are the same everywhere have equivariance 1.

"""
MARKS = """## The W experiment

Visibility is the correlation of field and mark away from the pixel, mean over the noise levels up to {high:g}, where
the weak mark's signal-to-noise ratio is above 0.1; a mark counts as visible above {visible:g}, a threshold that was
committed before the networks were trained. The Wiener filter of the same data shows both marks.

`leaves-unet` and `leaves-w05-unet` were trained from scratch. From scratch, a small network does not notice the weak
mark in a training of this length (the paper's are far longer). `leaves-w01-unet` and `leaves-w00-unet` therefore both
begin with the weights of `leaves-w05-unet`, and differ in their data alone: those of the first have the weak mark,
those of the second none. The first keeps the mark in its fields, the second forgets it: the fields follow the data.

"""
MEMORY_TEXT = """## Memory

The field of one pixel of the locality model on all {images:,} images of CIFAR-10 has a peak of {peak:.2f} GB,
{more:.0f} MB more than data and masks alone; {budget:.0f} MB of workspace are allowed.
"""
MIDDLE = (0.3, 7.0)  # noise levels of the summary: where there is both signal and noise


def fields_page() -> str:
    """A summary by dataset, pictures, the W experiment, and one table per quantity: networks by noise level."""
    rows, marks, memory = rows_of("fields"), rows_of("manipulation"), rows_of("field_memory")
    sigmas = list(dict.fromkeys(row["sigma"] for row in rows))
    models = list(dict.fromkeys((row["dataset"], row["model"]) for row in rows))
    parts = [FIELDS_INTRODUCTION, _by_dataset(rows), _figures(), _marks(marks)]
    for key, (title, about) in FIELD_TABLES.items():
        lines = [[dataset, model, *(_mean_of(rows, dataset, model, sigma, key) for sigma in sigmas)]
                 for dataset, model in models if any(key in row for row in rows if row["model"] == model)]
        header = ["data", "model", *(f"σ = {sigma:.3g}" for sigma in sigmas)]
        parts += [f"## {title}\n\n{about}\n", markdown(header, lines), ""]
    return "\n".join([*parts, *(_field_memory(row) for row in memory)])


def _by_dataset(rows: list[dict[str, Any]]) -> str:
    """Likeness and equivariance of each dataset, over the middle noise levels."""
    def mean(dataset: str, model: str, key: str) -> str:
        found = [row[key] for row in rows if row["dataset"] == dataset and row["model"] == model
                 and MIDDLE[0] < row["sigma"] < MIDDLE[1]]
        return f"{sum(found) / len(found):.2f}" if found else "–"

    cells = [[dataset, mean(dataset, f"{dataset}-unet", "cosine"), mean(dataset, f"{dataset}-unet-x0", "cosine"),
              mean(dataset, "wiener", "equivariance"), mean(dataset, f"{dataset}-unet", "equivariance")]
             for dataset in dict.fromkeys(row["dataset"] for row in rows)]
    return SUMMARY.format(low=MIDDLE[0], high=MIDDLE[1]) + markdown(
        ["data", "cosine, U-Net and Wiener", "the same, U-Net trained on x0", "equivariance of Wiener's fields",
         "of the U-Net's"], cells) + "\n"


def _figures() -> str:
    shown = [(name, figure) for name, figure in FIGURES.items() if (DOCS / "figures" / f"{name}.png").exists()]
    pictures = [f"{figure.about}; `scorelens {figure.command}`:\n\n![{figure.about}](figures/{name}.png)\n"
                for name, figure in shown]
    return "\n".join(["## Pictures\n", *pictures])


def _marks(rows: list[dict[str, Any]]) -> str:
    """The W experiment: how visible the mark is in the fields of each network."""
    gammas = {row["network"]: row["gamma"] for row in rows}
    cells = [[name, f"{gammas[name]:g}", f"{score:.3f}", "yes" if score > MARK_VISIBLE else "no"]
             for name, score in visible_by_network(rows).items()]
    text = MARKS.format(high=MARK_LEVELS[1], visible=MARK_VISIBLE)
    return text + markdown(["network", "γ of its data", "visibility", "visible"], cells) + "\n"


def _field_memory(row: dict[str, Any]) -> str:
    return MEMORY_TEXT.format(images=row["images"], peak=row["peak_bytes"] / 1e9, budget=row["budget_bytes"] / 1e6,
                              more=(row["peak_bytes"] - row["before_bytes"]) / 1e6)


def _mean_of(rows: list[dict[str, Any]], dataset: str, model: str, sigma: float, key: str) -> str:
    found = [row[key] for row in rows
             if (row["dataset"], row["model"], row["sigma"]) == (dataset, model, sigma) and key in row]
    return f"{sum(found) / len(found):.2f}" if found else "–"
