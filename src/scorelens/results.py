"""Where a run happened: versions, commit, device. Everything needed to understand a difference later."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scorelens import distributed

STATUS = Path("/proc/self/status")  # of Linux
PACKAGES = ("scorelens", "torch", "numpy", "scikit-learn", "Pillow", "diffusers")


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions, commit and device, as a run's record has them."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(),
        "device": _device_name(torch.device(device)),
        "threads": torch.get_num_threads(),
        **({"processes": distributed.world().size} if distributed.world().size > 1 else {}),
    }


def noise_record(seeds: range, noise: Tensor) -> Mapping[str, Any]:
    """Which noise was used: its seeds, and a hash of the very numbers."""
    digest = hashlib.sha256(noise.cpu().contiguous().numpy().tobytes()).hexdigest()[:32]
    return {"seeds": [seeds.start, seeds.stop - 1], "hash": digest}


def peak_memory() -> int | None:
    """The largest resident memory of this process, in bytes, since it began or since `reset_peak_memory`, where the
    system can forget; None where it does not tell."""
    if STATUS.exists():
        return int(next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_memory() -> None:
    """Forget the largest memory so far, where the system can: Linux does."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # peaks are then those of the whole process


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree, marked when it has changes; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        described = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"], cwd=root,
                                   capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):  # no git here
        return None
    return described.stdout.strip() or None


def _device_name(device: torch.device) -> str:
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
