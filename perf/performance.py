"""The performance suite: ratios measured in one run, never bare times.

    make perf                                    everything that is not in the results yet
    python -m perf.performance --only cifar10    cells whose name contains a word
    python -m perf.performance --fresh           measure again what is in the results

Data are those under $SCORELENS_DATA. Each finished cell is a row of perf/results/performance.jsonl; an interrupted run
resumes with the next. `python -m tools.pages` writes docs/performance.md. Nothing else may run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch

import scorelens
from scorelens.denoisers import els as els_module
from scorelens.networks.architectures import preset
from scorelens.networks.training_loop import Recipe, initial_state, training_steps
from scorelens.posterior import queries, top_weights
from scorelens.results import environment, peak_memory
from scorelens.sampling import ddim_step

RESULTS = Path(__file__).parent / "results" / "performance.jsonl"
SEEDS = range(1000, 1008)  # noise that nothing was tuned on
THRESHOLD = 0.05
ROUNDS = 2  # that take turns; the best counts
CHECKED = 64  # outputs that are also computed in float64
MIDDLE = 5  # of the ten noise levels
BUSY = 4  # processes beside
DATASETS: dict[str, dict[str, Any]] = {
    "mnist": {"source": "mnist"}, "cifar10": {"source": "cifar10"}, "celeba": {"source": "celeba", "split": "all"},
    "tiny-imagenet": {"source": "tiny-imagenet"}}
FEW = {"celeba": 2, "tiny-imagenet": 2}  # of the 8 noisy images, on which the plans of torch are timed; else 8


def load(name: str, **options: Any) -> scorelens.ImageSet:
    return scorelens.load_images(**DATASETS[name], **options)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


@contextmanager
def torch_only() -> Iterator[None]:
    """Without the compiled kernels."""
    with mock.patch.object(queries, "available", lambda z: False), mock.patch.object(els_module, "available",
                                                                                       lambda z: False):
        yield


def by_torch(model: Callable[..., Any], z: torch.Tensor, sigma: float) -> torch.Tensor:
    with torch_only():
        return model(z, sigma)


def plans(name: str) -> dict[str, Any]:
    """Ten steps, batch 8, at the same points: the compiled kernel, the plan that torch would take, and the dense plan,
    which is the published code's, on one noisy image. And how far the first is from float64."""
    images = load(name)
    model, steps = scorelens.build_denoiser("locality", images, threshold=THRESHOLD), []
    dense, few = replace(model, plan="dense"), FEW.get(name, len(SEEDS))
    sigmas = scorelens.ddim_sigmas(10).tolist()
    z = scorelens.seeded_noise(images.shape, SEEDS) * (1 + sigmas[0] ** 2) ** 0.5
    pixels = torch.randperm(images.dim, generator=torch.Generator().manual_seed(0))[:CHECKED]
    model(z[:1], 1.0), by_torch(model, z[:1], 1.0)  # compiles, and measures the rates
    for sigma, following in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        mask_seconds, masks = timed(partial(model.masks, sigma))
        link_seconds, choice = timed(lambda sigma=sigma, z=z: model.choice(z, sigma))
        ways = (partial(model, z, sigma), partial(by_torch, model, z[:few], sigma), partial(dense, z[:1], sigma))
        taken = [[timed(way) for way in ways] for _ in range(ROUNDS)]
        fused, plain, slow = (min(seconds for seconds, _ in turns) for turns in zip(*taken, strict=True))
        x0_hat = taken[0][0][1]
        exact = model.at(z[:2].double(), sigma, pixels)
        with torch_only():
            torch_plan = model.choice(z, sigma).name
        steps.append({"sigma": sigma, "density": masks.keep.float().mean().item(),
                      "changes": choice.cost.entries / images.dim, "mask_seconds": mask_seconds + link_seconds,
                      "fused_seconds": fused, "torch_seconds": plain * len(SEEDS) / few, "torch_plan": torch_plan,
                      "dense_seconds": slow * len(SEEDS),
                      "error": (x0_hat[:2].flatten(1)[:, pixels] - exact).abs().max().item()})
        z = ddim_step(z, x0_hat, sigma, following, clip=True)
        print(f"  {name} sigma {sigma:.3g}: {slow * len(SEEDS):.1f} -> {plain * len(SEEDS) / few:.1f} -> {fused:.2f} s",
              file=sys.stderr)
    total = {key: sum(step[f"{key}_seconds"] for step in steps) for key in ("fused", "torch", "dense", "mask")}
    return {"threshold": THRESHOLD, "batch": len(SEEDS), "torch_batch": few, "images": len(images), "dim": images.dim,
            "steps": steps, "seconds": total, "torch_to_fused": total["torch"] / total["fused"],
            "dense_to_fused": total["dense"] / total["fused"]}


def patches(images_limit: int = 128) -> dict[str, Any]:
    """Ten steps of els on one noisy image, with the patch sizes fitted in the paper: compiled and by torch. Time is
    proportional to the number of images."""
    images = load("cifar10", limit=images_limit)
    model, steps = scorelens.build_denoiser("els", images), []
    for sigma in scorelens.ddim_sigmas(10).tolist():
        z = images[:1] + sigma * scorelens.seeded_noise(images.shape, SEEDS[:1])
        ways = (partial(model, z, sigma), partial(by_torch, model, z, sigma))
        ways[0]()
        taken = [[timed(way) for way in ways] for _ in range(ROUNDS)]
        fused, plain = (min(seconds for seconds, _ in turns) for turns in zip(*taken, strict=True))
        steps.append({"sigma": sigma, "fused_seconds": fused, "torch_seconds": plain,
                      "difference": (taken[0][0][1] - taken[0][1][1]).abs().max().item()})
        print(f"  els sigma {sigma:.3g}: {plain:.2f} -> {fused:.2f} s", file=sys.stderr)
    return {"images": images_limit, "steps": steps, "torch_to_fused": sum(step["torch_seconds"] for step in steps)
            / sum(step["fused_seconds"] for step in steps)}


def scaling() -> dict[str, Any]:
    """Ten steps of a sample, in a batch of 8, as N grows, with the masks of all 50,000 images: the dense plan (at the
    smallest N; it is linear), the compiled kernel, and its floor: masks of one pixel, where nothing is added up."""
    whole = load("cifar10")
    stats, sigmas = scorelens.fit_gaussian(whole), scorelens.ddim_sigmas(10).tolist()
    points = []
    for count in (3125, 6250, 12500, 25000, 50000):
        images = load("cifar10", limit=count)
        model = scorelens.build_denoiser("locality", images, threshold=THRESHOLD, stats=stats)
        floor = replace(model, masks=lambda sigma: queries.Masks(torch.eye(whole.dim, dtype=torch.bool), whole.shape))
        z = images[:len(SEEDS)] + scorelens.seeded_noise(images.shape, SEEDS)
        seconds = {}
        for name, way in {"fused": model, "floor": floor}.items():
            for sigma in sigmas:
                way(z[:1], sigma)
            taken = (sum(timed(partial(way, z, sigma))[0] for sigma in sigmas) for _ in range(3))
            seconds[name] = min(taken) / len(SEEDS)
        if not points:
            dense = replace(model, plan="dense")
            seconds["dense"] = sum(timed(partial(dense, z[:1], sigma))[0] for sigma in sigmas)
        points.append({"images": count, **seconds})
        print(f"  {points[-1]}", file=sys.stderr)
    return {"threshold": THRESHOLD, "points": points}


def large(count: int) -> dict[str, Any]:
    """Ten steps of 8 samples from Tiny-ImageNet at 64x64, with its statistics fitted: time and peak memory."""
    images = load("tiny-imagenet", limit=None if count == 100_000 else count)
    stats = scorelens.fit_gaussian(load("tiny-imagenet"))
    model = scorelens.build_denoiser("locality", images, threshold=THRESHOLD, stats=stats)
    noise, masks, steps = scorelens.seeded_noise(images.shape, SEEDS), 0.0, []
    sigmas = scorelens.ddim_sigmas(10)
    for sigma in sigmas.tolist():
        seconds, _ = timed(lambda sigma=sigma: model.choice(noise, sigma).plan)
        masks += seconds
    z = noise * (1 + sigmas[0].item() ** 2) ** 0.5
    for sigma, following in zip(sigmas.tolist(), [*sigmas[1:].tolist(), 0.0], strict=True):
        model.choice(z, sigma)
        seconds, x0_hat = timed(partial(model, z, sigma))
        steps.append(seconds)
        z = ddim_step(z, x0_hat, sigma, following, clip=True)
    return {"images": count, "dim": images.dim, "batch": len(SEEDS), "threshold": THRESHOLD, "mask_seconds": masks,
            "seconds": sum(steps), "peak_bytes": peak_memory()}


def sharing() -> dict[str, Any]:
    """A step alone and beside four busy processes; the rounds take turns."""
    images, stats = load("cifar10", limit=20_000), scorelens.fit_gaussian(load("cifar10"))
    model = scorelens.build_denoiser("locality", images, threshold=THRESHOLD, stats=stats)
    sigma = scorelens.ddim_sigmas(10)[MIDDLE].item()
    z = images[:8] + sigma * scorelens.seeded_noise(images.shape, SEEDS)
    points = {}
    for name, way in {"fused": model, "torch": partial(by_torch, model)}.items():
        way(z, sigma)
        alone, beside = [], []
        for _ in range(ROUNDS):
            alone.append(timed(partial(way, z, sigma))[0])
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
            try:
                time.sleep(1)
                beside.append(timed(partial(way, z, sigma))[0])
            finally:
                for process in busy:
                    process.kill()
        points[name] = min(beside) / min(alone)
        print(f"  {name}: {points[name]:.2f} times as long", file=sys.stderr)
    return {"busy": BUSY, "cores": os.cpu_count(), "images": len(images), "ratios": points}


def slider() -> dict[str, Any]:
    """What the app does when the threshold is moved: a prediction of one noisy image of MNIST, from all 60,000."""
    images = load("mnist")
    stats, sigma = scorelens.fit_gaussian(images), scorelens.ddim_sigmas(10)[MIDDLE].item()
    z = images[:1] + sigma * scorelens.seeded_noise(images.shape, SEEDS[:1])

    def redraw(threshold: float) -> torch.Tensor:
        return scorelens.build_denoiser("locality", images, threshold=threshold, stats=stats)(z, sigma)

    seconds = [timed(partial(redraw, tau))[0] for tau in (0.011, 0.013, 0.017, 0.023, 0.031, 0.047, 0.053)]
    return {"images": len(images), "sigma": sigma, "seconds": seconds[1:], "slowest": max(seconds[1:])}


def attribution(top: int = 10) -> dict[str, Any]:
    """The images with the most weight behind every output, against the plain step: CIFAR-10, eight noisy images."""
    images, held_out = load("cifar10"), scorelens.load_images("cifar10", split="test", limit=8)[:]
    model, steps = scorelens.build_denoiser("locality", images, threshold=0.05), []
    for sigma in scorelens.ddim_sigmas(10).tolist():
        z = held_out + sigma * scorelens.seeded_noise(images.shape, range(8))
        (term,) = model.terms(z, sigma)
        if not steps:  # compile, and read the images once
            model(z, sigma), top_weights(term, top)
        plain, weights = (min(timed(work)[0] for _ in range(2)) for work in (
            partial(model, z, sigma), partial(top_weights, term, top)))
        steps.append({"sigma": sigma, "plain_seconds": plain, "top_seconds": weights})
    ratio = sum(step["top_seconds"] for step in steps) / sum(step["plain_seconds"] for step in steps)
    return {"images": len(images), "top": top, "batch": 8, "steps": steps, "ratio": ratio}


def choice() -> dict[str, Any]:
    """Choosing the thresholds of CIFAR-10 at all ten noise levels: what `threshold="auto"` costs once. The
    statistics of all images are fitted already; those of the images that are not held out are not."""
    images = load("cifar10")
    with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, SCORELENS_CACHE=cache):
        model = scorelens.build_denoiser("locality", images, threshold="auto")
        seconds, chosen = timed(lambda: model.chosen(scorelens.ddim_sigmas(10).tolist()))
    return {"images": len(images), "seconds": seconds, "candidates": len(chosen[0]["errors"]["threshold"]),
            "thresholds": [level["threshold"] for level in chosen]}


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
    **{f"plans {name}": partial(plans, name) for name in ("cifar10", "mnist", "celeba")},
    "patches": patches,
    "sharing": sharing,
    "slider": slider,
    "scaling": scaling,
    **{f"large {count}": partial(large, count) for count in (100_000, 30_000, 10_000)},
    **{f"memory {name}": partial(memory, name) for name in ("mnist", "cifar10", "celeba")},
    "attribution": attribution,
    "choice": choice,
    "processes": processes,
    "training": training,
}


def done() -> dict[str, dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {row["cell"]: row for row in map(json.loads, lines)}


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
            row = {"cell": cell, **process.submit(measure).result(), "environment": environment()}
        rows = {**done(), cell: row}
        RESULTS.write_text("".join(json.dumps(rows[name]) + "\n" for name in CELLS if name in rows))


if __name__ == "__main__":
    main()
