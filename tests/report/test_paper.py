"""The report of a benchmark, from rows of a run in miniature."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

import scorelens
from scorelens.cli.parser import main
from scorelens.paper import presets as specs
from scorelens.paper.cells import Resources
from scorelens.paper.presets import PRESETS, cells_of
from scorelens.paper.results import Results
from scorelens.paper.runner import ROWS, run_cells
from scorelens.report.paper_figures import FIGURES
from scorelens.report.paper_page import write_bench
from scorelens.report.paper_tables import VIEWS
from scorelens.report.tables import comma_separated, latex
from scorelens.results import Row, read_rows, write_rows
from tests.browser import chromium, inspect
from tests.once import made_once

pytestmark = pytest.mark.e2e
HOSTILE = "npz:<script>alert(1)</script> & \"quoted\" $x_1$ #%.npz"
SMALL = specs.Scale(tables=3, runtime=3, ablations=3, low_rank=3, heldout=3, fields=2, quality=6)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """All presets on digits with a few samples, and one's own data under a name that means harm."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(specs.SCALES, "cpu", SMALL)
        folder = made_once(tmp_path_factory, "bench", make)
        yield folder, Results(read_rows(folder / ROWS))


def make(folder):
    cells = [cell for preset in PRESETS for cell in cells_of(preset, datasets=["digits"])]
    short = [replace(cell, steps=3) for cell in dict.fromkeys(cells)]
    list(run_cells(short, folder, Resources(torch.device("cpu"))))
    write_bench(Results(read_rows(folder / ROWS)), folder, "scorelens bench run digits")


def test_every_preset_has_a_view():
    assert set(VIEWS) == set(PRESETS) and set(FIGURES) < set(PRESETS)


def test_the_page_holds_every_preset_that_ran(run):
    folder, results = run
    assert not results.failed
    page = (folder / "report.html").read_text()
    for name, preset in PRESETS.items():
        assert (preset.title in page) == bool(results.of(name)), name
    assert "scorelens bench run digits" in page and "src=\"http" not in page
    assert page.count("<img") == len(list((folder / "figures").glob("*.png"))) > 8


def test_tables_are_written_in_three_formats(run):
    folder, _ = run
    for name in ("table1", "novelty", "threshold", "low-rank", "low-rank-2", "softmax"):
        texts = [(folder / "tables" / f"{name}{suffix}").read_text() for suffix in (".md", ".tex", ".csv")]
        header, *lines = list(csv.reader(texts[2].splitlines()))
        assert all(len(line) == len(header) for line in lines) and lines
        assert texts[1].count(r"\\") == len(lines) + 1
        assert texts[0].count("\n|") == len(lines) + 2
    for suffix in (".png", ".pdf"):
        assert (folder / "figures" / f"softmax{suffix}").stat().st_size > 1000


def test_numbers_of_the_table_are_those_of_the_rows(run):
    folder, results = run
    rows = {row.label: row for row in results.of("table1")["digits"]}
    with (folder / "tables" / "table1.csv").open() as file:
        table = {line["method"]: line for line in csv.DictReader(file)}
    assert table["wiener"]["r2"].startswith(f"{rows['wiener'].r2['mean']:.3f} ± ")
    assert table["another seed"]["MSE"] == "{mean:.3f} ± {std:.3f}".format(**rows["another seed"].metrics["mse"])


def test_ours_stand_beside_the_papers():
    """CelebA, of which the paper has wiener at 0.818: the difference has its sign, and the best formula is strong."""
    def row(name, num, r2):
        values = {"mean": r2, "std": 0.1, "low": r2 - 0.01, "high": r2 + 0.01}
        cell = next(c for c in cells_of("table1", datasets=["celeba"]) if c.method.denoiser == name)
        metrics = {"r2": values, "mse": values, "each": {"r2": [r2] * num, "mse": [r2] * num}}
        return Row(cell.key, name, {}, cell.settings, metrics, {"count": 10_000})

    rows = [row("optimal", 128, 0.2), row("wiener", 128, 0.7), row("another seed", 128, 0.95)]
    table, told = VIEWS["table1"](Results(rows), "table1")
    wiener = dict(zip(table.header, table.rows[1], strict=True))
    assert wiener["paper"] == "0.818 ± 0.039" and wiener["difference"].text == "-0.118"
    assert wiener["difference"].shade < 0 and wiener["r2"].text == "0.700 ± 0.100"
    assert [dict(zip(table.header, line, strict=True))["r2"].strong for line in table.rows] == [False, True, False]
    assert "in the paper's order: 1 of 1" in " ".join(told.paragraphs)


def test_ones_own_data_are_escaped(tmp_path):
    images = scorelens.load_images("digits", limit=60).pixels[:, 0]
    source = tmp_path / HOSTILE.removeprefix("npz:").replace("/", "|")
    np.savez(source, images=images)
    own = (f"npz:{source}", {}, "digits-unet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(specs.SCALES, "cpu", SMALL)
        cells = [replace(cell, steps=2) for cell in cells_of("table1", own=own)
                 if cell.method.denoiser in ("wiener", "optimal")]
        list(run_cells(cells, tmp_path, Resources(torch.device("cpu"))))
        results = Results(read_rows(tmp_path / ROWS), own=own)
        assert not results.failed and len(results.of("table1")) == 1
        page = write_bench(results, tmp_path, f"--data {source}").read_text()
        assert "<script" not in page and "&lt;script" in page
        assert all(name.stem.replace("-", "").replace("_", "").isalnum() for name in (tmp_path / "figures").iterdir())
    (tex,) = (tmp_path / "tables").glob("table1.tex")
    assert r"\$x\_1\$ \#\%" in tex.read_text()


def test_a_failed_cell_is_told(tmp_path):
    row = Row("samples digits: wiener, 128 samples", "wiener", settings={"dataset": "digits"}, failed="no <memory>",
              environment={"versions": {}, "device": "cpu"})
    page = write_bench(Results([row]), tmp_path, "").read_text()
    assert "What failed" in page and "no &lt;memory&gt;" in page


@pytest.mark.parametrize("file, before, after", [
    ("bench.json", '"own": null', '"own": ["digits", {}, "digits-unet", 1]'), ("bench.json", '"own": null', '"own": 3'),
    (ROWS, '"softmax_batch": ', '"softmax_batch": -1e300, "x": '), (ROWS, '"mean"', '"meanx"'),
    (ROWS, '"mean": ', '"mean": {}, "x": ')])
def test_a_damaged_file_is_one_line(run, file, before, after, tmp_path, capsys):
    """Settings of another length or type; a number that cannot be drawn on a logarithmic axis; missing statistics."""
    (tmp_path / "bench.json").write_text('{"names": ["softmax"], "scale": "cpu", "own": null}')
    write_rows(tmp_path / ROWS, [row for row in run[1].rows if "softmax_batch" in row.options])
    assert main(["bench", "report", str(tmp_path)]) == 0
    text = (tmp_path / file).read_text()
    assert before in text
    (tmp_path / file).write_text(text.replace(before, after))
    assert main(["bench", "report", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert file in line and "damaged" in line


def test_a_run_of_one_cell_has_its_figures(run, tmp_path, capsys):
    """The exact softmax alone, which has no place on the logarithmic axis; and predictions equal to the network's."""
    (tmp_path / "bench.json").write_text('{"names": ["softmax", "dynamics"], "scale": "cpu", "own": null}')
    exact = next(row for row in run[1].of("softmax")["digits"] if "softmax_batch" not in row.options)
    path = [{**step, "mse": {"mean": 0.0, "std": 0.0}} for step in exact.metrics["path"]]
    write_rows(tmp_path / ROWS, [replace(exact, metrics={**exact.metrics, "path": path})])
    assert main(["bench", "report", str(tmp_path)]) == 0
    assert {"softmax.png", "dynamics.png"} <= {file.name for file in (tmp_path / "figures").iterdir()}


def test_formats_keep_to_their_rules():
    rows = [["a & b", '1 "2", 3'], ["50 %", "{x}_y^2~\\z"]]
    assert list(csv.reader(comma_separated(["n", "m"], rows).splitlines())) == [["n", "m"], *rows]
    assert r"a \& b & 1" in latex(["n", "m"], rows)
    assert r"\{x\}\_y\textasciicircum{}2\textasciitilde{}\textbackslash{}z" in latex(["n", "m"], rows)


@pytest.mark.skipif(chromium() is None, reason="needs a browser: install chromium or google-chrome")
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_in_a_browser(run, width):
    folder, _ = run
    seen = inspect(folder / "report.html", width)
    assert seen["errors"] == [] and seen["missing"] == [] and seen["images"] > 8
    assert seen["scrollWidth"] <= seen["innerWidth"] == width
