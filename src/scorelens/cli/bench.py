"""`scorelens bench`: the paper's tables and figures, as data; resumable."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from scorelens import distributed
from scorelens.distributed import choose_device
from scorelens.files import resumable_folder
from scorelens.paper.cells import Resources
from scorelens.paper.presets import DATASETS, PRESETS, Cell, cells_of
from scorelens.paper.results import Results
from scorelens.paper.runner import ROWS, run_cells
from scorelens.report.tables import markdown
from scorelens.results import read_rows
from scorelens.types import ScorelensError
from scorelens.validation import unknown

ALL = "all"


def bench_run(names: Sequence[str], *, scale: Literal["cpu", "paper"] = "cpu", only: Sequence[str] = (),
              data: str | None = None, reference: str | None = None, split: str | None = None,
              resolution: int | None = None, root: str | None = None, networks: Path | None = None,
              retry_failed: bool = False, dry_run: bool = False, device: str = "auto", out: Path | None = None) -> Path:
    """Run benchmarks; the same command resumes an interrupted run.

    Args:
        names: presets (see scorelens bench list), datasets (all presets that fit them), or all.
        scale: cpu (small networks of the zoo, for two cores) or paper (full data, 128 samples, for GPUs).
        only: run only cells whose names hold one of these words, such as cifar10 or wiener.
        data: benchmark one's own data instead: a source, as scorelens data list has them; needs reference.
        reference: the network that was trained on it.
        split: of one's own data.
        resolution: of one's own data.
        root: folder of datasets, by default $SCORELENS_DATA.
        networks: folder of trained networks, which come before those of the zoo with the same name.
        retry_failed: try again what failed in earlier runs.
        dry_run: print the cells, and run nothing.
        device: auto, cuda, mps or cpu.
        out: folder of the run; one with the same settings is resumed. By default runs/bench-...
    """
    own = _own(data, reference, {"split": split, "resolution": resolution})
    cells = [cell for cell in chosen_cells(names, scale, own) if not only or any(word in cell.key for word in only)]
    if not cells:
        raise ScorelensError(f"no cell of {', '.join(names)} fits {' or '.join(only) or 'this data'}; "
                             "see scorelens bench list")
    if dry_run:
        print("\n".join(cell.key for cell in cells))
        return Path()
    resources = Resources(choose_device(device), Path(root).expanduser() if root else None, networks)
    folder = Path(out or Path("runs") / f"bench-{'-'.join(names)}").expanduser()
    with resumable_folder(folder, {"names": list(names), "scale": scale, "own": own}, "bench"):
        rows = list(run_cells(cells, folder, resources, retry=retry_failed))
        page = write_report(folder) if distributed.world().is_main else folder
    failed = [row for row in rows if row.failed]
    for row in failed:
        print(f"failed: {row.name}: {row.failed}")
    print(f"{len(rows) - len(failed)} cells measured, {len(failed)} failed; page: {page}")
    return folder


def bench_list() -> None:
    """List the presets: what each shows, and on which datasets."""
    print(markdown(["preset", "question", "in the paper", "datasets", "cells"],
                   [[name, preset.question, preset.paper or "(ours)", ", ".join(preset.datasets),
                     str(len(list(cells_of(name))))] for name, preset in PRESETS.items()]))
    print(f"\nscorelens bench run NAME ...: presets, datasets ({', '.join(DATASETS)}; all presets that fit), or all")


def bench_report(folder: Path) -> Path:
    """Write the tables, figures and page of a run again, from its rows.

    Args:
        folder: of a run, finished or not.
    """
    if not (Path(folder) / ROWS).exists():
        raise ScorelensError(f"{folder} holds no {ROWS}: it is not the folder of a benchmark")
    page = write_report(Path(folder))
    print(f"page: {page}")
    return page


def write_report(folder: Path) -> Path:
    """The page of the rows that are there, and how to get them again."""
    from scorelens.report.paper_page import write_bench

    config = json.loads((folder / "bench.json").read_text())
    own = tuple(config["own"]) if config["own"] else None
    repeat = " ".join(["scorelens bench run", *config["names"], "--scale", config["scale"],
                       *(["--data", own[0], "--reference", own[2]] if own else [])])
    return write_bench(Results(read_rows(folder / ROWS), config["scale"], own), folder, repeat)


def chosen_cells(names: Sequence[str], scale: str, own: tuple[str, dict[str, Any], str] | None) -> list[Cell]:
    """The cells of presets, of datasets, or of all; each once, and those of a dataset together."""
    found = dict.fromkeys(cell for name in names for cell in _cells(name, scale, own))
    return sorted(found, key=lambda cell: list(DATASETS).index(cell.dataset) if cell.dataset in DATASETS else 0)


def _cells(name: str, scale: str, own: tuple[str, dict[str, Any], str] | None) -> Iterator[Cell]:
    if name in PRESETS:
        yield from cells_of(name, scale, own=own)
    elif name == ALL or name in DATASETS:
        for preset in PRESETS:
            yield from cells_of(preset, scale, () if name == ALL else (name,), own)
    else:
        raise unknown("preset or dataset", name, [*PRESETS, *DATASETS, ALL])


def _own(data: str | None, reference: str | None, options: dict[str, Any]) -> tuple[str, dict[str, Any], str] | None:
    given = {key: value for key, value in options.items() if value is not None}
    if data is not None and reference is not None:
        return data, given, reference
    if data is not None or reference is not None or given:
        raise ScorelensError("one's own benchmark needs both --data and --reference")
    return None
