"""Which output pixels each query writes: linear maps of weights, and their transposes for the backward pass.

Shapes: b noisy images, n images of the source, q queries, r pixels that each query writes, d coordinates of an image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import EllipsisType
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scorelens.posterior.windows import WindowGrid
from scorelens.types import Flat

Chunk = Float[Tensor, "d n"]  # images as columns
Pixels = Int[Tensor, "r"] | EllipsisType  # coordinates of an image; ... for all of them


@runtime_checkable
class Responses(Protocol):
    """Which output pixels each query writes."""

    overlapping: ClassVar[bool]  # several queries write the same pixel, so that `respond` needs normalized weights

    @property
    def pixels(self) -> Pixels:
        """The coordinates of an image that the output consists of."""

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b q r"]:
        """sum_i weights_i x_i, over the pixels each query writes. May overwrite the weights."""

    def project(self, g: Float[Tensor, "b out"], x: Chunk) -> Float[Tensor, "b q n"]:
        """g . x_i, over the pixels each query writes: the transpose of `respond`."""

    def writers(self, d: int) -> Writers:
        """The queries that write each output of images with d coordinates."""


class Writers(NamedTuple):
    """Whose weights an output has: those of one query, or a mixture of the weights of several."""

    outputs: Int[Tensor, "out"]  # coordinates of x0_hat
    target: Int[Tensor, "out"]  # of each output: a query, or a row of `mix`
    mix: Float[Tensor, "t q"] | None = None  # rows sum to 1


def collect(means: Float[Tensor, "b q r"]) -> Float[Tensor, "b out"]:
    """What the queries wrote, in the order of the output: channel by channel where a query writes several."""
    return means.transpose(1, 2).flatten(1)


def _on_cpu(pixels: Pixels) -> Pixels:
    return pixels.cpu() if isinstance(pixels, Tensor) else pixels


@dataclass(frozen=True, eq=False)
class WholeOutput:
    """One query writes the whole output, or these coordinates of it."""

    overlapping: ClassVar[bool] = False
    pixels: Pixels = ...

    def respond(self, weights: Float[Tensor, "b 1 n"], x: Chunk) -> Float[Tensor, "b 1 r"]:
        rows = x[self.pixels]
        count = len(rows)
        if count == 1:  # MKL's matrix times vector at times halves the speed of the product after it
            rows = rows.expand(2, -1).contiguous()
        return (weights[:, 0].to(x.dtype) @ rows.T)[:, None, :count]

    def project(self, g: Float[Tensor, "b r"], x: Chunk) -> Float[Tensor, "b 1 n"]:
        return (g @ x[self.pixels])[:, None]

    def writers(self, d: int) -> Writers:
        outputs = torch.arange(d)[_on_cpu(self.pixels)]
        return Writers(outputs, torch.zeros_like(outputs))


@dataclass(frozen=True, eq=False)
class OwnOutput:
    """Query q writes output q; or output pixels[q], and nothing else is written."""

    overlapping: ClassVar[bool] = False
    pixels: Pixels = ...

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b q 1"]:
        return weights.mul_(x[self.pixels]).sum(dim=2, keepdim=True)

    def project(self, g: Float[Tensor, "b q"], x: Chunk) -> Float[Tensor, "b q n"]:
        return g[:, :, None] * x[self.pixels]

    def writers(self, d: int) -> Writers:
        outputs = torch.arange(d)[_on_cpu(self.pixels)]
        return Writers(outputs, torch.arange(len(outputs)))


@dataclass(frozen=True)
class AllChannels:
    """Query q writes all channels of pixel q."""

    overlapping: ClassVar[bool] = False
    pixels: ClassVar[Pixels] = ...
    channels: int

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b q c"]:
        return (weights[:, None] * x.unflatten(0, (self.channels, -1))).sum(dim=3).transpose(1, 2)

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b q n"]:
        return (g[:, :, None] * x).unflatten(1, (self.channels, -1)).sum(dim=1)

    def writers(self, d: int) -> Writers:
        outputs = torch.arange(d)
        return Writers(outputs, outputs % (d // self.channels))


@dataclass(frozen=True, eq=False)
class MaskMeans:
    """Each query writes all the pixels of its row; where they overlap, they are averaged."""

    overlapping: ClassVar[bool] = True
    pixels: ClassVar[Pixels] = ...
    writes: Bool[Tensor, "q d"]

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b 1 d"]:
        shares = self._shares(x)
        return torch.stack([((shares.T @ w) * x).sum(dim=1) for w in weights])[:, None]

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b q n"]:
        shares = self._shares(x)
        return torch.stack([shares @ (one[:, None] * x) for one in g])

    def writers(self, d: int) -> Writers:
        return Writers(torch.arange(d), torch.arange(d), self._shares(torch.empty(d, 0, dtype=torch.float64)).T)

    def _shares(self, x: Chunk) -> Float[Tensor, "q d"]:
        """1 / the number of queries that write a pixel, where one does."""
        writes = self.writes.to(x)
        return writes / writes.sum(dim=0)


@dataclass(frozen=True)
class WindowMeans:
    """Each window inside the image writes all of its pixels; where windows overlap, they are averaged."""

    overlapping: ClassVar[bool] = True
    pixels: ClassVar[Pixels] = ...
    windows: WindowGrid

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b 1 d"]:
        values = x.unflatten(0, (self.windows.shape[0], -1))  # [C, HW, n]
        spread = (self.windows.spread(w) for w in weights)
        return torch.stack([(s * values).sum(dim=2).flatten() for s in spread])[:, None] / self._counts(x)

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b q n"]:
        return torch.stack([self.windows.sums(one[:, None] * x) for one in g / self._counts(x)])

    def writers(self, d: int) -> Writers:
        count, queries = d // self.windows.shape[0], math.prod(self.windows.positions)
        covered = self.windows.spread(torch.eye(queries, dtype=torch.float64))  # [HW, q]
        return Writers(torch.arange(d), torch.arange(d) % count, covered / covered.sum(dim=1, keepdim=True))

    def _counts(self, x: Chunk) -> Float[Tensor, "d"]:
        """How many windows write each pixel."""
        ones = x.new_ones(math.prod(self.windows.positions), 1)
        return self.windows.spread(ones).flatten().repeat(self.windows.shape[0])
