"""Result rows, read and written in one schema; and the environment that a run's record describes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scorelens import distributed
from scorelens.files import atomic_file, write_errors
from scorelens.types import ScorelensError

STATUS = Path("/proc/self/status")  # of Linux
PACKAGES = ("scorelens", "torch", "numpy", "scikit-learn", "Pillow", "diffusers")


@dataclass(frozen=True)
class Row:
    """One measurement: a denoiser with its options, the data, the noise, and the metrics."""

    name: str  # unique in its file
    denoiser: str  # a name in DENOISERS, or that of a network
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # everything else that was chosen: num, steps, seed, ...
    metrics: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)  # ImageSet.describe()
    network: Mapping[str, Any] = field(default_factory=dict)  # the reference: Network.describe()
    noise: Mapping[str, Any] = field(default_factory=dict)  # seeds and hash
    environment: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    peak_memory_bytes: int | None = None
    started: str = ""
    pictures: str = ""  # file of arrays, relative to the rows
    failed: str = ""  # the error, if there was one

    @property
    def label(self) -> str:
        """The denoiser and its options, as in `locality, threshold 0.05, batch-mean`."""
        words = (value if isinstance(value, str) else f"{key} {value}" for key, value in self.options.items())
        return ", ".join([self.denoiser, *words])

    @property
    def r2(self) -> Mapping[str, float]:
        """Mean, std, median and interval of r2."""
        return self.metrics["r2"]


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, none if it does not exist. An unfinished last line, left by a killed process, is ignored."""
    rows: list[Row] = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
        for line in lines[:-1]:
            rows.append(_checked(Row(**json.loads(line))))
    except (ValueError, TypeError, RecursionError) as error:  # TypeError: unknown or missing keys
        raise ScorelensError(f"{path} is damaged in line {len(rows) + 1}: {error}; remove the line, and run again") \
            from error
    return rows


def _checked(row: Row) -> Row:
    """The row, after checking the types of its fields."""
    for each in fields(Row):
        value = getattr(row, each.name)
        expected = str if each.type == "str" else dict if each.type.startswith("Mapping") else int | float | None
        if not isinstance(value, expected) or isinstance(value, bool):
            raise TypeError(f"{each.name} is a {type(value).__name__}")
    return row


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows to a file, replacing its content."""
    with atomic_file(path) as temporary:
        temporary.write_text("".join(_line(row) for row in rows), encoding="utf-8")


def append_row(path: Path, row: Row) -> None:
    """Append a row; it is on disk when this returns."""
    with write_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(_line(row))
        file.flush()
        os.fsync(file.fileno())


def _line(row: Row) -> str:
    return json.dumps({key: value for key, value in asdict(row).items() if value not in ("", {}, None)},
                      default=str) + "\n"


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions, commit and device, for a run's record."""
    device = torch.device(device)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(),
        "device": f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        **({"processes": distributed.world().size} if distributed.world().size > 1 else {}),
    }


def run_record(started: str, clock: float, device: torch.device | str) -> dict[str, Any]:
    """When a run started, how long it took since `clock` (time.perf_counter), its peak memory and environment."""
    return {"started": started, "seconds": time.perf_counter() - clock, "peak_memory_bytes": peak_memory(),
            "environment": environment(device)}


def noise_record(seeds: range, noise: Tensor) -> Mapping[str, Any]:
    """The seeds of the noise, and a hash of its numbers."""
    digest = hashlib.sha256(noise.cpu().contiguous().numpy().tobytes()).hexdigest()[:32]
    return {"seeds": [seeds.start, seeds.stop - 1], "hash": digest}


def peak_memory() -> int | None:
    """The largest resident memory of this process in bytes, since its start or `reset_peak_memory`; None if unknown."""
    if STATUS.exists():
        return int(next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_memory() -> None:
    """Start measuring peak memory again, if the system can (Linux can); otherwise peaks are of the whole process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree, marked if it has changes other than new results; None for an installed package."""
    root = Path(__file__).resolve().parents[2]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=10).stdout.strip()

    if (root / ".git").exists():
        with suppress(OSError, subprocess.TimeoutExpired):  # git is not installed, or slow
            changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!perf/results")
            return git("rev-parse", "HEAD") + ("-dirty" if changed else "") or None
    return None
