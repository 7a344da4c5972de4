"""What the numbers of an examination mean, in six sentences: each with its number and the threshold behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scorelens.analysis.report_card import WORSE

THRESHOLDS = {
    "trained": (WORSE, "a network is trained when its error on held-out images is at most this multiple of that of the "
                       "best closed form (optimal, wiener, locality), at every noise level"),
    "memorized": (0.05, "a network memorizes when more than this share of its samples is nearer to one training image "
                        "than a third of the distance to the second-nearest"),
    "generalizes": (1.25, "it generalizes when its error on held-out images is at most this multiple of that on "
                          "training images, geometric mean over the noise levels between 0.1 and 10"),
    "explained": (0.8, "a formula explains a network when r2 of its samples, from the same noise, is at least this"),
    "wiener": (0.8, "fields follow the data's statistics when their cosine with the Wiener filter's is at least this, "
                    "mean over pixels and the noise levels between 0.1 and 10"),
    "equivariant": (0.9, "fields are translation-equivariant when recentred ones of different pixels have at least "
                         "this cosine, mean over the noise levels between 0.1 and 10"),
}
MIDDLE = (0.1, 10.0)  # noise levels with both signal and noise


@dataclass(frozen=True)
class Sentence:
    """A finding in plain words; `holds` says on which side of its threshold the value is."""

    about: str
    text: str
    value: float
    threshold: float
    holds: bool


def verdict(numbers: Mapping[str, Any]) -> list[Sentence]:
    """The six sentences; where something could not be measured, there is no sentence about it."""
    return [*_training(numbers["report_card"]), *_memorization(numbers["memorization"]),
            *_generalization(numbers["generalization"]), *_explanation(numbers["explanation"]),
            *_locality(numbers["locality"])]


def as_records(sentences: Sequence[Sentence]) -> list[dict[str, Any]]:
    return [asdict(sentence) for sentence in sentences]


def _training(found: Mapping[str, Any] | None) -> Iterator[Sentence]:
    if found is None:
        return
    worst, limit = max(level["to_best"]["mean"] for level in found["levels"]), THRESHOLDS["trained"][0]
    how = "well" if found["passes"] else "not fully"
    yield Sentence("trained", f"It is {how} trained: {found['sentence']}.", worst, limit, found["passes"])


def _memorization(found: Mapping[str, Any]) -> Iterator[Sentence]:
    share, limit = found["memorized"], THRESHOLDS["memorized"][0]
    count = round(share["mean"] * found["samples"])
    told = (f"{count} of {found['samples']} samples copy a training image ({share['mean']:.0%}, 95 % interval "
            f"{share['low']:.0%} to {share['high']:.0%}; limit {limit:.0%})")
    yield Sentence("memorized", f"It {'memorizes' if share['mean'] > limit else 'does not memorize'}: {told}.",
                   share["mean"], limit, share["mean"] > limit)


def _generalization(found: Mapping[str, Any] | None) -> Iterator[Sentence]:
    if found is None:
        return
    limit = THRESHOLDS["generalizes"][0]
    ratio = mean_ratio(found["levels"], "network")
    if ratio is None:
        return
    optimal = mean_ratio(found["levels"], "optimal")
    beside = f"; the optimal denoiser's, which memorizes, is {optimal:.1f} times" if optimal else ""
    holds = ratio <= limit
    yield Sentence("generalizes", f"It {'generalizes' if holds else 'does not generalize'}: its error on "
                   f"{found['images']} held-out images is {ratio:.2f} times that on training images (limit "
                   f"{limit:g}){beside}.", ratio, limit, holds)


def _explanation(found: Sequence[Mapping[str, Any]]) -> Iterator[Sentence]:
    if not found:
        return
    limit, best = THRESHOLDS["explained"][0], max(found, key=lambda row: row["r2"]["mean"])
    r2, holds = best["r2"], best["r2"]["mean"] >= limit
    told = "explains it" if holds else "comes nearest, but does not explain it"
    yield Sentence("explained", f"{best['model']} {told}: r2 of its samples is {r2['mean']:.2f} (95 % interval "
                   f"{r2['low']:.2f} to {r2['high']:.2f}; limit {limit:g}); {max(0.0, 1 - r2['mean']):.0%} is "
                   "explained by no formula.", r2["mean"], limit, holds)


def _locality(found: Sequence[Mapping[str, Any]]) -> Iterator[Sentence]:
    levels = [level for level in found if MIDDLE[0] <= level["sigma"] <= MIDDLE[1]]
    if not levels:
        return
    limit = THRESHOLDS["wiener"][0]
    cosine = sum(level["cosine"]["mean"] for level in levels) / len(levels)
    wide = [level["radius"]["mean"] for level in levels]
    told = "follow" if cosine >= limit else "do not follow"
    yield Sentence("wiener", f"Its fields {told} the data's covariance: cosine {cosine:.2f} with the Wiener filter's "
                   f"(limit {limit:g}); they reach {min(wide):.1f} to {max(wide):.1f} pixels far.", cosine, limit,
                   cosine >= limit)
    limit = THRESHOLDS["equivariant"][0]
    alike = sum(level["equivariance"] for level in levels) / len(levels)
    straight = sum(linear_share(level) for level in levels) / len(levels)
    told = "are" if alike >= limit else "are not"
    yield Sentence("equivariant", f"Its fields {told} the same everywhere: recentred, they have cosine {alike:.2f} "
                   f"(limit {limit:g}); its Jacobian predicts {straight:.0%} of its changes from one image to another.",
                   alike, limit, alike >= limit)


def linear_share(level: Mapping[str, Any]) -> float:
    """What a model's Jacobian predicts of its change from one image to another: 1 if it is linear, and 0 if no change
    at all would be a better guess."""
    return max(0.0, 1 - float(level["nonlinearity"]))


def mean_ratio(levels: Sequence[Mapping[str, Any]], model: str) -> float | None:
    """Held-out error over training error, geometric mean over the middle noise levels."""
    found = [level["ratio"] for level in levels
             if level["model"] == model and level["ratio"] and MIDDLE[0] <= level["sigma"] <= MIDDLE[1]]
    product = 1.0
    for ratio in found:
        product *= ratio
    return product ** (1 / len(found)) if found else None
