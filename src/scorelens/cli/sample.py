"""`scorelens sample`: images from a closed-form denoiser."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from scorelens import sampling, timings
from scorelens.analysis.models import build_spec
from scorelens.cli.plans import phase_table, print_plans
from scorelens.cli.run_folder import output_folder
from scorelens.data.images import ImageSet
from scorelens.denoisers import denoiser_options
from scorelens.denoisers.specs import Spec
from scorelens.distributed import choose_device
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.results import noise_record, run_record
from scorelens.types import ScorelensError


def sample(images: ImageSet, denoiser: str = "locality", options: Mapping[str, Any] | None = None, *,
           num: int = 16, steps: int = 10, seed: int = 0,
           sampler: Literal["ddim", "euler", "heun", "gradient-estimation"] = "ddim",
           device: str = "auto", dry_run: bool = False, profile: bool = False, out: Path | None = None) -> Path | None:
    """Sample images from a closed-form denoiser of the data; returns the folder of the results.

    Args:
        denoiser: name of the denoiser: optimal, wiener, locality, kernel, els, ... (a wrong one lists them all).
        num: number of images.
        steps: number of noise levels, on the paper's grid.
        seed: the noise of image k is drawn from seed + k.
        sampler: ddim (diffusers' defaults), or a solver of dz/dsigma: euler, heun, gradient-estimation.
        device: auto, cuda, mps or cpu.
        dry_run: only tell the plan of each step and the time and memory it will take.
        profile: tell where the time went.
        out: folder for the results; it must not exist. By default runs/sample-...
    """
    if num < 1:
        raise ScorelensError(f"num must be at least 1, got {num}")
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    folder, chosen = output_folder("sample", f"{images.name}-{denoiser}", out), choose_device(device)
    given = {**{name: p.default for name, p in denoiser_options(denoiser).items()}, **(options or {})}
    sigmas, seeds = ddim_sigmas(steps).tolist(), range(seed, seed + num)
    noise = seeded_noise(images.shape, seeds, device=chosen)
    with timings.profiled() as ran:
        with timings.phase("statistics"):
            model = build_spec(Spec(denoiser, dict(options or {})), images)
        if dry_run:
            print_plans(model, images, noise, sigmas)
            return None
        result = sampling.sample(model, noise, sigmas, sampler=sampler)
    record = {"command": "sample", "data": images.describe(), "denoiser": {"name": denoiser, **given},
              "sampler": sampler, "noise": noise_record(seeds, noise), "plans": ran.plans,
              "phase_seconds": ran.seconds, **run_record(started, clock, chosen)}
    result.save(folder, f"{denoiser} on {images.name}, {steps} steps", record)
    print(f"{num} images in {sum(result.seconds):.1f} s; pictures: {folder / 'grid.png'}, {folder / 'trajectory.png'}")
    if profile:
        print(f"\n{phase_table(ran.seconds, sum(result.seconds))}")
    return folder
