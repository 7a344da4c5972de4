"""Attribution measured on networks: what happens to a network's predictions when it is trained on other images?

    nice -n 19 python -m tools.attribution train RUNS [digits|fashion-mnist]     networks on random halves
    nice -n 19 python -m tools.attribution score RUNS [digits|fashion-mnist]     their LDS, appended to the results
    nice -n 19 python -m tools.attribution remove RUNS [digits|fashion-mnist]    networks without the top images

Each network is trained on a random half of the images; a second seed on the same halves gives the upper bound. The
weights lie in RUNS, and the same command resumes after an interruption. Rows are appended to
perf/results/attribution.jsonl; of several rows with the same settings the last counts.

LDS, the linear datamodeling score: over the halves, the rank correlation between a network's loss on an image and the
loss that a method predicts for that half; mean over the images, with a bootstrap interval over them.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import silu

from scorelens import build_denoiser, ddim_sigmas, load_network, sample, seeded_noise, without
from scorelens.analysis.attribution import whole_weights
from scorelens.data import ImageSet, load_images
from scorelens.files import atomic_file

SPREAD = 0.7  # of the pixels, for the preconditioning
NOISE = (0.1, 5.0)  # noise levels of the training, log-uniform
SIGMAS, DRAWS = (0.3, 0.6, 1.2), 4  # at which losses are measured
TESTED = 32  # images of each kind
FORMULAS: dict[str, dict[str, Any]] = {"optimal": {}, "locality": {"threshold": 0.05}, "multiscale": {}}
RESAMPLES = 2000
RESULTS = Path(__file__).resolve().parents[1] / "perf" / "results" / "attribution.jsonl"
REMOVED, QUESTIONED = 0.05, 4  # share of the images that is removed, and generated images for which it is
RATE, EMA, GROUP = 2e-3, 0.99, 24  # GROUP networks are trained side by side


@dataclass(frozen=True)
class Study:
    """The data, and the recipe of its networks: tiny, and trained side by side, so that hundreds can be."""

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
        one = SmallNetworks.__new__(SmallNetworks)
        nn.Module.__init__(one)
        one.layers = self.networks.layers
        for name, value in self.networks.named_parameters():
            one.register_parameter(name, nn.Parameter(value[self.index:self.index + 1], requires_grad=False))
        return one(z.flatten(1)[None], torch.full((1, len(z)), sigma))[0].view(z.shape)


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
    (low, high), shape = (math.log(each) for each in NOISE), (drawn, study.batch)
    for step in range(study.steps):
        chosen = torch.randint(least, shape, generator=generator).expand(len(rows), -1)
        batch = x0[table.gather(1, chosen)]  # [E, B, D]
        sigma = torch.exp(low + (high - low) * torch.rand(shape, generator=generator)).expand(len(rows), -1)
        z = batch + sigma[:, :, None] * torch.randn(*shape, x0.shape[1], generator=generator)
        weight = (sigma**2 + SPREAD**2) / (sigma * SPREAD) ** 2
        loss = ((model(z, sigma) - batch).square().mean(dim=2) * weight).mean(dim=1).sum()
        decay = (1 + math.cos(math.pi * step / study.steps)) / 2
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 100) * decay
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - min(EMA, step / (step + 9)))


def halves(runs: Path, name: str, seed: int, group: int) -> tuple[list[int], list[Member]]:
    """The networks of one group of halves."""
    study = STUDIES[name]
    chosen = list(range(group * GROUP, min((group + 1) * GROUP, study.subsets)))
    path = group_path(runs, name, seed, group)
    return chosen, trained(study, [study.half(k) for k in chosen], 1000 * seed + group, path)


def group_path(runs: Path, name: str, seed: int, group: int) -> Path:
    return runs / name / f"halves-{group}-seed-{seed}.safetensors"


def train(runs: Path, name: str) -> None:
    """Train the first seed of all halves, then the second."""
    for seed in (0, 1):
        for group in range(-(-STUDIES[name].subsets // GROUP)):
            halves(runs, name, seed, group)
            print(f"{name}: group {group} of the halves, seed {seed}", flush=True)


def tested(study: Study) -> dict[str, Tensor]:
    """Held-out images, and images generated by the zoo's network."""
    network = load_network(f"{study.data}-unet")
    with torch.no_grad():
        generated = sample(network, seeded_noise(study.images.shape, range(TESTED)), ddim_sigmas(10)).images
    return {"held-out": study.heldout[:TESTED], "generated": generated}


def losses(denoiser: Callable[[Tensor, float], Tensor], x0: Tensor) -> Tensor:
    """The mean squared error on each image, over noise levels and draws that are the same for all denoisers."""
    errors = torch.zeros(len(x0), dtype=torch.float64)
    with torch.no_grad():
        for z, sigma in noisy(x0):
            errors += (denoiser(z, sigma) - x0).double().square().mean(dim=(1, 2, 3)) / (len(SIGMAS) * DRAWS)
    return errors


def noisy(x0: Tensor) -> Iterator[tuple[Tensor, float]]:
    for k in range(DRAWS):
        noise = seeded_noise(x0.shape[1:], range(1000 * k, 1000 * k + len(x0)))
        for sigma in SIGMAS:
            yield x0 + sigma * noise, sigma


def predictions(study: Study, x0: Tensor, halves: list[np.ndarray]) -> dict[str, Tensor]:
    """The loss [halves, images] that each method predicts, up to a monotone function for each image."""
    images, found = study.images, {}
    inside = torch.zeros(len(halves), len(images), dtype=torch.float64)
    for row, half in zip(inside, halves, strict=True):
        row[torch.from_numpy(half)] = 1
    for name, options in FORMULAS.items():
        model = build_denoiser(name, images, **options)
        every = np.arange(len(images))
        found[f"{name}, run on the half"] = torch.stack(
            [losses(without(model, np.setdiff1d(every, half)), x0) for half in halves])
        found[f"{name}, sum of weights"] = -inside @ mean_weights(model, x0).T
        print(f"{study.data}: {name} on {len(halves)} halves", flush=True)
    flat, data = x0.flatten(1).double(), images[:].flatten(1).double()
    cosine = torch.nn.functional.normalize(flat, dim=1) @ torch.nn.functional.normalize(data, dim=1).T
    found["pixel similarity, sum of cosines"] = -inside @ cosine.T
    nearest = torch.cdist(flat, data)
    found["pixel similarity, nearest image"] = torch.stack([nearest[:, half].amin(dim=1) for half in halves])
    return found


def mean_weights(model: Any, x0: Tensor) -> Tensor:
    """The weight of each training image, mean over outputs, noise levels and draws: [images, N]."""
    target = torch.full((1, model.images.dim), 1 / model.images.dim)
    with torch.no_grad():
        weights = [whole_weights(model, z, sigma, target)[:, 0] for z, sigma in noisy(x0)]
    return torch.stack(weights).mean(dim=0)


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Rank correlation of the columns of two tables [halves, images]; ties share their mean rank."""
    from scipy.stats import rankdata

    ranks = [torch.from_numpy(rankdata(each.numpy(), axis=0)) for each in (a, b)]
    x, y = (each - each.mean(dim=0) for each in ranks)
    return (x * y).sum(dim=0) / (x.square().sum(dim=0) * y.square().sum(dim=0)).sqrt().clamp(min=1e-12)


def interval(values: Tensor) -> dict[str, float]:
    """The mean, and its 95 % bootstrap interval."""
    draws = torch.randint(len(values), (RESAMPLES, len(values)), generator=torch.Generator().manual_seed(0))
    low, high = values[draws].mean(dim=1).quantile(torch.tensor([0.025, 0.975], dtype=values.dtype)).tolist()
    return {"mean": values.mean().item(), "low": low, "high": high}


def append(row: dict[str, Any]) -> None:
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**row, "date": time.strftime("%Y-%m-%d")}) + "\n")


def score(runs: Path, name: str) -> None:
    """LDS of every method on the halves whose networks exist."""
    study = STUDIES[name]
    networks: dict[int, dict[int, Member]] = {0: {}, 1: {}}
    for seed, group in product((0, 1), range(-(-study.subsets // GROUP))):
        if group_path(runs, name, seed, group).exists():
            networks[seed].update(zip(*halves(runs, name, seed, group), strict=True))
    first, both = list(networks[0]), [k for k in networks[0] if k in networks[1]]
    for kind, x0 in tested(study).items():
        measured = {seed: torch.stack([losses(networks[seed][k], x0) for k in chosen])
                    for seed, chosen in ((0, first), (1, both)) if len(chosen) > 1}
        common = {"study": name, "images": kind, "tested": len(x0), "training_images": len(study.images),
                  "steps": study.steps, "width": study.width}
        for method, predicted in predictions(study, x0, [study.half(k) for k in first]).items():
            correlation = spearman(predicted, measured[0])
            append({"what": "lds", "method": method, "lds": interval(correlation), "subsets": len(first), **common})
        if 1 in measured:
            rows = [first.index(k) for k in both]
            correlation = spearman(measured[0][rows], measured[1])
            append({"what": "lds", "method": "another seed on the same halves", "lds": interval(correlation),
                    "subsets": len(both), **common})
        append({"what": "loss", "losses": interval(measured[0].mean(dim=0)), "subsets": len(first), **common})


def remove(runs: Path, name: str) -> None:
    """Networks without the images with the most weight behind a generated image, and without random ones: how much
    does the prediction of the image change, relative to a network of all images?"""
    study, folder = STUDIES[name], runs / name
    x0 = tested(study)["generated"][:QUESTIONED]
    every, count = np.arange(len(study.images)), round(REMOVED * len(study.images))
    orders: dict[str, Tensor] = {method: mean_weights(build_denoiser(method, study.images, **options), x0)
                                 for method, options in FORMULAS.items()}
    orders["pixel similarity"] = -torch.cdist(x0.flatten(1), study.images[:].flatten(1))
    for seed in (0, 1):
        orders[f"random {seed}"] = torch.rand(len(x0), len(every), generator=torch.Generator().manual_seed(seed))
    rows = [np.setdiff1d(every, one.topk(count).indices.numpy()) for order in orders.values() for one in order]
    # the same number of images, the same start and the same noise for all; only the images differ
    whole, again, *without_them = trained(study, [every, every, *rows], 0, folder / "removed.safetensors", alike=True)
    another = trained(study, [every], 1, folder / "another-seed.safetensors")[0]
    changes: dict[str, list[float]] = {"nothing, another order": change(again, whole, x0).tolist(),
                                       "nothing, another seed": change(another, whole, x0).tolist()}
    for k, (method, network) in enumerate(zip([name for name in orders for _ in x0], without_them, strict=True)):
        changes.setdefault(method.rstrip(" 01"), []).append(change(network, whole, x0)[k % len(x0)].item())
    for method, values in changes.items():
        append({"what": "removal", "study": name, "method": method, "removed": count, "images": len(x0),
                "training_images": len(every), "change": interval(torch.tensor(values, dtype=torch.float64)),
                "steps": study.steps, "width": study.width})


def change(network: Member, reference: Member, x0: Tensor) -> Tensor:
    """The rms difference of two networks' predictions for each image, over noise levels and draws."""
    with torch.no_grad():
        squares = [(network(z, sigma) - reference(z, sigma)).square().mean(dim=(1, 2, 3)) for z, sigma in noisy(x0)]
    return torch.stack(squares).mean(dim=0).sqrt()


if __name__ == "__main__":
    torch.set_num_threads(1)
    command, folder, *names = sys.argv[1:]
    for each in names or STUDIES:
        {"train": train, "score": score, "remove": remove}[command](Path(folder), each)
