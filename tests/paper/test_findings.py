"""The sentences on top of docs/results.md say what the rows say, and nothing that is not measured."""

from dataclasses import replace

import pytest
from tools.findings import against, copies, data_alone, findings, fixed_thresholds, networks, seeds
from tools.results_page import merged

from scorelens.paper.presets import cells_of
from tests.paper.test_results import levels, row

SPREAD = [0.1 * k for k in range(10)]


def shifted(denoiser, by, **options):
    return row(denoiser, [x + by for x in SPREAD], **options)


def test_a_difference_counts_only_where_its_interval_excludes_zero():
    noisy = row("locality", [x + (0.4 if k % 2 else -0.3) for k, x in enumerate(SPREAD)])  # not certain
    tables = {"one": [shifted("locality", 0.2), shifted("wiener", 0.0)], "two": [noisy, shifted("wiener", 0.0)],
              "three": [shifted("locality", -0.1), shifted("wiener", 0.0)], "four": [shifted("wiener", 0.0)]}
    (line,) = against(tables, "locality", "wiener", "These")
    assert "better on one, worse on three." in line and "one +0.20 (+0.20 to +0.20)" in line and "four" not in line


def test_the_chosen_thresholds_are_compared_with_the_best_fixed_one():
    rows = [shifted("locality", by, threshold=tau) for tau, by in ((0.01, 0.1), (0.02, 0.3), (0.05, 0.2))]
    (line,) = fixed_thresholds({"one": [*rows, shifted("locality", 0.25, threshold="auto")], "two": rows})
    assert "one -0.05 (-0.05 to -0.05)." in line and "; two" not in line


def test_the_best_from_the_data_is_a_share_of_another_seed():
    measured = [row("multiscale", [0.4, 0.4]), row("kernel-locality", [0.6, 0.6], threshold="auto"),
                row("another seed", [0.8, 0.8])]
    errors = [levels("multiscale", [1.0], [0]), levels("kernel-locality", [2.0], [0], threshold="auto")]
    (line,) = data_alone({"one": measured}, {"one": errors})
    assert "one 50% (50% to 50%, multiscale)" in line
    assert list(data_alone({"one": measured}, {})) == []


def test_seeds_networks_and_copies():
    (line,) = seeds({"low": [row("another seed", [0.5, 0.5])], "high": [row("another seed", [0.9, 0.9])]})
    assert "high 0.90 (0.90 to 0.90), low 0.50 (0.50 to 0.50)" in line
    card = {"report_card": {"levels": [{"sigma": sigma, "to_linear": {"mean": ratio}}
                                       for sigma, ratio in ((60, 1.0), (10, 0.98), (3, 7.0), (1, 0.5), (0.1, 0.3))]}}
    (line,) = networks({"digits-unet": card}, {"digits": [], "other": []})
    assert "error is 0.99 of the Wiener filter's" in line and "0.40 on digits" in line and "other" not in line
    rows = [row("optimal", [0.5, 0.5]), row("optimal", [0.5, 0.5])]
    for each, share in zip(rows, (0.25, 1.0), strict=True):
        each.metrics["memorized"] = {"mean": share}
    (line,) = copies({"one": rows[:1], "two": rows[1:]})
    assert "optimal 25% to 100%" in line


@pytest.mark.parametrize("rows", [[], [row("wiener", [0.1, 0.2])]])
def test_what_is_not_measured_is_left_out(rows):
    assert findings(rows, {}).strip() == ""


def test_new_rows_replace_those_of_the_network_s_earlier_weights():
    def measured(cell, r2, weights, name=""):
        return replace(row(cell.method.denoiser, [r2]), name=name or cell.key, settings=cell.settings,
                       network={"weights": weights})

    optimal, wiener, *_ = cells_of("table1", datasets=["digits"])
    other = next(cells_of("table1", datasets=["leaves"]))
    old = [measured(optimal, 0.1, "old"), measured(other, 0.2, "old"), measured(wiener, 0.3, "new"),
           measured(wiener, 0.4, "new", name="of no preset")]
    found = merged(old, [measured(wiener, 0.5, "new")])
    assert {each.name: each.r2["mean"] for each in found} == {
        wiener.key: pytest.approx(0.5), other.key: pytest.approx(0.2)}
    failed = replace(measured(wiener, 0.5, ""), failed="it did")
    assert {each.name for each in merged(old, [failed])} == {optimal.key, wiener.key, other.key}
