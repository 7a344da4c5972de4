"""The committed pages are generated from the committed rows, and rows come out again when they are measured."""

import hashlib
import random
import re
from pathlib import Path

import pytest
import torch
from perf.rows import RESULTS, results
from perf.rows import rows_of as rows
from tools.pages import regions
from tools.regions import with_regions
from tools.site import build

from scorelens import DENOISERS
from scorelens.paper.cells import Resources, measure_cell
from scorelens.paper.presets import PRESETS, cells_of
from scorelens.paper.results import Results
from scorelens.paper.runner import cell_of
from scorelens.report.paper_figures import _path_plot

pytestmark = pytest.mark.docs
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", [
    "README.md", "docs/zoo.md", "docs/sensitivity.md", "docs/results.md", "docs/methods.md", "docs/gallery.md",
    "docs/performance.md", "docs/attribution.md", "docs/reliability.md", "docs/your_own_model.md"])
def test_the_regions_of_a_page_are_written_from_rows_and_code(page):
    text = (ROOT / page).read_text()
    assert with_regions(text, regions()[page]) == text, "run python -m tools.pages"


def test_every_region_has_a_generator():
    marked = {path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
              if "<!-- begin " in path.read_text()}
    assert marked == set(regions())


def test_a_region_that_nobody_writes_is_an_error():
    page = "# A\n<!-- begin one: from rows -->\nold\n<!-- end one -->\ntext\n"
    assert with_regions(page, {"one": "new\n"}) == page.replace("old", "new")
    for wrong in ({}, {"one": "", "two": ""}, {"two": ""}):
        with pytest.raises(ValueError, match="the page has the regions"):
            with_regions(page, wrong)


def test_the_page_of_methods_lists_all():
    """A new one may wait until its rows are measured."""
    listed = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE)
    skip_if_missing(set(DENOISERS) - set(listed), "docs/methods.md")


def skip_if_missing(methods, page):
    """A new method does not fail the build: it is named where it is not yet listed."""
    if methods:
        pytest.skip(f"{page} lacks {', '.join(sorted(methods))}; run python -m perf.methods and python -m tools.pages")


def test_the_headline_is_of_the_committed_networks():
    """Two seeds and the formulas, from the same noise, on all training images."""
    found = results("headline")
    wanted = {"fashion-mnist-unet", "fashion-mnist-unet-seed1", "wiener", "optimal", "locality", "kernel"}
    assert wanted <= {row.name for row in found}
    assert len({row.noise["hash"] for row in found}) == 1 and {row.data["count"] for row in found} == {60_000}


def test_the_site_is_rendered_and_has_no_dead_link(tmp_path):
    pytest.importorskip("mkdocs")
    assert build(tmp_path / "site") == 0
    for page in ("index.html", "concepts/index.html", "api/index.html", "changelog/index.html"):
        assert "](" not in (tmp_path / "site" / page).read_text(), "Markdown that was not rendered"
    assert '<p class="caption"><em>' in (tmp_path / "site" / "index.html").read_text()


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


# Rows that were measured on a tree with changes, before this was checked; the numbers may only fall.
FROM_CHANGED_TREES = {"bench": 121, "fields": 540, "methods": 13}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_measurements_come_from_a_clean_tree(path):
    """The commit that a row names is the code that measured it."""
    commits = [row.get("environment", {}).get("commit") or row.get("commit") or "" for row in rows(path.stem)]
    commits += [commit for row in rows(path.stem) for commit in row.get("commits", {})]
    assert sum(commit.endswith("-dirty") for commit in commits) <= FROM_CHANGED_TREES.get(path.stem, 0), \
        "commit the code, then measure again"


def leaves(value):
    """All numbers in nested lists and dictionaries, in their order."""
    if isinstance(value, dict):
        value = list(value.values())
    return [x for item in value for x in leaves(item)] if isinstance(value, list) else [float(value)]


def test_every_cell_of_every_preset_is_in_the_results():
    """On all datasets, at the scale for two cores; none failed. Cells that await their measurement are named."""
    wanted = {cell.key for preset in PRESETS for cell in cells_of(preset)}
    found = {row.name for row in results() if not row.failed}
    assert found <= wanted, sorted(found - wanted)
    if missing := sorted(wanted - found):
        pytest.skip(f"{len(missing)} cells are not measured yet; run scorelens bench run: {', '.join(missing)}")


def test_every_method_is_compared_on_digits():
    compared = {row.denoiser: row for row in results("digits") if row.settings["role"] == "denoiser"}
    assert set(compared) <= set(DENOISERS)
    assert compared["kernel"].r2["mean"] > compared["optimal"].r2["mean"]
    skip_if_missing(set(DENOISERS) - set(compared), "perf/results/digits.jsonl")


def test_no_two_curves_of_a_panel_look_the_same():
    from matplotlib.figure import Figure

    measured = Results(results())
    for dataset, found in measured.of("novelty").items():
        axes = Figure().subplots()
        _path_plot(measured, "novelty", "novelty")(axes, dataset, found)
        looks = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
        assert len(set(looks)) == len(looks) > 2, dataset
