"""What every command shares: a fresh folder for its results, and the one JSON that says exactly what ran."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from scorelens import distributed
from scorelens.files import check_fresh, fresh_folder
from scorelens.results import environment, peak_memory


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


def _next_free(parent: Path, stem: str) -> Path:
    stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)
    candidates = [parent / stem, *(parent / f"{stem}-{k}" for k in range(2, 10_000))]
    return next(path for path in candidates if not path.exists())
