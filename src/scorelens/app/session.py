"""The computations behind the page, as generators of messages; nothing in here knows of the web."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scorelens.analysis.fields import cosine, radius, wiener_fields
from scorelens.analysis.models import build_spec
from scorelens.app.messages import Failure, Field, Message, Moment, Nearest, Stage
from scorelens.app.offers import Chosen, Value, chosen, offered
from scorelens.app.recent import Recent
from scorelens.data.images import ImageSet, to_floats, to_uint8
from scorelens.denoisers import denoiser_options
from scorelens.denoisers.specs import Spec
from scorelens.jacobian import Pixel, sensitivity
from scorelens.metrics import mse, r2
from scorelens.networks.adapters import Network
from scorelens.networks.load import load_network
from scorelens.noise import ddim_sigmas, own_sigmas, seeded_noise
from scorelens.sampling import Step, trajectory
from scorelens.statistics import GaussianStats, fit_gaussian
from scorelens.statistics.nearest import nearest_images
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import wide_dtype

STEPS = (5, 10, 20, 50)  # how many noise levels may be asked for
NEIGHBOURS = 3  # nearest training images that are shown
WALK_BYTES = 64 * 2**20  # of trajectories kept
WIENER = Spec("wiener")  # whose field is the row that is shown anyway
MASK_BYTES = 2**28  # about as much as the masks of denoisers with earlier options may take


@dataclass(frozen=True)
class Start:
    """Where the models begin: at pure noise, or at a picture with as much noise as each level has."""

    seed: int = 0
    steps: int = 10
    picture: bytes | None = None  # uint8 [C, H, W]

    def __post_init__(self) -> None:
        if self.steps not in STEPS:
            raise ScorelensError(f"the number of steps is one of {', '.join(map(str, STEPS))}, not {self.steps}")
        if not 0 <= self.seed < 2**32:
            raise ScorelensError(f"the seed is a number from 0 to {2**32 - 1}, not {self.seed}")


class Session:
    """The images, the models on offer, and what was computed last. All may be called from several threads."""

    def __init__(self, images: ImageSet, denoisers: Sequence[str], networks: Sequence[str] = (),
                 device: torch.device | str = "cpu") -> None:
        self.images, self.device = images, torch.device(device)
        self.models = offered(images, denoisers, networks)
        self._networks: dict[str, Network] = {
            model.id: load_network(name, shape=images.shape)
            for model, name in zip(self.models.values(), networks, strict=False)}  # the networks come first
        kept = len(self.models) + min(16, MASK_BYTES // (10 * images.dim**2))
        self._built: Recent[Denoiser] = Recent(kept)
        self._walks: Recent[list[Step]] = Recent(WALK_BYTES, _bytes)
        self._building = threading.Lock()

    def describe(self) -> dict[str, Any]:
        """What the page is told before it asks for anything."""
        models = [{"id": model.id, "label": model.label, "network": model.spec is None,
                   "is_row": model.spec == WIENER, "controls": [asdict(control) for control in model.controls]}
                  for model in self.models.values()]
        data = {"name": Path(self.images.name).name, "split": self.images.split, "count": len(self.images),
                "shape": list(self.images.shape)}
        return {"data": data, "models": models, "steps": list(STEPS),
                "sigmas": {steps: self.sigmas(steps) for steps in STEPS}}

    def choose(self, name: str, options: Mapping[str, Value]) -> Chosen:
        return chosen(self.models, name, options)

    def sigmas(self, steps: int) -> list[float]:
        """The paper's grid, on the steps of the first network."""
        first = next(iter(self._networks.values()), None)
        return (ddim_sigmas(steps) if first is None else own_sigmas(first.schedule, steps)).tolist()

    def denoiser(self, one: Chosen) -> Denoiser:
        """Built once for each choice of options."""
        if one.spec is None:
            return self._networks[one.model.id]
        with self._building:
            built = self._built.get(one)
            if built is None:
                built = build_spec(self._with_stats(one.spec), self.images, next(iter(self._networks.values()), None))
                self._built.put(one, built)
        return built

    @cached_property
    def stats(self) -> GaussianStats:
        """Moments of the images; of their leading components alone, if a model asks for that."""
        specs = [model.spec for model in self.models.values() if model.spec is not None]
        asked = [spec.options["components"] for spec in specs if "components" in spec.options]
        return fit_gaussian(self.images, components=max(asked, default=None))

    def _with_stats(self, spec: Spec) -> Spec:
        """The moments are fitted once for all; but not those of a spec that asks for its own."""
        shared = "stats" in denoiser_options(spec.name) and not {"stats", "components"} & set(spec.options)
        return Spec(spec.name, {**spec.options, "stats": self.stats}) if shared else spec

    def walk(self, one: Chosen, start: Start) -> Iterator[Step]:
        """A trajectory from noise; of a picture, a single step at each noise level."""
        kept = self._walks.get((one, start))
        if kept is None:
            kept = []
            for step in self._steps(self.denoiser(one), start):
                kept.append(step)
                yield step
            self._walks.put((one, start), kept)
        else:
            yield from kept

    def _steps(self, denoiser: Denoiser, start: Start) -> Iterator[Step]:
        noise, sigmas = self._noise(start), self.sigmas(start.steps)
        if start.picture is None:
            yield from trajectory(denoiser, noise, sigmas)
            return
        x0 = self._picture(start.picture)
        for sigma in sigmas:
            z = x0 + sigma * noise
            yield Step(sigma, z, denoiser(z, sigma), x0)

    def compared(self, models: Sequence[Chosen], reference: Chosen, start: Start) -> Iterator[Message]:
        """All that these models do, step by step, beside the reference; one that fails says why, the others go on."""
        against: list[Step] = []
        for one in [reference, *(other for other in models if other != reference)]:
            name = one.model.id
            yield Stage(name, 0, start.steps, "preparing")
            try:
                self.denoiser(one)
                yield Stage(name, 0, start.steps)
                taken: list[Step] = []
                for step in self.walk(one, start):
                    taken.append(step)
                    if one == reference:
                        against.append(step)
                    yield self._moment(name, taken, against, start) if one in models else Stage(
                        name, len(taken), start.steps)
                if one in models:
                    yield self._nearest(name, torch.cat([step.x0_hat for step in taken]))
            except ScorelensError as error:
                yield Failure(str(error), name)

    def fields(self, models: Sequence[Chosen], reference: Chosen, start: Start, step: int,
               pixel: Pixel) -> Iterator[Message]:
        """The row of the Wiener matrix, then the fields of the models, all at one point of the reference's path."""
        self._check_pixel(pixel)
        if not 0 <= step < start.steps:
            raise ScorelensError(f"there is no step {step + 1} of {start.steps}")
        path: list[Step] = []
        for point in self.walk(reference, start):
            path.append(point)
            yield Stage(reference.model.id, len(path), start.steps)
        sigma, z = path[step].sigma, path[step].z
        row = wiener_fields(self.stats, self.images.shape, [sigma], [pixel]).values[0, 0]  # [C, H, W]
        yield _field(None, row, row, pixel)
        for one in models:
            if one.spec == WIENER:
                continue
            yield Stage(one.model.id, 0, 1, "looking")
            try:
                denoiser = self.denoiser(one)
                # a formula's field is a small difference of large numbers: float64 where the device has it
                point_z = z if isinstance(denoiser, Network) else z.to(wide_dtype(z))
                yield _field(one.model.id, sensitivity(denoiser, point_z, sigma, pixel)[0].cpu(), row, pixel)
            except ScorelensError as error:
                yield Failure(str(error), one.model.id)

    def _moment(self, name: str, taken: list[Step], against: list[Step], start: Start) -> Moment:
        k, step = len(taken) - 1, taken[-1]
        known = k < len(against)
        clean = None if start.picture is None else mse(step.x0_hat, self._picture(start.picture)).item()
        return Moment(name, k, step.sigma, step.z[0], step.x0_hat[0],
                      r2=r2(step.x0_hat, against[k].x0_hat).item() if known else None,
                      mse=mse(step.x0_hat, against[k].x0_hat).item() if known else None, picture_mse=clean)

    def _nearest(self, name: str, predictions: Tensor) -> Nearest:
        """The predictions are clipped: that is how they are shown."""
        found = nearest_images(predictions.clamp(-1, 1), self.images, k=min(NEIGHBOURS, len(self.images)))
        each = torch.unique(found.indices).tolist()
        pixels = dict(zip(each, to_uint8(self.images[each]), strict=True))
        rms = (found.squared_distances / self.images.dim).sqrt()
        return Nearest(name, found.indices.tolist(), rms.tolist(), pixels, dict(self._classes(each)))

    def _classes(self, indices: Iterable[int]) -> Iterator[tuple[int, str]]:
        names, labels = self.images.class_names, self.images.labels
        if labels is not None:
            for index in indices:
                label = int(labels[index])
                yield index, names[label] if 0 <= label < len(names) else str(label)

    def _noise(self, start: Start) -> Tensor:
        return seeded_noise(self.images.shape, [start.seed], device=self.device)

    def _picture(self, data: bytes) -> Tensor:
        if len(data) != self.images.dim:
            raise ScorelensError(f"the picture has {len(data)} bytes, but the images here have {self.images.dim}")
        raw = torch.from_numpy(np.frombuffer(data, np.uint8).copy()).view(1, *self.images.shape)
        return to_floats(raw, torch.empty(raw.shape, device=self.device))

    def _check_pixel(self, pixel: Pixel) -> None:
        _, h, w = self.images.shape
        if not (0 <= pixel[0] < h and 0 <= pixel[1] < w):
            raise ScorelensError(f"pixel ({pixel[0]}, {pixel[1]}) is outside the image of {h} x {w}")


def _field(name: str | None, field: Tensor, row: Tensor, pixel: Pixel) -> Field:
    return Field(name, field.sum(dim=0), cosine(field, row), radius(field, pixel))


def _bytes(steps: list[Step]) -> int:
    return sum(tensor.numel() * tensor.element_size() for step in steps for tensor in (step.z, step.x0_hat))
