"""Execution plans: how the distances of a posterior's queries are computed, chunk by chunk.

A plan knows distances and their gradient, nothing else: the softmax, the chunks and the backward pass are the engine's.
All plans are exact. Which one runs is the choice of `costs.choose_plan`; those of windows and patches are in files of
their own beside this one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from scorelens.posterior.slots import Chunk, Masks, Responses
from scorelens.posterior.softmax import State
from scorelens.statistics.nearest import expanded_distances, refine_
from scorelens.types import Flat, Shape

SPARSE_ELEMENTS = 2**19  # of a chunk, so that it stays in a processor's second-level cache while rows of it are added


@runtime_checkable
class Plan(Protocol):
    """b noisy images z against a chunk of n images x, for q queries."""

    name: ClassVar[str]
    centred: ClassVar[bool]  # works on images minus their mean (and z too), for the sake of digits
    pixel_major: ClassVar[bool]  # wants the values of a pixel together in memory, not those of an image

    @property
    def together(self) -> int | None:
        """How many noisy images are worked on at once; None for all."""
        ...

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        """How many images make a good chunk within this many bytes of workspace, for b noisy images at once."""
        ...

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "b q"] | None,
                  margin: float) -> Float[Tensor, "b q n"]:
        """Squared distances, up to a number for each b and q, in memory that the caller may overwrite until it asks
        for the next ones.

        `best` is the smallest seen in earlier chunks: a distance beyond best + margin has no weight, and need not be
        right.
        """
        ...

    def pull_back(self, cotangent: Float[Tensor, "b q n"], z: Flat, x: Chunk) -> Flat:
        """sum over i and q of cotangent_qi d distance_qi / dz, for cotangents that add up to zero over the images."""
        ...


@runtime_checkable
class Fused(Protocol):
    """A plan that goes from a chunk to the softmax's state in one breath."""

    def with_chunk(self, so_far: State | None, z: Flat, x: Chunk, scale: float, responses: Responses | None) -> State:
        """The state of `so_far` and the chunk together."""
        ...


@dataclass(frozen=True)
class FullImage:
    """One weight per image: thin matrix products. Distances are kept wide, and measured by differences wherever those
    round less than the product does."""

    name: ClassVar[str] = "full image"
    centred: ClassVar[bool] = False
    pixel_major: ClassVar[bool] = False
    together: ClassVar[int | None] = None
    compared: int | None = None  # coordinates; the others are only averaged

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return memory // (d * itemsize + 48 * b)

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "b 1"] | None, margin: float) -> Float[Tensor, "b 1 n"]:
        z, rows = z[:, :self.compared], x[:self.compared].T
        distances, rounding = expanded_distances(z, rows)
        nearest = distances.amin(dim=1, keepdim=True)
        nearest = nearest if best is None else torch.minimum(nearest, best)
        refine_(distances, z, rows, rounding, torch.where(nearest < rounding, nearest + margin, -math.inf))
        return distances[:, None]

    def pull_back(self, cotangent: Float[Tensor, "b 1 n"], z: Flat, x: Chunk) -> Flat:
        c = cotangent[:, 0]
        gradient = 2 * (c.sum(dim=1, keepdim=True).to(x.dtype) * z - c.to(x.dtype) @ x.T)
        if self.compared is not None:
            gradient[:, self.compared:] = 0
        return gradient


@dataclass(frozen=True)
class Buffers:
    """Memory that is used again and again: fresh pages cost more than the arithmetic."""

    held: dict[str, Tensor] = field(default_factory=dict)

    def get(self, name: str, like: Tensor, *shape: int) -> Tensor:
        size = math.prod(shape)
        if name not in self.held or self.held[name].numel() < size:
            self.held[name] = like.new_empty(size)
        return self.held[name][:size].view(shape)


@dataclass(frozen=True)
class DenseMasks:
    """A weight per image and query: the mask matrix times plain squared differences, one product per noisy image."""

    name: ClassVar[str] = "dense"
    centred: ClassVar[bool] = False
    pixel_major: ClassVar[bool] = True
    together: ClassVar[int | None] = 1
    keep: Float[Tensor, "q d"]
    buffers: Buffers = field(default_factory=Buffers)

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return min(2048, memory // ((2 * d + 2 * len(self.keep)) * itemsize))

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "1 q"] | None, margin: float) -> Float[Tensor, "1 q n"]:
        square = torch.sub(x, z.T, out=self.buffers.get("square", x, *x.shape)).square_()
        distances = self.buffers.get("distances", x, len(self.keep), x.shape[1])
        return torch.mm(self.keep, square, out=distances)[None]

    def pull_back(self, cotangent: Float[Tensor, "1 q n"], z: Flat, x: Chunk) -> Flat:
        return _masks_pull_back(self.keep, cotangent, z, x)


@dataclass(frozen=True)
class SparseMasks:
    """A weight per image and query: squared differences added up over the pixels that each mask keeps, no others."""

    name: ClassVar[str] = "sparse"
    centred: ClassVar[bool] = False
    pixel_major: ClassVar[bool] = True
    together: ClassVar[int | None] = 1
    masks: Masks
    sums: Sums
    buffers: Buffers = field(default_factory=Buffers)

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return sparse_chunk(d, itemsize, memory)

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "1 q"] | None, margin: float) -> Float[Tensor, "1 q n"]:
        square = torch.sub(x, z.T, out=self.buffers.get("square", x, *x.shape)).square_()
        return self.sums(square)[None]

    def pull_back(self, cotangent: Float[Tensor, "1 q n"], z: Flat, x: Chunk) -> Flat:
        return _masks_pull_back(self.masks.keep.to(x), cotangent, z, x)


@dataclass(frozen=True)
class MaskDifferences:
    """A weight per image and query: the mask of a pixel differs little from its neighbour's, so each distance is the
    neighbour's plus what enters the mask minus what leaves it. On an image of C x H x W the chain runs down the first
    column and then along each row.

    Distances are taken relative to that of the mean image c: with x' = x - c, z' = z - c they are sums of
    x' (x' - 2 z') rather than (x' - z')^2, which are smaller and so lose less by being added and subtracted.
    """

    name: ClassVar[str] = "differences"
    centred: ClassVar[bool] = True
    pixel_major: ClassVar[bool] = True
    together: ClassVar[int | None] = 1
    masks: Masks
    sums: Sums
    grid: Shape
    buffers: Buffers = field(default_factory=Buffers)

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return sparse_chunk(d, itemsize, memory)

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "1 q"] | None, margin: float) -> Float[Tensor, "1 q n"]:
        terms = torch.sub(x, 2 * z.T, out=self.buffers.get("terms", x, *x.shape)).mul_(x)
        distances = self.sums(terms)  # [q, n], of each pixel relative to the one before it
        columns = distances.view(*self.grid, -1).unbind(dim=2)  # W of [C, H, n]
        columns[0].copy_(columns[0].cumsum(dim=1))
        for before, column in pairwise(columns):
            column.add_(before)
        return distances[None]

    def pull_back(self, cotangent: Float[Tensor, "1 q n"], z: Flat, x: Chunk) -> Flat:
        return _masks_pull_back(self.masks.keep.to(x), cotangent, z, x)


@dataclass(frozen=True)
class Sums:
    """A sparse matrix [q, d]: for each query the rows of a table that it adds up, and their signs."""

    rows: Int[Tensor, "entries"]
    starts: Int[Tensor, "q"]
    signs: Float[Tensor, "entries"] | None  # None: all are +1

    @property
    def entries(self) -> int:
        return len(self.rows)

    def __call__(self, table: Chunk) -> Float[Tensor, "q n"]:
        signs = None if self.signs is None else self.signs.to(table)
        return embedding_bag(self.rows, table, self.starts, mode="sum", per_sample_weights=signs)

    def to(self, device: torch.device) -> Sums:
        return Sums(self.rows.to(device), self.starts.to(device), None if self.signs is None else self.signs.to(device))


def mask_sums(masks: Masks) -> Sums:
    """Every mask on its own."""
    return _sums(masks.keep, None)


def difference_sums(masks: Masks) -> Sums:
    """Every mask relative to that of the pixel before it."""
    return _sums(changes(masks), masks.keep)


def changes(masks: Masks) -> Bool[Tensor, "q d"]:
    """Where a mask differs from that of the pixel before it: to the left, or above where there is none, or nothing."""
    assert masks.grid is not None, "differences need a grid"
    keep = masks.keep.view(*masks.grid, -1)  # [C, H, W, d]
    changed = keep.clone()
    changed[:, :, 1:] ^= keep[:, :, :-1]
    changed[:, 1:, 0] ^= keep[:, :-1, 0]
    return changed.view_as(masks.keep)


def sparse_chunk(d: int, itemsize: int, memory: int) -> int:
    """A power of two, so that a chunk of d pixels fits the cache and its workspace the memory."""
    rows = min(SPARSE_ELEMENTS * 4 // (d * itemsize), 512, memory // (4 * d * itemsize))
    return 1 << max(0, rows.bit_length() - 1)


def _sums(used: Tensor, keep: Tensor | None) -> Sums:
    query, row = used.nonzero(as_tuple=True)
    counts = used.sum(dim=1)
    signs = None if keep is None else torch.where(keep[query, row], 1.0, -1.0)
    return Sums(row, counts.cumsum(0) - counts, signs)


def _masks_pull_back(keep: Float[Tensor, "q d"], cotangent: Float[Tensor, "1 q n"], z: Flat, x: Chunk) -> Flat:
    """distance_q = sum_k keep_qk (z_k - x_k)^2, up to what does not depend on the image."""
    return 2 * ((keep.T @ cotangent[0]) * (z.T - x)).sum(dim=1)[None]
