"""docs/methods.md: every method, from the code and the rows of perf/methods.py."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from scorelens.denoisers import DENOISERS
from scorelens.report.tables import markdown
from scorelens.results import Row
from tools.tables import Columns, table

INTRODUCTION = """# All methods

All closed-form denoisers have one interface: `scorelens.build_denoiser(NAME, images, OPTION=...)`, or `--denoiser NAME
--denoiser.OPTION VALUE` on the command line. They are exact unless an option says otherwise. Their equations are in
[equations.md](equations.md); a new one takes [twenty lines](adding_a_method.md). This page is generated from the code
and from `perf/results/methods.jsonl` (`python -m perf.methods`).

| method | what it is |
| :--- | :--- |
{methods}

## Comparison on digits

r2 against `{reference}`, noise seeds {first} to {last}, {steps} steps, with the default options. No method is fitted to
the network, but `measured` and `pspc-flex` use its sensitivity fields.

{scores}
## Calibrated patch sizes

`scorelens calibrate` on digits, against `digits-unet`, chooses the patch size with the best median r2 of the score at
each noise level, and the largest of equally good sizes. `all` is the whole image. At the lowest noise level no size
fits well, because the score divides a small difference by σ².

{sizes}

## The cost of patches

One step of `els` on MNIST ({els[images]:,} images, {els[patches]:,} patches of side {els[patch_size]}, {els[noisy]}
noisy images) takes {els[ratio]:.2f} times as long as its matrix product alone. Peak memory is {gigabytes:.1f} GB.

The clustered approximation (`clusters=128`), compared with the exact method on 500 MNIST images with patches of side 9:

{clusters}"""
SCORES: Columns = {
    "r2": "{r.r2[mean]:.3f}", "95 % interval": "{r.r2[low]:.3f} … {r.r2[high]:.3f}",
    "novelty": "{r.metrics[novelty_rms][mean]:.3f}", "memorized": "{r.metrics[memorized][mean]:.0%}"}
CLUSTERS: Columns = {"σ": "{r[sigma]:.3g}", "clusters searched": "{r[searched]}", "rms error of x0_hat": "{r[rms]:.4f}",
                     "speed-up": "{r[time_ratio]:.1f}"}


def methods_page(rows: list[dict[str, Any]], digits: list[Row], methods: Iterable[str] = DENOISERS) -> str:
    """The methods, how well each predicts a network on digits, and the cost of patches."""
    ranked = sorted((row for row in digits if "r2" in row.metrics), key=lambda row: -row.r2["mean"])
    first, last = ranked[0].noise["seeds"]
    els = next(row for row in rows if row["cell"] == "els")
    return INTRODUCTION.format(
        methods="\n".join(f"| `{name}` | {_about(DENOISERS[name])} |" for name in methods),
        reference=ranked[0].settings["reference"], first=first, last=last, steps=ranked[0].settings["steps"],
        scores=table(ranked, {"method": "{r.label}", **SCORES, "ms per image": lambda row:
                              f"{1000 * row.metrics['seconds_per_image']:.0f}"}),
        sizes=_sizes([row for row in rows if row["cell"].startswith("calibration")]),
        els=els, gigabytes=els["peak_memory_bytes"] / 1e9,
        clusters=table([row for row in rows if row["cell"].startswith("clusters")], CLUSTERS))


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
