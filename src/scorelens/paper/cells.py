"""The measurements of the benchmark: from the description of a cell to the metrics of its row, and a few images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scorelens.analysis.comparison import agreement, originality, single_steps
from scorelens.analysis.fields import Trajectories, field_rows, measured_fields, nine_pixels, wiener_fields
from scorelens.analysis.guidance import Guidance, choose_guidance
from scorelens.analysis.marks import measure_mark
from scorelens.analysis.models import Loading, build_spec
from scorelens.analysis.report_card import heldout_errors, one_step
from scorelens.data import load_images
from scorelens.data.edits import mark_mask
from scorelens.data.images import ImageSet, to_uint8
from scorelens.denoisers import DENOISERS
from scorelens.denoisers.held_out_error import held_out_error
from scorelens.denoisers.specs import Spec
from scorelens.metrics import mse, novelty, precision_recall, r2, summary
from scorelens.networks.adapters import Network
from scorelens.networks.zoo import another_seed
from scorelens.noise import own_sigmas, seeded_noise
from scorelens.paper.presets import ANOTHER_SEED, GUIDANCE, Cell, Data
from scorelens.results import noise_record
from scorelens.sampling import Samples, Step, sample
from scorelens.statistics import fit_gaussian
from scorelens.types import Denoiser, ScorelensError

SHOWN = 8  # samples whose images are stored
STRIPS = 2  # of them, with the predictions of all steps
MARK = "W"
SAMPLER = "gradient-estimation"  # for the comparison with self-attention, as in the paper


@dataclass(frozen=True)
class Measured:
    """The metrics of a cell, arrays for its figures, and its data, network and noise (fields of a Row)."""

    metrics: dict[str, Any]
    pictures: dict[str, np.ndarray] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resources:
    """The device, the folder of datasets, a folder of networks that take precedence over the zoo's."""

    device: torch.device
    root: Path | None = None
    networks: Path | None = None
    loading: Loading = field(default_factory=Loading)  # of networks outside the zoo

    def images(self, data: Data, limit: int | None = None) -> ImageSet:
        return _load_images(data, limit, self.root)

    def network(self, name: str, images: ImageSet) -> Network:
        own = self.networks / name if self.networks else None
        return _load_network(str(own) if own is not None and own.is_dir() else name, images, self.loading)


def measure_cell(cell: Cell, resources: Resources) -> Measured:
    """Run one cell."""
    images = resources.images(cell.data, cell.limit)
    noise = seeded_noise(images.shape, cell.seeds, device=resources.device)
    measured = KINDS[cell.kind](cell, resources, images, noise)
    return replace(measured, context={"data": images.describe(), "noise": noise_record(cell.seeds, noise),
                                      "network": resources.network(cell.reference, images).describe()})


def samples(cell: Cell, resources: Resources, images: ImageSet, noise: Tensor) -> Measured:
    """Samples of a method and of the network from the same noise, compared at the end and at every step."""
    reference = _reference_samples(resources, cell.reference, cell.data, cell.seeds, cell.steps)
    result = _sample(_model(cell, resources, images), noise, [step.sigma for step in reference.steps], str(cell.method))
    metrics = {**agreement(result, reference), **originality(result, images), "path": _path(result, reference, images),
               "each": _each(result, reference), "seconds_per_image": sum(result.seconds) / cell.num}
    return Measured(metrics, {"samples": to_uint8(result.images[:SHOWN]), "steps": _strips(result),
                              "reference": to_uint8(reference.images[:SHOWN]), "reference_steps": _strips(reference)})


def heldout(cell: Cell, resources: Resources, images: ImageSet, noise: Tensor) -> Measured:
    """Errors on held-out images: noise of each level, denoised in one step."""
    source, options = cell.data
    held_out = resources.images((source, (*(pair for pair in options if pair[0] != "split"), ("split", "test"))))
    if images.describe()["split"] == "all":
        raise ScorelensError(f"all of {source} is training data here, so nothing is held out; give --split train")
    if len(held_out) < cell.num:
        raise ScorelensError(f"{source} has {len(held_out)} held-out images, but {cell.num} are needed")
    x0, model = held_out[:cell.num].to(resources.device), _model(cell, resources, images)
    sigmas = own_sigmas(resources.network(cell.reference, images).schedule, cell.steps).tolist()
    errors = heldout_errors(model, x0, noise, sigmas, str(cell.method))
    levels = [{"sigma": sigma, "mse": summary(each)} for sigma, each in zip(sigmas, errors, strict=True)]
    return Measured({"test": held_out.describe(), "levels": levels},
                    {"held_out": to_uint8(x0[:1]), "predictions": to_uint8(one_step(model, x0[0], noise[0], sigmas))})


def claim(cell: Cell, resources: Resources, images: ImageSet, noise: Tensor) -> Measured:
    """At each noise level, the error on held-out training images, and r2 of single steps with the network's, from the z
    of the network's trajectories. The error involves no network."""
    reference = _reference_samples(resources, cell.reference, cell.data, cell.seeds, cell.steps)
    name, options = cell.method.denoiser, dict(cell.method.options)
    steps = single_steps(_model(cell, resources, images), reference, str(cell.method))
    levels = [{"sigma": step["sigma"], "error": held_out_error(name, images, step["sigma"], **options),
               "r2": step["r2"]} for step in steps]
    return Measured({"levels": levels})


def fields(cell: Cell, resources: Resources, images: ImageSet, noise: Tensor) -> Measured:
    """Mean sensitivity fields at nine pixels along the model's trajectories, and their cosine with the Wiener rows."""
    sigmas = own_sigmas(resources.network(cell.reference, images).schedule, cell.steps).tolist()
    pixels, name = nine_pixels(images), str(cell.method)
    measured = linear = wiener_fields(fit_gaussian(images), images.shape, sigmas, pixels)
    if cell.method.denoiser != "wiener":
        measured = measured_fields(name, {name: _model(cell, resources, images)},
                                   Trajectories(noise, sigmas, cell.steps), pixels, None, "z")
    rows = [{key: value for key, value in row.items() if key != "model"} for row in field_rows(name, measured, linear)]
    centre = measured.values[:, len(pixels) // 2].sum(dim=1).cpu().numpy().astype(np.float32)  # [S, H, W]
    return Measured({"fields": rows}, {"centre": centre})


def marks(cell: Cell, resources: Resources, images: ImageSet, noise: Tensor) -> Measured:
    """The W experiment: the mark in the fields of one network."""
    network = resources.network(cell.method.denoiser, images)
    mask = mark_mask(MARK, images.shape[1:])
    sigmas = own_sigmas(network.schedule, cell.steps).tolist()
    marked = measure_mark(cell.method.denoiser, network, mask, noise, sigmas)
    return Measured({"gamma": marked.gamma, "mark_pixels": int(mask.sum()), "marks": marked.rows},
                    {"maps": marked.maps[:, marked.maps.shape[1] // 2].astype(np.float32)})


def quality(cell: Cell, resources: Resources, images: ImageSet, noise: Tensor) -> Measured:
    """Precision and recall of a network's samples against the data, on pixels."""
    network, reference = (resources.network(name, images) for name in (cell.method.denoiser, cell.reference))
    sigmas = own_sigmas(network.schedule, cell.steps).tolist()
    result = other = _sample(network, noise, sigmas, cell.method.denoiser, SAMPLER)
    if cell.method.denoiser != cell.reference:
        other = _sample(reference, noise, sigmas, cell.reference, SAMPLER)
    real = images[:min(cell.num, len(images))].to(result.images)
    close = precision_recall(result.images, real)
    return Measured({"sampler": SAMPLER, "real_images": len(real), "precision": close.precision, "recall": close.recall,
                     "r2": summary(r2(result.prediction, other.prediction)), **originality(result, images)},
                    {"samples": to_uint8(result.images[:SHOWN])})


def guided(cell: Cell, resources: Resources, images: ImageSet, noise: Tensor) -> Measured:
    """Guided samples of a method and of the network, from the same noise and of the same classes.

    For the weight 1 also, at each step of the network's trajectory, the cosine between the directions of guidance.
    """
    network, options = resources.network(cell.reference, images), dict(cell.method.options)
    towards = choose_guidance(images, cell.labels, options.pop(GUIDANCE), cell.num)
    assert towards is not None
    reference = _guided_samples(resources, cell.reference, cell.data, cell.seeds, cell.steps, towards)
    spec = Spec(cell.method.denoiser, options)
    model = build_spec(spec, images, network, towards)
    result = _sample(model, noise, [step.sigma for step in reference.steps], str(cell.method))
    metrics = {**agreement(result, reference), "each": _each(result, reference),
               "seconds_per_image": sum(result.seconds) / cell.num}
    if towards.weight == 1:
        metrics["directions"] = _directions(model, build_spec(spec, images, network), network, reference.steps)
    return Measured(metrics, {"samples": to_uint8(result.images[:SHOWN]),
                              "reference": to_uint8(reference.images[:SHOWN])})


@torch.no_grad()
def _directions(conditional: Denoiser, unconditional: Denoiser, network: Network,
                steps: Sequence[Step]) -> list[dict[str, float]]:
    """Cosine between the formula's c - u and the network's at each step of the conditional network's trajectory."""
    rows = []
    for step in steps:
        theirs = step.x0_hat - network.unconditional()(step.z, step.sigma)
        ours = conditional(step.z, step.sigma) - unconditional(step.z, step.sigma)
        cosines = torch.cosine_similarity(ours.flatten(1), theirs.flatten(1))
        rows.append({"sigma": step.sigma, "cosine": cosines.mean().item(),
                     "length": (ours.flatten(1).norm(dim=1) / theirs.flatten(1).norm(dim=1)).median().item()})
    return rows


KINDS: dict[str, Callable[[Cell, Resources, ImageSet, Tensor], Measured]] = {
    "samples": samples, "heldout": heldout, "claim": claim, "fields": fields, "marks": marks, "quality": quality,
    "guided": guided}


@lru_cache(maxsize=3)
def _load_network(name: str, images: ImageSet, loading: Loading) -> Network:
    return loading.network(name, images)


@lru_cache(maxsize=3)
def _load_images(data: Data, limit: int | None, root: Path | None) -> ImageSet:
    return load_images(data[0], **{**dict(data[1]), "limit": limit, "root": root})


@torch.no_grad()
def _sample(denoiser: Denoiser, noise: Tensor, sigmas: Sequence[float], label: str, sampler: str = "ddim") -> Samples:
    return sample(denoiser, noise, sigmas, label=label, sampler=sampler)


@lru_cache(maxsize=2)
def _reference_samples(resources: Resources, name: str, data: Data, seeds: range, steps: int) -> Samples:
    """The network's own samples, shared by all methods that are compared with it."""
    images = resources.images(data)
    network = resources.network(name, images)
    return _sample(network, seeded_noise(images.shape, seeds, device=resources.device),
                   own_sigmas(network.schedule, steps).tolist(), name)


@lru_cache(maxsize=2)
def _guided_samples(resources: Resources, name: str, data: Data, seeds: range, steps: int,
                    towards: Guidance) -> Samples:
    """The guided network's samples, shared by all methods that are compared with it."""
    images = resources.images(data)
    network = resources.network(name, images)
    return _sample(towards.network(network), seeded_noise(images.shape, seeds, device=resources.device),
                   own_sigmas(network.schedule, steps).tolist(), f"{name}, {towards}")


def _model(cell: Cell, resources: Resources, images: ImageSet) -> Denoiser:
    method = cell.method
    if method.denoiser in DENOISERS:
        return build_spec(Spec(method.denoiser, dict(method.options)), images)
    name = another_seed(cell.reference) if method.denoiser == ANOTHER_SEED else method.denoiser
    if name is None:
        raise ScorelensError(f"there is no network that differs from {cell.reference} only in its seed; "
                             f"train one as {cell.reference}-seed1")
    return resources.network(name, images)


def _path(result: Samples, reference: Samples, images: ImageSet) -> list[dict[str, Any]]:
    """At each step, the MSE between both predictions, and the distance of each to the nearest training image."""
    return [{"sigma": a.sigma, "mse": _spread(mse(a.x0_hat, b.x0_hat)),
             "novelty": _spread(novelty(a.x0_hat, images).mse),
             "reference_novelty": _spread(novelty(b.x0_hat, images).mse)}
            for a, b in zip(result.steps, reference.steps, strict=True)]


def _each(result: Samples, reference: Samples) -> dict[str, list[float]]:
    """The scores of every sample, with six digits."""
    scores = {"r2": r2(result.prediction, reference.prediction), "mse": mse(result.prediction, reference.prediction)}
    return {name: [float(f"{value:.6g}") for value in values.tolist()] for name, values in scores.items()}


def _strips(result: Samples) -> np.ndarray:
    return to_uint8(torch.stack([step.x0_hat[:STRIPS] for step in result.steps], dim=1).flatten(0, 1))


def _spread(values: Tensor) -> dict[str, float]:
    return {"mean": values.mean().item(), "std": values.std().item() if len(values) > 1 else 0.0}
