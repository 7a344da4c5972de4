"""Sensitivity fields of any denoiser: d x0_hat[pixel] / d z, at any pixel and noise level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import by_level, check_levels, check_noisy, check_sigma, outputs_at, wide_dtype

Pixel = tuple[int, int]


def sensitivity(denoiser: Denoiser, z: Tensor, sigma: float | Tensor, pixel: Pixel | Sequence[Pixel], *,
                channel: int | None = None, of: Literal["x0", "epsilon"] = "x0",
                wrt: Literal["z", "x_t"] = "z") -> Tensor:
    """d x0_hat[pixel] / d z by vector-Jacobian products: [B, C, H, W], or [P, B, C, H, W] for a list of pixels.

    Args:
        denoiser: any denoiser; a method `at(z, sigma, coordinates)`, if it has one, computes only the needed outputs.
        z: noisy images [B, C, H, W].
        sigma: their noise level, or a tensor [B] with one for each.
        pixel: (row, column) of the output, or a list of them.
        channel: of the output; by default the sum over all channels.
        of: the output to differentiate: x0_hat, or the predicted noise (z - x0_hat) / sigma.
        wrt: differentiate with respect to z, or to DDPM's x_t = z / sqrt(1 + sigma^2).
    """
    levels = check_levels(sigma, len(check_noisy(z))).to(wide_dtype(z)).to(z.device).view(-1, 1, 1, 1)
    several = len(pixel) > 0 and not isinstance(pixel[0], int)
    pixels: Sequence[Pixel] = pixel if several else [pixel]  # type: ignore[list-item, assignment]
    fields = torch.stack([pull_back(denoiser, z, sigma, z.new_ones(()), _coordinates(z, p, channel)) for p in pixels])
    if of == "epsilon":
        fields = (_identity(z, pixels, channel) - fields) / levels.to(z.dtype)
    if wrt == "x_t":
        fields = fields * (1 + levels**2).sqrt().to(z.dtype)
    return fields if several else fields[0]


def pull_back(denoiser: Denoiser, z: Tensor, sigma: float | Tensor, u: Tensor,
              coordinates: Int[Tensor, "k"] | None = None) -> Tensor:
    """J^T u for each image of the batch, with J = d x0_hat / d z, or only the rows of J at these coordinates."""
    def call(z: Tensor, level: float) -> Tensor:
        return denoiser(z, level) if coordinates is None else outputs_at(denoiser, z, level, coordinates)

    inputs = z.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        outputs = by_level(call, inputs, sigma)
    if not outputs.requires_grad:
        raise ScorelensError(f"{type(denoiser).__name__} has no gradient: it does not depend smoothly on z, or it "
                             "computes without gradients (torch.no_grad, .detach())")
    (field,) = torch.autograd.grad(outputs, inputs, u.to(outputs).expand_as(outputs))
    return field.detach()


def _coordinates(z: Tensor, pixel: Pixel, channel: int | None) -> Int[Tensor, "k"]:
    """The flattened coordinates of a pixel's channels."""
    _, c, h, w = z.shape
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


@runtime_checkable
class Point(Protocol):
    """Noisy images and their noise level, such as a step of a trajectory."""

    @property
    def sigma(self) -> float: ...

    @property
    def z(self) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Fields:
    """Mean fields of output pixels at several noise levels."""

    sigmas: list[float]
    pixels: list[Pixel]
    values: Float[Tensor, "sigmas pixels c h w"]
    samples: int  # noisy images per mean

    def save(self, path: Path, **more: Any) -> None:
        """Write an npz file."""
        np.savez(path, sigmas=np.array(self.sigmas), pixels=np.array(self.pixels), values=self.values.cpu().numpy(),
                 samples=self.samples, **more)


def mean_fields(denoiser: Denoiser, points: Iterable[Point], pixels: Sequence[Pixel], *, channel: int | None = None,
                of: Literal["x0", "epsilon"] = "x0", wrt: Literal["z", "x_t"] = "z") -> Fields:
    """The fields at each point (a step of a trajectory or other noisy images), averaged over its images."""
    sigmas, values, samples = [], [], 0
    for point in points:
        fields = sensitivity(denoiser, point.z, point.sigma, pixels, channel=channel, of=of, wrt=wrt)  # [P, B, C, H, W]
        sigmas.append(check_sigma(point.sigma))
        values.append(fields.mean(dim=1))
        samples = len(point.z)
    if not values:
        raise ScorelensError("no points given; give at least one to average fields over")
    return Fields(sigmas, [(int(row), int(column)) for row, column in pixels], torch.stack(values), samples)
