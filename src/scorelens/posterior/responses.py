"""Which output pixels each query writes: linear maps of weights, and their transposes for the backward pass.

Shapes: b noisy images, n images of the source, q queries, r pixels that each query writes, d coordinates of an image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scorelens.posterior.windows import WindowGrid, box_spread, box_sum
from scorelens.types import Flat

Chunk = Float[Tensor, "d n"]  # images as columns


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

    def split(self, g: Float[Tensor, "b out"]) -> Float[Tensor, "b q r"]:
        """The part of an output that each query wrote: the transpose of `collect`."""
        ...

    def project(self, g: Float[Tensor, "b out"], x: Chunk) -> Float[Tensor, "b q n"]:
        """g . x_i, over the pixels each query writes: the transpose of `respond`."""
        ...


@dataclass(frozen=True)
class WholeOutput:
    """One query writes the whole output."""

    overlapping: ClassVar[bool] = False

    def respond(self, weights: Float[Tensor, "b 1 n"], x: Chunk) -> Float[Tensor, "b 1 d"]:
        return (weights[:, 0].to(x.dtype) @ x.T)[:, None]

    def collect(self, means: Float[Tensor, "b 1 d"]) -> Flat:
        return means[:, 0]

    def written(self, y: Flat) -> Flat:
        return y

    def split(self, g: Flat) -> Float[Tensor, "b 1 d"]:
        return g[:, None]

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b 1 n"]:
        return (g @ x)[:, None]


@dataclass(frozen=True, eq=False)
class PartOfOutput:
    """One query writes some coordinates."""

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

    def split(self, g: Float[Tensor, "b r"]) -> Float[Tensor, "b 1 r"]:
        return g[:, None]

    def project(self, g: Float[Tensor, "b r"], x: Chunk) -> Float[Tensor, "b 1 n"]:
        return (g @ x[self.pixels])[:, None]


@dataclass(frozen=True)
class OwnOutput:
    """Query q writes output q."""

    overlapping: ClassVar[bool] = False

    def respond(self, weights: Float[Tensor, "b d n"], x: Chunk) -> Float[Tensor, "b d 1"]:
        return weights.mul_(x).sum(dim=2, keepdim=True)

    def collect(self, means: Float[Tensor, "b d 1"]) -> Flat:
        return means[:, :, 0]

    def written(self, y: Flat) -> Flat:
        return y

    def split(self, g: Flat) -> Float[Tensor, "b d 1"]:
        return g[:, :, None]

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b d n"]:
        return g[:, :, None] * x


@dataclass(frozen=True, eq=False)
class ListedOutputs:
    """Query k writes output `pixels[k]`; nothing else is written."""

    overlapping: ClassVar[bool] = False
    pixels: Int[Tensor, "q"]

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b q 1"]:
        return weights.mul_(x[self.pixels]).sum(dim=2, keepdim=True)

    def collect(self, means: Float[Tensor, "b q 1"]) -> Float[Tensor, "b q"]:
        return means[:, :, 0]

    def written(self, y: Flat) -> Float[Tensor, "b q"]:
        return y[:, self.pixels]

    def split(self, g: Float[Tensor, "b q"]) -> Float[Tensor, "b q 1"]:
        return g[:, :, None]

    def project(self, g: Float[Tensor, "b q"], x: Chunk) -> Float[Tensor, "b q n"]:
        return g[:, :, None] * x[self.pixels]


@dataclass(frozen=True)
class AllChannels:
    """Query q writes all channels of pixel q."""

    overlapping: ClassVar[bool] = False
    channels: int

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b q c"]:
        return (weights[:, None] * x.unflatten(0, (self.channels, -1))).sum(dim=3).transpose(1, 2)

    def collect(self, means: Float[Tensor, "b q c"]) -> Flat:
        return means.transpose(1, 2).flatten(1)

    def written(self, y: Flat) -> Flat:
        return y

    def split(self, g: Flat) -> Float[Tensor, "b q c"]:
        return g.unflatten(1, (self.channels, -1)).transpose(1, 2)

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b q n"]:
        return (g[:, :, None] * x).unflatten(1, (self.channels, -1)).sum(dim=1)


@dataclass(frozen=True, eq=False)
class MaskMeans:
    """Each query writes all the pixels of its row; where they overlap, they are averaged."""

    overlapping: ClassVar[bool] = True
    writes: Bool[Tensor, "q d"]

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b 1 d"]:
        writes = self._shares(x)
        return torch.stack([((writes.T @ w) * x).sum(dim=1) for w in weights])[:, None]

    def collect(self, means: Float[Tensor, "b 1 d"]) -> Flat:
        return means[:, 0]

    def written(self, y: Flat) -> Flat:
        return y

    def split(self, g: Flat) -> Float[Tensor, "b 1 d"]:
        return g[:, None]

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b q n"]:
        writes = self._shares(x)
        return torch.stack([writes @ (one[:, None] * x) for one in g])

    def _shares(self, x: Chunk) -> Float[Tensor, "q d"]:
        """1 / the number of queries that write a pixel, where one does."""
        writes = self.writes.to(x)
        return writes / writes.sum(dim=0)


@dataclass(frozen=True)
class WindowMeans:
    """Each window inside the image writes all of its pixels; where windows overlap, they are averaged."""

    overlapping: ClassVar[bool] = True
    windows: WindowGrid

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b 1 d"]:
        values = x.unflatten(0, (self.windows.shape[0], -1))  # [C, HW, n]
        spread = (box_spread(self.windows.plane(w), self.windows.sides, "inside") for w in weights)
        return torch.stack([(s.flatten(0, 1) * values).sum(dim=2).flatten() for s in spread])[:, None] / self._counts(x)

    def collect(self, means: Float[Tensor, "b 1 d"]) -> Flat:
        return means[:, 0]

    def written(self, y: Flat) -> Flat:
        return y

    def split(self, g: Flat) -> Float[Tensor, "b 1 d"]:
        return g[:, None]

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b q n"]:
        planes = ((one[:, None] * x).view(*self.windows.shape, -1).sum(dim=0) for one in g / self._counts(x))
        return torch.stack([box_sum(plane, self.windows.sides, "inside").flatten(0, 1) for plane in planes])

    def _counts(self, x: Chunk) -> Float[Tensor, "d"]:
        """How many windows write each pixel."""
        _, h, w = self.windows.shape
        rows, columns = self.windows.sides
        ones = x.new_ones(h - rows + 1, w - columns + 1, 1)
        return box_spread(ones, self.windows.sides, "inside").flatten().repeat(self.windows.shape[0])
