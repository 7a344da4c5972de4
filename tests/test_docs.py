"""The committed pages are generated from the committed rows, and rows come out again when they are measured."""

import hashlib
import random
import re
from pathlib import Path

import pytest
import torch
from perf.rows import RESULTS, results
from perf.rows import rows_of as rows
from tools.fields_page import fields_page
from tools.methods_page import methods_page
from tools.pages import performance_page, with_tables, zoo_cards, zoo_page
from tools.results_page import results_page

from scorelens import DENOISERS
from scorelens.paper.cells import Resources, measure_cell
from scorelens.paper.presets import PRESETS, cells_of
from scorelens.paper.runner import cell_of

pytestmark = pytest.mark.docs
ROOT = Path(__file__).parents[1]


def test_the_performance_page_is_written_from_its_rows():
    page = performance_page({row["cell"]: row for row in rows("performance")})
    assert (ROOT / "docs" / "performance.md").read_text() == page, "run python -m tools.pages"


def test_the_zoo_page_is_written_from_the_cards():
    assert (ROOT / "docs" / "zoo.md").read_text() == zoo_page(zoo_cards()), "run python -m tools.pages"


def test_the_page_of_fields_is_written_from_its_rows():
    assert (ROOT / "docs" / "sensitivity.md").read_text() == fields_page(), "run python -m tools.pages"


def test_the_page_of_methods_is_written_from_the_code_and_its_rows():
    """For the methods that it lists; a new one may wait until its rows are measured."""
    page = (ROOT / "docs" / "methods.md").read_text()
    listed = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert page == methods_page(rows("methods"), results("digits"), listed), "run python -m tools.pages"
    skip_if_missing(set(DENOISERS) - set(listed), "docs/methods.md")


def skip_if_missing(methods, page):
    """A new method does not fail the build: it is named where it is not yet listed."""
    if methods:
        pytest.skip(f"{page} lacks {', '.join(sorted(methods))}; run python -m perf.methods and python -m tools.pages")


def test_the_readmes_tables_are_written_from_rows():
    readme = (ROOT / "README.md").read_text()
    assert "| optimal" in readme and "| digits " in readme and with_tables(readme) == readme, \
        "run python -m tools.pages"


def test_the_page_of_results_is_written_from_its_rows():
    assert (ROOT / "docs" / "results.md").read_text() == results_page(results()), "run python -m tools.pages"


def test_three_committed_rows_come_out_again():
    """Which ones depends on the file: whoever edits a number cannot know whether it will be measured anew."""
    digits = [row for row in results() if row.settings["dataset"] == "digits"]
    dice = random.Random(hashlib.sha256((RESULTS / "bench.jsonl").read_bytes()).hexdigest())
    for row in dice.sample(digits, 3):
        found = measure_cell(cell_of(row), Resources(torch.device("cpu")))
        assert set(found.metrics) == set(row.metrics), row.name
        assert found.context["noise"] == row.noise and found.context["data"] == row.data, row.name
        for key in ("r2", "mse", "novelty_mse", "path", "levels", "fields", "precision", "recall"):
            if key in found.metrics:
                assert leaves(found.metrics[key]) == pytest.approx(leaves(row.metrics[key]), abs=1e-3), (row.name, key)


def leaves(value):
    """All numbers in nested lists and dictionaries, in their order."""
    if isinstance(value, dict):
        value = list(value.values())
    return [x for item in value for x in leaves(item)] if isinstance(value, list) else [float(value)]


def test_every_cell_of_every_preset_is_in_the_results():
    """On all datasets, at the scale for two cores; none failed."""
    wanted = {cell.key for preset in PRESETS for cell in cells_of(preset)}
    found = {row.name for row in results() if not row.failed}
    assert found == wanted, (sorted(wanted - found), sorted(found - wanted))


def test_every_method_is_compared_on_digits():
    compared = {row.denoiser: row for row in results("digits") if row.settings["role"] == "denoiser"}
    assert set(compared) <= set(DENOISERS)
    assert compared["kernel"].r2["mean"] > compared["optimal"].r2["mean"]
    skip_if_missing(set(DENOISERS) - set(compared), "perf/results/digits.jsonl")
