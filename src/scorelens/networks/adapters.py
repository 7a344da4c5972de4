"""Any diffusion network as a denoiser: its prediction and timestep converted to x0_hat(z, sigma)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from scorelens.networks.classes import NULL, Classes, Label, label_parameter
from scorelens.networks.conventions import Calling, prediction
from scorelens.noise import RescaledSchedule, Schedule
from scorelens.types import Images, ScorelensError, Shape
from scorelens.validation import at_least_float32, by_level, check_levels, check_noisy, unknown, weights_hash


def from_epsilon(epsilon: Images, z: Images, sigma: float) -> Images:
    """z = x0 + sigma eps."""
    return z - sigma * epsilon


def from_x0(x0: Images, z: Images, sigma: float) -> Images:
    """diffusers' "sample", or EDM's D(z, sigma): x0 itself."""
    return x0


def from_v(v: Images, z: Images, sigma: float) -> Images:
    """v = sqrt(a) eps - sqrt(1 - a) x0 (Salimans & Ho 2022), with a = 1 / (1 + sigma^2)."""
    return (z - sigma * math.sqrt(1 + sigma ** 2) * v) / (1 + sigma ** 2)


def from_velocity(velocity: Images, z: Images, sigma: float) -> Images:
    """Flow matching's dx_s/ds = eps - x0: x0 = x_s - s velocity, with s = sigma / (1 + sigma) and x_s = (1 - s) z."""
    return (z - sigma * velocity) / (1 + sigma)


PARAMETRIZATIONS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "epsilon": from_epsilon,
    "x0": from_x0,
    "v": from_v,
    "velocity": from_velocity,
    "denoised": from_x0,
}
DATA_RANGE = (-1.0, 1.0)  # of the images of Scorelens


@final
class Network:
    """A trained network as a Denoiser: x0_hat is not clipped, is differentiable in z and has the dtype of z.

    A module is copied at construction, in evaluation mode and without gradients of its weights; a converted copy is
    cached for each device and dtype of z. Any other callable is used unchanged.
    """

    def __init__(self, model: Callable[..., Any], parametrization: str, schedule: Schedule, shape: Shape | None = None,
                 label: int | Sequence[int] | None = None, card: Mapping[str, Any] | None = None,
                 origin: Mapping[str, Any] | None = None, value_range: tuple[float, float] = DATA_RANGE,
                 calling: Calling | None = None, notes: Sequence[str] = (), classes: Classes | None = None,
                 latent: bool = False) -> None:
        """
        Args:
            model: called as model(x_t, t) with t [B], or for "denoised" as model(z, sigma) with a scalar tensor.
            parametrization: what it returns, a name in PARAMETRIZATIONS.
            schedule: its noise levels, in units of its own data.
            shape: (C, H, W) of its images, checked at each call if given.
            label: the class to denoise, or that of each image; the model takes it as class_labels= [B] (or y=, ...).
            card: its model card.
            origin: its source, recorded by `describe`.
            value_range: the values of black and white in its data.
            calling: its second argument, if it is not t.
            notes: what was found out or assumed about it.
            classes: its classes, if they are known.
            latent: it works on latents, which are not in [-1, 1].
        """
        if parametrization not in PARAMETRIZATIONS:
            raise unknown("parametrization", parametrization, PARAMETRIZATIONS)
        low, high = value_range
        if not (low < high and math.isfinite(high - low)):
            raise ScorelensError(f"value_range must be two increasing numbers, e.g. (0, 1), got ({low:g}, {high:g})")
        self.value_range, self.notes = (low, high), tuple(notes)
        self._unit, self._middle = (high - low) / 2, (high + low) / 2  # its data are unit * x + middle
        self.schedule = schedule if self._unit == 1 else RescaledSchedule(schedule, self._unit)
        self.calling = calling or Calling(form="number" if parametrization == "denoised" else "batch")
        self.parametrization, self.shape, self.label = parametrization, shape, label
        self.classes, self.latent = classes, latent
        self.card, self._origin = dict(card or {}), dict(origin or {})
        self._model = copy.deepcopy(model).eval().requires_grad_(False) if isinstance(model, nn.Module) else model
        self._copies: dict[tuple[torch.device, torch.dtype], nn.Module] = {}

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        wide, labels = self._unit * at_least_float32(check_noisy(z, self.shape)) + self._middle, self._labels(z)
        x = by_level(lambda some, level: self.schedule.scale(level) * some, wide, sigma)
        output = self._predict(x, sigma, labels) if self.calling.form != "number" else by_level(
            lambda rows, level: self._predict(x[rows], level, None if labels is None else labels[rows]),
            torch.arange(len(x), device=x.device), sigma)
        convert, pairs = PARAMETRIZATIONS[self.parametrization], torch.stack([output, wide], dim=1)  # [B, 2, C, H, W]
        x0 = by_level(lambda pair, level: convert(pair[:, 0], pair[:, 1], self._unit * level), pairs, sigma)
        return ((x0 - self._middle) / self._unit).to(z.dtype)

    def conditional(self, labels: Label | Sequence[Label]) -> Network:
        """This network as a denoiser of one class, or of a class for each image of the batch.

        Args:
            labels: numbers or names of classes, or "null": one for all images, or a list with one for each.
        """
        if self.classes is None:
            raise ScorelensError(f"the network is not conditional on classes; omit the label {labels!r}")
        other = copy.copy(self)  # shares the weights
        other.label = self.classes.numbers(labels)
        return other

    def unconditional(self) -> Network:
        """This network as a denoiser without a class: that of the null class."""
        return self.conditional(NULL)

    @property
    def sigma_range(self) -> tuple[float, float]:
        """The lowest and the highest noise level of its training."""
        return self.schedule.range

    def describe(self) -> dict[str, Any]:
        """Its source, settings and weights, for the record of a run."""
        low, high = self.schedule.range
        weights = list(self._model.parameters()) if isinstance(self._model, nn.Module) else None
        return {**self._origin, "class": getattr(self._model, "__name__", type(self._model).__name__),
                "parameters": None if weights is None else sum(p.numel() for p in weights),
                "parametrization": self.parametrization, "schedule": self.schedule.kind,
                "sigmas": [low, high if math.isfinite(high) else None], "label": self.label, "weights": self._hash,
                "value_range": list(self.value_range), "call": str(self.calling), "notes": list(self.notes)}

    def _labels(self, z: Tensor) -> Int[Tensor, "b"] | None:
        """The class of each noisy image; None if the network takes none."""
        if self.label is None:
            return None
        if not isinstance(self.label, int) and len(self.label) != len(z):
            raise ScorelensError(f"{len(self.label)} labels were given for {len(z)} noisy images; give one for each")
        return torch.as_tensor(self.label, device=z.device).expand(len(z))

    def _predict(self, x: Images, sigma: float | Tensor, labels: Int[Tensor, "b"] | None) -> Images:
        """The model's output for x_t, without the learned variance in a second half of the channels."""
        levels = check_levels(sigma, len(x))
        t = x.new_tensor([self.schedule.time(level) for level in levels.tolist()])  # [B]
        options = {} if labels is None else {label_parameter(self._model): labels}
        return prediction(self._model_like(x)(x, self.calling.time(t, self._unit * levels), **options), x)

    def _model_like(self, x: Tensor) -> Callable[..., Any]:
        """The model on the device and in the dtype of x."""
        if not isinstance(self._model, nn.Module):
            return self._model
        key = (x.device, x.dtype)
        if key not in self._copies:
            tensors = (*self._model.parameters(), *self._model.buffers())
            same = all((tensor.device, tensor.dtype) == key for tensor in tensors if tensor.is_floating_point())
            self._copies[key] = self._model if same else copy.deepcopy(self._model).to(x)
        return self._copies[key]

    @cached_property
    def _hash(self) -> str | None:
        return weights_hash(self._model) if isinstance(self._model, nn.Module) else None

