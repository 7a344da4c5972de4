"""Distances that are affine in the noisy image: products with the rows of the source, and one number for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from scorelens.posterior.plans.base import Plan
from scorelens.posterior.responses import Chunk
from scorelens.types import Flat
from scorelens.validation import wide_dtype


@dataclass(frozen=True)
class AffineRows(Plan):
    """Distances t_i - 2 z.y_i, kept in float64, of rows (y_i, t_i): t_i is the last coordinate."""

    name: ClassVar[str] = "affine"
    pixel_major: ClassVar[bool] = False
    together: ClassVar[int | None] = None

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return memory // (d * itemsize + 48 * b)

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "b 1"] | None, margin: float) -> Float[Tensor, "b 1 n"]:
        wide = wide_dtype(z)
        return (z[:, :-1] @ x[:-1]).to(wide).mul_(-2).add_(x[-1].to(wide))[:, None]

    def pull_back(self, cotangent: Float[Tensor, "b 1 n"], z: Flat, x: Chunk) -> Flat:
        gradient = -2 * cotangent[:, 0].to(x.dtype) @ x.T
        gradient[:, -1] = 0
        return gradient
