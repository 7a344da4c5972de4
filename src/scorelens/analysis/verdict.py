"""The verdict of an examination in six sentences, each with its number, the interval and the threshold behind it.

An answer is yes, no, or "it cannot be told from these": where the interval contains the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scorelens.analysis.report_card import WORSE
from scorelens.metrics import share_interval

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
MOST = 100_000  # images; if more would be needed, the value is at the limit for all we can say
Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class Sentence:
    """One finding; `holds` says on which side of the threshold the interval is: None if the threshold is inside."""

    about: str
    text: str
    value: float
    threshold: float
    holds: bool | None
    low: float  # 95 % interval of the value
    high: float


def verdict(numbers: Numbers) -> list[Sentence]:
    """The six sentences, without those that could not be measured."""
    return [*_training(numbers["report_card"]), *_memorization(numbers["memorization"]),
            *_generalization(numbers["generalization"]), *_explanation(numbers["explanation"]),
            *_locality(numbers["locality"])]


def above(interval: Numbers, limit: float) -> bool | None:
    """Whether a value is above a limit: None if its interval contains the limit."""
    return True if interval["low"] > limit else False if interval["high"] <= limit else None


def enough_samples(share: float, limit: float) -> int | None:
    """The number of samples whose Wilson interval at this share excludes the limit."""
    if share == limit:
        return None
    counts = (2 ** (k / 8) for k in range(8, 8 * 17))
    rough = next((n for n in map(int, counts) if not _straddles(share, n, limit)), None)
    return rough and next(n for n in range(max(1, int(rough / 1.2)), rough + 1) if not _straddles(share, n, limit))


def _straddles(share: float, count: int, limit: float) -> bool:
    return above(vars(share_interval(round(share * count), count)), limit) is None


def enough(count: int, interval: Numbers, limit: float) -> int | None:
    """The number of images at which an interval that shrinks with its square root would exclude the limit."""
    reach = interval["high"] - interval["mean"] if limit > interval["mean"] else interval["mean"] - interval["low"]
    gap = abs(interval["mean"] - limit)
    needed = math.ceil(count * (reach / gap) ** 2) + 1 if gap > 0 else MOST + 1
    return needed if needed <= MOST else None


def _undecided(question: str, count: int, unit: str, needed: int | None) -> str:
    """"It cannot be told from 15 samples whether ...; about 73 would tell"."""
    more = f"about {_round(needed)} would tell" if needed else "the value is too near the limit"
    return f"It cannot be told from {count} {unit} whether {question} ({more})"


def _round(count: int) -> int:
    """Two digits, rounded up."""
    size = 10 ** max(0, len(str(count)) - 2)
    return -(-count // size) * size


def _training(card: Numbers | None) -> Iterator[Sentence]:
    if card is not None:
        limit, worst = THRESHOLDS["trained"][0], max((level["to_best"] for level in card["levels"]),
                                                     key=lambda ratio: float(ratio["mean"]))
        sides = [above(level["to_best"], limit) for level in card["levels"]]
        holds = False if True in sides else None if None in sides else True
        needed = max((enough(card["images"], level["to_best"], limit) or MOST + 1 for level in card["levels"]
                      if above(level["to_best"], limit) is None), default=0)
        text = {True: "It is well trained", False: "It is not fully trained",
                None: _undecided("it is fully trained", card["images"], "held-out images",
                                 needed if needed <= MOST else None)}[holds]
        yield Sentence("trained", f"{text}: {card['sentence']}.", worst["mean"], limit, holds, worst["low"],
                       worst["high"])


def _memorization(numbers: Numbers) -> Iterator[Sentence]:
    share, count, limit = numbers["memorized"], numbers["samples"], THRESHOLDS["memorized"][0]
    mean, holds = share["mean"], above(share, limit)
    text = {True: "It memorizes", False: "It does not memorize",
            None: _undecided("it memorizes", count, "samples", enough_samples(mean, limit))}[holds]
    yield Sentence("memorized", f"{text}: {round(mean * count)} of {count} samples copy a training image ({mean:.0%}, "
                   f"95 % interval {share['low']:.0%} to {share['high']:.0%}; limit {limit:.0%}).", mean, limit, holds,
                   share["low"], share["high"])


def _generalization(numbers: Numbers | None) -> Iterator[Sentence]:
    limit, ratios = THRESHOLDS["generalizes"][0], numbers["ratios"] if numbers else {}
    ratio, optimal = ratios.get("network"), ratios.get("optimal")
    if numbers and ratio:
        over, count = above(ratio, limit), numbers["images"]
        text = {False: "It generalizes", True: "It does not generalize",
                None: _undecided("it generalizes", count, "held-out images", enough(count, ratio, limit))}[over]
        beside = f"; for the optimal denoiser, which memorizes, it is {optimal['mean']:.1f} times" if optimal else ""
        yield Sentence("generalizes", f"{text}: its error on {count} held-out images is {ratio['mean']:.2f} times that "
                       f"on training images (95 % interval {ratio['low']:.2f} to {ratio['high']:.2f}; limit "
                       f"{limit:g}){beside}.", ratio["mean"], limit, None if over is None else not over, ratio["low"],
                       ratio["high"])


def _explanation(rows: Sequence[Numbers]) -> Iterator[Sentence]:
    if rows:
        best, limit = max(rows, key=lambda row: row["r2"]["mean"]), THRESHOLDS["explained"][0]
        r2, holds, count = best["r2"], above(best["r2"], limit), best["samples"]
        text = {True: f"{best['model']} explains it", False: f"{best['model']} is best, but does not explain it",
                None: _undecided(f"{best['model']}, the best formula, explains it", count, "samples",
                                 enough(count, r2, limit))}[holds]
        yield Sentence("explained", f"{text}: r2 of its samples is {r2['mean']:.2f} (95 % interval "
                       f"{r2['low']:.2f} to {r2['high']:.2f}; limit {limit:g}); "
                       f"{max(0.0, 1 - r2['mean']):.0%} remains unexplained{_from_data(rows, best)}.", r2["mean"],
                       limit, holds, r2["low"], r2["high"])


def _from_data(rows: Sequence[Numbers], best: Numbers) -> str:
    """What the formula that the data alone would name says, if it is another one."""
    measured = [row for row in rows if row["held_out_error"] is not None]
    named = min(measured, key=lambda row: float(row["held_out_error"]), default=best)
    return "" if named is best else (f". From the data alone one would name {named['model']}, which has the least "
                                     f"error on held-out training images: r2 {named['r2']['mean']:.2f}")


def _locality(every: Sequence[Numbers]) -> Iterator[Sentence]:
    levels = [level for level in every if MIDDLE[0] <= level["sigma"] <= MIDDLE[1]]
    if levels:
        limit, radii = THRESHOLDS["wiener"][0], [level["radius"]["mean"] for level in levels]
        cosine, count = _mean([level["cosine"] for level in levels]), levels[0]["trajectories"]
        holds = above(cosine, limit)
        text = {True: "Its fields follow the data's covariance",
                False: "Its fields do not follow the data's covariance",
                None: _undecided("its fields follow the data's covariance", count, "trajectories and nine pixels",
                                 None)}[holds]
        yield Sentence("wiener", f"{text}: cosine {cosine['mean']:.2f} with the Wiener filter's (95 % interval "
                       f"{cosine['low']:.2f} to {cosine['high']:.2f}; limit {limit:g}); their radius is "
                       f"{min(radii):.1f} to {max(radii):.1f} pixels.", cosine["mean"], limit, holds, cosine["low"],
                       cosine["high"])
        limit, linear = THRESHOLDS["equivariant"][0], sum(map(linear_share, levels)) / len(levels)
        cosine = _mean([level["equivariance_interval"] for level in levels])
        holds = above(cosine, limit)
        text = {True: "Its fields are the same everywhere", False: "Its fields are not the same everywhere",
                None: _undecided("its fields are the same everywhere", count, "trajectories and nine pixels",
                                 None)}[holds]
        yield Sentence("equivariant", f"{text}: shifted to the same pixel, they have cosine {cosine['mean']:.2f} (95 % "
                       f"interval {cosine['low']:.2f} to {cosine['high']:.2f}; limit {limit:g}); along {count} "
                       f"trajectories its Jacobian predicts {linear:.0%} of its changes from one image to another.",
                       cosine["mean"], limit, holds, cosine["low"], cosine["high"])


def _mean(intervals: Sequence[Numbers]) -> Numbers:
    """The mean over noise levels; its interval is the mean interval, as for values that vary together."""
    return {key: sum(each[key] for each in intervals) / len(intervals) for key in ("mean", "low", "high")}


def linear_share(level: Numbers) -> float:
    """The share of a model's change from one image to another that its Jacobian predicts: 1 if it is linear."""
    return max(0.0, 1 - float(level["nonlinearity"]))


def mean_ratio(levels: Sequence[Numbers], model: str) -> float | None:
    """Held-out error over training error, geometric mean over the middle noise levels."""
    ratios = [level["ratio"] for level in levels if level["model"] == model and level["ratio"]
              and MIDDLE[0] <= level["sigma"] <= MIDDLE[1]]
    return math.prod(ratios) ** (1 / len(ratios)) if ratios else None
