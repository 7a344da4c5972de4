"""`scorelens bench`: the paper's tables and figures; interrupted runs resume."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from scorelens import distributed
from scorelens.distributed import choose_device
from scorelens.files import resumable_folder
from scorelens.paper.cells import Resources
from scorelens.paper.presets import DATASETS, PRESETS, Cell, Own, cells_of
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
        names: presets (see scorelens bench list), datasets (all their presets), or all.
        scale: cpu (small networks of the zoo, for two cores) or paper (full data, 128 samples, for GPUs).
        only: run only cells whose names contain one of these words, such as cifar10 or wiener.
        data: your own source of images, instead of the presets' (see scorelens data list); needs --reference.
        reference: the network that was trained on your data.
        split: split of your data.
        resolution: side to scale your data to.
        root: folder of datasets, by default $SCORELENS_DATA.
        networks: folder of trained networks, which take precedence over the zoo's of the same name.
        retry_failed: run again the cells that failed in earlier runs.
        dry_run: only print the cells.
        device: auto, cuda, mps or cpu.
        out: folder of the run; one with the same settings is resumed. By default runs/bench-...
    """
    options = {key: value for key, value in {"split": split, "resolution": resolution}.items() if value is not None}
    if (data is None) != (reference is None) or (options and data is None):
        raise ScorelensError("a benchmark on your own data needs both --data and --reference")
    own = None if data is None or reference is None else (data, options, reference)
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
    """List the presets: their questions and datasets."""
    print(markdown(["preset", "question", "in the paper", "datasets", "cells"],
                   [[name, preset.question, preset.paper or "(ours)", ", ".join(preset.datasets),
                     str(len(list(cells_of(name))))] for name, preset in PRESETS.items()]))
    print(f"\nscorelens bench run NAME ...: presets, datasets ({', '.join(DATASETS)}; all their presets), or all")


def bench_report(folder: Path) -> Path:
    """Write the tables, figures and page of a run again, from its rows.

    Args:
        folder: the folder of a run, finished or not.
    """
    if not (Path(folder) / ROWS).exists():
        raise ScorelensError(f"{folder} has no {ROWS}: it is not the folder of a benchmark")
    page = write_report(Path(folder))
    print(f"page: {page}")
    return page


def write_report(folder: Path) -> Path:
    """Write the report of the finished cells, with the command that repeats the run; returns the page."""
    from scorelens.report.paper_page import write_bench

    config = json.loads((folder / "bench.json").read_text())
    own = tuple(config["own"]) if config["own"] else None
    repeat = " ".join(["scorelens bench run", *config["names"], "--scale", config["scale"],
                       *(["--data", own[0], "--reference", own[2]] if own else [])])
    return write_bench(Results(read_rows(folder / ROWS), config["scale"], own), folder, repeat)


def chosen_cells(names: Sequence[str], scale: str, own: Own | None) -> list[Cell]:
    """The distinct cells of presets, of datasets, or of all presets; sorted by dataset."""
    for name in names:
        if name not in (*PRESETS, *DATASETS, ALL):
            raise unknown("preset or dataset", name, [*PRESETS, *DATASETS, ALL])
    cells = dict.fromkeys(cell for name in names for preset in ([name] if name in PRESETS else PRESETS)
                          for cell in cells_of(preset, scale, (name,) if name in DATASETS else (), own))
    return sorted(cells, key=lambda cell: list(DATASETS).index(cell.dataset) if cell.dataset in DATASETS else 0)
