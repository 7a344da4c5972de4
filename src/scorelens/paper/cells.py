"""What a cell of the benchmark measures: from its description to the numbers of its row, and a few pictures."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scorelens.analysis.comparison import agreement, originality
from scorelens.analysis.fields import Trajectories, field_rows, measured_fields, nine_pixels, wiener_fields
from scorelens.analysis.marks import measure_mark
from scorelens.analysis.models import build_spec
from scorelens.analysis.report_card import heldout_errors, one_step
from scorelens.data import load_images
from scorelens.data.edits import mark_mask
from scorelens.data.images import ImageSet, to_uint8
from scorelens.denoisers import DENOISERS
from scorelens.denoisers.locality import Locality
from scorelens.denoisers.specs import Spec
from scorelens.metrics import mse, novelty, precision_recall, r2, summary
from scorelens.networks.adapters import Network
from scorelens.networks.load import load_network
from scorelens.networks.zoo import another_seed
from scorelens.noise import own_sigmas, seeded_noise
from scorelens.paper.presets import ANOTHER_SEED, Cell, Data
from scorelens.posterior.sampled import ToleranceWarning
from scorelens.results import noise_record
from scorelens.sampling import Samples, sample
from scorelens.statistics import fit_gaussian
from scorelens.types import Denoiser, ScorelensError

SHOWN = 8  # samples whose pictures are kept
STRIPS = 2  # of them, with every prediction along the way
MARK = "W"
SAMPLER = "gradient-estimation"  # of the comparison with self-attention, as in the paper


@dataclass(frozen=True)
class Measured:
    """What a cell measured: metrics for its row, arrays for its pictures, and what it was measured on."""

    metrics: dict[str, Any]
    pictures: dict[str, np.ndarray] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)  # data, network, noise: fields of a Row


@dataclass(frozen=True)
class Place:
    """Where a cell runs: the device, the folder of datasets, and that of networks that come before the zoo's."""

    device: torch.device
    root: Path | None = None
    networks: Path | None = None

    def images(self, data: Data, limit: int | None = None) -> ImageSet:
        return _loaded(data, limit, self.root)

    def network(self, name: str, images: ImageSet) -> Network:
        own = self.networks / name if self.networks else None
        return load_network(own if own is not None and own.is_dir() else name, shape=images.shape)


def measure_cell(cell: Cell, place: Place) -> Measured:
    """Run one cell: on which data, against which network, from which noise, and what came out."""
    images = place.images(cell.data, cell.limit)
    noise = seeded_noise(images.shape, range(cell.seed, cell.seed + cell.num), device=place.device)
    found = KINDS[cell.kind](cell, place, images, noise)
    context = {"data": images.describe(), "network": place.network(cell.reference, images).describe(),
               "noise": noise_record(range(cell.seed, cell.seed + cell.num), noise)}
    return replace(found, context=context)


def samples(cell: Cell, place: Place, images: ImageSet, noise: Tensor) -> Measured:
    """A method's samples against the network's, from the same noise: the end and every step on the way."""
    reference = _reference_samples(cell, place)
    found = _sample(_model(cell, place, images), noise, [step.sigma for step in reference.steps], str(cell.method))
    row = {**agreement(found, reference), **originality(found, images), "path": _path(found, reference, images),
           "each": _each(found, reference),
           "seconds_per_image": sum(found.seconds) / cell.num}
    return Measured(row, {"samples": to_uint8(found.images[:SHOWN]), "reference": to_uint8(reference.images[:SHOWN]),
                       "steps": _strips(found), "reference_steps": _strips(reference)})


@dataclass
class Noted:
    """Locality within its tolerance, timed and compared with the exact model at the same points."""

    model: Locality
    path: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    exact_seconds: float = 0.0

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        level, tolerance = float(sigma), self.model.tolerance
        self.model.choice(z, level)  # makes the masks, which both need
        clock = time.perf_counter()
        exact = replace(self.model, tolerance=None)(z, sigma)
        self.exact_seconds += time.perf_counter() - clock
        clock = time.perf_counter()
        found = None if tolerance is None else self.model.approximate(z, level, tolerance)
        self.seconds += time.perf_counter() - clock
        x0_hat, n = exact if found is None else found.mean, len(self.model.images)
        self.path.append({"sigma": level, "rms": mse(x0_hat, exact).max().sqrt().item(),
                          "compared": 1.0 if found is None else found.drawn.double().mean().item() / n})
        return x0_hat


def within(cell: Cell, place: Place, images: ImageSet, noise: Tensor) -> Measured:
    """Samples of a method within a tolerance: against the network's, and each of its steps against the exact one."""
    reference, model = _reference_samples(cell, place), _model(cell, place, images)
    assert isinstance(model, Locality)
    noted = Noted(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ToleranceWarning)  # what was computed exactly instead is in the row
        found = _sample(noted, noise, [step.sigma for step in reference.steps], str(cell.method))
    return Measured({**agreement(found, reference), "each": _each(found, reference),
                  "path": noted.path, "rms": max(step["rms"] for step in noted.path),
                  "compared": sum(step["compared"] for step in noted.path) / len(noted.path),
                  "seconds_per_image": (noted.exact_seconds if model.tolerance is None else noted.seconds) / cell.num,
                  "exact_seconds_per_image": noted.exact_seconds / cell.num})


def heldout(cell: Cell, place: Place, images: ImageSet, noise: Tensor) -> Measured:
    """Held-out images, noised at every level and denoised in one step."""
    held_out = place.images((cell.data[0], (*(pair for pair in cell.data[1] if pair[0] != "split"), ("split", "test"))))
    if images.describe()["split"] == "all":
        raise ScorelensError(f"all of {cell.data[0]} is training data here, so nothing is held out; give --split train")
    if len(held_out) < cell.num:
        raise ScorelensError(f"{cell.data[0]} has {len(held_out)} held-out images, {cell.num} are needed")
    x0, model = held_out[:cell.num].to(place.device), _model(cell, place, images)
    levels = own_sigmas(place.network(cell.reference, images).schedule, cell.steps).tolist()
    errors = heldout_errors(model, x0, noise, levels, str(cell.method))
    return Measured({"test": held_out.describe(), "levels": [{"sigma": sigma, "mse": summary(each)}
                                                                 for sigma, each in zip(levels, errors, strict=True)]},
                 {"held_out": to_uint8(x0[:1]), "predictions": to_uint8(one_step(model, x0[0], noise[0], levels))})


def fields(cell: Cell, place: Place, images: ImageSet, noise: Tensor) -> Measured:
    """Mean sensitivity fields at nine pixels along the reference's trajectory, and how alike the Wiener filter's."""
    sigmas = own_sigmas(place.network(cell.reference, images).schedule, cell.steps).tolist()
    pixels = nine_pixels(images)
    linear = wiener_fields(fit_gaussian(images), images.shape, sigmas, pixels)
    found = linear
    if cell.method.denoiser != "wiener":
        name = str(cell.method)
        models: Mapping[str, Denoiser] = {name: _model(cell, place, images)}
        found = measured_fields(name, models, Trajectories(noise, sigmas, cell.steps), pixels, None, "z")
    rows = [{key: value for key, value in row.items() if key != "model"}
            for row in field_rows(str(cell.method), found, linear)]
    centre = found.values[:, len(pixels) // 2].sum(dim=1).cpu().numpy().astype(np.float32)  # [S, H, W]
    return Measured({"fields": rows}, {"centre": centre})


def marks(cell: Cell, place: Place, images: ImageSet, noise: Tensor) -> Measured:
    """The W experiment: the mark in the fields of one network."""
    network = place.network(cell.method.denoiser, images)
    mask = mark_mask(MARK, images.shape[1:])
    found = measure_mark(cell.method.denoiser, network, mask, noise, own_sigmas(network.schedule, cell.steps).tolist())
    return Measured({"gamma": found.gamma, "mark_pixels": int(mask.sum()), "marks": found.rows},
                 {"maps": found.maps[:, found.maps.shape[1] // 2].astype(np.float32)})


def quality(cell: Cell, place: Place, images: ImageSet, noise: Tensor) -> Measured:
    """How good a network's own samples are: precision and recall against the data, in the space of pixels."""
    network, reference = (place.network(name, images) for name in (cell.method.denoiser, cell.reference))
    sigmas = own_sigmas(network.schedule, cell.steps).tolist()
    found = _sample(network, noise, sigmas, cell.method.denoiser, SAMPLER)
    same = cell.method.denoiser == cell.reference
    other = found if same else _sample(reference, noise, sigmas, cell.reference, SAMPLER)
    real = images[:min(cell.num, len(images))].to(found.images)
    close = precision_recall(found.images, real)
    return Measured({"sampler": SAMPLER, "real_images": len(real), "precision": close.precision, "recall": close.recall,
                  "r2": summary(r2(found.prediction, other.prediction)), **originality(found, images)},
                 {"samples": to_uint8(found.images[:SHOWN])})


KINDS: dict[str, Callable[[Cell, Place, ImageSet, Tensor], Measured]] = {
    "samples": samples, "within": within, "heldout": heldout, "fields": fields, "marks": marks, "quality": quality}


@lru_cache(maxsize=3)
def _loaded(data: Data, limit: int | None, root: Path | None) -> ImageSet:
    options: dict[str, Any] = {**dict(data[1]), "limit": limit, "root": root}
    return load_images(data[0], **{key: value for key, value in options.items() if value is not None})


@torch.no_grad()
def _sample(denoiser: Denoiser, noise: Tensor, sigmas: Sequence[float], label: str, sampler: str = "ddim") -> Samples:
    return sample(denoiser, noise, sigmas, label=label, sampler=sampler)


def _reference_samples(cell: Cell, place: Place) -> Samples:
    return _reference_path(place, cell.reference, cell.data, range(cell.seed, cell.seed + cell.num), cell.steps)


@lru_cache(maxsize=2)
def _reference_path(place: Place, name: str, data: Data, seeds: range, steps: int) -> Samples:
    """The network's own samples: the same for all methods that are compared with it."""
    images = place.images(data)
    network = place.network(name, images)
    return _sample(network, seeded_noise(images.shape, seeds, device=place.device),
                   own_sigmas(network.schedule, steps).tolist(), name)


def _model(cell: Cell, place: Place, images: ImageSet) -> Denoiser:
    """A denoiser by its spec; else a network, from the folder of the place first."""
    method = cell.method
    if method.denoiser in DENOISERS:
        return build_spec(Spec(method.denoiser, dict(method.options)), images)
    name = another_seed(cell.reference) if method.denoiser == ANOTHER_SEED else method.denoiser
    if name is None:
        raise ScorelensError(f"there is no network that differs from {cell.reference} in its seed alone; "
                             f"train one as {cell.reference}-seed1")
    return place.network(name, images)


def _path(found: Samples, reference: Samples, images: ImageSet) -> list[dict[str, Any]]:
    """Both trajectories side by side: how far their predictions are apart, and from the nearest training image."""
    return [{"sigma": a.sigma, "mse": _spread(mse(a.x0_hat, b.x0_hat)),
             "novelty": _spread(novelty(a.x0_hat, images).mse),
             "reference_novelty": _spread(novelty(b.x0_hat, images).mse)}
            for a, b in zip(found.steps, reference.steps, strict=True)]


def _each(found: Samples, reference: Samples) -> dict[str, Sequence[float]]:
    """The scores of every sample."""
    pair = found.prediction, reference.prediction
    return {"r2": _rounded(r2(*pair)), "mse": _rounded(mse(*pair))}


def _strips(found: Samples) -> np.ndarray:
    return to_uint8(torch.stack([step.x0_hat[:STRIPS] for step in found.steps], dim=1).flatten(0, 1))


def _spread(values: Tensor) -> dict[str, float]:
    return {"mean": values.mean().item(), "std": values.std().item() if len(values) > 1 else 0.0}


def _rounded(values: Tensor) -> Sequence[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]
