"""What the committed rows say, in lines that can be quoted: the first region of docs/results.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from scorelens.metrics import Interval
from scorelens.paper.presets import ANOTHER_SEED
from scorelens.paper.results import (
    AUTOMATIC,
    FROM_DATA,
    Results,
    Verdict,
    against_paper,
    best_from_data,
    claim,
    difference,
    family,
    shares,
)
from scorelens.report.paper_tables import label
from scorelens.results import Row

Tables = Mapping[str, Sequence[Row]]  # rows by dataset
HIGH, LOW = 6.0, 2.1  # noise levels above and below which the report cards are summarized


def findings(rows: Sequence[Row], cards: Mapping[str, Mapping[str, Any]]) -> str:
    """A numbered list; what has not been measured is left out."""
    found = Results(rows)
    tables = {**found.of("table1"), **found.of("table-appendix")}
    lines = [*seeds(tables), *networks(cards, tables), *paper_order(tables),
             *against(tables, "locality", "wiener", "Locality at the paper's thresholds against the Wiener filter"),
             *against(tables, AUTOMATIC, "wiener",
                      "Locality at thresholds chosen on held-out images against the Wiener filter"),
             *fixed_thresholds(found.of("threshold")), *data_alone(tables, found.of("claim")),
             *held_out_error(found.of("claim")), *copies(tables), *fields(found.of("sensitivity"))]
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1)) + "\n"


def seeds(tables: Tables) -> Iterator[str]:
    scores = {dataset: row.r2 for dataset, rows in tables.items() for row in rows if family(row) == ANOTHER_SEED}
    if scores:
        yield (f"**Two trainings agree.** r2 between two networks that differ in their seed alone: {_listed(scores)}. "
               "No prediction from the data alone can be expected to exceed half-way from there to 1.")


def networks(cards: Mapping[str, Mapping[str, Any]], tables: Tables) -> Iterator[str]:
    """Held-out error at high and at low noise, relative to the linear filter's."""
    levels = {dataset: cards[f"{dataset}-unet"]["report_card"]["levels"] for dataset in tables
              if "report_card" in cards.get(f"{dataset}-unet", {})}
    if levels:
        high, low = ({dataset: fmean(level["to_linear"]["mean"] for level in each if inside(level["sigma"]))
                      for dataset, each in levels.items()}
                     for inside in (lambda sigma: sigma > HIGH, lambda sigma: sigma < LOW))
        yield (f"**At high noise, networks are linear filters.** Above sigma {HIGH:g}, their held-out error is "
               f"{_range(high.values(), '.2f')} of the Wiener filter's; below sigma {LOW:g}, "
               + ", ".join(f"{value:.2f} on {dataset}" for dataset, value in low.items()) + ".")


def paper_order(tables: Tables) -> Iterator[str]:
    verdicts = {dataset: pairs for dataset, rows in tables.items() if (pairs := against_paper(dataset, rows))}
    every = [verdict for pairs in verdicts.values() for verdict in pairs]
    if every:
        agree, reverse = (sum(verdict.agrees is value for verdict in every) for value in (True, False))
        yield (f"**The paper's order of methods** holds for {agree} of {len(every)} pairs of formulas on "
               f"{_and(verdicts)}; reversed here: {reverse}, undecided: {len(every) - agree - reverse}."
               + _reversed(verdicts))


def _reversed(verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    where: dict[tuple[str, str], list[str]] = defaultdict(list)
    for dataset, pairs in verdicts.items():
        for pair in pairs:
            if pair.agrees is False:
                where[pair.worse, pair.better].append(f"{dataset} {_interval(_negative(pair.difference))}")
    return "".join(f" {label(better)} is before {label(worse)} on {'; '.join(found)}."
                   for (better, worse), found in where.items())


def against(tables: Tables, name: str, other: str, words: str) -> Iterator[str]:
    """The difference in r2 of two methods on every dataset, and where it is certain."""
    gaps = _each(tables, (name, other), lambda one, two: difference(one, two))
    if gaps:
        wins, losses = ([dataset for dataset, gap in gaps.items() if sign * gap.mean > 0 and gap.low * gap.high > 0]
                        for sign in (1, -1))
        yield (f"**{words}:** better on {_and(wins) or 'none'}, worse on {_and(losses) or 'none'}. Difference in r2: "
               + "; ".join(f"{dataset} {_interval(gap)}" for dataset, gap in gaps.items()) + ".")


def fixed_thresholds(by_dataset: Tables) -> Iterator[str]:
    """The chosen thresholds against the best fixed one in hindsight."""
    gaps = {}
    for dataset, rows in by_dataset.items():
        chosen = [row for row in rows if family(row) == AUTOMATIC]
        fixed = [row for row in rows if family(row) != AUTOMATIC]
        if chosen and fixed:
            gaps[dataset] = difference(chosen[0], max(fixed, key=lambda row: row.r2["mean"]))
    if gaps:
        yield ("**Thresholds from the data** need no hindsight. Difference in r2 to the best fixed threshold, which is "
               "found by looking at the network: "
               + "; ".join(f"{dataset} {_interval(gap)}" for dataset, gap in gaps.items()) + ".")


def data_alone(tables: Tables, errors: Tables) -> Iterator[str]:
    """The formula of least held-out error, as a share of another seed."""
    told = []
    for dataset, rows in tables.items():
        best, explained = best_from_data(errors.get(dataset, [])), shares(rows)
        if best in explained:
            part = explained[best].of_another
            told.append(f"{dataset} {part.mean:.0%} ({part.low:.0%} to {part.high:.0%}, {best})")
    if told:
        yield ("**The best prediction from the data alone** is the formula with the least error on held-out training "
               f"images. Its r2 as a share of another seed's: {'; '.join(told)}.")


def held_out_error(errors: Tables) -> Iterator[str]:
    found = claim(errors)
    if found is not None:
        yield (f"**Less held-out error goes with a better prediction of the network.** Spearman's correlation of the "
               f"two orders of methods, over {found.groups} pairs of dataset and noise level: "
               f"{_interval(found.correlation)}.")


def copies(tables: Tables) -> Iterator[str]:
    """Memorized samples of the optimal denoiser and of the formulas that generalize."""
    parts = []
    for name in ("optimal", "locality", *FROM_DATA):
        values = [row.metrics["memorized"]["mean"] for rows in tables.values() for row in rows if family(row) == name]
        if values:
            parts.append(f"{label(name)} {_range(values, '.0%')}")
    if parts:
        yield f"**Copies.** Share of samples that copy a training image, over the datasets: {'; '.join(parts)}."


def fields(by_dataset: Tables) -> Iterator[str]:
    cosines = {dataset: [field["cosine"] for row in rows if row.denoiser != "wiener" for field in row.metrics["fields"]]
               for dataset, rows in by_dataset.items()}
    if cosines:
        yield ("**Sensitivity fields.** Cosine of a U-Net's mean field with the row of the Wiener filter, mean over "
               "ten noise levels (and the highest): "
               + "; ".join(f"{dataset} {fmean(each):.2f} ({max(each):.2f})" for dataset, each in cosines.items()) + ".")


def _each(tables: Tables, names: tuple[str, str], compare: Callable[[Row, Row], Interval]) -> dict[str, Interval]:
    by_method = {dataset: {family(row): row for row in rows} for dataset, rows in tables.items()}
    return {dataset: compare(rows[names[0]], rows[names[1]]) for dataset, rows in by_method.items()
            if all(name in rows for name in names)}


def _listed(scores: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(f"{dataset} {value['mean']:.2f} ({value['low']:.2f} to {value['high']:.2f})"
                     for dataset, value in sorted(scores.items(), key=lambda item: -item[1]["mean"]))


def _range(values: Collection[float], form: str) -> str:
    low, high = (format(value, form) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _interval(gap: Interval) -> str:
    return f"{gap.mean:+.2f} ({gap.low:+.2f} to {gap.high:+.2f})"


def _negative(gap: Interval) -> Interval:
    return Interval(-gap.mean, -gap.high, -gap.low)


def _and(names: Sequence[str] | Mapping[str, Any]) -> str:
    *most, last = list(names) or [""]
    return f"{', '.join(most)} and {last}" if most else last
