"""What a run will cost: the plan and estimate of each noise level; and where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.report.tables import markdown
from scorelens.types import Denoiser


def plans(model: Denoiser, noise: Tensor, sigmas: Sequence[float]) -> list[dict[str, Any]]:
    """For each noise level the plan that a call would take, and its cost; nothing for a model without one."""
    choose = getattr(model, "choice", None)
    if choose is None:
        return []
    images: ImageSet = model.images  # type: ignore[attr-defined]
    return [{"sigma": sigma, **choose(noise, sigma).describe(len(noise), len(images.shard()))} for sigma in sigmas]


def print_plans(model: Denoiser, images: ImageSet, noise: Tensor, sigmas: Sequence[float]) -> None:
    """Print the plan of each step, and the time and memory that a run would take, without running it."""
    rows = plans(model, noise, sigmas)
    if rows:
        cells = [[f"{row['sigma']:.4g}", row["plan"], f"{row['operations_per_pair'] / images.dim**2:.3f}",
                  f"{row['expected_seconds']:.1f}"] for row in rows]
        print(markdown(["sigma", "plan", "operations / D²", "expected s"], cells))
    total = sum(row["expected_seconds"] for row in rows)
    print(f"\n{len(noise)} images, {len(sigmas)} steps: about {_duration(total)}, "
          f"{expected_memory(images) / 1e9:.1f} GB; nothing was run or written")


def expected_memory(images: ImageSet, workspace: float = 0.5e9) -> float:
    """Bytes at the peak: data, covariance and eigenvectors, workspace, torch."""
    return images.pixels.nbytes + 4 * 8 * images.dim**2 + workspace


def phase_table(phases: Mapping[str, float], steps: float) -> str:
    """Seconds by phase; the rest is the sampler's and Python's."""
    rest = max(0.0, steps + phases.get("statistics", 0.0) - sum(phases.values()))
    total = max(sum(phases.values()) + rest, 1e-9)
    rows = sorted([*phases.items(), ("everything else", rest)], key=lambda row: -row[1])
    return markdown(["phase", "s", "share"], [[name, f"{value:.2f}", f"{value / total:.0%}"] for name, value in rows])


def _duration(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds > 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
