"""One weight per image and mask, from the differences between the masks of neighbouring pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scorelens.posterior.plans.base import Plan, cached_chunk
from scorelens.posterior.plans.dense import masks_pull_back
from scorelens.posterior.plans.sparse import Sums
from scorelens.posterior.responses import Chunk
from scorelens.types import Flat, Shape

CHAIN_ERROR = 2e-4  # nats that the additions and subtractions along a chain of masks may cost
CHAIN_STEPS = 3.0  # roundings of a chain that add up, as in a random walk


@dataclass(frozen=True)
class MaskDifferences(Plan):
    """The mask of a pixel differs little from its neighbour's: its distance is the neighbour's, plus what enters the
    mask, minus what leaves it. The chain runs down the first column of the image and then along each row.

    Distances are taken relative to that of the mean image c: with x' = x - c, z' = z - c they are sums of
    x' (x' - 2 z') rather than (x' - z')^2, which are smaller and lose fewer digits along the chain.
    """

    name: ClassVar[str] = "differences"
    centred: ClassVar[bool] = True
    keep: Bool[Tensor, "q d"]
    sums: Sums  # of what changes from one mask to the next
    grid: Shape

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return cached_chunk(d, itemsize, memory)

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "1 q"] | None, margin: float) -> Float[Tensor, "1 q n"]:
        terms = torch.sub(x, 2 * z.T, out=self.buffers.reserve("terms", x, *x.shape)).mul_(x)
        distances = self.sums(terms)  # [q, n], of each pixel relative to the one before it
        columns = distances.view(*self.grid, -1).unbind(dim=2)  # W of [C, H, n]
        columns[0].copy_(columns[0].cumsum(dim=1))
        for before, column in pairwise(columns):
            column.add_(before)
        return distances[None]

    def pull_back(self, cotangent: Float[Tensor, "1 q n"], z: Flat, x: Chunk) -> Flat:
        return masks_pull_back(self.keep.to(x), cotangent, z, x)


def mask_changes(keep: Bool[Tensor, "q d"], grid: Shape) -> Bool[Tensor, "q d"]:
    """Where a mask differs from that of the pixel before it: to the left, else above, else the empty mask."""
    on_grid = keep.view(*grid, -1)  # [C, H, W, d]
    changed = on_grid.clone()
    changed[:, :, 1:] ^= on_grid[:, :, :-1]
    changed[:, 1:, 0] ^= on_grid[:, :-1, 0]
    return changed.view_as(keep)


def chain_is_exact(keep: Bool[Tensor, "q d"], grid: Shape, dtype: torch.dtype, scale: float) -> bool:
    """Whether distances along a chain keep their digits: sums over m pixels of x' (x' - 2 z'), with x' at most about 1
    and z' about sigma, round by eps (m + 2 sigma sqrt(m)) a few times. m is the mean size of a mask, in the layer of
    the grid where masks are largest."""
    m, sigma = keep.sum(dim=1).view(grid[0], -1).float().mean(dim=1).max().item(), math.sqrt(1 / (2 * scale))
    return CHAIN_STEPS * torch.finfo(dtype).eps / 2 * (m + 2 * sigma * math.sqrt(m)) * scale < CHAIN_ERROR
