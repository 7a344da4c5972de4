"""docs/methods.md: every method, from the code and the rows of perf/methods.py."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from scorelens.denoisers import DENOISERS
from scorelens.report.tables import markdown
from scorelens.results import Row

METHODS_INTRODUCTION = """# All methods

Every closed-form denoiser of the field, with one interface: `scorelens.build_denoiser(NAME, images, OPTION=...)`, or
`--denoiser NAME --denoiser.OPTION VALUE` on the command line. All are exact unless an option says otherwise. Their
equations are in [equations.md](equations.md); a new one takes [twenty lines](adding_a_method.md). This page is written
from the code and from `perf/results/methods.jsonl` (`python -m perf.methods`).
"""
DIGITS_INTRODUCTION = """
## On digits, with their defaults

r2 against `{reference}`, noise seeds {first} to {last}, {steps} steps, all options at their defaults. None is fitted to
the network, except that `measured` and `pspc-flex` look at its fields.

"""
SIZES_INTRODUCTION = """
## Calibrated patch sizes

`scorelens calibrate` on digits, against `digits-unet`: the size with the best median r2 of the score, the largest of
those that fit alike. At the lowest noise no size fits well (the score divides a small difference by σ²).

"""
ELS_INTRODUCTION = """
## What patches cost

One step of `els` on MNIST ({images:,} images, {patches:,} patches of side {patch_size}, {noisy} noisy images) takes
{ratio:.2f} times the bare matrix product within it; peak memory {gigabytes:.1f} GB.
"""
CLUSTERS_INTRODUCTION = """
The clustered approximation (`clusters=128`) against exact, on 500 MNIST images, patches of side 9:

"""


def methods_page(rows: list[dict[str, Any]], digits: list[Row], methods: Iterable[str] = DENOISERS) -> str:
    """The methods, how well each predicts a network on digits, and what patches cost."""
    found = {row["cell"]: row for row in rows}
    names = [f"| `{name}` | {_about(DENOISERS[name])} |" for name in methods]
    parts = [METHODS_INTRODUCTION, "| method | what it is |", "| :--- | :--- |", *names]
    parts += [_digits_section([row for row in digits if "r2" in row.metrics]),
              _sizes_section([row for row in rows if row["cell"].startswith("calibration")]),
              _els_section(found["els"], [row for row in rows if row["cell"].startswith("clusters")])]
    return "\n".join(parts)


def _about(builder: Any) -> str:
    """The first sentence of a method's file; of the method itself, where several share a file."""
    module = sys.modules[builder.__module__]
    shared = sum(one.__module__ == builder.__module__ for one in DENOISERS.values()) > 1
    text = " ".join((builder.__doc__ if shared else module.__doc__).split("Args:")[0].split())
    return re.split(r"(?<!al)\. ", text)[0].removesuffix(".")  # but not after "et al."


def _digits_section(rows: list[Row]) -> str:
    ranked = sorted(rows, key=lambda row: -row.r2["mean"])
    cells = [[row.label, f"{row.r2['mean']:.3f}", f"{row.r2['low']:.3f} … {row.r2['high']:.3f}",
              f"{row.metrics['novelty_rms']['mean']:.3f}", f"{row.metrics['memorized']['mean']:.0%}",
              f"{1000 * row.metrics['seconds_per_image']:.0f}"] for row in ranked]
    first, last = rows[0].noise["seeds"]
    text = DIGITS_INTRODUCTION.format(first=first, last=last, **rows[0].settings)
    return text + markdown(["method", "r2", "95 % interval", "novelty", "memorized", "ms an image"], cells)


def _sizes_section(rows: list[dict[str, Any]]) -> str:
    header = ["σ", *(f"{sigma:.3g}" for sigma in rows[0]["sigmas"])]
    whole = 2 * max(rows[0]["data"]["shape"][1:]) - 1
    return SIZES_INTRODUCTION + markdown(header, [[row["denoiser"], *("all" if size == whole else str(size)
                                                                      for size in row["sizes"])] for row in rows])


def _els_section(els: dict[str, Any], clusters: list[dict[str, Any]]) -> str:
    cells = [[f"{row['sigma']:.3g}", str(row["searched"]), f"{row['rms']:.4f}", f"{row['time_ratio']:.1f}"]
             for row in clusters]
    text = ELS_INTRODUCTION.format(**els, gigabytes=els["peak_memory_bytes"] / 1e9)
    table = markdown(["σ", "clusters searched", "rms error of x0_hat", "times faster"], cells)
    return text + (f"{CLUSTERS_INTRODUCTION}{table}\n" if cells else "")
