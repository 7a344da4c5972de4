"""What every command shares: a fresh folder for its results, and the one JSON that says exactly what ran."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from scorelens import distributed
from scorelens.files import check_fresh, fresh_folder, write_json
from scorelens.results import environment, peak_memory
from scorelens.types import ScorelensError


@dataclass(frozen=True)
class Run:
    """A command at work: `folder` to write into, `record` for what belongs into run.json."""

    folder: Path  # a temporary one, until the command has ended well
    final: Path
    record: dict[str, Any] = field(default_factory=dict)


def output_folder(command: str, label: str, out: Path | None) -> Path:
    """Where a command writes its results: `out`, which must not exist, else the next free runs/<command>-<label>."""
    return check_fresh(Path(out) if out is not None else _next_free(Path("runs"), f"{command}-{label}"))


@contextmanager
def run_folder(command: str, label: str, out: Path | None, device: torch.device | str = "cpu") -> Iterator[Run]:
    """A run whose results appear, complete, in `out` (else the next free `runs/<command>-<label>`), or not at all."""
    if not distributed.world().is_main:
        yield Run(Path(os.devnull), Path(os.devnull))  # the first writes, for all
        return
    final = Path(out) if out is not None else _next_free(Path("runs"), f"{command}-{label}")
    started, clock = time.strftime("%Y-%m-%dT%H:%M:%S%z"), time.perf_counter()
    with fresh_folder(final) as folder:
        run = Run(folder, final)
        yield run
        record = {"command": command, "started": started, **run.record, "seconds": time.perf_counter() - clock,
                  "peak_memory_bytes": peak_memory(), "environment": environment(device)}
        (folder / "run.json").write_text(json.dumps(record, indent=2, default=str) + "\n")


@contextmanager
def resumable_folder(folder: Path, config: Mapping[str, Any], what: str) -> Iterator[None]:
    """The folder is ours while this lasts, and its settings are these: a new one, or one to go on with.

    The settings are in `<what>.json`; the system lets go of the lock however the process ends.
    """
    from filelock import FileLock, Timeout

    if not distributed.world().is_main:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScorelensError(f"cannot write to {folder}: {error.strerror}; choose another with --out") from error
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ScorelensError(f"another {what} is at work in {folder}; wait for it, or choose another with --out") \
            from error
    try:
        _claim(folder, config, what)
        yield
    finally:
        lock.release()


def _claim(folder: Path, config: Mapping[str, Any], what: str) -> None:
    """Write the settings down, or check that the folder's are the same."""
    path = folder / f"{what}.json"
    now = json.loads(json.dumps(config, default=str))
    if path.exists():
        there = json.loads(path.read_text())
        for name in {**there, **now}:
            if there.get(name) != now.get(name):
                raise ScorelensError(f"{folder} holds a {what} with other settings ({name}: {there.get(name)} there, "
                                     f"{now.get(name)} now); choose another folder with --out")
    elif any(p.name != ".lock" for p in folder.iterdir()):
        raise ScorelensError(f"the folder {folder} is not empty and holds no {what}; choose another with --out")
    else:
        write_json(path, now)


def _next_free(parent: Path, stem: str) -> Path:
    stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)
    candidates = [parent / stem, *(parent / f"{stem}-{k}" for k in range(2, 10_000))]
    return next(path for path in candidates if not path.exists())
