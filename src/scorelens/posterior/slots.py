"""The three slots every posterior-mean denoiser fills: queries, responses, source.

x0_hat[what query q writes] = sum_i softmax_i(-distance_q(z, x_i) / 2 sigma^2) x_i[what query q writes]; i: the source.

Shapes: b noisy images, n images of the source, q queries, d coordinates of an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.types import Flat, Shape

Chunk = Float[Tensor, "d n"]  # images as columns


@dataclass(frozen=True, eq=False)
class WholeImage:
    """Queries: one, which compares every input pixel."""


@dataclass(frozen=True, eq=False)
class Masks:
    """Queries: as many as rows; query q compares the input pixels that its row keeps. Queries that stand on a grid
    (C, H, W), as one per output pixel does, have neighbours whose masks differ little."""

    keep: Bool[Tensor, "q d"]
    grid: Shape | None = None


@runtime_checkable
class Responses(Protocol):
    """Which output pixels each query writes: a linear map of weights, and its transpose for the backward pass."""

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Flat:
        """sum_i weights_i x_i, over the pixels each query writes. May overwrite the weights."""
        ...

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b q n"]:
        """g . x_i, over the pixels each query writes: the transpose of `respond`."""
        ...

    def inner(self, g: Flat, y: Flat) -> Float[Tensor, "b q"]:
        """g_b . y_b, over the pixels each query writes."""
        ...


@dataclass(frozen=True)
class EveryPixel:
    """Responses: one query writes the whole output."""

    def respond(self, weights: Float[Tensor, "b 1 n"], x: Chunk) -> Flat:
        return weights[:, 0].to(x.dtype) @ x.T

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b 1 n"]:
        return (g @ x)[:, None]

    def inner(self, g: Flat, y: Flat) -> Float[Tensor, "b 1"]:
        return (g * y).sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class OwnPixel:
    """Responses: query q writes output pixel q."""

    def respond(self, weights: Float[Tensor, "b d n"], x: Chunk) -> Flat:
        return weights.mul_(x).sum(dim=2)

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b d n"]:
        return g[:, :, None] * x

    def inner(self, g: Flat, y: Flat) -> Flat:
        return g * y


@dataclass(frozen=True, eq=False)
class SomePixels:
    """Responses: query k writes output pixel `pixels[k]`, and no one writes the others."""

    pixels: Int[Tensor, "q"]

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b q"]:
        return weights.mul_(x[self.pixels]).sum(dim=2)

    def project(self, g: Float[Tensor, "b q"], x: Chunk) -> Float[Tensor, "b q n"]:
        return g[:, :, None] * x[self.pixels]

    def inner(self, g: Float[Tensor, "b q"], y: Float[Tensor, "b q"]) -> Float[Tensor, "b q"]:
        return g * y


@dataclass(frozen=True)
class Posterior:
    """A denoiser's declaration: which pixels are compared, which are written, which images are averaged."""

    queries: WholeImage | Masks
    responses: Responses
    source: ImageSet
