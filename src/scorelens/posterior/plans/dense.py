"""One weight per image and mask, by matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.posterior.plans.base import Plan
from scorelens.posterior.responses import Chunk
from scorelens.types import Flat


@dataclass(frozen=True)
class DenseMasks(Plan):
    """The mask matrix times squared differences: one product for each noisy image."""

    name: ClassVar[str] = "dense"
    keep: Float[Tensor, "q d"]

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return min(2048, memory // ((2 * d + 2 * len(self.keep)) * itemsize))

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "1 q"] | None, margin: float) -> Float[Tensor, "1 q n"]:
        square = torch.sub(x, z.T, out=self.buffers.reserve("square", x, *x.shape)).square_()
        distances = self.buffers.reserve("distances", x, len(self.keep), x.shape[1])
        return torch.mm(self.keep, square, out=distances)[None]

    def pull_back(self, cotangent: Float[Tensor, "1 q n"], z: Flat, x: Chunk) -> Flat:
        return masks_pull_back(self.keep, cotangent, z, x)


def masks_pull_back(keep: Float[Tensor, "q d"], cotangent: Float[Tensor, "1 q n"], z: Flat, x: Chunk) -> Flat:
    """The gradient of distance_q = sum_k keep_qk (z_k - x_k)^2, up to what does not depend on the image."""
    return 2 * ((keep.T @ cotangent[0]) * (z.T - x)).sum(dim=1)[None]
