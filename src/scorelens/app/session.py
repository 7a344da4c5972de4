"""The computations behind the page, as generators of messages, independent of the web server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from scorelens.analysis.attribution import attribute, compared_pixels, has_weights
from scorelens.analysis.fields import cosine, is_network, radius, wiener_fields
from scorelens.analysis.guidance import Guidance
from scorelens.analysis.models import build_spec, load_for
from scorelens.app.catalog import Choice, Value, list_models
from scorelens.app.messages import Behind, Failure, Field, Message, Nearest, Prediction, Stage
from scorelens.data.images import ImageSet, to_floats, to_uint8
from scorelens.denoisers import denoiser_options
from scorelens.denoisers.specs import Spec
from scorelens.jacobian import Pixel, sensitivity
from scorelens.metrics import mse, r2
from scorelens.networks.adapters import Network
from scorelens.noise import ddim_sigmas, own_sigmas, seeded_noise
from scorelens.sampling import Step, trajectory
from scorelens.statistics import GaussianStats, fit_gaussian
from scorelens.statistics.nearest import nearest_images
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import unknown, wide_dtype

STEPS = (5, 10, 20, 50)  # the grid sizes that a request can choose from
NEIGHBOURS = 3  # nearest training images per prediction
BEHIND = 4  # training images with the most weight behind a pixel
TRAJECTORY_BYTES = 64 * 2**20  # of cached trajectories
MASK_BYTES = 2**28  # approximate limit for the masks of denoisers built with earlier options
WIENER = Spec("wiener")  # its field is the Wiener row, which is always shown
V = TypeVar("V")


@dataclass(frozen=True)
class Start:
    """The starting point: pure noise, or a picture plus the noise of each level."""

    seed: int = 0
    steps: int = 10
    picture: bytes | None = None  # uint8 [C, H, W]

    def __post_init__(self) -> None:
        if self.steps not in STEPS:
            raise ScorelensError(f"the number of steps must be one of {', '.join(map(str, STEPS))}, not {self.steps}")
        if not 0 <= self.seed < 2**32:
            raise ScorelensError(f"the seed must be from 0 to {2**32 - 1}, not {self.seed}")


class LRUCache(Generic[V]):
    """Recently used values, thread-safe; `size` measures a value, `limit` bounds the sum."""

    def __init__(self, limit: int, size: Callable[[V], int] = lambda value: 1) -> None:
        self._limit, self._size, self._lock = limit, size, threading.Lock()
        self._values: dict[Hashable, V] = {}  # the least recently used first

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            if key in self._values:
                self._values[key] = self._values.pop(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: V) -> None:
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            total = sum(map(self._size, self._values.values()))
            while total > self._limit and self._values:
                total -= self._size(self._values.pop(next(iter(self._values))))

    def __len__(self) -> int:
        return len(self._values)


class Session:
    """The images, the models, and a cache of recent results. Thread-safe."""

    def __init__(self, images: ImageSet, denoisers: Sequence[str], networks: Sequence[str | tuple[str, Network]] = (),
                 device: torch.device | str = "cpu", guidance: Guidance | None = None) -> None:
        self.images, self.device, self.guidance = images, torch.device(device), guidance
        named = [(each, load_for(each, images)) if isinstance(each, str) else each for each in networks]
        self.models = list_models(images, denoisers, [name for name, _ in named])
        self._networks: dict[str, Network] = {
            model.id: network  # the networks come first
            for model, (_, network) in zip(self.models.values(), named, strict=False)}
        self._first_network = next(iter(self._networks.values()), None)
        self._denoisers: LRUCache[Denoiser] = LRUCache(len(self.models) + min(16, MASK_BYTES // (10 * images.dim**2)))
        self._trajectories: LRUCache[list[Step]] = LRUCache(TRAJECTORY_BYTES, _bytes)
        self._building = threading.Lock()

    def describe(self) -> dict[str, Any]:
        """What the page needs to know at startup: the data, the models and their controls, the noise levels."""
        models = [{"id": model.id, "label": model.label, "network": model.spec is None,
                   "is_row": self._is_row(model.spec), "controls": [asdict(control) for control in model.controls]}
                  for model in self.models.values()]
        data = {"name": Path(self.images.name).name, "split": self.images.split, "count": len(self.images),
                "shape": list(self.images.shape), "guidance": str(self.guidance or "")}
        return {"data": data, "models": models, "steps": list(STEPS),
                "sigmas": {steps: self.sigmas(steps) for steps in STEPS}}

    def choose(self, name: str, options: Mapping[str, Value]) -> Choice:
        """The model with these options, the others at their initial values; only listed values are allowed."""
        if name not in self.models:
            raise unknown("model", name, self.models)
        controls = {control.name: control for control in self.models[name].controls}
        for option, value in options.items():
            if option not in controls:
                raise unknown(f"option of {name}", option, controls)
            if value not in controls[option].values:
                raise ScorelensError(f"{name}: {option} cannot be {value!r} here; it must be one of "
                                     f"{', '.join(map(str, controls[option].values))}")
        return Choice(self.models[name], tuple((key, options.get(key, each.value)) for key, each in controls.items()))

    def sigmas(self, steps: int) -> list[float]:
        """The noise levels of the first network's schedule; without a network, the paper's grid."""
        network = self._first_network
        return (ddim_sigmas(steps) if network is None else own_sigmas(network.schedule, steps)).tolist()

    def denoiser(self, choice: Choice) -> Denoiser:
        """The denoiser of a choice, cached."""
        if choice.spec is None:
            network = self._networks[choice.model.id]
            return network if self.guidance is None else self.guidance.network(network)
        with self._building:
            denoiser = self._denoisers.get(choice)
            if denoiser is None:
                denoiser = build_spec(self._with_stats(choice.spec), self.images, self._first_network,
                                      self.guidance)
                self._denoisers.put(choice, denoiser)
        return denoiser

    @cached_property
    def stats(self) -> GaussianStats:
        """Mean and covariance of the images; only the leading components if a model sets `components`."""
        specs = [model.spec for model in self.models.values() if model.spec is not None]
        components = [spec.options["components"] for spec in specs if "components" in spec.options]
        return fit_gaussian(self.images, components=max(components, default=None))

    def _with_stats(self, spec: Spec) -> Spec:
        """The spec with the shared stats, unless it sets its own or is fitted to a class."""
        shared = (self.guidance is None and "stats" in denoiser_options(spec.name)
                  and not {"stats", "components"} & set(spec.options))
        return Spec(spec.name, {**spec.options, "stats": self.stats}) if shared else spec

    def steps(self, choice: Choice, start: Start) -> Iterator[Step]:
        """The trajectory from noise, or one step from the noisy picture at each level; cached once complete."""
        cached = self._trajectories.get((choice, start))
        if cached is not None:
            yield from cached
            return
        steps = []
        for step in self._compute_steps(self.denoiser(choice), start):
            steps.append(step)
            yield step
        self._trajectories.put((choice, start), steps)

    def _compute_steps(self, denoiser: Denoiser, start: Start) -> Iterator[Step]:
        noise, sigmas = seeded_noise(self.images.shape, [start.seed], device=self.device), self.sigmas(start.steps)
        x0 = self._picture(start)
        if x0 is None:
            yield from trajectory(denoiser, noise, sigmas)
            return
        for sigma in sigmas:
            z = x0 + sigma * noise
            yield Step(sigma, z, denoiser(z, sigma), x0)

    def compare(self, choices: Sequence[Choice], reference: Choice, start: Start) -> Iterator[Message]:
        """Every step of each model, scored against the reference; if a model fails, the others still run."""
        reference_steps: list[Step] = []
        for choice in [reference, *(other for other in choices if other != reference)]:
            name, steps = choice.model.id, reference_steps if choice == reference else []
            yield Stage(name, 0, start.steps, "preparing")
            try:
                self.denoiser(choice)
                yield Stage(name, 0, start.steps)
                for step in self.steps(choice, start):
                    steps.append(step)
                    yield (self._prediction(name, steps, reference_steps, start) if choice in choices
                           else Stage(name, len(steps), start.steps))
                if choice in choices:
                    yield self._nearest(name, torch.cat([step.x0_hat for step in steps]))
            except ScorelensError as error:
                yield Failure(str(error), name)

    def fields(self, choices: Sequence[Choice], reference: Choice, start: Start, step: int,
               pixel: Pixel) -> Iterator[Message]:
        """The row of the Wiener matrix, then each model's field, all at one step of the reference's trajectory."""
        (row, column), (_, h, w) = pixel, self.images.shape
        if not (0 <= row < h and 0 <= column < w):
            raise ScorelensError(f"pixel ({row}, {column}) is outside the image of {h} x {w}")
        if not 0 <= step < start.steps:
            raise ScorelensError(f"there is no step {step + 1} of {start.steps}")
        steps: list[Step] = []
        for each in self.steps(reference, start):
            steps.append(each)
            yield Stage(reference.model.id, len(steps), start.steps)
        sigma, z = steps[step].sigma, steps[step].z
        wiener = wiener_fields(self.stats, self.images.shape, [sigma], [pixel]).values[0, 0]  # [C, H, W]
        yield _field(None, wiener, wiener, pixel)
        for choice in choices:
            if self._is_row(choice.spec):
                continue
            yield Stage(choice.model.id, 0, 1, "field")
            try:
                denoiser = self.denoiser(choice)
                # a formula's field is a small difference of large numbers: float64 where the device has it
                z_wide = z if is_network(denoiser) else z.to(wide_dtype(z))
                field = _field(choice.model.id, sensitivity(denoiser, z_wide, sigma, pixel)[0].cpu(), wiener, pixel)
                yield replace(field, behind=self._behind(denoiser, z, sigma, pixel))
            except ScorelensError as error:
                yield Failure(str(error), choice.model.id)

    def _behind(self, denoiser: Denoiser, z: Tensor, sigma: float, pixel: Pixel) -> Behind | None:
        """The training images behind an output pixel, if the denoiser has posterior weights."""
        if not has_weights(denoiser):
            return None
        found = attribute(denoiser, z, sigma, pixels=[pixel], top=min(BEHIND, len(self.images)), outputs=False).behind
        indices = found.index[0, 0].tolist()
        pixels = dict(zip(indices, to_uint8(self.images[indices]), strict=True))
        return Behind(indices, found.weight[0, 0].tolist(), found.effective[0, 0].item(), pixels,
                      self._classes(indices), compared_pixels(denoiser, z, sigma, pixel))

    def _is_row(self, spec: Spec | None) -> bool:
        """Whether the model's field is the row of the Wiener matrix that the page shows anyway."""
        return spec == WIENER and self.guidance is None

    def _prediction(self, name: str, steps: list[Step], reference_steps: list[Step], start: Start) -> Prediction:
        k, step, x0 = len(steps) - 1, steps[-1], self._picture(start)
        reference = reference_steps[k].x0_hat if k < len(reference_steps) else None
        return Prediction(name, k, step.sigma, step.z[0], step.x0_hat[0],
                          r2=None if reference is None else r2(step.x0_hat, reference).item(),
                          mse=None if reference is None else mse(step.x0_hat, reference).item(),
                          picture_mse=None if x0 is None else mse(step.x0_hat, x0).item())

    def _nearest(self, name: str, predictions: Tensor) -> Nearest:
        """The nearest images to the predictions as the page shows them, that is, clipped."""
        nearest = nearest_images(predictions.clamp(-1, 1), self.images, k=min(NEIGHBOURS, len(self.images)))
        distinct = torch.unique(nearest.indices).tolist()
        pixels = dict(zip(distinct, to_uint8(self.images[distinct]), strict=True))
        rms = (nearest.squared_distances / self.images.dim).sqrt()
        return Nearest(name, nearest.indices.tolist(), rms.tolist(), pixels, self._classes(distinct))

    def _classes(self, indices: Sequence[int]) -> dict[int, str]:
        if self.images.labels is None:
            return {}
        names = dict(enumerate(self.images.class_names))
        labels = {index: int(self.images.labels[index]) for index in indices}
        return {index: names.get(label, str(label)) for index, label in labels.items()}

    def _picture(self, start: Start) -> Tensor | None:
        if start.picture is None:
            return None
        size, expected = len(start.picture), self.images.dim
        if size != expected:
            raise ScorelensError(f"the picture has {size} bytes, but the images here have {expected}; upload it again")
        raw = torch.from_numpy(np.frombuffer(start.picture, np.uint8).copy()).view(1, *self.images.shape)
        return to_floats(raw, torch.empty(raw.shape, device=self.device))


def _field(name: str | None, field: Tensor, wiener: Tensor, pixel: Pixel) -> Field:
    return Field(name, field.sum(dim=0), cosine(field, wiener), radius(field, pixel))


def _bytes(steps: list[Step]) -> int:
    return sum(tensor.numel() * tensor.element_size() for step in steps for tensor in (step.z, step.x0_hat))
