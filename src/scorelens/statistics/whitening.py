"""Squared lengths of whitened images, y^T K^-1 y, which do not depend on the noisy image; cached."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens import distributed, progress
from scorelens.data.images import ImageSet, to_floats
from scorelens.statistics.cache import cached
from scorelens.validation import wide_dtype

CHUNK = 2048  # images
BLOCK = 256  # rows of L^-1, which is triangular
SMALL = 2**30  # multiplications; up to this many, lengths are not cached
ROUNDING = 2e-4  # nats that rounding may cost
SAMPLE = 64  # images from which rounding is estimated

Covariance = Float[Tensor, "m m"]


def whitened_lengths(images: ImageSet, mean: Float[Tensor, "m"], pixels: Int[Tensor, "m"], cholesky: Covariance,
                     dtype: torch.dtype, device: torch.device, key: Sequence[object] | None) -> Float[Tensor, "n"]:
    """y_i^T K^-1 y_i of y_i = (x_i - mean)[pixels], K = L L^T, summed in float64 over products in this dtype.

    `key` identifies K and the mean in the cache; None: they are not cached. Time grows as N m^2 / 2.
    """
    def compute() -> dict[str, Tensor]:
        return {"lengths": _lengths(images, mean, pixels, cholesky, dtype, device)}

    if key is None or len(images) * len(pixels) ** 2 <= SMALL:
        return compute()["lengths"]
    content = hashlib.sha256(pixels.numpy().tobytes()).hexdigest()
    return cached("whitened", [images.fingerprint, content, *key, str(dtype)], compute)["lengths"]


def _lengths(images: ImageSet, mean: Float[Tensor, "m"], pixels: Int[Tensor, "m"], cholesky: Covariance,
             dtype: torch.dtype, device: torch.device) -> Float[Tensor, "n"]:
    inverse = torch.linalg.solve_triangular(cholesky, torch.eye(len(pixels), dtype=cholesky.dtype), upper=False)
    inverse, mean = (tensor.to(dtype).to(device) for tensor in (inverse, mean))
    group, total = distributed.group(len(images)), torch.zeros(len(images), dtype=torch.float64)
    rows = group.shard(len(images))
    starts = range(rows.start, rows.stop, CHUNK)
    for start in progress.track(starts, f"whitening {len(pixels)} pixels", unit="chunk"):
        y = pixels_of(images, start, min(start + CHUNK, rows.stop), pixels, mean)
        total[start:start + len(y)] = sum(
            (y[:, :k + BLOCK] @ inverse[k:k + BLOCK, :k + BLOCK].T).square_().sum(dim=1).to(wide_dtype(y))
            for k in range(0, len(pixels), BLOCK))
    return group.sum(total)


def product_dtype(images: ImageSet, mean: Float[Tensor, "m"], pixels: Int[Tensor, "m"], cholesky: Covariance,
                  sigma: float, z: Tensor) -> torch.dtype:
    """The dtype of z, or float64 (if the device has it) where rounding products to z's dtype would change the logits.

    A logit is (z - mu)^T K^-1 y_i - y_i^T K^-1 y_i / 2. K has no variance below sigma^2, so a product with K^-1 y
    rounds by eps |L^-1 y| / sigma times the length of the other factor: y itself, or noise of length sigma sqrt(m).
    """
    y = pixels_of(images, 0, SAMPLE, pixels, mean.double())
    whitened = torch.linalg.solve_triangular(cholesky, y.T, upper=False).norm(dim=0).max().item()
    length = y.norm(dim=1).max().item()
    error = torch.finfo(z.dtype).eps / 2 * (length / sigma * (2 * whitened + math.sqrt(len(pixels))) + whitened**2)
    return z.dtype if error < ROUNDING else wide_dtype(z)


def pixels_of(images: ImageSet, start: int, stop: int, pixels: Int[Tensor, "m"], mean: Float[Tensor, "m"],
              more: int = 0) -> Float[Tensor, "n k"]:
    """(x_i - mean)[pixels] of images start ... stop - 1, followed by `more` coordinates that are not set."""
    raw = images.raw(start, stop).flatten(1).index_select(1, pixels)
    rows = mean.new_empty(len(raw), len(pixels) + more)
    to_floats(raw, rows[:, :len(pixels)]).sub_(mean)
    return rows
