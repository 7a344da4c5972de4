"""`scorelens sample`: images from a closed-form denoiser or a network."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from scorelens import sampling, timings
from scorelens.analysis.guidance import choose_guidance
from scorelens.analysis.models import Loading, build_spec
from scorelens.cli.load_networks import load_model
from scorelens.cli.run_folder import output_folder
from scorelens.data.images import ImageSet
from scorelens.denoisers import denoiser_options
from scorelens.denoisers.specs import Spec
from scorelens.distributed import choose_device
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.report.chosen import chosen_figure, chosen_table
from scorelens.report.tables import markdown
from scorelens.results import noise_record, run_record
from scorelens.types import Denoiser, ScorelensError

WORKSPACE = 0.5e9  # bytes of the engine and of torch


def sample(images: ImageSet, denoiser: str = "locality", options: Mapping[str, Any] | None = None, *,
           num: int = 16, steps: int = 10, seed: int = 0,
           sampler: Literal["ddim", "euler", "heun", "gradient-estimation"] = "ddim", labels: Sequence[str] = (),
           guidance: float | None = None, network: str | None = None, loading: Loading | None = None,
           device: str = "auto", dry_run: bool = False, profile: bool = False, out: Path | None = None) -> Path | None:
    """Sample images from a closed-form denoiser of the data, or from a network; returns the folder of the results.

    Args:
        denoiser: name of the denoiser: optimal, wiener, locality, kernel, els, ... (an unknown name lists them all).
        num: number of images.
        steps: number of noise levels, on the paper's grid.
        seed: the noise of image k is drawn from seed + k.
        sampler: ddim (diffusers' defaults), or a solver of dz/dsigma: euler, heun, gradient-estimation.
        labels: classes of the images, by name or number, repeated as often as needed.
        guidance: weight of classifier-free guidance towards these classes: 0 ignores them, 1 (the default) samples the
            conditional denoiser, more exaggerates them.
        network: sample this network instead: a zoo name, a folder saved by diffusers, a hub id or a checkpoint file.
        device: auto, cuda, mps or cpu.
        dry_run: only print the plan of each step, and the expected time and memory.
        profile: print the time of each phase.
        out: folder for the results; it must not exist. By default runs/sample-...
    """
    if num < 1:
        raise ScorelensError(f"num must be at least 1, got {num}")
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    name, towards = denoiser if network is None else Path(network).name, choose_guidance(images, labels, guidance, num)
    folder, torch_device = output_folder("sample", f"{images.name}-{name}", out), choose_device(device)
    given = {**{name: p.default for name, p in denoiser_options(denoiser).items()}, **(options or {})}
    sigmas, seeds = ddim_sigmas(steps).tolist(), range(seed, seed + num)
    noise = seeded_noise(images.shape, seeds, device=torch_device)
    with timings.profiled() as ran:
        with timings.phase("statistics"):
            model = build_spec(Spec(denoiser, dict(options or {})), images, guidance=towards) if network is None else \
                load_model(network, images, loading, towards)
        if dry_run:
            print_plans(model, images, noise, sigmas)
            return None
        result = sampling.sample(model, noise, sigmas, sampler=sampler)
    chosen = model.chosen(sigmas) if hasattr(model, "chosen") else []
    record = {"command": "sample", "data": images.describe(),
              **({"denoiser": {"name": denoiser, **given}} if network is None else {"network": network}),
              "guidance": towards and towards.describe(), "chosen": chosen, "sampler": sampler,
              "noise": noise_record(seeds, noise), "plans": ran.plans, "phase_seconds": ran.seconds,
              **run_record(started, clock, torch_device)}
    figures = {"chosen.png": chosen_figure(chosen)} if chosen else {}
    title = f"{name} on {images.name}, {steps} steps" + (f", {towards}" if towards else "")
    result.save(folder, title, record, figures, None if images.autoencoder is None else images.pictures)
    print(f"{num} images in {sum(result.seconds):.1f} s; figures: {folder / 'grid.png'}, {folder / 'trajectory.png'}")
    if profile:
        print(f"\n{phase_table(ran.seconds, sum(result.seconds))}")
    return folder


def print_plans(model: Denoiser, images: ImageSet, noise: Tensor, sigmas: Sequence[float]) -> None:
    """Print the plan of each noise level, and the expected time and memory of the run.

    To choose a plan, masks are computed, as in the run: this time counts.
    """
    choose, rows, clock = getattr(model, "choice", None), [], time.perf_counter()
    if choose is not None:
        chosen = [choose(noise, sigma) for sigma in sigmas]
        rows = [candidate.describe(len(noise), candidate.rows) for candidate in chosen]
        preparing = time.perf_counter() - clock
        print(markdown(["sigma", "plan", "operations / D²", "expected s"], [
            [f"{sigma:.4g}", row["plan"], f"{row['operations_per_pair'] / images.dim**2:.3f}",
             f"{row['expected_seconds']:.1f}"] for sigma, row in zip(sigmas, rows, strict=True)]))
    if hasattr(model, "chosen"):
        print(f"\nchosen on held-out training images:\n\n{chosen_table(model.chosen(sigmas))}")
    seconds = preparing + sum(row["expected_seconds"] for row in rows) if rows else _timed(model, noise, sigmas)
    stats = getattr(model, "stats", None)
    covariance = images.dim**2 if stats is None else stats.eigenvectors.numel()
    memory = images.pixels.nbytes + 4 * 8 * covariance + WORKSPACE  # data, covariance and eigenvectors
    print(f"\n{len(noise)} images, {len(sigmas)} steps: {_duration(seconds)}, {memory / 1e9:.1f} GB; nothing was "
          "sampled or written")


def _timed(model: Denoiser, noise: Tensor, sigmas: Sequence[float]) -> float:
    """Seconds of a run of a method without plans, from one image at the first, middle and last noise level.

    The first call at a noise level may fit something that the others reuse: it counts once, and not for each image.
    """
    def seconds(sigma: float) -> float:
        clock = time.perf_counter()
        model(noise[:1] * max(1.0, sigma), sigma)
        return time.perf_counter() - clock

    chosen = sorted({0, len(sigmas) // 2, len(sigmas) - 1})
    seconds(sigmas[0])  # fits what all levels share
    calls = [(seconds(sigmas[k]), seconds(sigmas[k])) for k in chosen]
    return sum(max(first - again, 0.0) + again * len(noise) for first, again in calls) / len(chosen) * len(sigmas)


def phase_table(phases: Mapping[str, float], steps: float) -> str:
    """Seconds by phase; everything else is the sampler and Python."""
    rest = max(0.0, steps + phases.get("statistics", 0.0) - sum(phases.values()))
    total = max(sum(phases.values()) + rest, 1e-9)
    rows = sorted([*phases.items(), ("everything else", rest)], key=lambda row: -row[1])
    return markdown(["phase", "s", "share"], [[name, f"{value:.2f}", f"{value / total:.0%}"] for name, value in rows])


def _duration(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds > 2 * size:
            return f"about {seconds / size:.1f} {unit}"
    return f"about {seconds:.1f} s" if seconds >= 0.05 else "less than 0.1 s"
