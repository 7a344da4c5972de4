"""The foundation's costs, as ratios measured in one run, against the bare linear algebra they contain.

    make perf                                   CIFAR-10 under $SCORELENS_DATA, else 10,000 dead leaves

Each measurement has a process of its own, so that its peak memory is its own too, and appends a row to
perf/results/foundation.jsonl.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import scorelens
from scorelens.report.tables import markdown
from scorelens.results import environment, peak_memory

RESULTS = Path(__file__).parent / "results" / "foundation.jsonl"
REPEATS = 3


def images() -> scorelens.ImageSet:
    root = os.environ.get("SCORELENS_DATA")
    return scorelens.load_images("cifar10", root=root) if root else scorelens.load_images("leaves")


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best_of_each(*works: Callable[[], Any]) -> list[float]:
    """The fastest of a few runs of each, taken in turn so that a slow moment hits all alike."""
    return [min(times) for times in zip(*([seconds(work) for work in works] for _ in range(REPEATS)), strict=True)]


def floats(data: scorelens.ImageSet) -> torch.Tensor:
    return torch.cat([x.flatten(1) for x in data.chunks()])


def dense_masks() -> dict[str, Any]:
    """One image, one step of `locality` with dense masks, against the product [N, D] @ [D, D] that it contains."""
    data = images()
    model = scorelens.build_denoiser("locality", data, threshold=0.05, plan="dense")
    z, sigma = data[:1] + 1.0, 1.0
    x, masks = floats(data), model.masks(sigma).keep.float()
    ours, bare = best_of_each(lambda: model(z, sigma), lambda: x @ masks)
    return {"what": "locality, dense masks, one image and step / bare product", "ratio": ours / bare, "seconds": ours,
            "reference_seconds": bare, "limit": 1.5}


def dense_masks_memory() -> dict[str, Any]:
    """The peak memory of the same, from loading the data to the result, nothing else in the process."""
    data = images()
    z = scorelens.seeded_noise(data.shape, [0])
    scorelens.build_denoiser("locality", data, threshold=0.05, plan="dense")(z, 1.0)
    return {"what": "locality, dense masks: peak memory / 3 GB", "ratio": (peak_memory() or 0) / 3e9, "limit": 1.0}


def fit() -> dict[str, Any]:
    """`fit_gaussian` without its cache, against the float32 X.T @ X and a float32 eigh of the result."""
    data = images()
    x = floats(data)
    ours, bare = best_of_each(lambda: scorelens.fit_gaussian(data, cache=False), lambda: torch.linalg.eigh(x.T @ x))
    return {"what": "fit_gaussian / float32 X.T @ X and eigh", "ratio": ours / bare, "seconds": ours,
            "reference_seconds": bare, "limit": 1.5}


def fit_from_cache() -> dict[str, Any]:
    """`fit_gaussian` of data seen before, fingerprint included, with every number of the result read."""
    data = images()
    scorelens.fit_gaussian(data)
    again = images()

    def cached() -> float:
        stats = scorelens.fit_gaussian(again)
        return stats.mean.sum().item() + stats.eigenvectors.sum().item()

    taken = seconds(cached)
    return {"what": "fit_gaussian from cache / 2 s", "ratio": taken / 2, "seconds": taken, "limit": 1.0}


def optimal() -> dict[str, Any]:
    """Eight images, one step of `optimal` at the smallest noise level, against the two thin products it contains."""
    data = images()
    sigma = scorelens.ddim_sigmas(10)[-1].item()
    z = data[:8] + sigma * scorelens.seeded_noise(data.shape, range(8))
    x, flat, model = floats(data), z.flatten(1), scorelens.build_denoiser("optimal", data)
    ours, bare = best_of_each(lambda: model(z, sigma), lambda: torch.softmax(flat @ x.T, 1) @ x)
    return {"what": "optimal, 8 images, one step / two products on ready floats", "ratio": ours / bare, "seconds": ours,
            "reference_seconds": bare, "limit": None}


MEASUREMENTS = [dense_masks, dense_masks_memory, fit, fit_from_cache, optimal]


def main() -> int:
    data = images()
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SCORELENS_CACHE"] = cache
        for measure in MEASUREMENTS:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                row = process.submit(measure).result()
            row |= {"measurement": measure.__name__, "data": data.describe(), "environment": environment()}
            rows.append(row)
            print(f"{row['what']}: {row['ratio']:.2f}", file=sys.stderr)
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(markdown(["measurement", "ratio", "at most"],
                   [[row["what"], f"{row['ratio']:.2f}", f"{row['limit'] or '-'}"] for row in rows]))
    return int(any(row["limit"] and row["ratio"] > row["limit"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
