"""Run cells one after another: each finished cell is a row on disk, and an interrupted run resumes with the next.

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
from scorelens.paper.cells import Measured, Place, measure_cell
from scorelens.paper.presets import Cell, Method
from scorelens.results import Row, append_row, environment, peak_memory, read_rows, reset_peak_memory, write_rows
from scorelens.types import ScorelensError

ROWS, PICTURES = "rows.jsonl", "pictures"
WORK = {"optimal": 3, "wiener": 1, "kernel": 6, "locality": 40, "els": 2000}  # relative, for one image and step
NETWORK_WORK = 20


def run_cells(cells: Sequence[Cell], folder: Path, place: Place, *, retry: bool = False) -> Iterator[Row]:
    """The row of every cell: of those that are done, and of the others as they finish.

    Args:
        retry: run cells again that failed in earlier runs.
    """
    done = distributed.world().broadcast_object(lambda: _finished(folder, retry))
    for cell in progress.weighted(cells, "benchmark", [0 if c.key in done else expected_work(c) for c in cells]):
        if cell.key not in done:
            done[cell.key] = run_cell(cell, folder, place)
            if distributed.world().is_main:
                append_row(folder / ROWS, done[cell.key])
        yield done[cell.key]


def _finished(folder: Path, retry: bool) -> dict[str, Row]:
    """The rows of earlier runs, by cell; without an unfinished line at the end of their file."""
    done = {row.name: row for row in read_rows(folder / ROWS) if not (retry and row.failed)}
    write_rows(folder / ROWS, done.values())
    (folder / PICTURES).mkdir(exist_ok=True)
    return done


def run_cell(cell: Cell, folder: Path, place: Place) -> Row:
    """Run one cell; its pictures are written before its row is."""
    reset_peak_memory()
    clock, started, failed = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z"), ""
    try:
        found = measure_cell(cell, place)
    except Exception as error:  # whatever went wrong is the result of this cell; the others still run
        if distributed.world().size > 1 and not isinstance(error, ScorelensError):
            raise  # other processes may wait in a collective
        found = Measured({})
        failed = str(error) if isinstance(error, ScorelensError) else f"{type(error).__name__}: {error}"
    pictures = ""
    if found.pictures and distributed.world().is_main:
        pictures = f"{PICTURES}/{picture_name(cell)}"
        with atomic_file(folder / pictures) as partial, partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **found.pictures)
    return Row(cell.key, cell.method.denoiser, dict(cell.method.options), cell.settings, found.metrics, **found.context,
               environment=environment(place.device), seconds=time.perf_counter() - clock,
               peak_memory_bytes=peak_memory(), started=started, pictures=pictures, failed=failed)


def cell_of(row: Row) -> Cell:
    """The cell that a row came from."""
    settings = dict(row.settings)
    source, options = settings.pop("source")
    return Cell(method=Method(row.denoiser, tuple(row.options.items())),
                data=(source, tuple((key, value) for key, value in options)), **settings)


def picture_name(cell: Cell) -> str:
    """A file name of letters and digits, whatever the data are called."""
    return f"{hashlib.sha256(cell.key.encode()).hexdigest()[:16]}.npz"


def expected_work(cell: Cell) -> float:
    """How long a cell takes, relative to others: enough for an estimate of the whole."""
    per_sample = WORK.get(cell.method.denoiser, NETWORK_WORK)
    if cell.method.denoiser == "els" and "images_limit" not in dict(cell.method.options):
        per_sample = WORK["locality"]
    return float(cell.num * cell.steps * per_sample * (0.1 if cell.dataset == "digits" else 1)) + 100
