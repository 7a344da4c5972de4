"""One weight per image, for thousands of noisy patches at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.posterior.plans.base import Plan
from scorelens.posterior.responses import Chunk, Responses
from scorelens.posterior.softmax import LOG2_E, State, chunk_state, merge, weighted_state
from scorelens.types import Flat

CHUNK_ELEMENTS = 2**20  # weights at a time
TOGETHER = 2048  # noisy patches at a time
HUGE = 2.0**80  # weights relative to a reference this far off are recomputed relative to a better one
Table = Float[Tensor, "k n"]  # x, |x|^2 and 1


@dataclass(frozen=True)
class Products(Plan):
    """One matrix product whose result is the logarithm of the weights.

    log2 w = (2 z.x - |x|^2 + best) scale log2(e): the last two terms are two more coordinates of z and x.
    """

    name: ClassVar[str] = "products"
    together: ClassVar[int | None] = TOGETHER
    dtype: torch.dtype  # wide enough for the digits that the difference of the terms loses

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return min(max(256, CHUNK_ELEMENTS // max(b, 1)), memory // ((3 * d + 2 * b) * itemsize))

    def prepare(self, x: Chunk) -> Table:
        d, n = x.shape
        table = self.buffers.reserve("table", x, d + 2, n)
        table[:d] = x
        torch.sum(x.square(), dim=0, out=table[d])
        table[d + 1] = 1
        return table

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "b 1"] | None, margin: float) -> Float[Tensor, "b 1 n"]:
        return self._distances(z, self.prepare(x))

    def with_chunk(self, so_far: State | None, z: Flat, x: Chunk, prepared: Table, scale: float,
                   responses: Responses | None) -> State:
        if so_far is not None:
            unit = scale * LOG2_E
            weights = self._product(_rows(2 * unit * z, -unit, unit * so_far.best), prepared).exp2_()
            new = weighted_state(so_far.best, weights[:, None], responses, x)
            if (new.total < HUGE).all():
                return State(so_far.best, so_far.total + new.total, so_far.weighted + new.weighted)
        return merge(so_far, chunk_state(self._distances(z, prepared), scale, responses, x), scale)

    def pull_back(self, cotangent: Float[Tensor, "b 1 n"], z: Flat, x: Chunk) -> Flat:
        c = cotangent[:, 0]
        return 2 * (c.sum(dim=1, keepdim=True) * z - c @ x.T)

    def _distances(self, z: Flat, table: Table) -> Float[Tensor, "b 1 n"]:
        """|x|^2 - 2 z.x"""
        return self._product(_rows(-2 * z, 1.0, z.new_zeros(len(z), 1)), table)[:, None]

    def _product(self, rows: Float[Tensor, "b k"], table: Table) -> Float[Tensor, "b n"]:
        return torch.mm(rows, table, out=self.buffers.reserve("product", table, len(rows), table.shape[1]))


def _rows(z: Flat, norm_factor: float, constant: Float[Tensor, "b 1"]) -> Float[Tensor, "b k"]:
    """Rows whose product with a table is z.x + norm_factor |x|^2 + constant."""
    return torch.cat([z, z.new_full((len(z), 1), norm_factor), constant], dim=1)
