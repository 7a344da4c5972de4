"""The presets, and that the paper's numbers are the paper's."""

import re
from pathlib import Path

import pytest

from scorelens.denoisers import DENOISERS, denoiser_options
from scorelens.paper.numbers import (
    PAPER_LOW_RANK,
    PAPER_MSE,
    PAPER_NOVELTY,
    PAPER_R2,
    PAPER_SECONDS,
    PAPER_THRESHOLD,
)
from scorelens.paper.presets import DATASETS, GUIDANCE, PRESETS, SCALES, Guided, cells_of, method
from scorelens.types import ScorelensError

OWN = ("folder:PATH", {"resolution": 32}, "my-network")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_cell_names_a_method_that_exists(preset, scale):
    cells = list(cells_of(preset, scale))
    assert len({cell.key for cell in cells}) == len(cells) > 0
    for cell in cells:
        name, options = cell.method.denoiser, dict(cell.method.options)
        if name in DENOISERS:
            assert set(options) <= {*denoiser_options(name), GUIDANCE} and "@" not in str(options)
            assert (GUIDANCE in options) == (cell.kind == "guided")
        else:
            assert name == "another seed" or re.fullmatch(rf"{cell.dataset}-[a-z0-9-]+", name)


def test_cells_are_equal_where_presets_overlap():
    table, novelty = set(cells_of("table1")), set(cells_of("novelty"))
    assert table < novelty
    assert set(cells_of("dynamics")) == novelty


def test_the_scales_of_the_paper():
    assert {cell.num for cell in cells_of("table1", "paper")} == {128}
    assert {cell.num for cell in cells_of("low-rank", "paper")} == {16}
    assert {cell.num for cell in cells_of("runtime", "paper")} == {64}
    cells = [cell for preset in PRESETS for cell in cells_of(preset, "paper")]
    assert all(cell.limit is None and "images_limit" not in dict(cell.method.options) for cell in cells)
    faces = next(cell for cell in cells_of("table1", "paper", ["celeba"]))
    assert faces.data == ("celeba-hq", (("resolution", 64),))


def test_limits_of_the_cpu_scale_are_in_the_cells_names():
    for cell in cells_of("table1"):
        chosen = method("locality", threshold=DATASETS[cell.dataset].chosen)
        if cell.method.denoiser == "els" and cell.dataset != "digits":
            assert cell.num == 16 and "images_limit=1000" in cell.key
        elif "batch-mean" in str(cell.method) or cell.method == chosen:
            assert cell.num == 32 and cell.limit is None
        else:
            assert cell.num == 128 and cell.limit is None
    assert {cell.limit for cell in cells_of("threshold")} == {None, 10_000}
    assert all("10000 images" in cell.key for cell in cells_of("threshold", datasets=["cifar10"]))


def test_ones_own_data_and_network():
    cells = [cell for preset in PRESETS for cell in cells_of(preset, own=OWN)]
    assert {cell.reference for cell in cells} == {"my-network"}
    assert {cell.data for cell in cells} == {("folder:PATH", (("resolution", 32),))}
    assert {"samples", "heldout", "claim", "fields", "guided"} == {cell.kind for cell in cells}
    assert "my-network" in {cell.method.denoiser for cell in cells if cell.kind == "heldout"}


def test_weights_and_classes_of_ones_own():
    cells = list(cells_of("guidance", own=OWN, guided=Guided((0.5, 3.0), ("cat", "dog"))))
    assert {dict(cell.method.options)[GUIDANCE] for cell in cells} == {0.5, 3.0} and len(cells) == 6
    assert all(cell.labels == ("cat", "dog") and cell.key.endswith("classes cat dog") for cell in cells)
    assert {cell.key for cell in cells}.isdisjoint(cell.key for cell in cells_of("guidance", own=OWN))


def test_unknown_names_are_refused():
    with pytest.raises(ScorelensError, match="table1"):
        list(cells_of("tabel1"))
    with pytest.raises(ScorelensError, match="cpu"):
        list(cells_of("table1", "cpus"))


def test_the_papers_methods_have_numbers_on_all_its_datasets():
    named = {name for name, data in DATASETS.items() if data.paper}
    for table in (PAPER_R2, PAPER_MSE, PAPER_NOVELTY, PAPER_SECONDS):
        assert set(table) == named


SOURCE = Path(__file__).parents[3] / "shared" / "paper.tex.txt"


@pytest.mark.skipif(not SOURCE.exists(), reason="the paper's source is not here")
def test_the_papers_numbers_are_in_the_paper():
    """Each row of ours, in the order of the paper's columns or rows, is a sequence of numbers of its source."""
    text = re.sub(r"\\text(bf|it|color)\{[A-Za-z]*\}?", " ", SOURCE.read_text())
    numbers = [float(n) for n in re.findall(r"-?\d+\.\d+", text)]

    def found(wanted):
        return any(numbers[k:k + len(wanted)] == list(wanted) for k in range(len(numbers) - len(wanted) + 1))

    for names in (("cifar10", "celeba", "mnist"), ("afhq-cats", "fashion-mnist")):
        for formula in PAPER_R2["mnist"]:
            line = [x for name in names for pair in (PAPER_R2[name][formula], PAPER_MSE[name][formula]) for x in pair]
            assert found(line), (formula, names)
    columns = ("cifar10", "celeba", "afhq-cats", "mnist", "fashion-mnist")
    for formula in PAPER_NOVELTY["mnist"]:
        assert found([x for name in columns for x in PAPER_NOVELTY[name][formula]]), formula
        assert found([PAPER_SECONDS[name][formula] for name in columns]), formula
    columns = ("cifar10", "celeba", "mnist", "fashion-mnist")
    for tau in PAPER_THRESHOLD["mnist"]:
        assert found([x for name in columns for x in PAPER_THRESHOLD[name][tau]]), tau
    for by_dataset in PAPER_LOW_RANK.values():
        assert all(found(list(values.values())) for values in by_dataset.values())
