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
    first = [k for k in range(study.subsets) if weights_path(runs, name, k, 0).exists()]
    both = [k for k in first if weights_path(runs, name, k, 1).exists()]
    for kind, x0 in tested(study).items():
        measured = {seed: torch.stack([losses(load_trained(study, weights_path(runs, name, k, seed)), x0)
                                       for k in chosen]) for seed, chosen in ((0, first), (1, both)) if len(chosen) > 1}
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
    whole = [load_trained(study, train_network(study, every, seed, folder / f"all-seed-{seed}.safetensors"))
             for seed in (0, 1)]
    orders: dict[str, Tensor] = {method: mean_weights(build_denoiser(method, study.images, **options), x0)
                                 for method, options in FORMULAS.items()}
    orders["pixel similarity"] = -torch.cdist(x0.flatten(1), study.images[:].flatten(1))
    for seed in (0, 1):
        orders[f"random {seed}"] = torch.rand(len(x0), len(every), generator=torch.Generator().manual_seed(seed))
    changes: dict[str, list[float]] = {"another seed": change(whole[1], whole[0], x0).tolist()}
    for method, order in orders.items():
        for k in range(len(x0)):
            removed = order[k].topk(count).indices.numpy()
            path = folder / f"without-{method.replace(' ', '-')}-{k}.safetensors"
            network = load_trained(study, train_network(study, np.setdiff1d(every, removed), 0, path))
            changes.setdefault(method.rstrip(" 01"), []).append(change(network, whole[0], x0)[k].item())
            print(f"{name}: without the top of {method}, image {k}", flush=True)
    for method, values in changes.items():
        append({"what": "removal", "study": name, "method": method, "removed": count, "images": len(x0),
                "training_images": len(every), "change": interval(torch.tensor(values, dtype=torch.float64)),
                "steps": study.steps, "width": study.width})


def change(network: nn.Module, reference: nn.Module, x0: Tensor) -> Tensor:
    """The rms difference of two networks' predictions for each image, over noise levels and draws."""
    with torch.no_grad():
        squares = [(network(z, sigma) - reference(z, sigma)).square().mean(dim=(1, 2, 3)) for z, sigma in noisy(x0)]
    return torch.stack(squares).mean(dim=0).sqrt()


if __name__ == "__main__":
    torch.set_num_threads(1)
    command, folder, *names = sys.argv[1:]
    for each in names or STUDIES:
        {"train": train, "score": score, "remove": remove}[command](Path(folder), each)
