"""Attribution measured on networks: what happens to a network's predictions when it is trained on other images?

    nice -n 19 python -m tools.attribution train RUNS [digits|fashion-mnist]     networks on random halves, resumable

Each network is trained on a random half of the images; a second seed on the same halves gives the upper bound. The
weights lie in RUNS. The same command resumes after an interruption.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from scorelens.data import ImageSet, load_images
from scorelens.files import atomic_file
from scorelens.networks.architectures import Preset, preset
from scorelens.networks.training_loop import Recipe, initial_state, training_steps


@dataclass(frozen=True)
class Study:
    """The data, and the recipe of its networks: tiny, so that hundreds can be trained."""

    data: str
    limit: int | None
    widths: tuple[int, ...]
    steps: int
    batch: int
    subsets: int = 64
    split_seed: int = 0

    @property
    def images(self) -> ImageSet:
        return _images(self.data, "train", self.limit)

    def recipe(self, seed: int) -> Recipe:
        sizes: Preset = replace(preset("small", self.images.shape), widths=self.widths)
        return Recipe("unet", sizes, "v", self.batch, 3e-3, 0.0, 0.99, seed, "float32", 0.5)

    def half(self, subset: int) -> np.ndarray:
        """The images of a random half, sorted."""
        count = len(self.images)
        return np.sort(np.random.default_rng((self.split_seed, subset)).permutation(count)[:count // 2])


STUDIES = {
    "digits": Study("digits", None, (16, 16), steps=600, batch=32, subsets=48),
    "fashion-mnist": Study("fashion-mnist", 3000, (16, 24, 24), steps=1200, batch=32, subsets=48),
}


@cache
def _images(data: str, split: str, limit: int | None) -> ImageSet:
    return load_images(data, split=split, limit=limit)


def train_network(study: Study, rows: Sequence[int] | np.ndarray, seed: int, path: Path) -> Path:
    """Train on these images only, unless the weights exist."""
    if not path.exists():
        images, recipe = study.images.subset(rows), study.recipe(seed)
        state = initial_state(images, recipe)
        for state in training_steps(images, recipe, state, study.steps):
            pass
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            save_file({name: value.contiguous() for name, value in state.averaged.state_dict().items()}, temporary)
    return path


def load_weights(study: Study, path: Path) -> torch.nn.Module:
    """The trained module."""
    model = initial_state(study.images, study.recipe(0)).averaged
    model.load_state_dict(load_file(path))
    return model


def jobs(study: Study) -> Iterator[tuple[int, int]]:
    """(subset, seed), first seeds first."""
    return ((subset, seed) for seed in (0, 1) for subset in range(study.subsets))


def weights_path(runs: Path, name: str, subset: int, seed: int) -> Path:
    return runs / name / f"half-{subset:03d}-seed-{seed}.safetensors"


def train(runs: Path, name: str) -> None:
    study = STUDIES[name]
    for subset, seed in jobs(study):
        train_network(study, study.half(subset), 1000 * seed + subset, weights_path(runs, name, subset, seed))
        print(f"{name}: half {subset}, seed {seed}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    command, folder, *names = sys.argv[1:]
    for each in names or STUDIES:
        {"train": train}[command](Path(folder), each)
