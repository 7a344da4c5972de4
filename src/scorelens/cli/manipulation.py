"""`scorelens manipulation`: the W experiment. A mark in the training data appears in the network's fields."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from scorelens.analysis.marks import MARK_LEVELS, MARK_VISIBLE, mark_experiment
from scorelens.analysis.models import Loading
from scorelens.cli.load_networks import load_named
from scorelens.cli.run_folder import output_folder
from scorelens.data.edits import mark_mask
from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.results import noise_record, run_record
from scorelens.types import ScorelensError


def manipulation(images: ImageSet, model: Sequence[str], *, pattern: str = "W", num: int = 16, steps: int = 10,
                 seed: int = 0, loading: Loading | None = None, device: str = "auto", out: Path | None = None) -> Path:
    """Measure how visible a mark is in the fields of networks, trained on marked data or not.

    Args:
        model: networks trained on plain data and on marked data (scorelens train --mark W --gamma 0.5).
        pattern: the mark, a letter or an image file.
        num: number of trajectories that fields are averaged over.
        steps: number of noise levels, on the paper's grid.
        seed: the noise of trajectory k is drawn from seed + k.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/manipulation-...
    """
    if num < 1:
        raise ScorelensError(f"num must be at least 1, got {num}")
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    mask, torch_device = mark_mask(pattern, images.shape[1:]), choose_device(device)
    networks = {name: load_named(name, images, loading) for name in dict.fromkeys(model)}
    sigmas, seeds = ddim_sigmas(steps).tolist(), range(seed, seed + num)
    folder = output_folder("manipulation", images.name, out)
    noise = seeded_noise(images.shape, seeds, device=torch_device)
    result = mark_experiment(networks, mask, noise, sigmas)
    result.save(folder, {"command": "manipulation", "data": images.describe(), "networks": list(networks),
                         "pattern": pattern, "sigmas": sigmas, "noise": noise_record(seeds, noise),
                         **run_record(started, clock, torch_device)})
    print(f"{result.table()}\n\nvisibility: correlation of field and mark away from the pixel, mean over the noise "
          f"levels {MARK_LEVELS[0]:g} to {MARK_LEVELS[1]:g}; visible above {MARK_VISIBLE:g}\nfigures: "
          f"{folder / 'fields.png'}, {folder / 'gain.png'}")
    return folder
