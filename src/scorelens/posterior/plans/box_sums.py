"""One weight per image and square window, by box sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.posterior.plans.base import Buffers, cached_chunk
from scorelens.posterior.responses import Chunk
from scorelens.posterior.windows import WindowGrid, box_spread, box_sum
from scorelens.types import Flat


@dataclass(frozen=True)
class BoxSums:
    """Squared differences, summed over channels and then over windows."""

    name: ClassVar[str] = "box sums"
    centred: ClassVar[bool] = False
    pixel_major: ClassVar[bool] = True
    together: ClassVar[int | None] = 1
    windows: WindowGrid
    buffers: Buffers = field(default_factory=Buffers)

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return cached_chunk(d, itemsize, memory)

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "1 q"] | None, margin: float) -> Float[Tensor, "1 q n"]:
        square = torch.sub(x, z.T, out=self.buffers.get("square", x, *x.shape)).square_()
        plane = square.view(*self.windows.shape, -1).sum(dim=0)  # [H, W, n]
        return box_sum(plane, self.windows.sides, self.windows.border).flatten(0, 1)[None]

    def pull_back(self, cotangent: Float[Tensor, "1 q n"], z: Flat, x: Chunk) -> Flat:
        plane = self.windows.plane(cotangent[0])
        spread = box_spread(plane, self.windows.sides, self.windows.border).flatten(0, 1)  # [HW, n]
        return 2 * (spread * (z.T - x).unflatten(0, (self.windows.shape[0], -1))).sum(dim=2).flatten()[None]
