"""Where a denoiser looks: its sensitivity field d x0_hat[pixel] / d z, at any pixel and noise level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens.types import Denoiser, ScorelensError, Shape
from scorelens.validation import check_noisy, check_sigma

Pixel = tuple[int, int]


def sensitivity(denoiser: Denoiser, z: Tensor, sigma: float, pixel: Pixel | Sequence[Pixel], *,
                channel: int | None = None, of: Literal["x0", "epsilon"] = "x0",
                wrt: Literal["z", "x_t"] = "z") -> Tensor:
    """d x0_hat[pixel] / d z by vector-Jacobian products: [B, C, H, W], or [P, B, C, H, W] for a list of pixels.

    Args:
        denoiser: any; one that offers `at(z, sigma, coordinates)` computes only the outputs that are asked for.
        z: noisy images [B, C, H, W].
        sigma: their noise level.
        pixel: (row, column) of the output, or several.
        channel: of the output; by default the sum over all.
        of: the field of x0_hat, or of the noise that it implies, (z - x0_hat) / sigma.
        wrt: with respect to z, or to DDPM's x_t = z / sqrt(1 + sigma^2).
    """
    sigma = check_sigma(sigma)
    check_noisy(z, _shape_of(z))
    several = len(pixel) > 0 and not isinstance(pixel[0], int)
    pixels: Sequence[Pixel] = pixel if several else [pixel]  # type: ignore[list-item, assignment]
    fields = torch.stack([_field(denoiser, z, sigma, _coordinates(z, one, channel)) for one in pixels])
    if of == "epsilon":
        fields = (_identity(z, pixels, channel) - fields) / sigma
    if wrt == "x_t":
        fields = fields * math.sqrt(1 + sigma**2)
    return fields if several else fields[0]


def _field(denoiser: Denoiser, z: Tensor, sigma: float, coordinates: Int[Tensor, "k"]) -> Tensor:
    """sum_k d x0_hat_k / d z, for each image of the batch."""
    inputs = z.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        at = getattr(denoiser, "at", None)
        outputs = denoiser(inputs, sigma).flatten(1)[:, coordinates] if at is None else at(inputs, sigma, coordinates)
    return _gradient(denoiser, outputs, inputs, torch.ones_like(outputs))


def pull_back(denoiser: Denoiser, z: Tensor, sigma: float, u: Tensor) -> Tensor:
    """J^T u, with J = d x0_hat / d z, for each image of the batch."""
    inputs = z.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        outputs = denoiser(inputs, sigma)
    return _gradient(denoiser, outputs, inputs, u.expand_as(outputs))


def _gradient(denoiser: Denoiser, outputs: Tensor, inputs: Tensor, cotangent: Tensor) -> Tensor:
    if not outputs.requires_grad:
        raise ScorelensError(f"{type(denoiser).__name__} has no gradient: its output does not depend on z smoothly, or "
                             "it was computed without gradients (torch.no_grad, .detach())")
    (field,) = torch.autograd.grad(outputs, inputs, cotangent)
    return field.detach()


def _coordinates(z: Tensor, pixel: Pixel, channel: int | None) -> Int[Tensor, "k"]:
    """The flattened coordinates of a pixel's channels."""
    c, h, w = _shape_of(z)
    row, column = pixel
    if not (0 <= row < h and 0 <= column < w):
        raise ScorelensError(f"pixel ({row}, {column}) is outside the image of {h}x{w}; rows are 0-{h - 1}, "
                             f"columns 0-{w - 1}")
    if channel is not None and not 0 <= channel < c:
        raise ScorelensError(f"channel {channel} does not exist; the images have channels 0-{c - 1}")
    channels = range(c) if channel is None else [channel]
    return torch.tensor([(k * h + row) * w + column for k in channels], device=z.device)


def _identity(z: Tensor, pixels: Sequence[Pixel], channel: int | None) -> Tensor:
    """d z[pixel] / d z, [P, 1, C, H, W]."""
    fields = z.new_zeros(len(pixels), z[0].numel())
    for field, pixel in zip(fields, pixels, strict=True):
        field[_coordinates(z, pixel, channel)] = 1
    return fields.view(len(pixels), 1, *z.shape[1:])


def _shape_of(z: Tensor) -> Shape:
    if not isinstance(z, Tensor) or z.ndim != 4:
        raise ScorelensError(f"z must be a batch of noisy images [B, C, H, W], got {getattr(z, 'shape', type(z))}")
    _, c, h, w = z.shape
    return c, h, w


@runtime_checkable
class Point(Protocol):
    """A moment of a trajectory, as `scorelens.trajectory` yields it: noisy images and their noise level."""

    @property
    def sigma(self) -> float: ...

    @property
    def z(self) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Fields:
    """Mean fields of some output pixels at some noise levels."""

    sigmas: list[float]
    pixels: list[Pixel]
    values: Float[Tensor, "sigmas pixels c h w"]
    samples: int  # each is the mean over so many noisy images

    def save(self, path: Path, **more: Any) -> None:
        """As an npz file."""
        np.savez(path, sigmas=np.array(self.sigmas), pixels=np.array(self.pixels), values=self.values.cpu().numpy(),
                 samples=self.samples, **more)


def mean_fields(denoiser: Denoiser, points: Iterable[Point], pixels: Sequence[Pixel], *, channel: int | None = None,
                of: Literal["x0", "epsilon"] = "x0", wrt: Literal["z", "x_t"] = "z") -> Fields:
    """The fields at each point, averaged over its images: along a trajectory, or at noisy images of one's choice."""
    sigmas, values, samples = [], [], 0
    for point in points:
        fields = sensitivity(denoiser, point.z, point.sigma, pixels, channel=channel, of=of, wrt=wrt)  # [P, B, C, H, W]
        sigmas.append(float(point.sigma))
        values.append(fields.mean(dim=1))
        samples = len(point.z)
    if not values:
        raise ScorelensError("no points given: there is no field to average")
    return Fields(sigmas, [(int(row), int(column)) for row, column in pixels], torch.stack(values), samples)
