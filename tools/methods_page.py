"""docs/methods.md: every method, from the code and the rows of perf/methods.py."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from scorelens.denoisers import DENOISERS
from scorelens.report.tables import markdown
from scorelens.results import Row
from tools.tables import Columns, paragraph, table

SCORES: Columns = {
    "r2": "{r.r2[mean]:.3f}", "95 % interval": "{r.r2[low]:.3f} … {r.r2[high]:.3f}",
    "novelty": "{r.metrics[novelty_rms][mean]:.3f}", "memorized": "{r.metrics[memorized][mean]:.0%}"}
CLUSTERS: Columns = {"σ": "{r[sigma]:.3g}", "clusters searched": "{r[searched]}", "rms error of x0_hat": "{r[rms]:.4f}",
                     "speed-up": "{r[time_ratio]:.1f}"}


def methods_regions(rows: list[dict[str, Any]], digits: list[Row],
                    methods: Iterable[str] = DENOISERS) -> dict[str, str]:
    """The methods, how well each predicts a network on digits, and the cost of patches."""
    ranked = sorted((row for row in digits if "r2" in row.metrics), key=lambda row: -row.r2["mean"])
    first, last = ranked[0].noise["seeds"]
    els = next(row for row in rows if row["cell"] == "els")
    reference, steps = ranked[0].settings["reference"], ranked[0].settings["steps"]
    scores = table(ranked, {"method": "{r.label}", **SCORES, "ms per image": lambda row:
                            f"{1000 * row.metrics['seconds_per_image']:.3g}"})
    return {
        "methods": "\n".join(["| method | what it is |", "| :--- | :--- |",
                              *(f"| `{name}` | {_about(DENOISERS[name])} |" for name in methods)]),
        "comparison": f"r2 against `{reference}`, noise seeds {first} to {last}, {steps} steps:\n\n{scores}",
        "patch-sizes": _sizes([row for row in rows if row["cell"].startswith("calibration")]),
        "els-cost": paragraph(f"""
            One step of `els` on MNIST ({els['images']:,} images, {els['patches']:,} patches of side
            {els['patch_size']}, {els['noisy']} noisy images) takes {els['ratio']:.2f} times as long as its matrix
            product alone. Peak memory is {els['peak_memory_bytes'] / 1e9:.1f} GB."""),
        "clusters": table([row for row in rows if row["cell"].startswith("clusters")], CLUSTERS)}


def _about(builder: Any) -> str:
    """The first sentence of a method's file; of the method itself, where several share a file."""
    module = sys.modules[builder.__module__]
    shared = sum(one.__module__ == builder.__module__ for one in DENOISERS.values()) > 1
    text = " ".join((builder.__doc__ if shared else module.__doc__).split("Args:")[0].split())
    return re.split(r"(?<!al)\. ", text)[0].removesuffix(".")  # but not after "et al."


def _sizes(rows: list[dict[str, Any]]) -> str:
    whole = 2 * max(rows[0]["data"]["shape"][1:]) - 1
    return markdown(["σ", *(f"{sigma:.3g}" for sigma in rows[0]["sigmas"])], [
        [row["denoiser"], *("all" if size == whole else str(size) for size in row["sizes"])] for row in rows])
