"""Any diffusion network as a denoiser: its prediction and timestep converted to x0_hat(z, sigma)."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor, nn

from scorelens.noise import Schedule
from scorelens.types import Images, ScorelensError, Shape
from scorelens.validation import at_least_float32, by_level, check_levels, check_noisy, unknown


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


@final
class Network:
    """A trained network as a Denoiser: x0_hat is not clipped, is differentiable in z and has the dtype of z.

    A module is copied at construction, in evaluation mode and without gradients of its weights; a converted copy is
    cached for each device and dtype of z. Any other callable is used unchanged.
    """

    def __init__(self, model: Callable[..., Any], parametrization: str, schedule: Schedule, shape: Shape | None = None,
                 label: int | None = None, card: Mapping[str, Any] | None = None,
                 origin: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            model: called as model(x_t, t) with t [B], or for "denoised" as model(z, sigma) with a scalar tensor.
            parametrization: what it returns, a name in PARAMETRIZATIONS.
            schedule: its noise levels.
            shape: (C, H, W) of its images, checked at each call if given.
            label: the class to denoise, passed to the model as class_labels= [B].
            card: its model card.
            origin: its source, recorded by `describe`.
        """
        if parametrization not in PARAMETRIZATIONS:
            raise unknown("parametrization", parametrization, PARAMETRIZATIONS)
        self.parametrization, self.schedule, self.shape, self.label = parametrization, schedule, shape, label
        self.card, self._origin = dict(card or {}), dict(origin or {})
        self._model = copy.deepcopy(model).eval().requires_grad_(False) if isinstance(model, nn.Module) else model
        self._copies: dict[tuple[torch.device, torch.dtype], nn.Module] = {}

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        wide = at_least_float32(check_noisy(z, self.shape))
        x = by_level(lambda some, level: self.schedule.scale(level) * some, wide, sigma)
        output = by_level(self._predict, x, sigma) if self.parametrization == "denoised" else self._predict(x, sigma)
        convert, pairs = PARAMETRIZATIONS[self.parametrization], torch.stack([output, wide], dim=1)  # [B, 2, C, H, W]
        return by_level(lambda pair, level: convert(pair[:, 0], pair[:, 1], level), pairs, sigma).to(z.dtype)

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
                "sigmas": [low, high if math.isfinite(high) else None], "label": self.label, "weights": self._hash}

    def _predict(self, x: Images, sigma: float | Tensor) -> Images:
        """The model's output for x_t, without the learned variance in a second half of the channels."""
        t = x.new_tensor([self.schedule.time(level) for level in check_levels(sigma, len(x)).tolist()])  # [B]
        t = t[0] if self.parametrization == "denoised" else t
        options = {} if self.label is None else {"class_labels": torch.full((len(x),), self.label, device=x.device)}
        output = _as_tensor(self._model_like(x)(x, t, **options))
        if output.ndim == 4 and output.shape[1] == 2 * x.shape[1]:
            output = output[:, :x.shape[1]]
        if output.shape != x.shape:
            raise ScorelensError(f"the network maps {list(x.shape)} to {list(output.shape)}: the shapes must be equal")
        return output

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
        """sha256 over the names, shapes and values of the weights."""
        if not isinstance(self._model, nn.Module):
            return None
        digest = hashlib.sha256()
        for name, value in sorted(self._model.state_dict().items()):
            digest.update(f"{name} {value.dtype} {list(value.shape)} ".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


def _as_tensor(output: Any) -> Tensor:
    """The prediction in a model's output: a tensor, a tuple that starts with one, or an object with `.sample`."""
    if isinstance(output, Tensor):
        return output
    first = output[0] if isinstance(output, tuple) and output else getattr(output, "sample", None)
    if isinstance(first, Tensor):
        return first
    raise ScorelensError(f"the network returned {type(output).__name__}, not a tensor, a tuple of them or a .sample")
