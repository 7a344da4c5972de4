"""Squared distances to whole images, fast and right to the last digit, and the exact search that rests on them.

||z - x||^2 = ||z||^2 - 2 z.x + ||x||^2 is one matrix product, but rounds in proportion to |z||x| however close the two
are. So the product finds the few images that can matter, and those are measured again by plain differences, in float64
where the device has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.types import Flat, ScorelensError
from scorelens.validation import wide_dtype

PAIR_ELEMENTS = 2**22  # differences held at once while refining


def expanded_distances(z: Flat, x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b 1"]]:
    """||z_b - x_i||^2 by one product, and for each b the scale of its rounding: eps * scale is the typical error."""
    wide = wide_dtype(z)
    z_norm = torch.linalg.vector_norm(z, dim=1, keepdim=True, dtype=wide)  # [b, 1]
    x_norm = torch.linalg.vector_norm(x, dim=1).to(wide)  # [n]
    distances = (z @ x.T).to(wide).mul_(-2).add_(z_norm.square()).add_(x_norm.square())
    x_max = x_norm.max()
    return distances, z_norm * x_max + x_max.square()


def refine_(distances: Float[Tensor, "b n"], z: Flat, x: Float[Tensor, "n d"], scale: Float[Tensor, "b 1"],
            limit: Float[Tensor, "b 1"]) -> None:
    """Measure again, by differences, every pair that can be as close as `limit`; the others stay as they are."""
    slack = 2 * math.sqrt(z.shape[1]) * torch.finfo(z.dtype).eps * scale
    b, i = torch.nonzero(distances <= limit + slack, as_tuple=True)
    for start in range(0, len(b), max(1, PAIR_ELEMENTS // z.shape[1])):
        pairs = slice(start, start + max(1, PAIR_ELEMENTS // z.shape[1]))
        difference = z[b[pairs]].to(distances.dtype) - x[i[pairs]].to(distances.dtype)
        distances[b[pairs], i[pairs]] = difference.square_().sum(dim=1)


@dataclass(frozen=True)
class Neighbours:
    """For each query its k nearest images, nearest first (ties: the first in the data), and their squared distances."""

    indices: Int[Tensor, "b k"]
    squared_distances: Float[Tensor, "b k"]


def nearest_images(z: Tensor, images: ImageSet, k: int = 1, *, chunk: int = 4096) -> Neighbours:
    """The k nearest images of each z by ||z - x_i||, exactly, streaming over the data."""
    if not 1 <= k <= len(images):
        raise ScorelensError(f"asked for the {k} nearest images, but {images.name} has {len(images)}")
    queries = z.detach().reshape(len(z), -1)
    best = torch.full((len(z), k), math.inf, dtype=wide_dtype(z), device=z.device)
    indices = torch.zeros((len(z), k), dtype=torch.int64, device=z.device)
    start = 0
    for x in images.chunks(chunk, dtype=z.dtype, device=z.device, reuse=True):
        found = _nearest_in(queries, x.flatten(1), best[:, -1:], min(k, len(x)))
        merged = torch.sort(torch.cat([best, found.values], dim=1), dim=1, stable=True)
        indices = torch.cat([indices, found.indices + start], dim=1).gather(1, merged.indices)[:, :k]
        best = merged.values[:, :k]
        start += len(x)
    return Neighbours(indices, best)


def _nearest_in(z: Flat, x: Float[Tensor, "n d"], best: Float[Tensor, "b 1"], k: int) -> torch.return_types.sort:
    """The k nearest of one chunk, sorted; nothing farther than `best` needs to be right."""
    distances, scale = expanded_distances(z, x)
    limit = torch.minimum(best, distances.kthvalue(k, dim=1, keepdim=True).values)
    refine_(distances, z, x, scale, limit)
    values, indices = torch.sort(distances, dim=1, stable=True)
    return torch.return_types.sort((values[:, :k], indices[:, :k]))
