"""Execution plans: how the distances of a posterior's queries are computed, chunk by chunk.

A plan knows distances and their gradient, nothing else; `choose_plan` picks the fastest that is exact. Further plans
(block-sparse, complement, translated patches, screened) plug in here: the softmax, the chunks and the backward pass are
the engine's and stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.data.neighbours import expanded_distances, refine_
from scorelens.posterior.slots import Chunk, Masks, WholeImage
from scorelens.types import Flat


@runtime_checkable
class Plan(Protocol):
    """b noisy images z against a chunk of n images x, for q queries."""

    @property
    def name(self) -> str: ...

    def pair_bytes(self, itemsize: int) -> int:
        """Workspace for one pair of a noisy image and an image of the source."""
        ...

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "b q"] | None,
                  margin: float) -> Float[Tensor, "b n q"]:
        """Squared distances, in memory that the caller may overwrite until it asks for the next ones.

        `best` is the smallest seen in earlier chunks: a distance beyond best + margin has no weight, and need not be
        right.
        """
        ...

    def pull_back(self, cotangent: Float[Tensor, "b n q"], z: Flat, x: Chunk) -> Flat:
        """sum over i and q of cotangent_iq d distance_iq / dz."""
        ...


@dataclass(frozen=True)
class FullImage:
    """One weight per image: thin matrix products. Distances are kept wide, and measured by differences wherever those
    round less than the product does."""

    name: str = "full image"

    def pair_bytes(self, itemsize: int) -> int:
        return 6 * 8

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "b 1"] | None, margin: float) -> Float[Tensor, "b n 1"]:
        distances, rounding = expanded_distances(z, x)
        nearest = distances.amin(dim=1, keepdim=True)
        nearest = nearest if best is None else torch.minimum(nearest, best)
        refine_(distances, z, x, rounding, torch.where(nearest < rounding, nearest + margin, -math.inf))
        return distances[:, :, None]

    def pull_back(self, cotangent: Float[Tensor, "b n 1"], z: Flat, x: Chunk) -> Flat:
        c = cotangent[:, :, 0]
        return 2 * (c.sum(dim=1, keepdim=True).to(x.dtype) * z - c.to(x.dtype) @ x)


@dataclass(frozen=True)
class DenseMasks:
    """A weight per image and query: plain squared differences times the mask matrix, one product per noisy image."""

    keep: Float[Tensor, "q d"]
    name: str = "dense masks"
    buffers: dict[str, Tensor] = field(default_factory=dict)  # fresh pages cost more than the arithmetic: keep them

    def pair_bytes(self, itemsize: int) -> int:
        return (self.keep.shape[1] + 2 * self.keep.shape[0]) * itemsize

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "b q"] | None, margin: float) -> Float[Tensor, "b n q"]:
        b, n, (q, d) = len(z), len(x), self.keep.shape
        difference = torch.sub(z[:, None], x, out=self._buffer("difference", b, n, d))
        distances = self._buffer("distances", b, n, q)
        torch.mm(difference.square_().view(b * n, d), self.keep.T, out=distances.view(b * n, q))
        return distances

    def pull_back(self, cotangent: Float[Tensor, "b n q"], z: Flat, x: Chunk) -> Flat:
        b, n, (q, d) = len(z), len(x), self.keep.shape
        spread = self._buffer("spread", b, n, d)
        torch.mm(cotangent.view(b * n, q), self.keep, out=spread.view(b * n, d))
        difference = torch.sub(z[:, None], x, out=self._buffer("difference", b, n, d))
        return 2 * difference.mul_(spread).sum(dim=1)

    def _buffer(self, name: str, b: int, n: int, width: int) -> Tensor:
        if name not in self.buffers or self.buffers[name].numel() < b * n * width:
            self.buffers[name] = self.keep.new_empty(b * n * width)
        return self.buffers[name][:b * n * width].view(b, n, width)


def choose_plan(queries: WholeImage | Masks, z: Flat) -> Plan:
    """The fastest exact plan for these queries."""
    if isinstance(queries, WholeImage):
        return FullImage()
    return DenseMasks(queries.keep.to(device=z.device, dtype=z.dtype))
