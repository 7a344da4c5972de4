"""One weight per image: thin matrix products."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.posterior.plans.base import Plan
from scorelens.posterior.responses import Chunk
from scorelens.statistics.nearest import expanded_distances, refine_
from scorelens.types import Flat


@dataclass(frozen=True)
class FullImage(Plan):
    """Distances between whole images, kept in float64. They are recomputed by differences where those round less."""

    name: ClassVar[str] = "full image"
    pixel_major: ClassVar[bool] = False
    together: ClassVar[int | None] = None
    compared: int | None = None  # leading coordinates that are compared; the others are only averaged

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
