"""What the methods cost and how well they predict: rows for docs/methods.md.

    python -m perf.methods [CELL ...]      cells: els, clusters, digits, calibration

Real data are read from $SCORELENS_DATA. Take the timings of `els` while nothing else runs.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import Any

import torch

import scorelens
from perf.rows import RESULTS, rows_of
from scorelens.denoisers.els import bank_patches
from scorelens.posterior.plans.products import TOGETHER
from scorelens.results import environment, peak_memory, write_rows

SIGMA = 1.2388  # of the 10-step grid, where the paper's MNIST patches have side 13 and CIFAR-10's 13


def els() -> list[dict[str, Any]]:
    """One step of els on MNIST, 5,000 images, patches of side 9, 8 noisy images; and the bare product within it; each
    twice, by turns, and the faster of both counts."""
    images = scorelens.load_images("mnist", limit=5000)
    z = images[:8] + SIGMA * scorelens.seeded_noise(images.shape, range(8))
    model = scorelens.build_denoiser("els", images, patch_size=9)
    model(z[:1], SIGMA)  # the first call allocates
    patches = bank_patches(model.bank(9))
    rounds = [(timed(model, z, SIGMA)[1], bare_product(len(z) * 784, patches.dim, len(patches))) for _ in range(2)]
    step, bare = (min(seconds) for seconds in zip(*rounds, strict=True))  # by turns: the machine's speed drifts
    return [{"cell": "els", "images": len(images), "patches": len(patches), "patch_size": 9, "noisy": len(z),
             "rounds": rounds, "seconds": step, "bare_seconds": bare, "ratio": step / bare,
             "peak_memory_bytes": peak_memory()}]


def bare_product(rows: int, dim: int, columns: int, width: int = 512) -> float:
    """Seconds of nothing but the products of patches, in pieces of the same shape."""
    z, x, out = torch.randn(rows, dim), torch.randn(dim, width), torch.empty(TOGETHER, width)
    start = time.perf_counter()
    for _ in range(columns // width):
        for part in z.split(TOGETHER):
            torch.mm(part, x, out=out[:len(part)])
    return time.perf_counter() - start


def clusters() -> list[dict[str, Any]]:
    """The clustered approximation on MNIST, 500 images, patches of side 9: rms error and time against exact."""
    images = scorelens.load_images("mnist", limit=500)
    rows = []
    for sigma in scorelens.ddim_sigmas(10).tolist()[5::2]:
        z = images[:4] + sigma * scorelens.seeded_noise(images.shape, range(4))
        exact, plain = timed(scorelens.build_denoiser("els", images, patch_size=9), z, sigma)
        for searched in (1, 8, 32):
            model = scorelens.build_denoiser("els", images, patch_size=9, clusters=128, searched=searched)
            model.bank(9)  # fitted before the clock starts
            found, seconds = timed(model, z, sigma)
            rows.append({"cell": f"clusters {sigma:.3g} {searched}", "sigma": sigma, "clusters": 128,
                         "searched": searched, "rms": (found - exact).square().mean().sqrt().item(),
                         "time_ratio": plain / seconds})
    return rows


def timed(model: Any, z: torch.Tensor, sigma: float) -> tuple[torch.Tensor, float]:
    start = time.perf_counter()
    return model(z, sigma), time.perf_counter() - start


def digits() -> list[dict[str, Any]]:
    """Every method with its defaults against digits-unet, on 64 noise seeds that nothing was chosen on; rows of their
    own file."""
    images = scorelens.load_images("digits", split="train")
    found = scorelens.compare("digits-unet", images, num=64, seed=1000, with_single_steps=False)
    write_rows(RESULTS / "digits.jsonl", [replace(row, environment=environment("cpu")) for row in found.rows])
    return []


def calibration() -> list[dict[str, Any]]:
    """Patch sizes of the local score models, fitted to digits-unet on 16 samples."""
    images = scorelens.load_images("digits", split="train")
    fits = {name: scorelens.fit_patch_sizes("digits-unet", images, name) for name in ("ls", "els", "bbels")}
    return [{"cell": f"calibration {name}", **fit.record, "sigmas": fit.record["grid"], "sizes": fit.sizes}
            for name, fit in fits.items()]


CELLS = {"els": els, "clusters": clusters, "digits": digits, "calibration": calibration}


def main(names: list[str]) -> None:
    """Run the cells that are named, else all; others keep their rows."""
    for name in names or list(CELLS):
        found = [{**row, "environment": environment("cpu")} for row in CELLS[name]()]
        kept = [row for row in rows_of("methods") if row["cell"].split()[0] != name]
        text = "".join(json.dumps(row) + "\n" for row in [*kept, *found])
        (RESULTS / "methods.jsonl").write_text(text)
        print(f"{name}: {len(found)} rows", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
