"""What rows say about the order of methods."""

import dataclasses
import math

import numpy as np
import pytest

from scorelens.paper.presets import DATASETS, cells_of
from scorelens.paper.results import (
    Results,
    against_paper,
    best_from_data,
    claim,
    difference,
    discussion,
    family,
    limits,
    order,
    rank_correlation,
    shares,
)
from scorelens.report.paper_tables import VIEWS
from scorelens.results import Row


def row(denoiser, values, seed=128, dataset="", **options):
    from torch import tensor

    from scorelens.metrics import summary

    metrics = {"each": {"r2": values, "mse": values}, "r2": summary(tensor(values, dtype=float))}
    return Row(denoiser, denoiser, options, {"seed": seed, "num": len(values), "dataset": dataset}, metrics,
               {"count": 60_000})


def test_the_order_is_certain_where_the_paired_difference_is():
    spread = [0.1 * k for k in range(10)]
    better, same, worse = (row(name, [x + by for x in spread]) for name, by in (("wiener", 0.05), ("optimal", 0.0),
                                                                               ("els", -0.001)))
    each = worse.metrics["each"]
    each["r2"] = [x + (0.3 if k % 2 else -0.3) for k, x in enumerate(each["r2"])]
    found = order([worse, same, better])
    assert found.methods == ["wiener", "optimal", "els"] and found.certain == [True, False]
    assert str(found).startswith("wiener 0.500") and " > optimal" in str(found) and " ≈ els" in str(found)


def test_differences_are_taken_on_common_noise_only():
    long, short = row("wiener", [1.0, 2.0, 30.0]), row("optimal", [0.5, 1.0])
    assert difference(long, short).mean == pytest.approx(0.75)
    assert difference(short, long).mean == pytest.approx(-0.75)
    with pytest.raises(ValueError, match="no noise in common"):
        difference(long, row("optimal", [0.5, 1.0], seed=0))


def test_verdicts_against_the_paper():
    """On MNIST the paper has locality before wiener before els before optimal."""
    rows = [row("locality", [0.9, 0.91, 0.92], threshold=0.005), row("wiener", [0.8, 0.81, 0.82]),
            row("optimal", [0.85, 0.86, 0.87]), row("kernel", [0.0, 0.0, 0.0]), row("another seed", [1.0, 1.0, 1.0])]
    found = {(v.better, v.worse): v.agrees for v in against_paper("mnist", rows)}
    assert found == {("locality", "wiener"): True, ("locality", "optimal"): True, ("wiener", "optimal"): False}
    assert against_paper("digits", rows) == []
    rows[1].metrics["each"]["r2"] = [0.5, 0.86, 1.3]
    assert {(v.better, v.worse): v.agrees for v in against_paper("mnist", rows)}["wiener", "optimal"] is None


def test_results_come_by_preset_and_dataset():
    cells = list(cells_of("softmax", datasets=["digits", "mnist"]))
    rows = [Row(cell.key, cell.method.denoiser, settings=cell.settings) for cell in reversed(cells)]
    rows[0] = dataclasses.replace(rows[0], failed="because")
    results = Results(rows)
    assert [r.name for found in results.of("softmax").values() for r in found] == [c.key for c in cells[:-1]]
    assert results.failed == rows[:1] and not results.of("held-out")


def test_names_and_limits(monkeypatch):
    def named(denoiser, dataset="digits", **options):
        return family(row(denoiser, [1.0], dataset=dataset, **options))

    assert named("locality", threshold=0.05, softmax="batch-mean") == "locality, batch-mean"
    assert named("locality", threshold=0.05, mask_rule="published", softmax="batch-mean") == "locality, as published"
    assert named("els", patch_size=9) == "els" and named("another seed", "mine") == "another seed"
    chosen = dataclasses.replace(DATASETS["mnist"], chosen=0.07)
    monkeypatch.setitem(DATASETS, "mnist", chosen)
    assert named("locality", "mnist", threshold=0.07) == "locality, threshold chosen"
    assert named("locality", "mnist", threshold=0.005) == named("locality", threshold=0.07) == "locality"
    els = row("els", [1.0, 1.0], patch_size="cifar10", images_limit=1000)
    assert limits(els) == "2 samples, 1,000 images" and limits(row("wiener", [1.0])) == "1 sample, 60,000 images"


def test_shares_are_those_of_another_seed_on_common_noise():
    rows = [row("multiscale", [0.4, 0.8, 0.0]), row("locality", [0.2, 0.4], threshold=0.05),
            row("another seed", [0.5, 0.9])]
    found = shares(rows)
    assert list(found) == ["multiscale", "locality"] and shares(rows[:2]) == {}
    assert found["multiscale"].of_another.mean == pytest.approx(1.2 / 1.4)
    assert found["locality"].of_ceiling.mean == pytest.approx(0.6 / (0.75 + 0.95))
    with pytest.raises(ValueError, match="no noise in common"):
        shares([row("multiscale", [0.4], seed=0), rows[-1]])
    assert any("multiscale explains 86% of what another seed does" in text for text in discussion("", rows))


def levels(denoiser, errors, scores, **options):
    points = [{"sigma": 1.0, "error": error, "r2": {"mean": r2}} for error, r2 in zip(errors, scores, strict=True)]
    return dataclasses.replace(row(denoiser, [1.0], **options), metrics={"levels": points})


def test_the_claim_is_a_rank_correlation_within_datasets_and_levels():
    """At the first level less error goes with more r2, at the second the other way round for one pair of three."""
    rows = [levels("optimal", [3.0, 3.0], [0.1, 0.2]), levels("wiener", [2.0, 2.0], [0.5, 0.1]),
            levels("multiscale", [1.0, 1.0], [0.9, 0.9])]
    found = claim({"digits": rows})
    assert found.groups == 2 and found.correlation.mean == pytest.approx((1 + 0.5) / 2)
    assert claim({"digits": rows[:2]}) is None
    assert math.isnan(rank_correlation([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]))


@pytest.mark.parametrize("seed", range(3))
def test_rank_correlation_is_spearmans(seed):
    from scipy.stats import spearmanr

    a, b = np.random.default_rng(seed).integers(6, size=(2, 20)).astype(float).tolist()  # with ties
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)


def test_the_best_from_data_has_the_least_held_out_error():
    rows = [levels("optimal", [0.1, 0.1], [0, 0]), levels("locality", [2.0, 2.0], [0, 0], threshold="auto"),
            levels("multiscale", [1.0, 3.0], [0, 0]), levels("kernel-locality", [3.0, 3.0], [1, 1], threshold="auto")]
    assert best_from_data(rows) == "multiscale" and best_from_data(rows[:1]) is None
    assert family(rows[1]) == "locality, automatic threshold"


def test_the_ablation_of_thresholds_names_the_chosen_ones():
    """They are beside the fixed ones in the table, and do not count as the best of them."""
    values = {cell.method.options[0][1]: cell for cell in cells_of("threshold", datasets=["digits"])}
    rows = []
    for tau, r2 in ((0.005, 0.2), (0.02, 0.6), ("auto", 0.7)):
        one = row("locality", [r2, r2], threshold=tau)
        rows.append(dataclasses.replace(one, name=values[tau].key, settings={**one.settings, "dataset": "digits"}))
    table, told = VIEWS["threshold"](Results(rows), "threshold")
    cells = {line[0]: line[1] for line in table.rows}
    assert cells["auto"].text == "0.700" and cells["auto"].strong and not cells["0.02"].strong
    assert told.paragraphs[0] == "digits: best at τ = 0.02, r2 0.600."
    assert "r2 0.700, +0.100 (+0.100 to +0.100) from the best fixed one" in told.paragraphs[1]
