"""The networks on which attribution is measured: tiny, and trained side by side, so that hundreds can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import silu

from scorelens import seeded_noise
from scorelens.data import ImageSet, load_images
from scorelens.files import atomic_file

SPREAD = 0.7  # of the pixels, for the preconditioning
NOISE = (0.1, 5.0)  # noise levels of the training, log-uniform
SIGMAS, DRAWS = (0.3, 0.6, 1.2), 2  # at which losses are measured
RATE, EMA, GROUP = 2e-3, 0.99, 24  # GROUP networks are trained side by side


@dataclass(frozen=True)
class Study:
    """The data, and the recipe of its networks."""

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
    "digits": Study("digits", None, width=128, layers=1, steps=1200, batch=32),
    "fashion-mnist": Study("fashion-mnist", 3000, width=192, layers=1, steps=1200, batch=32),
}


@cache
def _images(data: str, split: str, limit: int | None) -> ImageSet:
    return load_images(data, split=split, limit=limit)


class SmallNetworks(nn.Module):
    """Residual networks of fully connected layers with EDM's preconditioning (Karras et al. 2022), side by side."""

    def __init__(self, count: int, dim: int, width: int, layers: int, generator: torch.Generator) -> None:
        super().__init__()
        shapes = {"first": (dim, width), "levels": (16, layers * width), "last": (width, dim),
                  **{f"layer{k}": (width, width) for k in range(layers)}}
        for name, (before, after) in shapes.items():
            one = torch.randn(count, before, after, generator=generator) / math.sqrt(before)
            self.register_parameter(f"{name}_weight", nn.Parameter(one * (name != "last")))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(count, 1, after)))
        self.layers = layers

    def forward(self, z: Tensor, sigma: Tensor) -> Tensor:
        """x0_hat of noisy images [E, B, D] at noise levels [E, B]: network e for row e."""
        angles = sigma.log()[:, :, None] * torch.arange(1, 9) * math.pi / 8
        shifts = self._linear("levels", torch.cat([angles.sin(), angles.cos()], dim=2)).chunk(self.layers, dim=2)
        sigma = sigma[:, :, None]
        norm = (sigma**2 + SPREAD**2).sqrt()
        hidden = self._linear("first", z / norm)
        for k, shift in enumerate(shifts):
            hidden = hidden + self._linear(f"layer{k}", silu(hidden + shift))
        return SPREAD**2 / norm**2 * z + sigma * SPREAD / norm * self._linear("last", silu(hidden))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return torch.baddbmm(getattr(self, f"{name}_bias"), x, getattr(self, f"{name}_weight"))


@dataclass(frozen=True)
class Member:
    """One of several networks, as a denoiser."""

    networks: SmallNetworks
    index: int

    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        return self.alone().requires_grad_(False)(z.flatten(1)[None], torch.full((1, len(z)), sigma))[0].view(z.shape)

    def alone(self) -> SmallNetworks:
        """The network on its own: a copy."""
        one = SmallNetworks.__new__(SmallNetworks)
        nn.Module.__init__(one)
        one.layers = self.networks.layers
        for name, value in self.networks.named_parameters():
            one.register_parameter(name, nn.Parameter(value[self.index:self.index + 1].detach().clone()))
        return one


def trained(study: Study, rows: Sequence[np.ndarray], seed: int, path: Path, alike: bool = False) -> list[Member]:
    """A network for each set of images, loaded if the weights exist; `alike`: all start equal and see equal noise."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(rows), study.images.dim, study.width, study.layers)
    model, averaged = SmallNetworks(*shape, generator), SmallNetworks(*shape, torch.Generator())
    if not path.exists():
        if alike:
            model.load_state_dict({name: value[:1].expand_as(value) for name, value in model.state_dict().items()})
        averaged.load_state_dict(model.state_dict())
        averaged.requires_grad_(False)
        _train(study, rows, model, averaged, generator, alike)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            save_file({name: value.contiguous() for name, value in averaged.state_dict().items()}, temporary)
    averaged.load_state_dict(load_file(path))
    return [Member(averaged, k) for k in range(len(rows))]


def _train(study: Study, rows: Sequence[np.ndarray], model: SmallNetworks, averaged: SmallNetworks,
           generator: torch.Generator, alike: bool) -> None:
    x0, least = study.images[:].flatten(1), min(map(len, rows))
    table = torch.stack([torch.from_numpy(np.random.default_rng(k).permutation(each)[:least])
                         for k, each in enumerate(rows)])  # [E, n]
    optimizer, drawn = torch.optim.Adam(model.parameters(), lr=RATE, fused=True), 1 if alike else len(rows)
    shape = (drawn, study.batch)
    for step in range(study.steps):
        chosen = torch.randint(least, shape, generator=generator).expand(len(rows), -1)
        batch = x0[table.gather(1, chosen)]  # [E, B, D]
        sigma = noise_levels(torch.rand(shape, generator=generator)).expand(len(rows), -1)
        z = batch + sigma[:, :, None] * torch.randn(*shape, x0.shape[1], generator=generator)
        loss = ((model(z, sigma) - batch).square().mean(dim=2) * loss_weight(sigma)).mean(dim=1).sum()
        decay = (1 + math.cos(math.pi * step / study.steps)) / 2
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 100) * decay
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - min(EMA, step / (step + 9)))


def loss_weight(sigma: Tensor) -> Tensor:
    """EDM's weight of the training loss at a noise level."""
    return (sigma**2 + SPREAD**2) / (sigma * SPREAD) ** 2


def noise_levels(draws: Tensor) -> Tensor:
    """Noise levels of the training from uniform draws: log-uniform."""
    low, high = (math.log(each) for each in NOISE)
    return torch.exp(low + (high - low) * draws)


def halves(runs: Path, study: Study, seed: int, group: int) -> list[Member]:
    """The networks of one group of halves."""
    chosen = range(group * GROUP, min((group + 1) * GROUP, study.subsets))
    path = runs / study.data / f"halves-{group}-seed-{seed}.safetensors"
    return trained(study, [study.half(k) for k in chosen], 1000 * seed + group, path)


def on_halves(runs: Path, study: Study) -> tuple[list[np.ndarray], list[tuple[Member, Member]]]:
    """The halves, and the two networks of each; trains those that are missing."""
    groups = range(-(-study.subsets // GROUP))
    first, second = ([each for group in groups for each in halves(runs, study, seed, group)] for seed in (0, 1))
    return [study.half(k) for k in range(study.subsets)], list(zip(first, second, strict=True))


def losses(denoiser: Callable[[Tensor, float], Tensor], x0: Tensor) -> Tensor:
    """The mean squared error on each image, over noise levels and draws that are the same for all denoisers."""
    errors = torch.zeros(len(x0), dtype=torch.float64)
    with torch.no_grad():
        for z, sigma in noisy(x0):
            errors += (denoiser(z, sigma) - x0).double().square().mean(dim=(1, 2, 3)) / (len(SIGMAS) * DRAWS)
    return errors


def noisy(x0: Tensor) -> Iterator[tuple[Tensor, float]]:
    """Noisy images and their noise levels, the same for all denoisers and methods."""
    for k in range(DRAWS):
        noise = seeded_noise(x0.shape[1:], range(1000 * k, 1000 * k + len(x0)))
        for sigma in SIGMAS:
            yield x0 + sigma * noise, sigma
