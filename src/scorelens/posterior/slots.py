"""The three slots every posterior-mean denoiser fills: queries, responses, source.

x0_hat[what query q writes] = sum_i softmax_i(-distance_q(z, x_i) / 2 sigma^2) x_i[what query q writes]; i: the source.

Shapes: b noisy images, n images of the source, q queries, r pixels that each query writes, d coordinates of an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scorelens.types import Flat, Shape

Chunk = Float[Tensor, "d n"]  # images as columns
Border = Literal["cut", "wrap", "inside"]


@runtime_checkable
class Source(Protocol):
    """What is averaged: an ImageSet, or anything that can be read as one, a few images at a time."""

    def __len__(self) -> int: ...

    @property
    def dim(self) -> int:
        """d: how many coordinates an image has."""
        ...

    @property
    def centre(self) -> np.ndarray:
        """An image in the middle of all, as pixel values 0 ... 255, d of them."""
        ...

    def raw(self, start: int, stop: int) -> Tensor:
        """Images start ... stop - 1, [n, ...] with d coordinates each: uint8, or floats in units of [-1, 1]."""
        ...


@dataclass(frozen=True, eq=False)
class WholeImage:
    """Queries: one, which compares every input pixel; or only the first so many coordinates of the source's rows, where
    those that follow are there to be averaged."""

    compared: int | None = None


@dataclass(frozen=True, eq=False)
class WholePatch:
    """Queries: one, which compares every pixel of a small image, of which there are thousands at a time."""


@dataclass(frozen=True, eq=False)
class Masks:
    """Queries: as many as rows; query q compares the input pixels that its row keeps. Queries that stand on a grid
    (C, H, W), as one per output pixel does, have neighbours whose masks differ little."""

    keep: Bool[Tensor, "q d"]
    grid: Shape | None = None

    def __len__(self) -> int:
        return len(self.keep)

    def some(self, queries: Int[Tensor, "k"]) -> Masks:
        return Masks(self.keep[queries.to(self.keep.device)])


@dataclass(frozen=True, eq=False)
class Precisions:
    """Queries: as many as rows; query q compares input pixel k with weight [q, k]. Masks are those of 0 and 1."""

    weights: Float[Tensor, "q d"]

    def __len__(self) -> int:
        return len(self.weights)

    def some(self, queries: Int[Tensor, "k"]) -> Precisions:
        return Precisions(self.weights[queries.to(self.weights.device)])


@dataclass(frozen=True)
class Windows:
    """Queries: square windows of all channels, one centred on each place of the image, cut at its border or wrapped
    around it; or those that lie wholly inside, named by their upper left corners."""

    shape: Shape
    size: int
    border: Border = "cut"

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of a window: never more than the image's where it must lie inside."""
        _, h, w = self.shape
        return (min(self.size, h), min(self.size, w)) if self.border == "inside" else (self.size, self.size)


Queries = WholeImage | WholePatch | Masks | Precisions | Windows


@runtime_checkable
class Responses(Protocol):
    """Which output pixels each query writes: a linear map of weights, and its transpose for the backward pass."""

    overlapping: ClassVar[bool]  # several queries write the same pixel, so that `respond` needs normalized weights

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b q r"]:
        """sum_i weights_i x_i, over the pixels each query writes. May overwrite the weights."""
        ...

    def collect(self, means: Float[Tensor, "b q r"]) -> Float[Tensor, "b out"]:
        """What was written, in the order of the output."""
        ...

    def written(self, y: Flat) -> Float[Tensor, "b out"]:
        """The output of a source that holds nothing but y."""
        ...

    def share(self, g: Float[Tensor, "b out"]) -> Float[Tensor, "b q r"]:
        """What each query has of an output: the transpose of `collect`."""
        ...

    def project(self, g: Float[Tensor, "b out"], x: Chunk) -> Float[Tensor, "b q n"]:
        """g . x_i, over the pixels each query writes: the transpose of `respond`."""
        ...


@dataclass(frozen=True)
class EveryPixel:
    """Responses: one query writes the whole output."""

    overlapping: ClassVar[bool] = False

    def respond(self, weights: Float[Tensor, "b 1 n"], x: Chunk) -> Float[Tensor, "b 1 d"]:
        return (weights[:, 0].to(x.dtype) @ x.T)[:, None]

    def collect(self, means: Float[Tensor, "b 1 d"]) -> Flat:
        return means[:, 0]

    def written(self, y: Flat) -> Flat:
        return y

    def share(self, g: Flat) -> Float[Tensor, "b 1 d"]:
        return g[:, None]

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b 1 n"]:
        return (g @ x)[:, None]


@dataclass(frozen=True, eq=False)
class Chosen:
    """Responses: one query writes some coordinates."""

    overlapping: ClassVar[bool] = False
    pixels: Int[Tensor, "r"]

    def respond(self, weights: Float[Tensor, "b 1 n"], x: Chunk) -> Float[Tensor, "b 1 r"]:
        rows = x[self.pixels]
        if len(rows) == 1:  # MKL's matrix times vector at times halves the speed of the product after it
            rows = rows.expand(2, -1).contiguous()
        return (weights[:, 0].to(x.dtype) @ rows.T)[:, None, :len(self.pixels)]

    def collect(self, means: Float[Tensor, "b 1 r"]) -> Float[Tensor, "b r"]:
        return means[:, 0]

    def written(self, y: Flat) -> Float[Tensor, "b r"]:
        return y[:, self.pixels]

    def share(self, g: Float[Tensor, "b r"]) -> Float[Tensor, "b 1 r"]:
        return g[:, None]

    def project(self, g: Float[Tensor, "b r"], x: Chunk) -> Float[Tensor, "b 1 n"]:
        return (g @ x[self.pixels])[:, None]


@dataclass(frozen=True)
class OwnPixel:
    """Responses: query q writes output pixel q."""

    overlapping: ClassVar[bool] = False

    def respond(self, weights: Float[Tensor, "b d n"], x: Chunk) -> Float[Tensor, "b d 1"]:
        return weights.mul_(x).sum(dim=2, keepdim=True)

    def collect(self, means: Float[Tensor, "b d 1"]) -> Flat:
        return means[:, :, 0]

    def written(self, y: Flat) -> Flat:
        return y

    def share(self, g: Flat) -> Float[Tensor, "b d 1"]:
        return g[:, :, None]

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b d n"]:
        return g[:, :, None] * x


@dataclass(frozen=True, eq=False)
class SomePixels:
    """Responses: query k writes output pixel `pixels[k]`, and no one writes the others."""

    overlapping: ClassVar[bool] = False
    pixels: Int[Tensor, "q"]

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b q 1"]:
        return weights.mul_(x[self.pixels]).sum(dim=2, keepdim=True)

    def collect(self, means: Float[Tensor, "b q 1"]) -> Float[Tensor, "b q"]:
        return means[:, :, 0]

    def written(self, y: Flat) -> Float[Tensor, "b q"]:
        return y[:, self.pixels]

    def share(self, g: Float[Tensor, "b q"]) -> Float[Tensor, "b q 1"]:
        return g[:, :, None]

    def project(self, g: Float[Tensor, "b q"], x: Chunk) -> Float[Tensor, "b q n"]:
        return g[:, :, None] * x[self.pixels]


@dataclass(frozen=True)
class OwnPlace:
    """Responses: query q writes all channels of place q."""

    overlapping: ClassVar[bool] = False
    channels: int

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b q c"]:
        return (weights[:, None] * x.unflatten(0, (self.channels, -1))).sum(dim=3).transpose(1, 2)

    def collect(self, means: Float[Tensor, "b q c"]) -> Flat:
        return means.transpose(1, 2).flatten(1)

    def written(self, y: Flat) -> Flat:
        return y

    def share(self, g: Flat) -> Float[Tensor, "b q c"]:
        return g.unflatten(1, (self.channels, -1)).transpose(1, 2)

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b q n"]:
        return (g[:, :, None] * x).unflatten(1, (self.channels, -1)).sum(dim=1)


@dataclass(frozen=True, eq=False)
class MaskMeans:
    """Responses: each query writes all the pixels of its row; where they overlap, they are averaged."""

    overlapping: ClassVar[bool] = True
    writes: Bool[Tensor, "q d"]

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b 1 d"]:
        writes = self._shares(x)
        return torch.stack([((writes.T @ w) * x).sum(dim=1) for w in weights])[:, None]

    def collect(self, means: Float[Tensor, "b 1 d"]) -> Flat:
        return means[:, 0]

    def written(self, y: Flat) -> Flat:
        return y

    def share(self, g: Flat) -> Float[Tensor, "b 1 d"]:
        return g[:, None]

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b q n"]:
        writes = self._shares(x)
        return torch.stack([writes @ (one[:, None] * x) for one in g])

    def _shares(self, x: Chunk) -> Float[Tensor, "q d"]:
        """1 / the number of queries that write a pixel, where one does."""
        writes = self.writes.to(x)
        return writes / writes.sum(dim=0)


@dataclass(frozen=True)
class Posterior:
    """A denoiser's declaration: which pixels are compared, which are written, which images are averaged."""

    queries: Queries
    responses: Responses
    source: Source
