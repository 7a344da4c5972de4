"""One weight per image and mask, by sums over the pixels that each mask keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from scorelens.posterior.plans.base import Plan, cached_chunk
from scorelens.posterior.plans.dense import masks_pull_back
from scorelens.posterior.responses import Chunk
from scorelens.types import Flat


@dataclass(frozen=True, eq=False)
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


def sums_over(used: Bool[Tensor, "q d"], positive: Bool[Tensor, "q d"] | None = None) -> Sums:
    """Sums over the entries that are used; negative where they are not `positive`, if that is given."""
    query, row = used.nonzero(as_tuple=True)
    counts = used.sum(dim=1)
    signs = None if positive is None else torch.where(positive[query, row], 1.0, -1.0)
    return Sums(row, counts.cumsum(0) - counts, signs)


@dataclass(frozen=True)
class SparseMasks(Plan):
    """Squared differences, summed over the pixels that each mask keeps and no others."""

    name: ClassVar[str] = "sparse"
    keep: Bool[Tensor, "q d"]
    sums: Sums

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return cached_chunk(d, itemsize, memory)

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "1 q"] | None, margin: float) -> Float[Tensor, "1 q n"]:
        square = torch.sub(x, z.T, out=self.buffers.reserve("square", x, *x.shape)).square_()
        return self.sums(square)[None]

    def pull_back(self, cotangent: Float[Tensor, "1 q n"], z: Flat, x: Chunk) -> Flat:
        return masks_pull_back(self.keep.to(x), cotangent, z, x)
