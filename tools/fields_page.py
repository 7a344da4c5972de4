"""docs/sensitivity.md: sensitivity fields of networks, from the rows of tools/fields.py and tools/figures.py."""

from __future__ import annotations

from typing import Any

from perf.rows import DOCS, rows_of

from scorelens.analysis.marks import MARK_LEVELS, MARK_VISIBLE, visible_by_network
from scorelens.report.tables import markdown
from tools.figures import FIGURES
from tools.tables import Columns, mean, paragraph, table

TABLES = {
    "cosine": ("Similarity to the Wiener filter", "Cosine of a network's mean field and the Wiener row of its pixel."),
    "equivariance": ("Equivariance", "Mean cosine between the fields of different pixels, moved to a common centre: 1 "
                     "if the field is the same at every pixel, as for a convolution."),
    "radius": ("Reach", "Root mean squared distance of the field from its output pixel, in pixels."),
    "nonlinearity": ("Nonlinearity", "Share of the change between two noisy images that the Jacobian at the first does "
                     "not predict: 0 for a linear denoiser."),
    "asymmetry": ("Asymmetry of the Jacobian",
                  "‖J − Jᵀ‖ / 2‖J‖: 0 if the denoiser is a gradient field, as every posterior mean is."),
}
MARKS: Columns = {"network": "{r[0]}", "γ of its data": "{r[2]:g}", "visibility": "{r[1]:.3f}",
                  "visible": lambda row: "yes" if row[1] > MARK_VISIBLE else "no"}
MIDDLE = (0.3, 7.0)  # noise levels of the summary: with both signal and noise


def fields_regions() -> dict[str, str]:
    """A summary by dataset, figures, the W experiment, one table per quantity (networks by noise level), and memory."""
    rows, marks, (memory,) = rows_of("fields"), rows_of("manipulation"), rows_of("field_memory")
    gammas = {row["network"]: row["gamma"] for row in marks}
    scores = [(name, score, gammas[name]) for name, score in visible_by_network(marks).items()]
    more = (memory["peak_bytes"] - memory["before_bytes"]) / 1e6
    return {
        "datasets": f"Means over the noise levels between {MIDDLE[0]:g} and {MIDDLE[1]:g}:\n\n{_by_dataset(rows)}",
        "figures": _figures(),
        "marks": paragraph(f"""
            The visibility is averaged over the noise levels up to {MARK_LEVELS[1]:g}, where the signal-to-noise ratio
            of the weak mark is above 0.1. A mark counts as visible above {MARK_VISIBLE:g}; this threshold was
            committed before the networks were trained.""") + f"\n{table(scores, MARKS)}",
        "tables": "\n".join(_by_sigma(rows, *about) for about in TABLES.items()),
        "memory": paragraph(f"""
            The field of one pixel of the locality model, on all {memory['images']:,} images of CIFAR-10, has a peak
            memory of {memory['peak_bytes'] / 1e9:.2f} GB, {more:.0f} MB more than the data and masks. The limit of the
            workspace is {memory['budget_bytes'] / 1e6:.0f} MB.""")}


def _by_dataset(rows: list[dict[str, Any]]) -> str:
    """Similarity and equivariance of each dataset, over the middle noise levels."""
    def column(model: str, key: str) -> Any:
        return lambda dataset: mean(row[key] for row in rows if row["dataset"] == dataset and MIDDLE[0] < row["sigma"]
                                    < MIDDLE[1] and row["model"] == model.format(data=dataset))

    return table(dict.fromkeys(row["dataset"] for row in rows), {
        "data": "{r}", "cosine of U-Net and Wiener": column("{data}-unet", "cosine"),
        "of U-Net trained on x0 and Wiener": column("{data}-unet-x0", "cosine"),
        "equivariance of Wiener": column("wiener", "equivariance"), "of U-Net": column("{data}-unet", "equivariance")})


def _figures() -> str:
    return "\n".join(f"{figure.about}:\n\n![{name}](figures/{name}.png)\n\n    scorelens {figure.command}\n"
                     for name, figure in FIGURES.items() if (DOCS / "figures" / f"{name}.png").exists())


def _by_sigma(rows: list[dict[str, Any]], key: str, about: tuple[str, str]) -> str:
    """One quantity of each network at each noise level."""
    values: dict[tuple[str, str], dict[float, list[float]]] = {}
    for row in (row for row in rows if key in row):
        values.setdefault((row["dataset"], row["model"]), {}).setdefault(row["sigma"], []).append(row[key])
    sigmas = list(dict.fromkeys(row["sigma"] for row in rows))
    lines = [[*names, *(mean(levels.get(sigma, [])) for sigma in sigmas)] for names, levels in values.items()]
    header = ["data", "model", *(f"σ = {sigma:.3g}" for sigma in sigmas)]
    return f"## {about[0]}\n\n{about[1]}\n\n{markdown(header, lines)}\n"
