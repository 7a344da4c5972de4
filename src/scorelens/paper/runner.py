"""Run cells one after another. Each finished cell is a row on disk; an interrupted run resumes with the next cell.

A row holds everything needed to repeat its cell. A cell that fails is a row too, with its error.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from scorelens import distributed, progress
from scorelens.files import atomic_file
from scorelens.paper.cells import Measured, Resources, measure_cell
from scorelens.paper.presets import Cell, Method
from scorelens.results import Row, append_row, environment, peak_memory, read_rows, reset_peak_memory, write_rows
from scorelens.types import ScorelensError

ROWS, PICTURES = "rows.jsonl", "pictures"
WORK = {"optimal": 3, "wiener": 1, "kernel": 6, "locality": 40, "multiscale": 80, "kernel-locality": 80,
        "els": 2000}  # relative, per image and step
NETWORK_WORK = 20


def run_cells(cells: Sequence[Cell], folder: Path, resources: Resources, *, retry: bool = False) -> Iterator[Row]:
    """The row of every cell, as it finishes; finished cells are read from the folder.

    Args:
        retry: run cells again that failed in earlier runs.
    """
    done = distributed.world().broadcast_object(lambda: _finished(folder, retry))
    for cell in progress.weighted(cells, "benchmark", [0 if c.key in done else expected_work(c) for c in cells]):
        if cell.key not in done:
            done[cell.key] = run_cell(cell, folder, resources)
            if distributed.world().is_main:
                append_row(folder / ROWS, done[cell.key])
        yield done[cell.key]


def _finished(folder: Path, retry: bool) -> dict[str, Row]:
    """The rows of earlier runs, by cell; an incomplete last line is removed from their file."""
    done = {row.name: row for row in read_rows(folder / ROWS) if not (retry and row.failed)}
    write_rows(folder / ROWS, done.values())
    (folder / PICTURES).mkdir(exist_ok=True)
    return done


def run_cell(cell: Cell, folder: Path, resources: Resources) -> Row:
    """Run one cell, and write its arrays."""
    reset_peak_memory()
    clock, started, failed, pictures = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z"), "", ""
    try:
        measured = measure_cell(cell, resources)
    except Exception as error:  # a row too; the other cells still run
        if distributed.world().size > 1 and not isinstance(error, ScorelensError):
            raise  # other processes may wait in a collective
        measured = Measured({})
        failed = str(error) if isinstance(error, ScorelensError) else f"{type(error).__name__}: {error}"
    if measured.pictures and distributed.world().is_main:
        pictures = f"{PICTURES}/{hashlib.sha256(cell.key.encode()).hexdigest()[:16]}.npz"
        with atomic_file(folder / pictures) as partial, partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **measured.pictures)
    return Row(cell.key, cell.method.denoiser, dict(cell.method.options), cell.settings, measured.metrics,
               **measured.context, environment=environment(resources.device), seconds=time.perf_counter() - clock,
               peak_memory_bytes=peak_memory(), started=started, pictures=pictures, failed=failed)


def cell_of(row: Row) -> Cell:
    """The cell that a row was measured for."""
    settings = dict(row.settings)
    source, options = settings.pop("source")
    return Cell(method=Method(row.denoiser, tuple(row.options.items())),
                data=(source, tuple((key, value) for key, value in options)),
                labels=tuple(settings.pop("labels", ())), **settings)


def expected_work(cell: Cell) -> float:
    """The relative duration of a cell, for the estimate of the whole run."""
    per_sample = WORK.get(cell.method.denoiser, NETWORK_WORK)
    if cell.method.denoiser == "els" and "images_limit" not in dict(cell.method.options):
        per_sample = WORK["locality"]
    return float(cell.num * cell.steps * per_sample * (0.1 if cell.dataset == "digits" else 1)) + 100
