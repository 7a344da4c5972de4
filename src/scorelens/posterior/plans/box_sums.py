"""One weight per image and square window, by box sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.posterior.plans.base import Plan, cached_chunk
from scorelens.posterior.responses import Chunk
from scorelens.posterior.windows import WindowGrid
from scorelens.types import Flat


@dataclass(frozen=True)
class BoxSums(Plan):
    """Squared differences, summed over channels and then over windows."""

    name: ClassVar[str] = "box sums"
    windows: WindowGrid

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return cached_chunk(d, itemsize, memory)

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "1 q"] | None, margin: float) -> Float[Tensor, "1 q n"]:
        return self.windows.sums(torch.sub(x, z.T, out=self.buffers.reserve("square", x, *x.shape)).square_())[None]

    def pull_back(self, cotangent: Float[Tensor, "1 q n"], z: Flat, x: Chunk) -> Flat:
        spread = self.windows.spread(cotangent[0])  # [HW, n]
        return 2 * (spread * (z.T - x).unflatten(0, (self.windows.shape[0], -1))).sum(dim=2).flatten()[None]
