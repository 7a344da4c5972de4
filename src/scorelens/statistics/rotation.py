"""Images in the basis of their principal components, computed once and cached."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from scorelens import distributed, progress
from scorelens.data.array_cache import cached_array, open_array
from scorelens.data.images import ImageSet
from scorelens.files import cache_folder
from scorelens.statistics.moments import GaussianStats

CHUNK = 1024


def rotated(images: ImageSet, stats: GaussianStats) -> np.ndarray:
    """y_i = U^T (x_i - mu), float32 [N, k], as a memory-mapped file."""
    name = hashlib.sha256(f"{images.fingerprint} {digest(stats)}".encode()).hexdigest()[:32]
    path = cache_folder("rotated") / f"{name}.npy"
    world, shape = distributed.world(), (len(images), len(stats.eigenvalues))
    files = world.once_per_node(
        lambda: str(cached_array(path, shape, lambda out: _rotate(images, stats, out), np.float32).filename))
    return open_array(Path(files[world.node]))


def digest(stats: GaussianStats) -> str:
    """Content hash of the moments; components of opposite sign hash differently."""
    content = hashlib.sha256()
    for part in (stats.mean, stats.eigenvalues, stats.eigenvectors):
        content.update(repr(tuple(part.shape)).encode())
        content.update(part.contiguous().numpy().data)
    return content.hexdigest()[:32]


def _rotate(images: ImageSet, stats: GaussianStats, out: np.ndarray) -> None:
    """Fill `out` with the rotated images, chunk by chunk, in float64: as floats, all images may exceed memory."""
    starts = range(0, len(images), CHUNK)
    chunks = zip(starts, images.chunks(CHUNK, dtype=torch.float64, reuse=True), strict=True)
    for start, x in progress.track(chunks, "rotating the images", total=len(starts), unit="chunk"):
        y = (x.flatten(1) - stats.mean) @ stats.eigenvectors  # [n, k]
        out[start:start + len(y)] = y.float().numpy()
