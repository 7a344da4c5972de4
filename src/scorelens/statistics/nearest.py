"""Fast and accurate squared distances to whole images, and exact nearest-neighbour search.

||z - x||^2 = ||z||^2 - 2 z.x + ||x||^2 takes one matrix product, but its rounding error grows with |z||x| however close
z and x are. The product selects the few images that can matter; their distances are recomputed from differences, in
float64 where the device supports it.
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
    """||z_b - x_i||^2 by one product, and a scale for each b: eps * scale is the typical rounding error."""
    wide = wide_dtype(z)
    z_norm = torch.linalg.vector_norm(z, dim=1, keepdim=True, dtype=wide)  # [b, 1]
    x_norm = torch.linalg.vector_norm(x, dim=1).to(wide)  # [n]
    distances = (z @ x.T).to(wide).mul_(-2).add_(z_norm.square()).add_(x_norm.square())
    x_max = x_norm.max()
    return distances, z_norm * x_max + x_max.square()


def refine_(distances: Float[Tensor, "b n"], z: Flat, x: Float[Tensor, "n d"], scale: Float[Tensor, "b 1"],
            limit: Float[Tensor, "b 1"]) -> None:
    """Recompute from differences, in place, every distance that can be within `limit`."""
    slack = 2 * math.sqrt(z.shape[1]) * torch.finfo(z.dtype).eps * scale
    b, i = torch.nonzero(distances <= limit + slack, as_tuple=True)
    step = max(1, PAIR_ELEMENTS // z.shape[1])
    for rows, columns in zip(b.split(step), i.split(step), strict=True):
        difference = z[rows].to(distances.dtype) - x[columns].to(distances.dtype)
        distances[rows, columns] = difference.square_().sum(dim=1)


@dataclass(frozen=True)
class Neighbours:
    """The k nearest images of each query, nearest first (ties in data order), and their squared distances."""

    indices: Int[Tensor, "b k"]
    squared_distances: Float[Tensor, "b k"]


def nearest_images(z: Tensor, images: ImageSet, k: int = 1, *, chunk: int = 4096) -> Neighbours:
    """The exact k nearest images of each z by ||z - x_i||, streaming over the data."""
    if not 1 <= k <= len(images):
        raise ScorelensError(f"the number of nearest images must be 1 to {len(images)}, all of {images.name}, got {k}")
    queries = z.detach().reshape(len(z), -1)
    best = torch.full((len(z), k), math.inf, dtype=wide_dtype(z), device=z.device)
    indices = torch.zeros((len(z), k), dtype=torch.int64, device=z.device)
    start = 0
    for x in images.chunks(chunk, dtype=z.dtype, device=z.device, reuse=True):
        nearest = _nearest_in(queries, x.flatten(1), best[:, -1:], min(k, len(x)))
        merged = torch.sort(torch.cat([best, nearest.values], dim=1), dim=1, stable=True)
        indices = torch.cat([indices, nearest.indices + start], dim=1).gather(1, merged.indices)[:, :k]
        best = merged.values[:, :k]
        start += len(x)
    return Neighbours(indices, best)


def _nearest_in(z: Flat, x: Float[Tensor, "n d"], best: Float[Tensor, "b 1"], k: int) -> torch.return_types.sort:
    """The k nearest images of one chunk, sorted; distances beyond `best` need not be accurate."""
    distances, scale = expanded_distances(z, x)
    limit = torch.minimum(best, distances.kthvalue(k, dim=1, keepdim=True).values)
    refine_(distances, z, x, scale, limit)
    values, indices = torch.sort(distances, dim=1, stable=True)
    return torch.return_types.sort((values[:, :k], indices[:, :k]))
