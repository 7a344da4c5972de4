"""Writes the generated pages of docs/ and the tables of the README from committed rows and cards.

    python -m tools.pages
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perf.rows import DOCS, ROOT, results, rows_of

from scorelens.report.figures import quiet
from tools.fields_page import fields_page
from tools.methods_page import SCORES, methods_page
from tools.results_page import readme_table, results_page
from tools.tables import MISSING, Columns, paragraph, table

Rows = dict[str, dict[str, Any]]
MARKS = "<!-- written by tools/pages.py from perf/results/{}.jsonl -->", "<!-- end -->"
LIMITS = {"cifar10": 3e9, "celeba": 12e9}
IMAGENET, GPUS, GPU_BANDWIDTH = 1_281_167, 8, 1.555e12  # bytes per second of one
INTRODUCTION = """# Performance

The locality model has one posterior over all training images for each output pixel. Computed directly, one step costs a
matrix product [N, D] @ [D, D] per noisy image, for N training images of D pixel values. Scorelens computes the same
numbers faster, with one of three exact plans:

- **dense**, the direct way, multiplies the squared differences by the mask matrix.
- **sparse** sums the squared differences over the pixels that each mask keeps.
- **differences**: the masks of neighbouring pixels differ in a few percent of their entries. So the distance for a
  pixel is its neighbour's, plus the terms that enter the mask, minus the terms that leave it. Distances are relative to
  the mean image's, to avoid rounding errors. At small sigma this is not enough, and the plan is not used.

A cost model, measured on the machine in a fraction of a second, chooses the fastest plan for each noise level.
`--dry-run` prints its choice and estimate, `--profile` prints where the time went, and `--denoiser.plan` overrides it.
At low noise, nearly all pixels skip the softmax of a chunk of images, because none of its images has any weight.

The tables show ratios of times: dense / automatic is the speed-up of the chosen plans over the dense plan. All numbers
of a dataset in one table come from one run on one machine (`make perf`). The page is generated from
`perf/results/performance.jsonl`.

## Ten steps, batch 8, threshold 0.05
"""
STEPS_NOTE = """The bare product is the matrix product alone. The largest difference is that of x0_hat to the dense
plan's. Mask density is the share of pixels that a mask keeps, operations / D² the work relative to the dense plan. The
cost model gives the expected time. On celeba, the dense plan was timed on 1 of the 8 noisy images and its time
multiplied.
"""
TOLERANCE = """## With a tolerance

`--denoiser.tolerance` sets an allowed rms error of x0_hat. At high noise many training images share the weight of a
pixel, and a random subset is enough. Images are drawn by their estimated weight: that of a tile of pixels, computed on
128 principal components. The exact mean under the estimated weights is known; as a control variate, it cancels most of
the sampling error. If the tolerance needs too many draws, the exact plan is used.

The rms is measured against the exact plan, over all pixels of 8 noise seeds that were not used for tuning. The expected
rms is estimated before the draws; the checked rms is measured at 16 pixels that are also computed exactly. Times are
the best of several alternating rounds (one on celeba) and include the principal components. The dense plan was timed on
one of the 8 noisy images and its time multiplied. The machine is shared and its speed varies, so other runs are listed;
they are of nearly the same code.
"""
SPEEDUPS: Columns = {
    "dataset": "{r[name]}", "dense / automatic": "{r[ratio]:.1f}", "including masks": "{r[ratio_with_masks]:.1f}",
    "dense / bare product": "{r[dense_to_bare]:.2f}",
    "largest difference": lambda row: f"{max(step['largest_difference'] for step in row['steps']):.1e}"}
PLAN_STEPS: Columns = {
    "sigma": "{r[sigma]:.3g}", "plan": "{r[plan]}", "mask density": "{r[density]:.3f}",
    "operations / D²": "{r[operations]:.3f}",
    "dense / automatic": lambda step: f"{step['dense_seconds'] / step['auto_seconds']:.1f}",
    "expected / measured": lambda step: f"{step['expected_seconds'] / step['auto_seconds']:.2f}",
    "largest difference": "{r[largest_difference]:.1e}"}
SAMPLED_SPEEDUPS: Columns = {
    "dataset": "{r[name]}", "tolerance": "{r[tolerance]:g}", "dense / sampled": "{r[dense_to_within]:.1f}",
    "other runs": lambda row: ", ".join(f"{ratio:.1f}" for ratio in row.get("other_runs", [])),
    "exact / sampled": "{r[exact_to_within]:.2f}",
    "largest rms of an image": lambda row: f"{max(step['rms'] for step in row['steps']):.4f}"}
SAMPLED_STEPS: Columns = {
    "sigma": "{r[sigma]:.3g}", "images compared": lambda step: f"{step['drawn'] / step['images']:.1%}",
    "exact / sampled": lambda step: f"{step['exact_seconds'] / step['within_seconds']:.2f}",
    "rms": "{r[rms]:.4f}", "expected": "{r[expected_rms]:.4f}", "checked": "{r[checked_rms]:.4f}"}
EXPONENTS = {"sigma": "{r[sigma]:.3g}", "exact": "{r[exact]:.2f}", "sampled": "{r[within]:.2f}"}
PROCESSES: Columns = {
    "processes": "{r[processes]}", "speed": lambda point: f"{point['first'] / point['seconds']:.2f}",
    "peak memory per process, GB": lambda point: f"{point['peak_bytes'] / 1e9:.2f}",
    "largest difference of x0_hat": "{r[largest_difference]:.1e}"}
GROWTH: Columns = {
    "variable": "{r[along]}", "value": "{r[value]:g}", "plan": "{r[plan]}",
    "time relative to the first": lambda point: f"{point['seconds'] / point['first']:.2f}",
    "expected / measured": lambda point: f"{point['expected_seconds'] / point['seconds']:.2f}"}
MEMORY: Columns = {
    "dataset": "{r[name]}", "peak, GB": lambda row: f"{row['peak_bytes'] / 1e9:.2f}",
    "limit, GB": lambda row: f"{LIMITS[row['name']] / 1e9:.0f}" if row["name"] in LIMITS else MISSING}


def write_performance(rows: Rows) -> None:
    """The page and its figure."""
    _growth_figure(_kind(rows, "growth"), DOCS / "performance-growth.png")
    (DOCS / "performance.md").write_text(performance_page(rows))


def performance_page(rows: Rows) -> str:
    plans, sampled, growth = (_kind(rows, kind) for kind in ("plans", "within", "growth"))
    parts = [INTRODUCTION, table(plans, SPEEDUPS), STEPS_NOTE]
    parts += [f"### {row['name']} by noise level\n\n{table(row['steps'], PLAN_STEPS)}" for row in plans]
    parts += [TOLERANCE, table(sampled, SAMPLED_SPEEDUPS)]
    for row in sampled:
        steps = table([{**step, "images": row["images"]} for step in row["steps"]], SAMPLED_STEPS)
        parts.append(f"### {row['name']}, tolerance {row['tolerance']:g}, by noise level\n\n{steps}")
    parts += ["### How time grows with N\n", _exponents(rows["exponents"]),
              table(rows["exponents"]["steps"], EXPONENTS),
              "## Several processes\n", _processes(rows["processes"]), table(_points(rows["processes"]), PROCESSES),
              "## Estimate for ImageNet at 64 x 64\n", _imagenet(rows["plans celeba"], rows["within celeba"]["images"]),
              "## Growth\n", "![Seconds of one step, measured and expected](performance-growth.png)\n",
              table([point for row in growth for point in _points(row)], GROWTH),
              "## Peak memory\n", table(_kind(rows, "memory"), MEMORY), _machine(rows)]
    return "\n".join(parts)


def _kind(rows: Rows, kind: str) -> list[dict[str, Any]]:
    """The rows of one kind; a cell is called by its kind and a name."""
    return [{"name": cell.removeprefix(f"{kind} "), **row} for cell, row in rows.items() if cell.startswith(kind)]


def _points(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The points of a curve, each with the time of the first."""
    return [{**row, **point, "first": row["points"][0]["seconds"]} for point in row["points"]]


def _exponents(row: dict[str, Any]) -> str:
    few, many = row["images"]
    return paragraph(f"""
        The time of a step is about N^k. The table shows k from {few:,} to {many:,} images of CIFAR-10 (batch
        {row['batch']}), exactly and with tolerance {row['tolerance']:g}. At low noise both use the exact plan, whose
        time is linear in N. There, only a few images have weight, but different ones for each pixel: fetching them one
        by one costs more than streaming all images.""")


def _processes(row: dict[str, Any]) -> str:
    return paragraph(f"""
        One step of the locality model on CIFAR-10, batch {row['batch']}, under torchrun with gloo and one thread per
        process, on {row['cores']} cores. The images are divided among the processes; libraries, masks and workspace are
        not. See [distributed.md](distributed.md).""")


def _imagenet(row: dict[str, Any], here: int) -> str:
    """From the measured steps of CelebA at 64 x 64, which has the same pixels, to ImageNet's number of images."""
    d = 3 * 64 * 64
    seconds = sum(step["auto_seconds"] for step in row["steps"]) / row["batch"]
    operations = sum(step["operations"] for step in row["steps"]) * d**2  # per noisy image and training image
    moved = 4 * operations * here / seconds  # bytes per second
    there = 4 * operations * IMAGENET / (GPUS * GPU_BANDWIDTH)
    pixels, masks, states = IMAGENET * d / GPUS / 1e9, d**2 / 1e9, 3 * 4 * d / 1e3
    return paragraph(f"""
        This is an estimate; it was not run. Ten steps of one noisy image cost {operations:.2g} additions per training
        image (with the masks of CelebA at threshold {row['threshold']:g}), and {operations * IMAGENET:.2g} for the
        {IMAGENET:,} images of ImageNet. This machine took {seconds:.1f} s for {here:,} images, or {moved / 1e9:.0f}
        GB/s of summands; it would take {seconds * IMAGENET / here / 60:.0f} minutes for ImageNet. The sums are limited
        by memory bandwidth. {GPUS} GPUs with {GPU_BANDWIDTH / 1e12:.4g} TB/s each (the specification of an A100) would
        take about {there:.0f} s at full bandwidth: less with caches, more if the bandwidth is not reached. Each GPU
        would hold {pixels:.1f} GB of pixels and {masks:.2f} GB of masks per noise level, and exchange {states:.0f} kB
        per noisy image and step.""")


def _machine(rows: Rows) -> str:
    machines = sorted({(row["environment"]["threads"], row["environment"]["versions"]["torch"])
                       for row in rows.values()})
    return "Measured with " + "; ".join(f"{threads} threads, torch {version}" for threads, version in machines) + ".\n"


def _growth_figure(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.1 * len(rows), 3.0), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        values = [point["value"] for point in row["points"]]
        axes.loglog(values, [point["seconds"] for point in row["points"]], "o-", color="#1f6fb4", label="measured")
        expected = [point["expected_seconds"] for point in row["points"]]
        axes.loglog(values, expected, "--", color="#c8502d", label="expected")
        axes.set_title(f"seconds against {row['along']}")
        shown = values if len(values) < 7 else values[::3]
        axes.set_xticks(shown, [f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in shown])
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        quiet(axes)
        axes.tick_params(labelsize=7, which="both")
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=140)


ZOO_INTRODUCTION = """# The zoo

The zoo is a set of small reference networks, trained on two CPU cores by `python -m tools.zoo`. The networks of the
digits are in the package; the others need a checkout. `scorelens.load_network(NAME)` loads a network, and `scorelens
compare --reference NAME` compares denoisers with it. Each network is a folder that diffusers can read.

- **report card**: error on held-out images divided by that of the linear (Wiener) filter, at the ten noise levels of
  the paper's grid, sigma 60.8 25.7 12 6.17 3.44 2.04 1.24 0.724 0.342 0.01. Below 1, the network has learned more than
  the covariance.
- **worst / best formula**: the largest ratio, over the noise levels, of this error to that of the best closed form
  (optimal, wiener, locality).
- **r2 with another seed**: r2 between the 10-step samples of this network and those of the same network trained from
  another seed, on the same 128 noise seeds (mean, 95 % interval). No prediction from the data alone can be expected to
  do better.
"""
RECIPE = """## The recipe

The U-Nets predict v, and their loss is multiplied by alpha^0.5. Plain v spends most of its gradient on high noise,
where there is nothing to learn but a linear filter; epsilon spends none there. Training uses Adam, a learning rate that
falls from 0.003 to 0 along a half cosine, batches of 32, averaged weights (decay 0.999) and bfloat16. Each variant
below changes one thing. All variants had the same processor time: 6 (CIFAR-10) or 5 (MNIST) minutes of one thread. The
ratios are those of the report card, from high noise to low; the mean is geometric. Written by `python -m tools.recipe`.
"""


THROUGHPUT = """## Speed of training

The U-Net of the small preset on CIFAR-10, batches of 32, on two cores, measured in one run. Earlier networks were
trained with bfloat16 and two threads. Now two networks train at a time, with one thread each.
"""
RATES: Columns = {"": "{r[way]}", "images per second": "{r[images_per_second]:.0f}"}
ZOO: Columns = {
    "network": "[{r[name]}](../{r[folder]}/README.md)",
    "data": lambda card: f"{card['data']['name']} {' x '.join(map(str, card['data']['shape']))}",
    "images": "{r[data][count]:,}", "parameters": "{r[parameters]:,}", "images seen": "{r[images_seen]:,}",
    "minutes": lambda card: f"{card['seconds'] / 60:.0f}",
    "report card": lambda card: _ratios(level["to_linear"]["mean"] for level in card["report_card"]["levels"])
                   if "report_card" in card else MISSING,
    "worst / best formula": lambda card: _worst(card["report_card"]) if "report_card" in card else MISSING,
    "r2 with another seed": lambda card: _agreement(card["agreement"]) if "agreement" in card else MISSING}
VARIANTS: Columns = {
    "variant": "{r.name}", "parameters": "{r.metrics[parameters]:,}", "images seen": "{r.settings[images_seen]:,}",
    "held-out error / wiener": lambda row: _ratios(row.metrics["ratios"]),
    "mean": "{r.metrics[mean_ratio]:.3f}"}
DEMO: Columns = {
    "predicts the U-Net's samples": lambda row: row.label + (" *" if "chosen" in row.settings else ""), **SCORES}


def zoo_page(cards: Rows) -> str:
    """A table of the networks, the recipe of their training, and their figures."""
    recipe = results("recipe")
    figures = [f"## {name}\n\n![samples of {name}](../{card['folder']}/samples.png)\n\n"
               f"![training of {name}](../{card['folder']}/loss.png)\n" for name, card in cards.items()]
    variants = [RECIPE, table(recipe, VARIANTS)] if recipe else []
    rates = [point for row in rows_of("performance") if row["cell"] == "training" for point in row["points"]]
    parts = [ZOO_INTRODUCTION, table(cards.values(), ZOO), *variants, THROUGHPUT, table(rates, RATES), *figures]
    return "\n".join(parts)


def _ratios(values: Iterable[float]) -> str:
    return " ".join(f"{ratio:.3g}" if ratio >= 10 else f"{ratio:.2f}" for ratio in values)


def _worst(report_card: dict[str, Any]) -> str:
    level = max(report_card["levels"], key=lambda level: level["to_best"]["mean"])
    return f"{level['to_best']['mean']:.2f} at {level['sigma']:.3g}"


def _agreement(agreement: dict[str, Any]) -> str:
    return "{mean:.3f} ({low:.3f} … {high:.3f})".format(**agreement["curve"][-1]["r2"])


def zoo_cards() -> Rows:
    """The cards of all committed networks, with their names and folders."""
    folders = sorted(path.parent for zoo in ("src/scorelens/zoo", "zoo") for path in ROOT.glob(f"{zoo}/*/card.json"))
    return {folder.name: {"name": folder.name, "folder": folder.relative_to(ROOT).as_posix(),
                          **json.loads((folder / "card.json").read_text())} for folder in folders}


def with_tables(readme: str) -> str:
    """The README with its generated tables."""
    demo = table([row for row in results("demo") if "r2" in row.metrics], DEMO)
    for name, cells in (("demo", demo), ("bench", readme_table(results()))):
        begin, end = MARKS[0].format(name), MARKS[1]
        before, _, rest = readme.partition(begin)
        readme = f"{before}{begin}\n{cells}{end}{rest.partition(end)[2]}"
    return readme


if __name__ == "__main__":
    write_performance({row["cell"]: row for row in rows_of("performance")})
    (DOCS / "zoo.md").write_text(zoo_page(zoo_cards()))
    (DOCS / "methods.md").write_text(methods_page(rows_of("methods"), results("digits")))
    (DOCS / "sensitivity.md").write_text(fields_page())
    (DOCS / "results.md").write_text(results_page(results()))
    (ROOT / "README.md").write_text(with_tables((ROOT / "README.md").read_text()))
