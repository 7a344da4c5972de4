"""`scorelens sample`: images from a closed-form denoiser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from scorelens import distributed, timings
from scorelens.analysis.comparison import sampled
from scorelens.analysis.models import build_spec
from scorelens.cli.plans import phase_table, plans, tell_plans
from scorelens.cli.run_folder import Run, run_folder
from scorelens.data.images import ImageSet, to_uint8
from scorelens.denoisers import denoiser_options
from scorelens.denoisers.specs import Spec
from scorelens.distributed import choose_device
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.report.figures import Row, image_grid, labelled_rows
from scorelens.results import noise_record
from scorelens.sampling import Step, finished
from scorelens.types import ScorelensError

SHOWN = 8  # samples in the picture of the trajectory
SHOWN_STEPS = 10


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
    place = choose_device(device)
    given = {**{name: p.default for name, p in denoiser_options(denoiser).items()}, **(options or {})}
    sigmas, seeds = ddim_sigmas(steps).tolist(), range(seed, seed + num)
    noise = seeded_noise(images.shape, seeds, device=place)
    if dry_run:
        tell_plans(build_spec(Spec(denoiser, dict(options or {})), images), images, noise, sigmas)
        return None
    with run_folder("sample", f"{images.name}-{denoiser}", out, place) as run, timings.collected() as phases:
        with timings.phase("statistics"):
            model = build_spec(Spec(denoiser, dict(options or {})), images)
        run.record.update(data=images.describe(), denoiser={"name": denoiser, **given}, sampler=sampler, sigmas=sigmas,
                          noise=noise_record(seeds, noise))
        found = sampled(model, noise, sigmas, method=sampler)
        run.record["step_seconds"] = found.seconds
        run.record.update(plans=plans(model, noise, sigmas), phase_seconds=dict(phases))
        if distributed.world().is_main:
            write_samples(run, found.steps, f"{denoiser} on {images.name}, {steps} steps", clip=sampler == "ddim")
    print(f"{num} images in {sum(run.record['step_seconds']):.1f} s; pictures: {run.final / 'grid.png'}, "
          f"{run.final / 'trajectory.png'}")
    if profile:
        print(f"\n{phase_table(phases, sum(run.record['step_seconds']))}")
    return run.final


def write_samples(run: Run, steps: list[Step], title: str, *, clip: bool) -> None:
    """images.npz and images/*.png, trajectory.npz, and the two pictures."""
    from PIL import Image

    final = finished(steps[-1], clip).clamp(-1, 1).cpu()
    np.savez(run.folder / "images.npz", images=to_uint8(final).transpose(0, 2, 3, 1), floats=final.numpy())
    np.savez(run.folder / "trajectory.npz", sigmas=np.array([s.sigma for s in steps]),
             z=np.stack([s.z.cpu().numpy() for s in steps]), x0_hat=np.stack([s.x0_hat.cpu().numpy() for s in steps]))
    (run.folder / "images").mkdir()
    for k, pixels in enumerate(to_uint8(final)):
        if pixels.shape[0] in (1, 3):
            Image.fromarray(pixels.transpose(1, 2, 0).squeeze()).save(run.folder / "images" / f"{k:05d}.png")
    image_grid(final[:100], run.folder / "grid.png", title=title)
    shown = [steps[k] for k in np.unique(np.linspace(0, len(steps) - 1, SHOWN_STEPS).round().astype(int))]
    strips = torch.stack([s.x0_hat[:SHOWN].cpu() for s in shown], dim=1)  # [samples, steps, C, H, W]
    labelled_rows([Row(f"sample {k}", strip) for k, strip in enumerate(strips)],
                  run.folder / "trajectory.png", title=f"x̂₀ along the trajectory: {title}",
                  columns=[f"σ = {s.sigma:.3g}" for s in shown])
