"""The verdict of an examination in six sentences, each with its number and the threshold behind it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scorelens.analysis.report_card import WORSE

THRESHOLDS = {
    "trained": (WORSE, "a network is trained if its error on held-out images is at most this multiple of that of the "
                       "best closed form (optimal, wiener, locality), at every noise level"),
    "memorized": (0.05, "a network memorizes if more than this share of its samples are copies: the nearest training "
                        "image is less than a third as far away as the second-nearest"),
    "generalizes": (1.25, "it generalizes if its error on held-out images is at most this multiple of that on training "
                          "images, geometric mean over the noise levels between 0.1 and 10"),
    "explained": (0.8, "a formula explains a network if r2 of its samples, from the same noise, is at least this"),
    "wiener": (0.8, "fields follow the data's statistics if their cosine with the Wiener filter's is at least this, "
                    "mean over pixels and the noise levels between 0.1 and 10"),
    "equivariant": (0.9, "fields are translation-equivariant if those of different pixels, shifted to the same pixel, "
                         "have at least this cosine, mean over the noise levels between 0.1 and 10"),
}
MIDDLE = (0.1, 10.0)  # noise levels with both signal and noise
Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class Sentence:
    """One finding; `holds` says on which side of the threshold the value is."""

    about: str
    text: str
    value: float
    threshold: float
    holds: bool


def verdict(numbers: Numbers) -> list[Sentence]:
    """The six sentences, without those that could not be measured."""
    return [*_training(numbers["report_card"]), *_memorization(numbers["memorization"]),
            *_generalization(numbers["generalization"]), *_explanation(numbers["explanation"]),
            *_locality(numbers["locality"])]


def _training(card: Numbers | None) -> Iterator[Sentence]:
    if card is not None:
        worst = max(level["to_best"]["mean"] for level in card["levels"])
        how = "well" if card["passes"] else "not fully"
        yield Sentence("trained", f"It is {how} trained: {card['sentence']}.", worst, THRESHOLDS["trained"][0],
                       card["passes"])


def _memorization(numbers: Numbers) -> Iterator[Sentence]:
    share, count, limit = numbers["memorized"], numbers["samples"], THRESHOLDS["memorized"][0]
    mean, holds = share["mean"], share["mean"] > limit
    yield Sentence("memorized", f"It {'memorizes' if holds else 'does not memorize'}: {round(mean * count)} of {count} "
                   f"samples copy a training image ({mean:.0%}, 95 % interval {share['low']:.0%} to "
                   f"{share['high']:.0%}; limit {limit:.0%}).", mean, limit, holds)


def _generalization(numbers: Numbers | None) -> Iterator[Sentence]:
    levels, limit = numbers["levels"] if numbers else [], THRESHOLDS["generalizes"][0]
    ratio, optimal = mean_ratio(levels, "network"), mean_ratio(levels, "optimal")
    if numbers and ratio is not None:
        holds = ratio <= limit
        beside = f"; for the optimal denoiser, which memorizes, it is {optimal:.1f} times" if optimal else ""
        yield Sentence("generalizes", f"It {'generalizes' if holds else 'does not generalize'}: its error on "
                       f"{numbers['images']} held-out images is {ratio:.2f} times that on training images (limit "
                       f"{limit:g}){beside}.", ratio, limit, holds)


def _explanation(rows: Sequence[Numbers]) -> Iterator[Sentence]:
    if rows:
        best, limit = max(rows, key=lambda row: row["r2"]["mean"]), THRESHOLDS["explained"][0]
        r2, holds = best["r2"], best["r2"]["mean"] >= limit
        text = "explains it" if holds else "is best, but does not explain it"
        yield Sentence("explained", f"{best['model']} {text}: r2 of its samples is {r2['mean']:.2f} (95 % interval "
                       f"{r2['low']:.2f} to {r2['high']:.2f}; limit {limit:g}); "
                       f"{max(0.0, 1 - r2['mean']):.0%} remains unexplained.", r2["mean"], limit, holds)


def _locality(every: Sequence[Numbers]) -> Iterator[Sentence]:
    levels = [level for level in every if MIDDLE[0] <= level["sigma"] <= MIDDLE[1]]
    if levels:
        limit, radii = THRESHOLDS["wiener"][0], [level["radius"]["mean"] for level in levels]
        cosine = sum(level["cosine"]["mean"] for level in levels) / len(levels)
        text = "follow" if cosine >= limit else "do not follow"
        yield Sentence("wiener", f"Its fields {text} the data's covariance: cosine {cosine:.2f} with the Wiener "
                       f"filter's (limit {limit:g}); their radius is {min(radii):.1f} to {max(radii):.1f} pixels.",
                       cosine, limit, cosine >= limit)
        limit, linear = THRESHOLDS["equivariant"][0], sum(map(linear_share, levels)) / len(levels)
        cosine = sum(level["equivariance"] for level in levels) / len(levels)
        text = "are" if cosine >= limit else "are not"
        yield Sentence("equivariant", f"Its fields {text} the same everywhere: shifted to the same pixel, they have "
                       f"cosine {cosine:.2f} (limit {limit:g}); its Jacobian predicts {linear:.0%} of its changes from "
                       "one image to another.", cosine, limit, cosine >= limit)


def linear_share(level: Numbers) -> float:
    """The share of a model's change from one image to another that its Jacobian predicts: 1 if it is linear."""
    return max(0.0, 1 - float(level["nonlinearity"]))


def mean_ratio(levels: Sequence[Numbers], model: str) -> float | None:
    """Held-out error over training error, geometric mean over the middle noise levels."""
    ratios = [level["ratio"] for level in levels
              if level["model"] == model and level["ratio"] and MIDDLE[0] <= level["sigma"] <= MIDDLE[1]]
    return math.prod(ratios) ** (1 / len(ratios)) if ratios else None
