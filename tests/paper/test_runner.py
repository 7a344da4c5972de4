"""Runs that are killed, that fail, and that go on."""

import math
import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scorelens.paper.cells import Resources
from scorelens.paper.presets import Cell, cells_of, method
from scorelens.paper.runner import ROWS, cell_of, run_cells
from scorelens.results import read_rows

pytestmark = pytest.mark.e2e
DIGITS = ("digits", (("split", "train"),))
RESOURCES = Resources(torch.device("cpu"))
SLOW_TO_IMPORT = ["diffusers.models", "diffusers.models.unets.unet_2d", "diffusers.schedulers", "sklearn.datasets"]
TIMES = {"seconds": 0.0, "started": "", "peak_memory_bytes": None, "environment": {}}


def cells(*names, num=4, **options):
    return [Cell("samples", "digits", method(name, **options), num, data=DIGITS, reference="digits-unet", steps=3)
            for name in names]


def numbers(rows):
    """Rows without what differs from run to run."""
    return [replace(row, **TIMES, metrics={k: v for k, v in row.metrics.items() if k != "seconds_per_image"})
            for row in rows]


def run_alone(folder, wanted):
    """In a process of its own, with one thread: it may be killed."""
    torch.set_num_threads(1)
    list(run_cells(wanted, Path(folder), RESOURCES))


def test_a_run_killed_ten_times_gives_the_same_rows(tmp_path):
    methods = ("optimal", "wiener", "nearest", "locality", "kernel", "another seed")
    wanted = [cell for num in range(2, 9) for cell in cells(*methods, num=num)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.paper.test_runner", *SLOW_TO_IMPORT])
    whole, pieces, dice = tmp_path / "whole", tmp_path / "pieces", random.Random(0)
    for folder in (whole, pieces):
        folder.mkdir()
    killed = 0
    while killed < 10:
        job = context.Process(target=run_alone, args=(pieces, wanted))
        job.start()
        before = len(read_rows(pieces / ROWS))
        while job.is_alive() and len(read_rows(pieces / ROWS)) == before:  # some way into the run
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.05))
        os.kill(job.pid, signal.SIGKILL)
        job.join()
        killed += 1
        assert job.exitcode == -signal.SIGKILL
    with (pieces / ROWS).open("a") as file:
        file.write('{"cell": "half a line')  # as a process leaves it that was killed while it wrote
    for folder in (whole, pieces):
        job = context.Process(target=run_alone, args=(folder, wanted))
        job.start()
        job.join()
        assert job.exitcode == 0
    rows = read_rows(pieces / ROWS)
    assert [row.name for row in rows] == [cell.key for cell in wanted]
    assert numbers(rows) == numbers(read_rows(whole / ROWS))


def test_a_failing_cell_is_a_row_and_the_run_goes_on(tmp_path):
    bad = Cell("samples", "digits", method("locality", threshold=-1), 2, data=DIGITS, reference="digits-unet", steps=2)
    missing = Cell("samples", "nowhere", method("wiener"), 2, data=("npz:nowhere.npz", ()), reference="digits-unet")
    rows = list(run_cells([bad, missing, *cells("wiener")], tmp_path, RESOURCES))
    assert "threshold" in rows[0].failed and "nowhere.npz" in rows[1].failed
    assert "r2" in rows[2].metrics and not rows[2].failed
    again = list(run_cells([bad, *cells("wiener")], tmp_path, RESOURCES))
    assert again[0].started == rows[0].started and again[1] == read_rows(tmp_path / ROWS)[2]


def test_failures_are_tried_again_when_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits = Cell("samples", "mine", method("wiener"), 2, data=("npz:mine.npz", ()), reference="digits-unet", steps=2)
    assert next(run_cells([digits], tmp_path, RESOURCES)).failed
    import numpy as np

    import scorelens

    np.savez(tmp_path / "mine.npz", images=scorelens.load_images("digits").pixels[:50, 0])
    assert next(run_cells([digits], tmp_path, RESOURCES)).failed
    assert "r2" in next(run_cells([digits], tmp_path, RESOURCES, retry=True)).metrics
    assert len(read_rows(tmp_path / ROWS)) == 1


def test_a_row_has_all_that_its_cell_needs(tmp_path):
    (cell,) = cells("locality", threshold=0.05)
    list(run_cells([cell], tmp_path, RESOURCES))
    (row,) = read_rows(tmp_path / ROWS)
    each, path = row.metrics["each"]["r2"], row.metrics["path"]
    assert cell_of(row) == cell and len(each) == cell.num and len(path) == cell.steps
    assert math.isclose(sum(each) / cell.num, row.r2["mean"], rel_tol=1e-5)
    assert path[-1]["mse"]["mean"] == pytest.approx(row.metrics["mse"]["mean"], rel=1e-9)
    assert row.data and row.network and row.noise and row.environment and row.peak_memory_bytes


def test_rows_do_not_depend_on_the_company_of_their_cell(tmp_path):
    """The reference's path is shared within a run; alone or among others, a cell finds the same."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    both = numbers(run_cells(cells("wiener", "optimal"), tmp_path / "a", RESOURCES))
    assert numbers(run_cells(cells("optimal"), tmp_path / "b", RESOURCES)) == both[1:]


@pytest.mark.parametrize("kind", ["heldout", "fields", "quality"])
def test_every_other_kind_of_cell(tmp_path, kind):
    preset = {"heldout": "held-out", "fields": "sensitivity", "quality": "self-attention"}[kind]
    wanted = list(cells_of(preset, datasets=["digits"]))[:2]
    small = [Cell(**{**vars(cell), "num": 8, "steps": 3}) for cell in wanted]
    rows = list(run_cells(small, tmp_path, RESOURCES))
    assert not any(row.failed for row in rows), rows
    if kind == "heldout":
        assert [level["mse"]["mean"] for level in rows[0].metrics["levels"]] == sorted(
            (level["mse"]["mean"] for level in rows[0].metrics["levels"]), reverse=True)
    elif kind == "fields":
        assert all(f["cosine"] == pytest.approx(1) for f in rows[1].metrics["fields"])  # the Wiener filter's own
    else:
        assert 0 <= rows[0].metrics["recall"] <= 1 and rows[0].r2["mean"] == 1
