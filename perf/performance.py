"""The performance suite: ratios measured in one run, never bare times; and growth curves beside the cost model.

    make perf                                          everything that is not in the results yet
    python -m perf.performance --only growth     cells whose name contains a word
    python -m perf.performance --fresh           forget the results and measure again

Data are those under $SCORELENS_DATA. Each finished cell is a row of perf/results/performance.jsonl; killed and
started again, the run goes on with the next. docs/performance.md is written from the rows (tools/pages.py).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from tools.pages import write_performance

import scorelens
from scorelens.networks.architectures import preset
from scorelens.networks.training_loop import Recipe, initial_state, training_steps
from scorelens.posterior.costs import measured_rates
from scorelens.results import environment, peak_memory
from scorelens.sampling import ddim_step

RESULTS = Path(__file__).parent / "results" / "performance.jsonl"
SEEDS = range(1000, 1008)  # noise that nothing was tuned on
ROUNDS = 4
LARGE = 4096  # pixels, beyond which one round must do
MIDDLE = 5  # of the ten noise levels, for growth curves
DATASETS = {  # name -> what is loaded, and how many of the 8 noisy images the dense plan is timed on
    "cifar10": ({"source": "cifar10"}, 8),
    "mnist": ({"source": "mnist"}, 8),
    "celeba": ({"source": "celeba", "split": "all"}, 1),
}


def load(name: str, **options: Any) -> scorelens.ImageSet:
    return scorelens.load_images(**DATASETS[name][0], **options)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def bare_product(images: scorelens.ImageSet, count: int = 2048) -> float:
    """Seconds of [N, D] @ [D, D] in torch: `count` rows, as many times as it takes."""
    x, w = torch.rand(count, images.dim), torch.rand(images.dim, images.dim)
    return min(timed(lambda: x @ w)[0] for _ in range(3)) * len(images) / count


def plans(name: str, threshold: float = 0.05) -> dict[str, Any]:
    """Ten steps, batch 8: the automatic plan against the dense one at the same points, step by step."""
    images = load(name)
    auto = scorelens.build_denoiser("locality", images, threshold=threshold)
    dense = replace(auto, plan="dense")  # shares the masks
    dense_batch = DATASETS[name][1]
    sigmas = scorelens.ddim_sigmas(10).tolist()
    z = scorelens.seeded_noise(images.shape, SEEDS) * (1 + sigmas[0] ** 2) ** 0.5
    auto(z[:1], 1.0)  # measures the rates
    steps = []
    for sigma, following in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        mask_seconds, masks = timed(partial(auto.masks, sigma))
        choice_seconds, choice = timed(partial(auto.choice, z, sigma))
        auto_seconds, x0_hat = timed(partial(auto, z, sigma))
        dense_seconds, reference = timed(partial(dense, z[:dense_batch], sigma))
        steps.append({"sigma": sigma, "plan": choice.plan.name, "density": masks.keep.float().mean().item(),
                      "operations": choice.cost.operations / images.dim**2, "auto_seconds": auto_seconds,
                      "dense_seconds": dense_seconds * len(SEEDS) / dense_batch,
                      "expected_seconds": choice.cost.seconds(len(SEEDS), len(images)),
                      "mask_seconds": mask_seconds + choice_seconds,
                      "largest_difference": (x0_hat[:dense_batch] - reference).abs().max().item()})
        z = ddim_step(z, x0_hat, sigma, following, clip=True)
        print(f"  {name} sigma {sigma:.3g}: {dense_seconds * len(SEEDS) / dense_batch:.1f} -> {auto_seconds:.1f} s",
              file=sys.stderr)
    shared, fast, slow = (sum(step[key] for step in steps) for key in ("mask_seconds", "auto_seconds", "dense_seconds"))
    return {"threshold": threshold, "batch": len(SEEDS), "dense_batch": dense_batch, "steps": steps,
            "ratio": slow / fast, "ratio_with_masks": (slow + shared) / (fast + shared),
            "dense_to_bare": slow / (10 * len(SEEDS) * bare_product(images))}


def within(name: str, tolerance: float = 0.01, threshold: float = 0.05) -> dict[str, Any]:
    """Ten steps, batch 8: within a tolerance, exactly, and (one noisy image, its time multiplied) densely, at the same
    points, the best of ROUNDS that take turns; and how far the first is from the second, over all pixels."""
    images = load(name)
    auto = scorelens.build_denoiser("locality", images, threshold=threshold)
    dense, steps = replace(auto, plan="dense"), []
    sigmas = scorelens.ddim_sigmas(10).tolist()
    z = scorelens.seeded_noise(images.shape, SEEDS) * (1 + sigmas[0] ** 2) ** 0.5
    auto(z[:1], 1.0)  # measures the rates
    for sigma, following in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        auto.choice(z, sigma)  # makes the masks
        ways = (partial(auto.approximate, z, sigma, tolerance), partial(auto, z, sigma), partial(dense, z[:1], sigma))
        taken = [[timed(way) for way in ways] for _ in range(1 if images.dim > LARGE else ROUNDS)]
        rough_seconds, exact_seconds, dense_seconds = (min(seconds for seconds, _ in turns)
                                                       for turns in zip(*taken, strict=True))
        rough, x0_hat = taken[0][0][1], taken[0][1][1]
        if not steps:
            once = taken[0][0][0] - rough_seconds  # the sketch, which later calls find
        error = (rough.mean - x0_hat).flatten(1).square().mean(dim=1).sqrt()
        steps.append({"sigma": sigma, "drawn": rough.drawn.float().mean().item(), "rms": error.max().item(),
                      "expected_rms": rough.expected.max().item(), "checked_rms": rough.checked.max().item(),
                      "within_seconds": rough_seconds, "exact_seconds": exact_seconds,
                      "dense_seconds": dense_seconds * len(SEEDS)})
        z = ddim_step(z, x0_hat, sigma, following, clip=True)
        print(f"  {name} sigma {sigma:.3g}: {exact_seconds:.1f} -> {rough_seconds:.1f} s, rms {error.max():.4f}",
              file=sys.stderr)
    rough, exact, slow = (sum(step[key] for step in steps) for key in ("within_seconds", "exact_seconds",
                                                                       "dense_seconds"))
    return {"tolerance": tolerance, "threshold": threshold, "batch": len(SEEDS), "images": len(images), "steps": steps,
            "sketch_seconds": once, "dense_to_within": slow / (rough + once), "exact_to_within": exact / (rough + once)}


def growth(along: str) -> dict[str, Any]:
    """Seconds of one step as one thing grows, beside what the cost model expects.

    A shared machine changes its speed: all points take turns, so that a slow moment hits them alike, and the best of
    each counts, for prediction and measurement."""
    points = [_GrowthPoint(along, *case) for case in _growth_cases(along)]
    for _ in range(5):
        for point in points:
            point.measure()
    return {"along": along, "points": [point.row() for point in points]}


class _GrowthPoint:
    def __init__(self, along: str, value: float, images: scorelens.ImageSet, threshold: float, batch: int, level: int):
        stats = scorelens.fit_gaussian(load("cifar10")) if along == "N" else None  # the same masks for every N
        self.value, self.images, self.sigma = value, images, scorelens.ddim_sigmas(10)[level].item()
        self.model = scorelens.build_denoiser("locality", images, threshold=threshold, stats=stats)
        self.z = images[:batch] + self.sigma * scorelens.seeded_noise(images.shape, SEEDS[:batch])
        self.seconds: list[float] = []
        self.expected: list[float] = []

    def measure(self) -> None:
        measured_rates.cache_clear()
        self.choice = self.model.choice(self.z, self.sigma)
        self.expected.append(self.choice.cost.seconds(len(self.z), len(self.images)))
        self.seconds.append(timed(partial(self.model, self.z, self.sigma))[0])

    def row(self) -> dict[str, Any]:
        return {"value": self.value, "plan": self.choice.plan.name, "seconds": min(self.seconds),
                "expected_seconds": min(self.expected), "operations": self.choice.cost.operations,
                "images": len(self.images), "dim": self.images.dim, "batch": len(self.z)}


def _growth_cases(along: str) -> Iterator[tuple[float, scorelens.ImageSet, float, int, int]]:
    if along == "N":
        yield from ((n, load("cifar10", limit=n), 0.05, 4, MIDDLE) for n in (3125, 6250, 12500, 25000, 50000))
    elif along == "D":
        yield from ((3 * side**2, load("cifar10", limit=10000, resolution=side), 0.05, 4, MIDDLE)
                    for side in (16, 20, 24, 28, 32))
    elif along == "batch":
        yield from ((b, load("cifar10", limit=10000), 0.05, b, MIDDLE) for b in (1, 2, 4, 8))
    elif along == "threshold":
        yield from ((tau, load("cifar10", limit=10000), tau, 4, MIDDLE) for tau in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2))
    elif along == "noise level":
        sigmas = scorelens.ddim_sigmas(10).tolist()
        yield from ((sigmas[level], load("cifar10", limit=10000), 0.05, 4, level) for level in range(10))


def exponents(tolerance: float = 0.01) -> dict[str, Any]:
    """How the time of a step grows with N, exactly and within a tolerance, at every noise level: from a quarter of
    CIFAR-10 to all of it, with the same masks, the best of ROUNDS."""
    steps, sets = [], [load("cifar10", limit=12500), load("cifar10")]
    stats = scorelens.fit_gaussian(sets[1])
    models = [scorelens.build_denoiser("locality", images, threshold=0.05, stats=stats) for images in sets]
    for sigma in scorelens.ddim_sigmas(10).tolist():
        z = sets[0][range(4)] + sigma * scorelens.seeded_noise(sets[0].shape, SEEDS[:4])
        ways = [partial(way, z, sigma) for model in models
                for way in (model, partial(model.approximate, tolerance=tolerance))]
        for model in models:
            model.choice(z, sigma)
        exact, rough, exact_all, rough_all = (min(turns) for turns in zip(*(
            [timed(way)[0] for way in ways] for _ in range(ROUNDS)), strict=True))
        growth = math.log(len(sets[1]) / len(sets[0]))
        steps.append({"sigma": sigma, "exact": math.log(exact_all / exact) / growth,
                      "within": math.log(rough_all / rough) / growth})
        print(f"  sigma {sigma:.3g}: {steps[-1]}", file=sys.stderr)
    return {"tolerance": tolerance, "images": [len(images) for images in sets], "batch": 4, "steps": steps}


def processes() -> dict[str, Any]:
    """A step of batch 8 by one, two and three processes of one thread each, on this machine."""
    points: list[dict[str, Any]] = []
    for count in (1, 2, 3):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "-m",
                            "perf.processes", folder], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
            x0_hat = torch.load(Path(folder) / "x0_hat.pt")
        alone = x0_hat if not points else alone
        points.append({"processes": count, "seconds": max(f["seconds"] for f in found),
                       "peak_bytes": max(f["peak_bytes"] for f in found),
                       "largest_difference": (x0_hat - alone).abs().max().item()})
        print(f"  {points[-1]}", file=sys.stderr)
    return {"batch": len(SEEDS), "cores": os.cpu_count(), "points": points}


def memory(name: str) -> dict[str, Any]:
    """Peak memory of a process that loads the data, takes the fitted statistics and does two steps of batch 8."""
    images = load(name)
    model = scorelens.build_denoiser("locality", images, threshold=0.05)
    for sigma in scorelens.ddim_sigmas(10)[[0, 9]].tolist():
        model(scorelens.seeded_noise(images.shape, SEEDS) * sigma, sigma)
    return {"peak_bytes": peak_memory()}


def training(seconds: float = 30.0) -> dict[str, Any]:
    """Images per second of training the zoo's U-Net on CIFAR-10: several ways to use two cores."""
    ways = {"float32, two threads": ("float32", 2, 1), "bfloat16, two threads": ("bfloat16", 2, 1),
            "bfloat16, two processes": ("bfloat16", 1, 2)}
    points = []
    for way, (precision, threads, jobs) in ways.items():
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as workers:
            tasks = [workers.submit(_training_rate, precision, threads, seconds) for _ in range(jobs)]
            points.append({"way": way, "images_per_second": sum(task.result() for task in tasks)})
        print(f"  {points[-1]}", file=sys.stderr)
    return {"seconds": seconds, "points": points,
            "ratio": points[-1]["images_per_second"] / points[0]["images_per_second"]}


def _training_rate(precision: Literal["float32", "bfloat16"], threads: int, seconds: float) -> float:
    torch.set_num_threads(threads)
    images = load("cifar10", limit=5000)
    sizes = preset("small", images.shape)
    recipe = Recipe("unet", sizes, sizes.prediction, 32, sizes.learning_rate, sizes.dropout, sizes.ema, 0, precision,
                    sizes.weighting)
    steps = training_steps(images, recipe, initial_state(images, recipe), 10**6)
    for _ in range(5):
        next(steps)
    start = time.perf_counter()
    count = sum(recipe.batch for _ in itertools.takewhile(lambda _: time.perf_counter() - start < seconds, steps))
    return count / (time.perf_counter() - start)


CELLS: dict[str, Callable[[], dict[str, Any]]] = {
    **{f"growth {along}": partial(growth, along) for along in ("N", "D", "batch", "threshold", "noise level")},
    **{f"memory {name}": partial(memory, name) for name in DATASETS},
    "plans mnist": partial(plans, "mnist"),
    "plans cifar10": partial(plans, "cifar10"),
    "plans celeba": partial(plans, "celeba"),
    **{f"within {name}": partial(within, name) for name in ("mnist", "cifar10", "celeba")},
    "exponents": exponents,
    "processes": processes,
    "training": training,
}


def done() -> dict[str, dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {row["cell"]: row for row in map(json.loads, lines)}


def _other_runs(cell: str) -> dict[str, list[float]]:
    """What earlier runs of a cell found: on a shared machine a ratio depends on the day, too."""
    before = done().get(cell, {})
    if "dense_to_within" not in before:
        return {}
    return {"other_runs": [*before.get("other_runs", []), round(before["dense_to_within"], 1)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--fresh", action="store_true", help="measure again what is in the results")
    arguments = parser.parse_args()
    for cell, measure in CELLS.items():
        if arguments.only not in cell or (cell in done() and not arguments.fresh):
            continue
        print(cell, file=sys.stderr)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            row = {"cell": cell, **process.submit(measure).result(), **_other_runs(cell), "environment": environment()}
        rows = {**done(), cell: row}
        RESULTS.write_text("".join(json.dumps(rows[name]) + "\n" for name in CELLS if name in rows))
    write_performance(done())


if __name__ == "__main__":
    main()
