"""Rows of finished cells, read by preset, dataset and method; and what their numbers say about the order of methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import torch

from scorelens.metrics import Interval, bootstrap
from scorelens.paper.numbers import PAPER_R2
from scorelens.paper.presets import ANOTHER_SEED, DATASETS, cells_of
from scorelens.results import Row

BATCH_MEAN = "locality, batch-mean"
PUBLISHED = "locality, as published"
CHOSEN = "locality, threshold chosen"
VARIANTS = (BATCH_MEAN, PUBLISHED, CHOSEN)  # measured on fewer samples, beside the paper's formula


@dataclass(frozen=True)
class Results:
    """The rows of one run."""

    rows: Sequence[Row]
    scale: str = "cpu"
    own: tuple[str, Mapping[str, Any], str] | None = None

    def of(self, preset: str) -> dict[str, list[Row]]:
        """The rows of a preset that are there and did not fail, by dataset, in the preset's order."""
        there = {row.name: row for row in self.rows if not row.failed}
        found: dict[str, list[Row]] = {}
        for cell in cells_of(preset, self.scale, own=self.own):
            if cell.key in there:
                found.setdefault(cell.dataset, []).append(there[cell.key])
        return found

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.failed]


def family(row: Row) -> str:
    """What a method is called in a table: its name, without the options that its dataset decides."""
    options, data = row.options, DATASETS.get(row.settings.get("dataset", ""))
    if options.get("mask_rule") == "published":
        return PUBLISHED
    if options.get("softmax") == "batch-mean":
        return BATCH_MEAN
    if data and data.chosen and dict(options) == {"threshold": data.chosen} and data.chosen != data.threshold:
        return CHOSEN
    return row.denoiser


def limits(row: Row) -> str:
    """How many samples a row has, of how many training images."""
    count, num = min(row.data["count"], row.options.get("images_limit", row.data["count"])), row.settings["num"]
    return f"{num} sample{'s' * (num != 1)}, {count:,} images"


def difference(a: Row, b: Row, metric: str = "r2") -> Interval:
    """a minus b, image by image on the noise that both have seen, with its bootstrap interval."""
    each = [row.metrics["each"][metric] for row in (a, b)]
    pairs = list(zip(*each, strict=False))  # both begin with the same seeds
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
        told = [f"{m} {s.mean:.3f} ({s.low:.3f} to {s.high:.3f})"
                for m, s in zip(self.methods, self.scores, strict=True)]
        signs = [" > " if sure else " ≈ " for sure in self.certain]
        return "".join(part for pair in zip(told, [*signs, ""], strict=True) for part in pair)


def order(rows: Iterable[Row]) -> Order:
    """The methods by their mean r2, with what is certain about it."""
    ranked = sorted((row for row in rows if "r2" in row.metrics), key=lambda row: -row.r2["mean"])
    scores = [Interval(*(row.r2[key] for key in ("mean", "low", "high"))) for row in ranked]
    return Order([family(row) for row in ranked], scores,
                 [difference(a, b).low > 0 for a, b in pairwise(ranked)])


@dataclass(frozen=True)
class Verdict:
    """A pair of methods: does our order agree with the paper's?"""

    better: str  # in the paper
    worse: str
    difference: Interval  # better minus worse, in our measurement

    @property
    def agrees(self) -> bool | None:
        """None where our interval holds 0."""
        return None if self.difference.low <= 0 <= self.difference.high else self.difference.mean > 0


def against_paper(dataset: str, rows: Sequence[Row]) -> list[Verdict]:
    """Every pair of formulas that both we and the paper measured on a dataset."""
    paper = PAPER_R2.get(dataset, {})
    mine = {family(row): row for row in rows}
    both = sorted((m for m in paper if m in mine and m != ANOTHER_SEED), key=lambda m: -paper[m][0])
    return [Verdict(a, b, difference(mine[a], mine[b])) for a, b in combinations(both, 2)]
