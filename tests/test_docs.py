"""What the documents say comes from committed rows."""

import hashlib
import random
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
from scorelens.analysis.marks import MARK_VISIBLE, visible_by_network
from scorelens.paper.cells import Resources, measure_cell
from scorelens.paper.presets import PRESETS, cells_of
from scorelens.paper.results import Results
from scorelens.paper.runner import cell_of
from scorelens.report.paper_tables import VIEWS

ROOT = Path(__file__).parents[1]


def test_the_performance_page_is_written_from_its_rows():
    page = performance_page({row["cell"]: row for row in rows("performance")})
    assert (ROOT / "docs" / "performance.md").read_text() == page, "run python -m tools.pages"


def test_the_zoo_page_is_written_from_the_cards():
    assert (ROOT / "docs" / "zoo.md").read_text() == zoo_page(zoo_cards()), "run python -m tools.pages"


def test_the_page_of_fields_is_written_from_its_rows():
    assert (ROOT / "docs" / "sensitivity.md").read_text() == fields_page(), "run python -m tools.pages"


def test_the_page_of_methods_is_written_from_the_code_and_its_rows():
    page = methods_page(rows("methods"), results("digits"))
    assert (ROOT / "docs" / "methods.md").read_text() == page, "run python -m tools.pages"


def test_marks_show_in_the_fields_of_networks_trained_on_them_and_in_no_others():
    """The threshold was committed before the networks. The last two differ in nothing but their data."""
    assert {row["network"]: row["gamma"] for row in rows("manipulation")} == {
        "leaves-unet": 0.0, "leaves-w05-unet": 0.5, "leaves-w01-unet": 0.1, "leaves-w00-unet": 0.0}
    found = visible_by_network(rows("manipulation"))
    assert max(found["leaves-unet"], found["leaves-w00-unet"]) < MARK_VISIBLE
    assert min(found["leaves-w01-unet"], found["leaves-w05-unet"]) > MARK_VISIBLE


def test_a_field_of_locality_keeps_within_its_workspace():
    """On 50,000 images: what is held beyond data and masks is the workspace, not a graph over all data."""
    (row,) = rows("field_memory")
    assert row["images"] == 50_000
    assert row["peak_bytes"] - row["before_bytes"] < 2 * row["budget_bytes"]


def test_natural_images_are_near_equivariant_and_faces_are_not():
    """The Wiener filter's fields, over the middle noise levels."""
    def alike(dataset):
        found = [row["equivariance"] for row in rows("fields")
                 if row["dataset"] == dataset and row["model"] == "wiener" and 0.3 < row["sigma"] < 7]
        return sum(found) / len(found)

    assert min(alike("leaves"), alike("cifar10")) > 0.9 > max(alike("celeba"), alike("afhq-cats"))


def test_patches_are_streamed():
    row = next(row for row in rows("methods") if row["cell"] == "els")
    assert row["images"] == 5000 and row["ratio"] <= 2 and row["peak_memory_bytes"] < 4e9


def test_fields_of_networks_trained_on_x0_match_the_wiener_filter():
    """On digits, at every noise level but the two ends of the grid, cosine above 0.9 on average over the pixels."""
    for model in ("digits-unet-x0", "digits-dit-x0"):
        mine = [row for row in rows("fields") if row["model"] == model and 0.1 < row["sigma"] < 30]
        for sigma in {row["sigma"] for row in mine}:
            cosines = [row["cosine"] for row in mine if row["sigma"] == sigma]
            assert sum(cosines) / len(cosines) > 0.9, (model, sigma)


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


def test_the_results_tell_which_networks_show_the_mark():
    (table,) = VIEWS["manipulation"](Results(results()), "manipulation")
    assert {line[0]: line[-1] for line in table.rows} == {
        "leaves-unet": "no", "leaves-w05-unet": "yes", "leaves-w01-unet": "yes", "leaves-w00-unet": "no"}


def test_all_of_cifar10_is_in_the_results():
    (row,) = (row for row in results() if row.settings["dataset"] == "cifar10" and row.settings["num"] >= 16
              and row.settings["limit"] is None and row.label == "locality, threshold 0.05")
    assert row.data["count"] == 50_000 and row.settings["reference"] == "cifar10-unet" and row.seconds > 0


def test_the_demo_shows_what_the_project_is_for():
    """Optimal clearly below locality, the best locality within reach of another seed; reported on unseen noise."""
    found = {(row.denoiser, "softmax" in row.options, "chosen" in row.settings): row for row in results("demo")}
    tuned, published = found["locality", False, True], found["locality", True, True]
    seed = next(row for row in found.values() if row.settings["role"] == "another seed")
    assert found["optimal", False, False].r2["high"] < found["locality", False, False].r2["low"]
    assert tuned.r2["mean"] > seed.r2["mean"] - 0.05 and seed.r2["mean"] >= 0.9
    assert tuned.noise["seeds"] == [128, 255] and tuned.settings["chosen"]["seeds"] == [0, 127]
    assert published.options["softmax"] == "batch-mean"


def test_the_foundation_keeps_within_its_limits():
    for row in rows("foundation"):
        assert row["limit"] is None or row["ratio"] <= row["limit"], row["what"]


def test_the_exact_plans_are_as_fast_as_promised():
    """Ten steps, batch 8: CIFAR-10 at least 2.5 times faster than dense, the others at least twice; memory bounded."""
    found = {row["cell"]: row for row in rows("performance")}
    assert found["plans cifar10"]["dense_to_bare"] <= 1.5
    for name, least in [("cifar10", 2.5), ("mnist", 2), ("celeba", 2)]:
        assert found[f"plans {name}"]["ratio_with_masks"] >= least
        assert max(step["largest_difference"] for step in found[f"plans {name}"]["steps"]) < 1e-3
    assert found["memory cifar10"]["peak_bytes"] < 3e9
    assert found["memory celeba"]["peak_bytes"] < 12e9


def test_calibrated_patches_shrink_with_the_noise():
    for name in ("ls", "els", "bbels"):
        row = next(row for row in rows("methods") if row["cell"] == f"calibration {name}")
        assert row["sizes"] == sorted(row["sizes"], reverse=True) and row["sizes"][-1] < row["sizes"][0], name


def test_every_method_is_compared_on_digits():
    compared = {row.denoiser: row for row in results("digits") if row.settings["role"] == "denoiser"}
    assert set(compared) == set(DENOISERS)
    assert compared["kernel"].r2["mean"] > compared["optimal"].r2["mean"]
