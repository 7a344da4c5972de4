"""`scorelens attribute`: the training images behind the samples of a formula or network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from scorelens.analysis import attribution as analysis
from scorelens.analysis.models import Loading
from scorelens.cli.load_networks import load_model
from scorelens.cli.run_folder import output_folder
from scorelens.cli.sensitivity import parse_pixel
from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device, world
from scorelens.networks.adapters import Network
from scorelens.noise import ddim_sigmas, own_sigmas, seeded_noise
from scorelens.report.fields import file_name
from scorelens.results import noise_record, run_record
from scorelens.sampling import sample
from scorelens.types import ScorelensError


def attribute(images: ImageSet, model: str = "locality", *, pixels: Sequence[str] = (), top: int = 10,
              formulas: Sequence[str] = analysis.FORMULAS, num: int = 1, steps: int = 10, seed: int = 0,
              skip_mosaics: bool = False, loading: Loading | None = None, device: str = "auto",
              out: Path | None = None) -> Path:
    """Find the training images behind samples: posterior weights at every step of the trajectory, tables and mosaics.

    Args:
        model: a denoiser with its options (locality:threshold=0.05), or a network, for which the best formula answers.
        pixels: output pixels to ask about, each ROW,COLUMN or centre; by default the whole image.
        top: number of training images.
        formulas: closed-form denoisers that may stand for a network.
        num: number of samples.
        steps: noise levels of the trajectory.
        seed: the noise of sample k is drawn from seed + k.
        skip_mosaics: draw no pictures of which pixel comes from which training image.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/attribute-...
    """
    if num < 1:
        raise ScorelensError(f"num must be at least 1, got {num}")
    analysis.check_top(top)
    asked = [parse_pixel(text, images) for text in pixels] or None
    denoiser = load_model(model, images, loading)
    if not analysis.has_weights(denoiser) and not isinstance(denoiser, Network):
        analysis.terms_of(denoiser, seeded_noise(images.shape, [0]), 1.0)  # raises
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    torch_device, seeds = choose_device(device), range(seed, seed + num)
    folder = output_folder("attribute", f"{images.name}-{file_name(model)}", out)
    noise = seeded_noise(images.shape, seeds, device=torch_device)
    grid = own_sigmas(denoiser.schedule, steps) if isinstance(denoiser, Network) else ddim_sigmas(steps)
    samples = sample(denoiser, noise, grid.tolist())
    who = analysis.attribute_samples(denoiser, samples, pixels=asked, top=top, outputs=not skip_mosaics, images=images,
                                     formulas=formulas)
    record = {"command": "attribute", "model": model, "pixels": asked, "top": top, "steps": steps,
              "noise": noise_record(seeds, noise), **run_record(started, clock, torch_device)}
    if world().is_main:
        who.save(folder, record)
    print(f"{who.table()}\n\npage: {folder / 'report.html'}")
    return folder
