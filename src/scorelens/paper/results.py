"""Rows of finished cells, by preset, dataset and method; and what their numbers show about the order of methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean

import torch

from scorelens.analysis.ceiling import Explained, explained
from scorelens.metrics import Interval, bootstrap
from scorelens.paper.numbers import PAPER_R2
from scorelens.paper.presets import ANOTHER_SEED, AS_GIVEN, DATASETS, Guided, Own, cells_of
from scorelens.results import Row

TINY = 1e-12  # least error, so that it has a logarithm
BATCH_MEAN = "locality, batch-mean"
PUBLISHED = "locality, as published"
CHOSEN = "locality, threshold chosen"
AUTOMATIC = "locality, automatic threshold"
VARIANTS = (BATCH_MEAN, PUBLISHED, CHOSEN)  # of the paper's formula, measured on fewer samples
CONTRASTS = (
    (BATCH_MEAN, "locality", "Batch-mean softmax, as in the published code, instead of the exact one"),
    (PUBLISHED, "locality", "Masks and softmax of the published code instead of the paper's equations"),
    (CHOSEN, "locality", "Locality at the best threshold of our ablation instead of the paper's threshold"),
    (CHOSEN, "wiener", "Locality at the best threshold of our ablation instead of the Wiener filter"),
    (AUTOMATIC, "locality", "Thresholds chosen on held-out images instead of the paper's"),
    ("multiscale", "locality", "Multiscale instead of the paper's locality"),
    ("kernel-locality", "locality", "kernel-locality instead of the paper's locality"))
FROM_DATA = (AUTOMATIC, "multiscale", "kernel-locality")  # everything chosen on held-out images


@dataclass(frozen=True)
class Results:
    """The rows of one run."""

    rows: Sequence[Row]
    scale: str = "cpu"
    own: Own | None = None
    guided: Guided = AS_GIVEN

    def rows_of(self, preset: str) -> list[Row]:
        """The rows of a preset that exist and did not fail, in the preset's order."""
        finished = {row.name: row for row in self.rows if not row.failed}
        cells = cells_of(preset, self.scale, own=self.own, guided=self.guided)
        return [finished[cell.key] for cell in cells if cell.key in finished]

    def of(self, preset: str) -> dict[str, list[Row]]:
        """The same by dataset."""
        by_dataset: dict[str, list[Row]] = {}
        for row in self.rows_of(preset):
            by_dataset.setdefault(row.settings["dataset"], []).append(row)
        return by_dataset

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.failed]


def family(row: Row) -> str:
    """The name of a method in tables: without the options that depend on the dataset."""
    options, data = row.options, DATASETS.get(row.settings.get("dataset", ""))
    if options.get("mask_rule") == "published":
        return PUBLISHED
    if options.get("softmax") == "batch-mean":
        return BATCH_MEAN
    if row.denoiser == "locality" and options.get("threshold") == "auto":
        return AUTOMATIC
    if data and data.chosen and dict(options) == {"threshold": data.chosen} and data.chosen != data.threshold:
        return CHOSEN
    return row.denoiser


def limits(row: Row) -> str:
    """The number of samples and of training images behind a row."""
    count, num = min(row.data["count"], row.options.get("images_limit", row.data["count"])), row.settings["num"]
    return f"{num} sample{'s' * (num != 1)}, {count:,} images"


def difference(a: Row, b: Row, metric: str = "r2") -> Interval:
    """a minus b, paired by sample on the noise that they share, with its bootstrap interval."""
    pairs = list(zip(a.metrics["each"][metric], b.metrics["each"][metric], strict=False))  # in the order of the seeds
    if a.settings["seed"] != b.settings["seed"] or not pairs:
        raise ValueError(f"{a.name} and {b.name} have no noise in common")
    return bootstrap(torch.tensor([x - y for x, y in pairs], dtype=torch.float64))


@dataclass(frozen=True)
class Order:
    """Methods from best to worst; `certain[k]`: the interval of the difference of method k and the next excludes 0."""

    methods: list[str]
    scores: list[Interval]
    certain: list[bool]

    def __str__(self) -> str:
        signs = ["", *(" > " if certain else " ≈ " for certain in self.certain)]
        return "".join(f"{sign}{method} {score.mean:.3f} ({score.low:.3f} to {score.high:.3f})"
                       for sign, method, score in zip(signs, self.methods, self.scores, strict=False))


def order(rows: Iterable[Row]) -> Order:
    """The methods by mean r2."""
    ranked = sorted((row for row in rows if "r2" in row.metrics), key=lambda row: -row.r2["mean"])
    scores = [Interval(*(row.r2[key] for key in ("mean", "low", "high"))) for row in ranked]
    return Order([family(row) for row in ranked], scores, [difference(a, b).low > 0 for a, b in pairwise(ranked)])


@dataclass(frozen=True)
class Verdict:
    """A pair of methods: does our order agree with the paper's?"""

    better: str  # in the paper
    worse: str
    difference: Interval  # better minus worse, in our measurement

    @property
    def agrees(self) -> bool | None:
        """None if our interval contains 0."""
        return None if self.difference.low <= 0 <= self.difference.high else self.difference.mean > 0

    def __str__(self) -> str:
        gap = self.difference
        return f"{self.better} before {self.worse} ({gap.mean:+.3f}, {gap.low:+.3f} to {gap.high:+.3f})"


def against_paper(dataset: str, rows: Sequence[Row]) -> list[Verdict]:
    """Every pair of formulas that both we and the paper measured on a dataset."""
    paper = PAPER_R2.get(dataset, {})
    measured = {family(row): row for row in rows}
    both = sorted((m for m in paper if m in measured and m != ANOTHER_SEED), key=lambda m: -paper[m][0])
    return [Verdict(a, b, difference(measured[a], measured[b])) for a, b in combinations(both, 2)]


def share(formula: Row, another: Row) -> Explained:
    """What a formula explains of a network, as a share of another seed's r2 and of the ceiling; on shared samples."""
    pairs = list(zip(formula.metrics["each"]["r2"], another.metrics["each"]["r2"], strict=False))
    if formula.settings["seed"] != another.settings["seed"] or not pairs:
        raise ValueError(f"{formula.name} and {another.name} have no noise in common")
    ours, theirs = torch.tensor(pairs, dtype=torch.float64).T
    return explained(ours, theirs)


def shares(rows: Sequence[Row]) -> dict[str, Explained]:
    """The share of each formula of one dataset; none if there is no other seed."""
    another = next((row for row in rows if family(row) == ANOTHER_SEED), None)
    return {} if another is None else {family(row): share(row, another) for row in rows if row is not another}


@dataclass(frozen=True)
class Claim:
    """How the order of methods by held-out error agrees with their order by r2: Spearman's correlation, with the sign
    such that 1 means that less error always goes with a higher r2."""

    correlation: Interval  # mean over the groups: a dataset at a noise level; bootstrapped over groups
    groups: int


def claim(by_dataset: Mapping[str, Sequence[Row]]) -> Claim | None:
    """The correlation within each dataset and noise level, over methods; None if no group has three methods."""
    values = []
    for rows in by_dataset.values():
        for k in range(min(len(row.metrics["levels"]) for row in rows)):
            points = [(row.metrics["levels"][k]["error"], row.metrics["levels"][k]["r2"]["mean"]) for row in rows]
            value = -rank_correlation(*zip(*points, strict=True)) if len(points) >= 3 else math.nan
            values += [] if math.isnan(value) else [value]
    return Claim(bootstrap(torch.tensor(values, dtype=torch.float64)), len(values)) if values else None


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's correlation: Pearson's of the ranks, equal values having their mean rank; NaN for constant values."""
    ranks = torch.tensor([[fmean([sum(y < x for y in v), sum(y <= x for y in v) - 1]) for x in v] for v in (a, b)],
                         dtype=torch.float64)
    centred = ranks - ranks.mean(dim=1, keepdim=True)
    return float((centred[0] @ centred[1]) / centred.norm(dim=1).prod())


def best_from_data(rows: Sequence[Row]) -> str | None:
    """The method of FROM_DATA with the least held-out error: geometric mean over noise levels. None if unmeasured."""
    measured = {family(row): row.metrics["levels"] for row in rows if family(row) in FROM_DATA}
    return min(measured, key=lambda name: fmean(math.log(max(each["error"], TINY)) for each in measured[name]),
               default=None)


def discussion(dataset: str, rows: Sequence[Row]) -> Iterator[str]:
    """The order of the methods, where it differs from the paper's, and the effect of each variant of locality."""
    yield f"Order on {dataset}: {order(row for row in rows if family(row) not in VARIANTS)}."
    verdicts = against_paper(dataset, rows)
    if verdicts:
        text = f"Pairs of methods in the paper's order: {sum(v.agrees is True for v in verdicts)} of {len(verdicts)}"
        for words, agrees in (("reversed here", False), ("undecided", None)):
            pairs = [str(verdict) for verdict in verdicts if verdict.agrees is agrees]
            text += f"; {words}: {'; '.join(pairs)}" if pairs else ""
        yield f"{text}."
    for name, each in shares(rows).items():
        if name in ("locality", *FROM_DATA):
            yield (f"{name} explains {each.of_another.mean:.0%} of what another seed does "
                   f"({each.of_another.low:.0%} to {each.of_another.high:.0%}), and {each.of_ceiling.mean:.0%} of what "
                   "any prediction can be expected to explain.")
    measured = {family(row): row for row in rows}
    for name, other, words in CONTRASTS:
        if name in measured and other in measured:
            pair = measured[name], measured[other]
            gap, count = difference(*pair), min(row.settings["num"] for row in pair)
            r2, other_r2 = (sum(row.metrics["each"]["r2"][:count]) / count for row in pair)
            yield (f"{words}: r2 {r2:.3f} instead of {other_r2:.3f} on the same noise, {gap.mean:+.3f} "
                   f"({gap.low:+.3f} to {gap.high:+.3f}).")
