"""Attribution measured on networks: what happens to a network's predictions when it is trained on other images?

    nice -n 19 python -m tools.attribution train RUNS [digits|fashion-mnist]     networks on random halves, resumable

Each network is trained on a random half of the images; a second seed on the same halves gives the upper bound. The
weights lie in RUNS. The same command resumes after an interruption.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import silu

from scorelens.data import ImageSet, load_images
from scorelens.files import atomic_file

SPREAD = 0.7  # of the pixels, for the preconditioning
NOISE = (0.1, 5.0)  # noise levels of the training, log-uniform
RATE, EMA, CLIP = 3e-3, 0.99, 1.0


@dataclass(frozen=True)
class Study:
    """The data, and the recipe of its networks: tiny, so that hundreds can be trained."""

    data: str
    limit: int | None
    width: int
    layers: int
    steps: int
    batch: int
    subsets: int = 48

    @property
    def images(self) -> ImageSet:
        return _images(self.data, "train", self.limit)

    @property
    def heldout(self) -> ImageSet:
        return _images(self.data, "test", None)

    def half(self, subset: int) -> np.ndarray:
        """The images of a random half, sorted."""
        count = len(self.images)
        return np.sort(np.random.default_rng((0, subset)).permutation(count)[:count // 2])


STUDIES = {
    "digits": Study("digits", None, width=192, layers=2, steps=1500, batch=64),
    "fashion-mnist": Study("fashion-mnist", 3000, width=256, layers=2, steps=1500, batch=64),
}


@cache
def _images(data: str, split: str, limit: int | None) -> ImageSet:
    return load_images(data, split=split, limit=limit)


class SmallNetwork(nn.Module):
    """A residual network of fully connected layers with EDM's preconditioning (Karras et al. 2022): a denoiser."""

    def __init__(self, dim: int, width: int, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(dim, width), nn.Linear(width, dim)
        self.levels = nn.Linear(16, layers * width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        nn.init.zeros_(self.last.weight)

    def forward(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        level = torch.as_tensor(sigma, dtype=z.dtype).expand(len(z))
        angles = level.log()[:, None] * torch.arange(1, 9) * math.pi / 8
        shifts = self.levels(torch.cat([angles.sin(), angles.cos()], dim=1)).unflatten(1, (len(self.layers), -1))
        sigma, flat = level[:, None], z.flatten(1)
        norm = (sigma**2 + SPREAD**2).sqrt()
        hidden = self.first(flat / norm)
        for k, layer in enumerate(self.layers):
            hidden = hidden + layer(silu(hidden + shifts[:, k]))
        return (SPREAD**2 / norm**2 * flat + sigma * SPREAD / norm * self.last(silu(hidden))).view(z.shape)


def train_network(study: Study, rows: Sequence[int] | np.ndarray, seed: int, path: Path) -> Path:
    """Train on these images only, unless the weights exist."""
    if path.exists():
        return path
    x0, generator = study.images[rows], torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model, averaged = (SmallNetwork(study.images.dim, study.width, study.layers) for _ in range(2))
    averaged.load_state_dict(model.state_dict())
    averaged.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    low, high = (math.log(each) for each in NOISE)
    for step in range(study.steps):
        batch = x0[torch.randint(len(x0), (study.batch,), generator=generator)]
        sigma = torch.exp(low + (high - low) * torch.rand(study.batch, generator=generator))
        z = batch + sigma.view(-1, 1, 1, 1) * torch.randn(batch.shape, generator=generator)
        weight = (sigma**2 + SPREAD**2) / (sigma * SPREAD) ** 2
        loss = ((model(z, sigma) - batch).square().mean(dim=(1, 2, 3)) * weight).mean()
        decay = (1 + math.cos(math.pi * step / study.steps)) / 2
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 100) * decay
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - min(EMA, step / (step + 9)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        save_file({name: value.contiguous() for name, value in averaged.state_dict().items()}, temporary)
    return path


def load_trained(study: Study, path: Path) -> SmallNetwork:
    model = SmallNetwork(study.images.dim, study.width, study.layers).requires_grad_(False)
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
