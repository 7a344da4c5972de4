"""The benchmark's tables and sentences: each view turns the rows of a preset into what a reader wants to know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scorelens.analysis.marks import MARK_LEVELS, MARK_VISIBLE, visible_by_network
from scorelens.paper.numbers import (
    PAPER_FID,
    PAPER_LOW_RANK,
    PAPER_MSE,
    PAPER_NOVELTY,
    PAPER_R2,
    PAPER_SECONDS,
    PAPER_THRESHOLD,
    Value,
)
from scorelens.paper.presets import ANOTHER_SEED, DATASETS, ENERGIES, THRESHOLDS
from scorelens.paper.results import (
    BATCH_MEAN,
    CHOSEN,
    PUBLISHED,
    VARIANTS,
    Results,
    against_paper,
    difference,
    family,
    limits,
    order,
)
from scorelens.report.html import Cell, Table, Text
from scorelens.results import Row

Block = Table | Text
MISSING = "–"
LABELS = {"els": "els (Kamb & Ganguli)", "locality": "locality (the paper's)",
          BATCH_MEAN: "locality, batch-mean softmax", PUBLISHED: "locality, as published",
          CHOSEN: "locality, threshold chosen", "kernel": "kernel (ours)"}
FULL_SHADE = 0.3  # a difference of r2 that gets the full colour


def label(method: str) -> str:
    return LABELS.get(method, method)


def paper_name(dataset: str) -> str:
    """What the paper used in its place."""
    return DATASETS[dataset].paper if dataset in DATASETS else ""


def agreement(results: Results, preset: str) -> Iterator[Block]:
    """r2 and MSE of each method on each dataset, beside the paper's; then what they say."""
    for dataset, rows in results.of(preset).items():
        paper_r2, paper_mse = PAPER_R2.get(dataset, {}), PAPER_MSE.get(dataset, {})
        best = max((row.r2["mean"] for row in rows if family(row) not in (ANOTHER_SEED, *VARIANTS)),
                   default=None)
        lines: list[list[Cell | str]] = []
        for row in rows:
            name = family(row)
            lines.append([Cell(label(name), note=_options(row)), _score(row, "r2", best),
                          *_beside(row.r2["mean"], paper_r2.get(name), shade=True),
                          f"{row.metrics['mse']['mean']:.3f} ± {row.metrics['mse']['std']:.3f}",
                          *_beside(row.metrics["mse"]["mean"], paper_mse.get(name))[:1], limits(row)])
        edition = f" (the paper: {paper_name(dataset)})" if paper_name(dataset) else " (not in the paper)"
        header = ["method", "r2", "paper", "difference", "MSE", "paper's MSE", "measured on"]
        if not paper_r2:
            kept = [k for k, name in enumerate(header) if name in ("method", "r2", "MSE", "measured on")]
            header, lines = [header[k] for k in kept], [[line[k] for k in kept] for line in lines]
        yield Table(header, lines,
                    f"{dataset}{edition}: mean ± standard deviation over samples, 95 % interval of the mean with it")
        yield Text(list(discussion(dataset, rows)))


def discussion(dataset: str, rows: Sequence[Row]) -> Iterator[str]:
    """Where our order agrees with the paper's and where not, and what the variants of locality do; all measured."""
    formulas = [row for row in rows if family(row) not in VARIANTS]
    yield f"Order on {dataset}: {order(formulas)}."
    verdicts = against_paper(dataset, rows)
    if verdicts:
        groups: dict[bool | None, list[str]] = {True: [], False: [], None: []}
        for verdict in verdicts:
            groups[verdict.agrees].append(f"{verdict.better} before {verdict.worse} ({verdict.difference.mean:+.3f}, "
                                          f"{verdict.difference.low:+.3f} to {verdict.difference.high:+.3f})")
        told = [f"Pairs of methods that are in the paper's order: {len(groups[True])} of {len(verdicts)}"]
        told += [f"; the other way round here: {'; '.join(groups[False])}"] if groups[False] else []
        told += [f"; undecided: {'; '.join(groups[None])}"] if groups[None] else []
        yield "".join(told) + "."
    mine = {family(row): row for row in rows}
    for name, other, words in (
            (BATCH_MEAN, "locality", "Batch-mean softmax, as in the published code, instead of the exact one"),
            (PUBLISHED, "locality", "Masks and softmax of the published code, instead of the paper's equations"),
            (CHOSEN, "locality", "Locality at the threshold of our ablation, instead of the paper's"),
            (CHOSEN, "wiener", "Locality at the threshold of our ablation, instead of the Wiener filter")):
        if name in mine and other in mine:
            gap, count = difference(mine[name], mine[other]), min(mine[m].settings["num"] for m in (name, other))
            ours, theirs = (sum(mine[m].metrics["each"]["r2"][:count]) / count for m in (name, other))
            yield (f"{words}: r2 {ours:.3f} instead of {theirs:.3f} on the same noise, {gap.mean:+.3f} "
                   f"({gap.low:+.3f} to {gap.high:+.3f}).")


def novelty(results: Results, preset: str) -> Iterator[Block]:
    yield _by_dataset(results, preset, lambda row: row.metrics["novelty_mse"]["mean"], ".3f",
                      {d: {m: v[0] for m, v in methods.items()} for d, methods in PAPER_NOVELTY.items()},
                      "Mean squared distance of the samples to the nearest training image; the paper's below")


def runtime(results: Results, preset: str) -> Iterator[Block]:
    yield _by_dataset(results, preset, lambda row: row.metrics["seconds_per_image"], ".3g", PAPER_SECONDS,
                      "Seconds of a sample of ten steps, divided by the number sampled at once; the paper's, on a GPU, "
                      "below")
    seen = {(row.environment["device"], row.environment["threads"]) for rows in results.of(preset).values()
            for row in rows}
    fewer = [f"{label(family(row))} on {d}, {limits(row)}" for d, rows in results.of(preset).items()
             for row in rows if "images_limit" in row.options]
    yield Text([f"Ours: {'; '.join(f'{device}, {threads} threads' for device, threads in sorted(seen))}.",
                *([f"Some methods saw fewer images than there are, and took the time of the fewer: {'; '.join(fewer)}."]
                  if fewer else [])])


def dynamics(results: Results, preset: str) -> Iterator[Block]:
    for dataset, rows in results.of(preset).items():
        sigmas = [point["sigma"] for point in rows[0].metrics["path"]]
        yield Table(["method", *(f"σ = {s:.3g}" for s in sigmas)],
                    [[label(family(row)), *(f"{p['mse']['mean']:.4f}" for p in row.metrics["path"])] for row in rows],
                    f"{dataset}: mean squared difference of the predictions of x0, each on its own trajectory")


def threshold(results: Results, preset: str) -> Iterator[Block]:
    yield _ablation(results, preset, "threshold", THRESHOLDS, "τ",
                    {d: {t: v[0] for t, v in values.items()} for d, values in PAPER_THRESHOLD.items()},
                    "r2 of locality by the threshold of its masks; the paper's below")
    for dataset, rows in results.of(preset).items():
        best = max(rows, key=lambda row: row.r2["mean"])
        paper = PAPER_THRESHOLD.get(dataset)
        told = f" (the paper's best: {max(paper, key=lambda t: paper[t][0]):g})" if paper else ""
        ties = [f"{row.options['threshold']:g}" for row in rows if row is not best and difference(best, row).low <= 0]
        yield Text([f"{dataset}: best at τ = {best.options['threshold']:g}{told}, r2 {best.r2['mean']:.3f}"
                    + (f"; not certainly worse: {', '.join(ties)}." if ties else ".")])


def low_rank(results: Results, preset: str) -> Iterator[Block]:
    for method in ("locality", "wiener"):
        mine = Results([row for rows in results.of(preset).values() for row in rows if family(row) == method],
                       results.scale, results.own)
        yield _ablation(mine, preset, "energy", ENERGIES, "share cut", PAPER_LOW_RANK[method],
                        f"r2 of {label(method)} without the components that hold this share of the energy; the paper's "
                        "below")


def softmax(results: Results, preset: str) -> Iterator[Block]:
    lines: list[list[Cell | str]] = []
    for dataset, rows in results.of(preset).items():
        exact = next((row for row in rows if "softmax" not in row.options), None)
        for row in rows:
            batch = row.options.get("softmax_batch")
            gap = difference(row, exact) if exact is not None and row is not exact else None
            lines.append([dataset, f"{batch:g}" if batch else "all (exact)", f"{row.r2['mean']:.3f}",
                          Cell(f"{gap.mean:+.3f}", note=f"{gap.low:+.3f} … {gap.high:+.3f}", shade=gap.mean / 0.1)
                          if gap else MISSING, f"{row.metrics['mse']['mean']:.4f}", limits(row)])
    yield Table(["data", "images in a softmax", "r2", "difference", "MSE", "measured on"], lines,
                "Locality with one softmax over all images, and with the mean of the softmaxes of batches")


def tolerance(results: Results, preset: str) -> Iterator[Block]:
    lines: list[list[Cell | str]] = []
    for dataset, rows in results.of(preset).items():
        exact = next((row for row in rows if row.options.get("tolerance") is None), None)
        for row in rows:
            asked = row.options.get("tolerance")
            gap = difference(row, exact) if exact is not None and row is not exact else None
            lines.append([dataset, f"{asked:g}" if asked else "exact", f"{row.r2['mean']:.3f}",
                          Cell(f"{gap.mean:+.4f}", note=f"{gap.low:+.4f} … {gap.high:+.4f}") if gap else MISSING,
                          *(_within(row.metrics) if asked else [MISSING, "100%", MISSING]), limits(row)])
    yield Table(["data", "tolerance", "r2", "difference", "largest rms", "images compared", "exact / within",
                 "measured on"], lines,
                "Locality within a tolerance: r2 with the network; the largest rms of x0_hat of a step and sample, "
                "against the exact one from the same z; the share of the images that a step compares; and the exact "
                "plan's time over its own")


def _within(metrics: Mapping[str, Any]) -> list[str]:
    return [f"{metrics['rms']:.4f}", f"{metrics['compared']:.0%}",
            f"{metrics['exact_seconds_per_image'] / metrics['seconds_per_image']:.2f}"]


def heldout(results: Results, preset: str) -> Iterator[Block]:
    for dataset, rows in results.of(preset).items():
        yield Table(["model", *(f"σ = {level['sigma']:.3g}" for level in rows[0].metrics["levels"])],
                    [[label(family(row)), *(f"{level['mse']['mean']:.3g}" for level in row.metrics["levels"])]
                     for row in rows], f"{dataset}: mean squared error of one step on held-out images "
                                       f"({limits(rows[0])})")


def sensitivity(results: Results, preset: str) -> Iterator[Block]:
    found = results.of(preset)
    networks = [(dataset, row) for dataset, rows in found.items() for row in rows if row.denoiser != "wiener"]
    sigmas = list(dict.fromkeys(f["sigma"] for _, row in networks for f in row.metrics["fields"]))
    yield Table(["data", "network", *(f"σ = {s:.3g}" for s in sigmas)],
                [[dataset, row.label, *(f"{_mean(row.metrics['fields'], s, 'cosine'):.3f}" for s in sigmas)]
                 for dataset, row in networks],
                "Cosine of the network's mean field and the row of the Wiener filter, mean over nine pixels")


def architectures(results: Results, preset: str) -> Iterator[Block]:
    yield Table(["network", "r2", "MSE", "measured on"],
                [[row.label, _score(row, "r2", None), f"{row.metrics['mse']['mean']:.4f}", limits(row)]
                 for rows in results.of(preset).values() for row in rows],
                "Other networks against the reference U-Net of the same data, from the same noise")


def self_attention(results: Results, preset: str) -> Iterator[Block]:
    rows = [row for found in results.of(preset).values() for row in found]
    yield Table(["network", "precision", "recall", "r2 with the reference", "novelty", "measured on"],
                [[row.label, f"{row.metrics['precision']:.3f}", f"{row.metrics['recall']:.3f}", f"{row.r2['mean']:.3f}",
                  f"{row.metrics['novelty_mse']['mean']:.4f}", limits(row)] for row in rows],
                "Quality of the networks' samples in the space of pixels, by the gradient-estimation sampler")
    yield Text(["The paper reports FID on CIFAR-10: " + ", ".join(f"{v:g} {k}" for k, v in PAPER_FID.items())
                + ". It needs Inception weights, which are not to be had here; precision and recall stand in."])


def manipulation(results: Results, preset: str) -> Iterator[Block]:
    rows = [row for found in results.of(preset).values() for row in found]
    seen = visible_by_network(mark for row in rows for mark in row.metrics["marks"])
    yield Table(["network", "γ of its data", "visibility", "visible"],
                [[row.label, f"{row.metrics['gamma']:g}", f"{seen[row.label]:.3f}",
                  "yes" if seen[row.label] > MARK_VISIBLE else "no"] for row in rows],
                f"Correlation of field and mark away from the pixel, mean over σ from {MARK_LEVELS[0]:g} to "
                f"{MARK_LEVELS[1]:g}; visible above {MARK_VISIBLE:g}")


VIEWS: dict[str, Callable[[Results, str], Iterator[Block]]] = {
    "table1": agreement, "table-appendix": agreement, "novelty": novelty, "runtime": runtime, "dynamics": dynamics,
    "threshold": threshold, "low-rank": low_rank, "softmax": softmax, "tolerance": tolerance, "held-out": heldout,
    "sensitivity": sensitivity,
    "architectures": architectures, "self-attention": self_attention, "manipulation": manipulation}


def _score(row: Row, metric: str, best: float | None) -> Cell:
    found = row.metrics[metric]
    return Cell(f"{found['mean']:.3f} ± {found['std']:.3f}", note=f"{found['low']:.3f} … {found['high']:.3f}",
                strong=found["mean"] == best)


def _beside(ours: float, paper: Value | None, shade: bool = False) -> list[Cell | str]:
    """The paper's number, and ours minus it."""
    if paper is None:
        return [MISSING, MISSING]
    gap = ours - paper[0]
    return [f"{paper[0]:.3f} ± {paper[1]:.3f}", Cell(f"{gap:+.3f}", shade=gap / FULL_SHADE if shade else None)]


def _options(row: Row) -> str:
    return ", ".join(f"{key} {value}" for key, value in row.options.items() if key != "softmax").replace("_", " ")


def _by_dataset(results: Results, preset: str, value: Callable[[Row], float], form: str,
                paper: Mapping[str, Mapping[str, float]], caption: str) -> Table:
    """Methods by dataset, the paper's number below ours."""
    found = results.of(preset)
    methods = list(dict.fromkeys(family(row) for rows in found.values() for row in rows))
    mine = {(family(row), d): row for d, rows in found.items() for row in rows}
    lines: list[list[Cell | str]] = [[label(m), *(
        Cell(format(value(mine[m, d]), form), note=_note(paper, d, m, form)) if (m, d) in mine else MISSING
        for d in found)] for m in methods]
    return Table(["method", *found], lines, caption)


def _ablation(results: Results, preset: str, name: str, values: Sequence[float], head: str,
              paper: Mapping[str, Mapping[float, float]], caption: str) -> Table:
    """Values of an option by dataset, the best of each dataset marked."""
    found = results.of(preset)
    lines: list[list[Cell | str]] = []
    for value in values:
        line: list[Cell | str] = [f"{value:g}"]
        for dataset, rows in found.items():
            row = next((r for r in rows if r.options.get(name, 0.0) == value), None)
            best = max(r.r2["mean"] for r in rows)
            line.append(MISSING if row is None else Cell(f"{row.r2['mean']:.3f}", strong=row.r2["mean"] == best,
                                                         note=_note(paper, dataset, value, ".3f")))
        lines.append(line)
    told = "; ".join(f"{d}: {limits(rows[0])}" for d, rows in found.items())
    return Table([head, *found], lines, f"{caption} ({told})")


def _note(paper: Mapping[str, Mapping[Any, float]], dataset: str, key: Any, form: str) -> str:
    value = paper.get(dataset, {}).get(key)
    return "" if value is None else f"paper {value:{form}}"


def _mean(fields: Sequence[Mapping[str, Any]], sigma: float, key: str) -> float:
    found = [f[key] for f in fields if f["sigma"] == sigma]
    return sum(found) / len(found) if found else float("nan")
