"""`scorelens bench`: the paper's tables and figures; interrupted runs resume."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from scorelens import distributed
from scorelens.analysis.models import Loading
from scorelens.cli.load_networks import load_named
from scorelens.cli.tracking import Tracker, tracked
from scorelens.distributed import choose_device
from scorelens.files import damaged, read_json, resumable_folder, write_json
from scorelens.networks.paper_weights import PREFIX
from scorelens.paper.cells import Resources
from scorelens.paper.presets import AS_GIVEN, DATASETS, PRESETS, Cell, Guided, Own, cells_of, own_data_of
from scorelens.paper.results import Results
from scorelens.paper.runner import ROWS, run_cells
from scorelens.report.tables import markdown
from scorelens.results import read_rows, run_record
from scorelens.types import ScorelensError
from scorelens.validation import unknown

ALL = "all"


def bench_run(names: Sequence[str], *, scale: Literal["cpu", "paper"] = "cpu", only: Sequence[str] = (),
              data: str | None = None, reference: str | None = None, split: str | None = None,
              resolution: int | None = None, root: str | None = None, networks: Path | None = None,
              guidance: Sequence[float] = (), labels: Sequence[str] = (), retry_failed: bool = False,
              dry_run: bool = False, log: Tracker = "none", loading: Loading | None = None, device: str = "auto",
              out: Path | None = None) -> Path:
    """Run benchmarks; the same command resumes an interrupted run.

    Args:
        names: presets (see scorelens bench list), datasets (all their presets), or all.
        scale: cpu (small networks of the zoo, for two cores) or paper (full data, 128 samples, for GPUs).
        only: run only cells whose names contain one of these words, such as cifar10 or wiener.
        data: your own source of images, instead of the presets' (see scorelens data list); needs --reference.
        reference: the network that was trained on your data; or paper:cifar10 and others, without --data, for the
            paper's published networks on its data.
        split: split of your data.
        resolution: side to scale your data to.
        root: folder of datasets and of the paper's networks, by default $SCORELENS_DATA.
        networks: folder of trained networks, which take precedence over the zoo's of the same name.
        guidance: weights of guidance, for the preset guidance.
        labels: classes of the samples, by name or number, for the preset guidance.
        retry_failed: run again the cells that failed in earlier runs.
        dry_run: only print the cells.
        log: log the metrics of every cell to tensorboard (in the folder) or wandb; both are extras.
        device: auto, cuda, mps or cpu.
        out: folder of the run; one with the same settings is resumed. By default runs/bench-...
    """
    options = {key: value for key, value in {"split": split, "resolution": resolution}.items() if value is not None}
    own: Own | None = None if data is None or reference is None else (data, options, reference)
    if reference is not None and data is None and reference.startswith(PREFIX):
        own = own_data_of(reference)
    elif (data is None) != (reference is None) or (options and data is None):
        raise ScorelensError("a benchmark on your own data needs both --data and --reference")
    guided = Guided(tuple(guidance), tuple(labels))
    every = chosen_cells(names, scale, own, guided)
    cells = [cell for cell in every if not only or any(word in cell.key for word in only)]
    if not cells:
        raise ScorelensError(f"no cell of {', '.join(names)} fits {' or '.join(only) or 'this data'}; "
                             "see scorelens bench list")
    if dry_run:
        print("\n".join(cell.key for cell in cells))
        return Path()
    loading = loading or Loading()
    resources = Resources(choose_device(device), Path(root).expanduser() if root else None, networks, loading)
    if own is not None:  # a network that cannot be loaded is one error, not one for each cell
        load_named(own[2], resources.images((own[0], tuple(own[1].items()))), loading)
    folder = Path(out or Path("runs") / f"bench-{'-'.join(names)}").expanduser()
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    config: dict[str, Any] = {"names": list(names), "scale": scale, "own": own}
    if guided != AS_GIVEN:
        config["guided"] = {"weights": list(guidance), "labels": list(labels)}
    rows = []
    with resumable_folder(folder, config, "bench"), tracked(log, folder, config) as add:
        for row in run_cells(cells, folder, resources, retry=retry_failed):
            rows.append(row)
            add(len(rows), {f"{metric}/{row.name}": value["mean"] for metric, value in row.metrics.items()
                            if isinstance(value, dict) and "mean" in value})
        page = write_report(folder) if distributed.world().is_main else folder
        if distributed.world().is_main:
            write_json(folder / "run.json", {"command": "bench", **config, "cells": len(rows), "log": log,
                                             **run_record(started, clock, resources.device)})
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

    path, rows = folder / "bench.json", read_rows(folder / ROWS)
    config = read_json(path, "restore it, or run the benchmark again in another folder")
    with damaged(path, KeyError, TypeError, AttributeError, ValueError):
        own: Own | None = None
        if config["own"]:
            source, options, reference = config["own"]
            own = str(source), dict(options), str(reference)
        repeat = " ".join(["scorelens bench run", *config["names"], "--scale", config["scale"],
                           *([] if own is None or own[2].startswith(PREFIX) else ["--data", own[0]]),
                           *(["--reference", own[2]] if own else [])])
        guided = Guided(**{key: tuple(value) for key, value in config.get("guided", {}).items()})
    with damaged(folder / ROWS, KeyError, TypeError, AttributeError, ValueError):  # its metrics depend on the cell
        return write_bench(Results(rows, config["scale"], own, guided), folder, repeat)


def chosen_cells(names: Sequence[str], scale: str, own: Own | None, guided: Guided = AS_GIVEN) -> list[Cell]:
    """The distinct cells of presets, of datasets, or of all presets; sorted by dataset."""
    for name in names:
        if name not in (*PRESETS, *DATASETS, ALL):
            raise unknown("preset or dataset", name, [*PRESETS, *DATASETS, ALL])
    cells = dict.fromkeys(cell for name in names for preset in ([name] if name in PRESETS else PRESETS)
                          for cell in cells_of(preset, scale, (name,) if name in DATASETS else (), own, guided))
    return sorted(cells, key=lambda cell: list(DATASETS).index(cell.dataset) if cell.dataset in DATASETS else 0)
