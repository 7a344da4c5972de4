"""docs/performance.md, docs/zoo.md, the README's table, all from committed rows and cards; nothing is typed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill
from typing import Any

from perf.rows import DOCS, ROOT, results, rows_of

from scorelens.report.tables import markdown
from scorelens.results import Row
from tools.fields_page import fields_page
from tools.methods_page import methods_page
from tools.results_page import readme_table, results_page

MARKS = "<!-- written by tools/pages.py from perf/results/{}.jsonl -->", "<!-- end -->"
LIMITS = {"cifar10": 3e9, "celeba": 12e9}
IMAGENET, GPUS, GPU_BANDWIDTH = 1_281_167, 8, 1.555e12  # bytes per second of one
INTRODUCTION = """# Performance

The locality model weighs every training image once for every output pixel: one step costs, done plainly, a matrix
product [N, D] @ [D, D] per noisy image. Scorelens computes the same numbers faster. Three exact plans stand behind it:

- **dense**: the mask matrix times squared differences, the plain way;
- **sparse**: squared differences added up over the pixels that each mask keeps, and no others;
- **differences**: the mask of a pixel differs from its neighbour's in a few percent of its entries. Each distance is
  the neighbour's plus what enters the mask minus what leaves it. Distances are taken relative to that of the mean
  image, so that adding and subtracting costs no digits; where it would (small sigma), the plan is not used.

A cost model, measured on the machine in a fraction of a second, takes the fastest for each noise level. `--dry-run`
shows its choice and estimate, `--profile` where the time went, `--denoiser.plan` overrides it. Pixels for which no
image of a chunk is near enough to have weight skip its softmax: at low noise nearly all of them.

All figures below are ratios or curves; those of a table for one dataset come from one run on one machine (`make
perf`). This page is written from `perf/results/performance.jsonl`.
"""
WITHIN = """`--denoiser.tolerance` (rms of x0_hat) asks for less. At high noise many images share the weight of a pixel,
and a few, drawn by their weight and counted accordingly, speak for all. Whom to draw is told by the posteriors of a few
tiles, over images of which 128 principal components are kept; the means of these posteriors are known, so that what the
draws miss of them is taken off (a control variate). Where the tolerance would take too many draws, the exact plan does
the work. The rms is measured against the exact plan, over all pixels of 8 noise seeds that nothing was tuned on;
`expected` is what the plan foretold, `checked` what it saw at 16 pixels that it computes exactly. Times are the best of
several rounds that take turns (of one on celeba), with the sketch of the images in the total. The dense plan was timed
on one of the 8 noisy images, and its time multiplied. The machine is shared, and not as fast every day: what other runs
found, of nearly the same code, stands beside.
"""


def write_performance(rows: dict[str, dict[str, Any]]) -> None:
    """The page and its figures."""
    _growth_figure([row for cell, row in rows.items() if cell.startswith("growth")], DOCS / "performance-growth.png")
    (DOCS / "performance.md").write_text(performance_page(rows))


def performance_page(rows: dict[str, dict[str, Any]]) -> str:
    plans = {cell.split()[1]: row for cell, row in rows.items() if cell.startswith("plans")}
    parts = [INTRODUCTION, "## Ten steps, batch 8, threshold 0.05\n", _ratio_table(plans)]
    parts += [f"### {name}, step by step\n\n{_step_table(row)}" for name, row in plans.items()]
    rough = {cell.split()[1]: row for cell, row in rows.items() if cell.startswith("within")}
    if rough:
        parts += ["## Within a tolerance\n", WITHIN, _within_table(rough)]
        parts += [f"### {name}, within {row['tolerance']:g}, step by step\n\n{_within_steps(row)}"
                  for name, row in rough.items()]
    if "exponents" in rows:
        parts += [_exponents(rows["exponents"])]
    if "processes" in rows:
        parts += ["## Several processes\n", _processes(rows["processes"])]
    if "celeba" in plans and "celeba" in rough:
        parts += ["## ImageNet at 64 x 64, on paper\n", _imagenet(plans["celeba"], rough["celeba"]["images"])]
    parts += ["## Growth\n", "![Seconds of one step, measured and expected](performance-growth.png)\n",
              _growth_table([row for cell, row in rows.items() if cell.startswith("growth")])]
    parts += ["## Peak memory\n", _memory_table(rows), _machine(rows)]
    return "\n".join(parts)


def _within_table(rows: dict[str, dict[str, Any]]) -> str:
    cells = [[name, f"{row['tolerance']:g}", f"{row['dense_to_within']:.1f}",
              ", ".join(f"{ratio:.1f}" for ratio in row.get("other_runs", [])), f"{row['exact_to_within']:.2f}",
              f"{max(step['rms'] for step in row['steps']):.4f}"] for name, row in rows.items()]
    return markdown(["dataset", "tolerance", "dense / within", "in other runs", "automatic / within",
                     "largest rms of an image"], cells) + "\n"


def _within_steps(row: dict[str, Any]) -> str:
    cells = [[f"{s['sigma']:.3g}", f"{s['drawn'] / row['images']:.1%}",
              f"{s['exact_seconds'] / s['within_seconds']:.2f}", f"{s['rms']:.4f}", f"{s['expected_rms']:.4f}",
              f"{s['checked_rms']:.4f}"] for s in row["steps"]]
    return markdown(["sigma", "images compared", "automatic / within", "rms", "expected", "checked"], cells) + "\n"


def _exponents(row: dict[str, Any]) -> str:
    cells = [[f"{s['sigma']:.3g}", f"{s['exact']:.2f}", f"{s['within']:.2f}"] for s in row["steps"]]
    few, all_ = row["images"]
    words = _paragraph(f"""
        The exponent of the time of a step, from {few:,} to {all_:,} images of CIFAR-10 (batch {row['batch']}),
        exactly and within {row['tolerance']:g}. At low noise the exact plan does the work, and its time is linear:
        there each pixel has its own few images that matter, and to fetch them one by one costs more than to stream
        them all past every pixel.""")
    return f"### How time grows with N\n\n{words}\n\n{markdown(['sigma', 'exactly', 'within'], cells)}\n"


def _processes(row: dict[str, Any]) -> str:
    first = row["points"][0]
    cells = [[f"{p['processes']}", f"{first['seconds'] / p['seconds']:.2f}", f"{p['peak_bytes'] / 1e9:.2f}",
              f"{p['largest_difference']:.1e}"] for p in row["points"]]
    table = markdown(["processes", "speed", "peak memory of one, GB", "largest difference of x0_hat"], cells)
    words = _paragraph(f"""
        A step of the locality model on CIFAR-10, batch {row['batch']}, under torchrun with gloo, one thread each,
        on a machine of {row['cores']} cores. A process holds its share of the images; libraries, masks and
        workspace are the same for all. See [distributed.md](distributed.md).""")
    return f"{words}\n\n{table}\n"


def _imagenet(row: dict[str, Any], here: int) -> str:
    """From the measured steps of CelebA at 64 x 64, which has the same pixels, to ImageNet's number of images."""
    d = 3 * 64 * 64
    seconds = sum(step["auto_seconds"] for step in row["steps"]) / row["batch"]
    operations = sum(step["operations"] for step in row["steps"]) * d**2  # for one noisy image and one of the source
    moved = 4 * operations * here / seconds  # bytes per second
    there = 4 * operations * IMAGENET / (GPUS * GPU_BANDWIDTH)
    pixels, masks, states = IMAGENET * d / GPUS / 1e9, d**2 / 1e9, 3 * 4 * d / 1e3
    return _paragraph(f"""
        Ten steps of one noisy image of 64 x 64 cost {operations:.2g} additions for each image of the source (the
        masks of CelebA at threshold {row['threshold']:g}), and {operations * IMAGENET:.2g} for the {IMAGENET:,}
        images of ImageNet. This machine took {seconds:.1f} s for {here:,} images, or {moved / 1e9:.0f} GB/s of
        summands; all of ImageNet would take it {seconds * IMAGENET / here / 60:.0f} minutes. Sums of table rows are
        bound by memory. So {GPUS} GPUs that read {GPU_BANDWIDTH / 1e12:.4g} TB/s each (an A100, as its maker states
        it) need about {there:.0f} s at full bandwidth; from caches less, at a fraction of it more. Each holds
        {pixels:.1f} GB of pixels and {masks:.2f} GB of masks for a noise level, and exchanges {states:.0f} kB for
        each noisy image and step. This is an estimate: it was not run.""") + "\n"


def _paragraph(words: str) -> str:
    return fill(" ".join(words.split()), 120)


def _ratio_table(plans: dict[str, dict[str, Any]]) -> str:
    cells = [[name, f"{row['ratio']:.1f}", f"{row['ratio_with_masks']:.1f}", f"{row['dense_to_bare']:.2f}",
              f"{max(step['largest_difference'] for step in row['steps']):.1e}"] for name, row in plans.items()]
    table = markdown(["dataset", "dense / automatic", "with the masks' time in both", "dense / bare product",
                      "largest difference of x0_hat"], cells)
    scaled = [name for name, row in plans.items() if row["dense_batch"] < row["batch"]]
    note = "".join(f"\nThe dense plan on {name} was timed on {plans[name]['dense_batch']} of the "
                   f"{plans[name]['batch']} noisy images, and its time multiplied: it treats them one by one.\n"
                   for name in scaled)
    return f"{table}\n{note}"


def _step_table(row: dict[str, Any]) -> str:
    cells = [[f"{s['sigma']:.3g}", s["plan"], f"{s['density']:.3f}", f"{s['operations']:.3f}",
              f"{s['dense_seconds'] / s['auto_seconds']:.1f}", f"{s['expected_seconds'] / s['auto_seconds']:.2f}",
              f"{s['largest_difference']:.1e}"] for s in row["steps"]]
    return markdown(["sigma", "plan", "mask density", "operations / D²", "dense / automatic", "expected / measured",
                     "largest difference"], cells) + "\n"


def _growth_table(rows: list[dict[str, Any]]) -> str:
    cells = [[row["along"], f"{point['value']:g}", point["plan"],
              f"{point['seconds'] / row['points'][0]['seconds']:.2f}",
              f"{point['expected_seconds'] / point['seconds']:.2f}"] for row in rows for point in row["points"]]
    return markdown(["along", "value", "plan", "time relative to the first", "expected / measured"], cells) + "\n"


def _memory_table(rows: dict[str, dict[str, Any]]) -> str:
    cells = [[name, f"{row['peak_bytes'] / 1e9:.2f}", f"{LIMITS[name] / 1e9:.0f}" if name in LIMITS else "-"]
             for cell, row in rows.items() if cell.startswith("memory") for name in [cell.split()[1]]]
    return markdown(["dataset", "peak, GB", "limit, GB"], cells) + "\n"


def _machine(rows: dict[str, dict[str, Any]]) -> str:
    seen = sorted({(row["environment"]["threads"], row["environment"]["versions"]["torch"]) for row in rows.values()})
    return "Measured with " + "; ".join(f"{threads} threads, torch {version}" for threads, version in seen) + ".\n"


def _growth_figure(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    if not rows:
        return
    figure = Figure(figsize=(3.1 * len(rows), 3.0), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        values = [point["value"] for point in row["points"]]
        axes.loglog(values, [point["seconds"] for point in row["points"]], "o-", color="#1f6fb4", label="measured")
        expected = [point["expected_seconds"] for point in row["points"]]
        axes.loglog(values, expected, "--", color="#c8502d", label="expected")
        axes.set_title(f"seconds against {row['along']}", fontsize=10)
        axes.grid(True, which="major", color="#eeeeee", lw=0.6)
        shown = values if len(values) < 7 else values[::3]
        axes.set_xticks(shown, [f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in shown])
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7, which="both")
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=140)


ZOO_INTRODUCTION = """# The zoo

Small reference networks, trained on two CPU cores by `python -m tools.zoo` and committed with their cards. Those
of the digits ship in the package; the others are found in a checkout. `scorelens.load_network(NAME)` loads one,
`scorelens compare --reference NAME` compares everything with it. All are folders that diffusers itself reads.

The report card is the error on held-out images divided by that of the linear (Wiener) filter, at the ten noise levels
of the paper's grid, sigma 60.8 25.7 12 6.17 3.44 2.04 1.24 0.724 0.342 0.01: below 1 the network has learned more than
the covariance. "Worst / best formula" is the largest ratio to the best closed form (optimal, wiener, locality) at any
of the ten. The last column is r2 between the 10-step samples of this network and of the same one trained from another
seed, on the same 128 noise seeds (mean, 95 % interval): what can at most be expected of a prediction from the data.
"""


RECIPE = """## The recipe

The U-Nets predict v, with a loss that is multiplied by alpha^0.5: plain v spends most of its gradient on high noise,
where a linear filter is all there is to learn, and epsilon spends none there. Adam, learning rate 0.003 falling to 0
along a half cosine, batches of 32, averaged weights (decay 0.999), bfloat16. Each variant below changes one thing; all
had the same processor time, 6 (CIFAR-10) or 5 (MNIST) minutes of one thread. The ratios are those of the report card,
from high noise to low; the mean is geometric. Written by `python -m tools.recipe`.
"""


def zoo_page(cards: dict[str, dict[str, Any]]) -> str:
    """One line per network, and their pictures."""
    table = markdown(["network", "data", "images", "parameters", "images seen", "minutes", "report card",
                      "worst / best formula", "r2 with another seed"],
                     [_zoo_line(name, card) for name, card in cards.items()])
    pictures = [f"## {name}\n\n![samples of {name}](../{place(name)}/samples.png)\n\n"
                f"![training of {name}](../{place(name)}/loss.png)\n" for name in cards]
    return "\n".join([ZOO_INTRODUCTION, table, "", *_recipe(results("recipe")), *pictures])


def _recipe(rows: list[Row]) -> list[str]:
    """Variants of the training at equal compute."""
    if not rows:
        return []
    header = ["variant", "parameters", "images seen", "held-out error / wiener", "mean"]
    cells = [[row.name, f"{row.metrics['parameters']:,}", f"{row.settings['images_seen']:,}",
              " ".join(f"{ratio:.3g}" if ratio >= 10 else f"{ratio:.2f}" for ratio in row.metrics["ratios"]),
              f"{row.metrics['mean_ratio']:.3f}"] for row in rows]
    return [RECIPE, markdown(header, cells), ""]


def _zoo_line(name: str, card: dict[str, Any]) -> list[str]:
    data, found = card["data"], card.get("agreement")
    last = found["curve"][-1]["r2"] if found else None
    return [f"[{name}](../{place(name)}/README.md)", f"{data['name']} {' x '.join(map(str, data['shape']))}",
            f"{data['count']:,}", f"{card['parameters']:,}", f"{card['images_seen']:,}", f"{card['seconds'] / 60:.0f}",
            *_zoo_report(card), f"{last['mean']:.3f} ({last['low']:.3f} … {last['high']:.3f})" if last else "–"]


def _zoo_report(card: dict[str, Any]) -> list[str]:
    if "report_card" not in card:
        return ["–", "–"]
    worst = max(card["report_card"]["levels"], key=lambda level: level["to_best"]["mean"])
    ratios = [level["to_linear"]["mean"] for level in card["report_card"]["levels"]]
    return [" ".join(f"{ratio:.3g}" if ratio >= 10 else f"{ratio:.2f}" for ratio in ratios),
            f"{worst['to_best']['mean']:.2f} at {worst['sigma']:.3g}"]


def place(name: str) -> str:
    """Where a network lies, seen from the root of the repository."""
    return f"src/scorelens/zoo/{name}" if name.startswith("digits-") else f"zoo/{name}"


def zoo_cards() -> dict[str, dict[str, Any]]:
    """The cards of all committed networks, by name."""
    found = [*ROOT.glob("src/scorelens/zoo/*/card.json"), *ROOT.glob("zoo/*/card.json")]
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(found)}


def demo_table(rows: list[Row]) -> str:
    """The README's table: what the demo found."""
    cells = [[row.label + (" *" if "chosen" in row.settings else ""), f"{row.r2['mean']:.3f}",
              f"{row.r2['low']:.3f} … {row.r2['high']:.3f}", f"{row.metrics['novelty_rms']['mean']:.3f}",
              f"{row.metrics['memorized']['mean']:.0%}"] for row in rows if "r2" in row.metrics]
    return markdown(["predicts the U-Net's samples", "r2", "95 % interval", "novelty", "memorized"], cells)


def with_tables(readme: str) -> str:
    """The README with each of its tables between two marks."""
    for name, table in (("demo", demo_table(results("demo"))), ("bench", readme_table(results()))):
        begin, end = MARKS[0].format(name), MARKS[1]
        before, _, rest = readme.partition(begin)
        readme = f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return readme


if __name__ == "__main__":
    write_performance({row["cell"]: row for row in rows_of("performance")})
    (DOCS / "zoo.md").write_text(zoo_page(zoo_cards()))
    (DOCS / "methods.md").write_text(methods_page(rows_of("methods"), results("digits")))
    (DOCS / "sensitivity.md").write_text(fields_page())
    (DOCS / "results.md").write_text(results_page(results()))
    (ROOT / "README.md").write_text(with_tables((ROOT / "README.md").read_text()))
