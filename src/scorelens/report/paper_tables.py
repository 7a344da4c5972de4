"""The benchmark's tables: each view turns the rows of a preset into tables, and sentences on what they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from scorelens.analysis.marks import MARK_LEVELS, MARK_VISIBLE, visible_by_network
from scorelens.paper import numbers as paper
from scorelens.paper.presets import ANOTHER_SEED, DATASETS, ENERGIES, GUIDANCE, THRESHOLDS
from scorelens.paper.results import BATCH_MEAN, VARIANTS, Results, difference, discussion, family, limits
from scorelens.paper.results import claim as find_claim
from scorelens.report.html import Cell, Table, Text
from scorelens.results import Row

Block = Table | Text
Line = list[Cell | str]
Columns = Mapping[str, str | Callable[[Row], Cell | str]]  # by header, what is shown of a row: a format, or a function
MISSING = "–"
AUTO = "auto"  # the value of an option that is chosen from the data
LABELS = {"els": "els (Kamb & Ganguli)", "locality": "locality (the paper's)",
          BATCH_MEAN: "locality, batch-mean softmax", "kernel": "kernel (ours)", "multiscale": "multiscale (ours)",
          "kernel-locality": "kernel-locality (ours)"}
FULL_SHADE = 0.3  # the difference in r2 that gets the full colour


def label(method: str) -> str:
    return LABELS.get(method, method)


def agreement(results: Results, preset: str) -> Iterator[Block]:
    """r2 and MSE of each method on each dataset, beside the paper's, and what they show."""
    for dataset, rows in results.of(preset).items():
        best = max((row.r2["mean"] for row in rows if family(row) not in (ANOTHER_SEED, *VARIANTS)), default=None)
        header = ["method", "r2", "paper", "difference", "MSE", "paper's MSE", "measured on"]
        lines = [_agreement_line(dataset, row, best) for row in rows]
        if dataset not in paper.PAPER_R2:
            kept = [k for k, head in enumerate(header) if head in ("method", "r2", "MSE", "measured on")]
            header, lines = [header[k] for k in kept], [[line[k] for k in kept] for line in lines]
        name = DATASETS[dataset].paper if dataset in DATASETS else ""
        yield Table(header, lines, f"{dataset} ({f'in the paper: {name}' if name else 'not in the paper'}): mean ± "
                                   "standard deviation over samples, and the 95 % interval of the mean")
        yield Text(list(discussion(dataset, rows)))


def _agreement_line(dataset: str, row: Row, best: float | None) -> Line:
    name, mse = family(row), row.metrics["mse"]
    options = ", ".join(f"{key} {value}" for key, value in row.options.items() if key != "softmax").replace("_", " ")
    paper_r2, paper_mse = (table.get(dataset, {}).get(name) for table in (paper.PAPER_R2, paper.PAPER_MSE))
    gap = row.r2["mean"] - paper_r2[0] if paper_r2 else None
    return [Cell(label(name), note=options), _score(row, best), _paper_value(paper_r2),
            MISSING if gap is None else Cell(f"{gap:+.3f}", shade=gap / FULL_SHADE),
            "{mean:.3f} ± {std:.3f}".format(**mse), _paper_value(paper_mse), limits(row)]


def by_method(results: Results, preset: str) -> Iterator[Block]:
    """One number per method and dataset, beside the paper's."""
    value, form, numbers, caption = METHOD_TABLES[preset]
    methods = {family(row): label(family(row)) for row in results.rows_of(preset)}
    yield _pivot(results.of(preset), "method", methods, family, value, form, numbers, caption)


def runtime(results: Results, preset: str) -> Iterator[Block]:
    yield from by_method(results, preset)
    rows = results.rows_of(preset)
    machines = sorted({f"{row.environment['device']}, {row.environment['threads']} threads" for row in rows})
    subsets = [f"{label(family(row))} on {row.settings['dataset']}, {limits(row)}" for row in rows
               if "images_limit" in row.options]
    yield Text([f"Ours: {'; '.join(machines)}.",
                *([f"Timed on a subset of the images: {'; '.join(subsets)}."] if subsets else [])])


def by_level(results: Results, preset: str) -> Iterator[Block]:
    """The mean squared error of each method at each noise level, one table per dataset."""
    key, form, caption = LEVEL_TABLES[preset]
    for dataset, rows in results.of(preset).items():
        yield _level_table(rows, {"method": lambda row: label(family(row))}, key, lambda point: point["mse"]["mean"],
                           form, caption.format(dataset=dataset, limits=limits(rows[0])))


def claim(results: Results, preset: str) -> Iterator[Block]:
    """Held-out error and r2 of each method at each noise level, and the correlation of their orders."""
    by_dataset = results.of(preset)
    for dataset, rows in by_dataset.items():
        names: Columns = {"method": lambda row: row.label}
        yield _level_table(rows, names, "levels", lambda point: point["error"], ".3g",
                           f"{dataset}: mean squared error on held-out training images")
        yield _level_table(rows, names, "levels", lambda point: point["r2"]["mean"], ".3f",
                           f"{dataset}: r2 of single steps with the network's, along its trajectories "
                           f"({limits(rows[0])})")
    found = find_claim(by_dataset)
    if found is not None:
        r = found.correlation
        yield Text([f"Spearman's correlation between the order of the methods by held-out error and by r2, mean over "
                    f"{found.groups} pairs of dataset and noise level: {r.mean:.2f} ({r.low:.2f} to {r.high:.2f}). 1 "
                    "would mean that the formula with less error always predicts the network better."])


def sensitivity(results: Results, preset: str) -> Iterator[Block]:
    networks = [row for row in results.rows_of(preset) if row.denoiser != "wiener"]
    yield _level_table(networks, {"data": "{0.settings[dataset]}", "network": "{0.label}"}, "fields",
                       lambda field: field["cosine"], ".3f",
                       "Cosine of the network's mean field with the row of the Wiener filter, mean over nine pixels")


def threshold(results: Results, preset: str) -> Iterator[Block]:
    yield _ablation(results.of(preset), "threshold", (*THRESHOLDS, AUTO), "τ", paper.means(paper.PAPER_THRESHOLD),
                    "r2 of locality by the threshold of its masks; the paper's below")
    for dataset, measured in results.of(preset).items():
        rows = [row for row in measured if row.options["threshold"] != AUTO]
        if not rows:
            continue
        best = max(rows, key=lambda row: row.r2["mean"])
        numbers = paper.PAPER_THRESHOLD.get(dataset)
        theirs = f" (the paper's best: {max(numbers, key=lambda t: numbers[t][0]):g})" if numbers else ""
        ties = [f"{row.options['threshold']:g}" for row in rows if row is not best and difference(best, row).low <= 0]
        yield Text([f"{dataset}: best at τ = {best.options['threshold']:g}{theirs}, r2 {best.r2['mean']:.3f}"
                    + (f"; not significantly worse: {', '.join(ties)}." if ties else "."),
                    *(_automatic(row, best) for row in measured if row not in rows)])


def _automatic(row: Row, best: Row) -> str:
    gap = difference(row, best)
    return (f"Thresholds chosen on held-out training images: r2 {row.r2['mean']:.3f}, {gap.mean:+.3f} "
            f"({gap.low:+.3f} to {gap.high:+.3f}) from the best fixed one in hindsight.")


def low_rank(results: Results, preset: str) -> Iterator[Block]:
    for method in ("locality", "wiener"):
        only = Results([row for row in results.rows if family(row) == method], results.scale, results.own)
        yield _ablation(only.of(preset), "energy", ENERGIES, "share cut", paper.PAPER_LOW_RANK[method],
                        f"r2 of {label(method)} without the components that hold this share of the energy; the paper's "
                        "below")


def softmax(results: Results, preset: str) -> Iterator[Block]:
    columns = _to_exact(results.rows_of(preset), "softmax_batch", "images per softmax", "all (exact)", ".3f", shade=0.1)
    yield _table(results.rows_of(preset), {**columns, "MSE": "{0.metrics[mse][mean]:.4f}", "measured on": limits},
                 "Locality with one softmax over all images, and with the mean of the softmaxes of batches")


def guidance(results: Results, preset: str) -> Iterator[Block]:
    """r2 of each guided formula by the weight; and how its direction of guidance agrees with the network's."""
    for dataset, rows in results.of(preset).items():
        weights = sorted({row.options[GUIDANCE] for row in rows})
        scores = {(row.denoiser, row.options[GUIDANCE]): _score(row) for row in rows}
        measured = {row.denoiser: limits(row) for row in rows}
        yield Table(["method", *(f"w = {weight:g}" for weight in weights), "measured on"],
                    [[label(name), *(scores.get((name, weight), MISSING) for weight in weights), measured[name]]
                     for name in measured],
                    f"{dataset}: r2 of guided formulas with the network guided by the same weight w, mean ± standard "
                    "deviation over samples, and the 95 % interval of the mean")
        plain = [row for row in rows if "directions" in row.metrics]
        yield _level_table(plain, {"method": lambda row: label(row.denoiser)}, "directions",
                           lambda point: point["cosine"], ".2f",
                           f"{dataset}: cosine between the formula's direction of guidance, c − u, and the network's, "
                           "along the trajectory of the conditional network")


def listing(results: Results, preset: str) -> Iterator[Block]:
    """One line per row."""
    columns, caption = LISTINGS[preset]
    yield _table(results.rows_of(preset), columns, caption)


def self_attention(results: Results, preset: str) -> Iterator[Block]:
    yield from listing(results, preset)
    yield Text(["The paper reports FID on CIFAR-10: " + ", ".join(f"{v:g} {k}" for k, v in paper.PAPER_FID.items())
                + ". FID needs the weights of Inception, which are not available here; precision and recall replace "
                "it."])


def manipulation(results: Results, preset: str) -> Iterator[Block]:
    seen = visible_by_network(mark for row in results.rows_of(preset) for mark in row.metrics["marks"])
    columns: Columns = {"network": "{0.label}", "γ of its data": "{0.metrics[gamma]:g}",
                        "visibility": lambda row: f"{seen[row.label]:.3f}",
                        "visible": lambda row: "yes" if seen[row.label] > MARK_VISIBLE else "no"}
    yield _table(results.rows_of(preset), columns,
                 f"Correlation of field and mark away from the pixel, mean over σ from {MARK_LEVELS[0]:g} to "
                 f"{MARK_LEVELS[1]:g}; visible above {MARK_VISIBLE:g}")


def _table(rows: Sequence[Row], columns: Columns, caption: str) -> Table:
    return Table(list(columns), [_line(row, columns) for row in rows], caption)


def _line(row: Row, columns: Columns) -> Line:
    return [content.format(row) if isinstance(content, str) else content(row) for content in columns.values()]


def _level_table(rows: Sequence[Row], columns: Columns, key: str, value: Callable[[Mapping[str, Any]], float],
                 form: str, caption: str) -> Table:
    """These columns, and one per noise level: the mean of the values that a row has there."""
    sigmas = list(dict.fromkeys(point["sigma"] for row in rows for point in row.metrics[key]))
    lines = []
    for row in rows:
        values = [[value(point) for point in row.metrics[key] if point["sigma"] == sigma] for sigma in sigmas]
        lines.append([*_line(row, columns), *(format(fmean(each), form) if each else MISSING for each in values)])
    return Table([*columns, *(f"σ = {sigma:.3g}" for sigma in sigmas)], lines, caption)


def _pivot(by_dataset: Mapping[str, Sequence[Row]], head: str, keys: Mapping[Any, str], key_of: Callable[[Row], Any],
           value: Callable[[Row], float], form: str, numbers: Mapping[str, Mapping[Any, float]], caption: str,
           mark_best: bool = False) -> Table:
    """One line per key, one column per dataset; the paper's number is the note."""
    values = {(key_of(row), dataset): value(row) for dataset, rows in by_dataset.items() for row in rows}

    def cell(key: Any, dataset: str) -> Cell | str:
        if (key, dataset) not in values:
            return MISSING
        number = numbers.get(dataset, {}).get(key)
        return Cell(format(values[key, dataset], form), note="" if number is None else f"paper {number:{form}}",
                    strong=mark_best and values[key, dataset] == max(map(value, by_dataset[dataset])))

    lines = [[text, *(cell(key, dataset) for dataset in by_dataset)] for key, text in keys.items()]
    return Table([head, *by_dataset], lines, caption)


def _ablation(by_dataset: Mapping[str, Sequence[Row]], option: str, keys: Sequence[float | str], head: str,
              numbers: Mapping[str, Mapping[float, float]], caption: str) -> Table:
    """r2 by the value of an option; the best of each dataset is marked."""
    measured = "; ".join(f"{dataset}: {limits(rows[0])}" for dataset, rows in by_dataset.items())
    texts = {key: key if isinstance(key, str) else f"{key:g}" for key in keys}
    return _pivot(by_dataset, head, texts, lambda row: row.options.get(option, 0.0),
                  lambda row: row.r2["mean"], ".3f", numbers, f"{caption} ({measured})", mark_best=True)


def _to_exact(rows: Sequence[Row], option: str, head: str, exact_name: str, form: str,
              shade: float | None = None) -> Columns:
    """An approximation of locality by the value of an option: r2, and the difference to the row without the option."""
    exact = {row.settings["dataset"]: row for row in rows if option not in row.options}

    def gap(row: Row) -> Cell | str:
        if option not in row.options or row.settings["dataset"] not in exact:
            return MISSING
        interval = difference(row, exact[row.settings["dataset"]])
        return Cell(f"{interval.mean:+{form}}", note=f"{interval.low:+{form}} … {interval.high:+{form}}",
                    shade=interval.mean / shade if shade else None)

    return {"data": "{0.settings[dataset]}", head: lambda row: str(row.options.get(option, exact_name)),
            "r2": "{0.r2[mean]:.3f}", "difference": gap}


def _score(row: Row, best: float | None = None) -> Cell:
    return Cell("{mean:.3f} ± {std:.3f}".format(**row.r2), note="{low:.3f} … {high:.3f}".format(**row.r2),
                strong=row.r2["mean"] == best)


def _paper_value(value: paper.Value | None) -> str:
    return MISSING if value is None else "{:.3f} ± {:.3f}".format(*value)


METHOD_TABLES: dict[str, tuple[Callable[[Row], float], str, Mapping[str, Mapping[str, float]], str]] = {
    "novelty": (lambda row: row.metrics["novelty_mse"]["mean"], ".3f", paper.means(paper.PAPER_NOVELTY),
                "Mean squared distance from the samples to the nearest training image; the paper's below"),
    "runtime": (lambda row: row.metrics["seconds_per_image"], ".3g", paper.PAPER_SECONDS,
                "Seconds per sample of ten steps, in one batch; the paper's, on a GPU, below")}
LEVEL_TABLES = {
    "dynamics": ("path", ".4f", "{dataset}: mean squared difference to the network's predictions of x0, each along its "
                                "own trajectory"),
    "held-out": ("levels", ".3g", "{dataset}: mean squared error of one step on held-out images ({limits})")}
LISTINGS: dict[str, tuple[Columns, str]] = {
    "architectures": ({"network": "{0.label}", "r2": _score, "MSE": "{0.metrics[mse][mean]:.4f}",
                       "measured on": limits},
                      "Other networks compared with the reference U-Net of the same data, from the same noise"),
    "self-attention": ({"network": "{0.label}", "precision": "{0.metrics[precision]:.3f}",
                        "recall": "{0.metrics[recall]:.3f}", "r2 with the reference": "{0.r2[mean]:.3f}",
                        "novelty": "{0.metrics[novelty_mse][mean]:.4f}", "measured on": limits},
                       "Quality of the networks' samples, measured on pixels, with the gradient-estimation sampler")}
VIEWS: dict[str, Callable[[Results, str], Iterator[Block]]] = {
    "table1": agreement, "table-appendix": agreement, "novelty": by_method, "runtime": runtime, "dynamics": by_level,
    "threshold": threshold, "low-rank": low_rank, "softmax": softmax, "held-out": by_level, "claim": claim,
    "sensitivity": sensitivity, "architectures": listing, "self-attention": self_attention,
    "manipulation": manipulation, "guidance": guidance}
