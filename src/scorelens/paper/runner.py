"""Carry out cells, one after the other: every finished one is a line of a file, and a killed run goes on with the next.

A line holds all that is needed to repeat its cell. A cell that fails is a line too, with its error.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from scorelens import distributed, progress
from scorelens.files import atomic_file
from scorelens.paper.cells import Found, Place, measure_cell
from scorelens.paper.presets import Cell
from scorelens.results import environment, peak_memory, reset_peak_memory
from scorelens.types import ScorelensError

ROWS, PICTURES = "rows.jsonl", "pictures"
WORK = {"optimal": 3, "wiener": 1, "kernel": 6, "locality": 40, "els": 2000}  # relative, for one image and step
NETWORK_WORK = 20


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a run, in the order of their cells; a line that was cut off by the end of its process is no row."""
    lines = path.read_text().split("\n") if path.exists() else []
    try:
        return [json.loads(line) for line in lines[:-1]]  # what follows the last line break is unfinished, or nothing
    except json.JSONDecodeError as error:
        raise ScorelensError(f"{path} is damaged: {error}; remove the line, and run again") from error


def run_cells(cells: Sequence[Cell], folder: Path, place: Place, *, retry: bool = False) -> Iterator[dict[str, Any]]:
    """The row of every cell: of those that are done, and of the others as they end.

    Args:
        retry: forget the failures of earlier runs, and try those cells again.
    """
    done = distributed.world().broadcast_object(lambda: _taken_up(folder, retry))
    for cell in progress.weighted(cells, "benchmark", [0 if c.key in done else expected_work(c) for c in cells]):
        if cell.key not in done:
            done[cell.key] = carry_out(cell, folder, place)
            if distributed.world().is_main:
                _append(folder / ROWS, done[cell.key])
        yield done[cell.key]


def _taken_up(folder: Path, retry: bool) -> dict[str, dict[str, Any]]:
    """The rows that are there, by cell, and the folder made ready for more."""
    done = {row["cell"]: row for row in read_rows(folder / ROWS)}
    if retry:
        done = {key: row for key, row in done.items() if "failed" not in row}
    _rewrite(folder / ROWS, done.values())  # without half a line at its end
    (folder / PICTURES).mkdir(exist_ok=True)
    return done


def carry_out(cell: Cell, folder: Path, place: Place) -> dict[str, Any]:
    """Run one cell; its pictures are in their place before its row is."""
    reset_peak_memory()
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    try:
        found = measure_cell(cell, place)
    except Exception as error:  # whatever went wrong is that cell's result; the others are not to blame
        if distributed.world().size > 1 and not isinstance(error, ScorelensError):
            raise  # but other processes may be in the midst of it
        found = Found({"failed": f"{type(error).__name__}: {error}" if not isinstance(error, ScorelensError)
                       else str(error)})
    row = {"cell": cell.key, **asdict(cell), "source": cell.data, "started": started, **found.row,
           "seconds": time.perf_counter() - clock, "peak_memory_bytes": peak_memory(),
           "environment": environment(place.device)}
    if found.pictures and distributed.world().is_main:
        row["pictures"] = f"{PICTURES}/{picture_name(cell)}"
        with atomic_file(folder / row["pictures"]) as partial, partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **found.pictures)
    return row


def cell_of(row: Mapping[str, Any]) -> Cell:
    """The cell that a row came from."""
    source, options = row["source"]
    given = {field.name: row[field.name] for field in fields(Cell) if field.name != "data"}
    return Cell(data=(source, tuple((key, value) for key, value in options)), **given)


def picture_name(cell: Cell) -> str:
    """A file name of letters and digits, whatever the data are called."""
    return f"{hashlib.sha256(cell.key.encode()).hexdigest()[:16]}.npz"


def expected_work(cell: Cell) -> float:
    """How long a cell takes, relative to others: enough for an estimate of the whole."""
    per_sample = WORK.get(cell.method.partition(":")[0], NETWORK_WORK)
    if cell.method.startswith("els") and "images_limit" not in cell.method:
        per_sample = WORK["locality"]
    return float(cell.num * cell.steps * per_sample * (0.1 if cell.dataset == "digits" else 1)) + 100


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row, default=str) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _rewrite(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
