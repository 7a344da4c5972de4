"""Mean and covariance of the data, exactly, in one pass; their eigendecomposition; and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scorelens import distributed, progress
from scorelens.data.images import ImageSet
from scorelens.statistics.cache import cached
from scorelens.statistics.leading import leading_components
from scorelens.types import ScorelensError

# Pixels minus 128 are integers below 2^7 in size, their products below 2^14: a float32 matrix product over 2^10 images
# sums integers below 2^24, each of which float32 holds exactly, so single-precision speed costs no digit.
EXACT_ROWS = 1024
CENTRE, SCALE = 128, 127.5
LARGEST_EXACT = 20_000  # coordinates; their covariance in float64 is 3.2 GB, and as much again to decompose it
TILE = 512  # side of a block of the covariance; only blocks on and above the diagonal are computed


@dataclass(frozen=True)
class GaussianStats:
    """mu and Sigma = U diag(lambda^2) U^T (divided by N - 1) of N images flattened to D coordinates; float64.

    k = D: all components, unless only the leading ones were fitted; `missing` is then the share of the variance that
    is not in them.
    """

    mean: Float[Tensor, "d"]
    eigenvalues: Float[Tensor, "k"]  # the variances lambda^2, largest first
    eigenvectors: Float[Tensor, "d k"]  # column j belongs to eigenvalue j
    count: int
    missing: float = 0.0

    def truncated(self, rank: int | None = None, energy: float = 0.0) -> GaussianStats:
        """Only the `rank` largest components, or those left when the share `energy` of sum lambda^4 is cut away.

        The energy cut-off is that of the paper's ablation (tab:energy-cutoff-ablation), a share of the squared
        singular values of the covariance: the smallest components are zeroed as long as they hold no more than it.
        """
        if rank is not None and not 0 <= rank <= len(self.eigenvalues):
            raise ScorelensError(f"rank must be between 0 and the {len(self.eigenvalues)} components, got {rank}")
        if not 0 <= energy < 1:
            raise ScorelensError(f"energy must be a share in [0, 1), got {energy:g}")
        kept = len(self.eigenvalues) if rank is None else rank
        if energy > 0:
            squares = self.eigenvalues.square()
            tails = squares.flip(0).cumsum(0).flip(0)  # what is lost by cutting from component k on
            kept = min(kept, int((tails > energy * squares.sum()).sum()))
        keep = torch.arange(len(self.eigenvalues)) < kept
        return replace(self, eigenvalues=self.eigenvalues * keep)


def fit_gaussian(images: ImageSet, *, components: int | None = None, cache: bool = True) -> GaussianStats:
    """Mean, variances and principal components of the images; kept in the cache under a hash of their content.

    `components` asks for the leading ones only, by a randomized method that never holds D x D numbers: approximate,
    for images too large for the exact one; `missing` tells the share of the variance that it leaves out.
    """
    if len(images) < 2:
        raise ScorelensError(f"{images.name}: statistics need at least 2 images, got {len(images)}")
    if components is None and images.dim > LARGEST_EXACT:
        raise ScorelensError(f"{images.name}: the covariance of D = {images.dim} coordinates does not fit; give "
                             "components=500 or so for the leading ones alone, or a smaller resolution")
    if components is not None and not 1 <= components <= min(images.dim, len(images) - 1):
        raise ScorelensError(f"components must be between 1 and {min(images.dim, len(images) - 1)}, got {components}")
    fit = (lambda: _fit(images)) if components is None else (lambda: _fit_leading(images, components))
    if not cache:
        return fit()
    tensors = cached("gaussian", [images.fingerprint, components], lambda: _tensors(fit()))
    return GaussianStats(tensors["mean"], tensors["eigenvalues"], tensors["eigenvectors"], len(images),
                         tensors["missing"].item())


def _tensors(stats: GaussianStats) -> dict[str, Tensor]:
    return {"mean": stats.mean, "eigenvalues": stats.eigenvalues, "eigenvectors": stats.eigenvectors,
            "missing": torch.tensor(stats.missing, dtype=torch.float64)}


def _fit(images: ImageSet) -> GaussianStats:
    total, second = _raw_moments(images)
    n = len(images)
    mean = total / n
    second.sub_(torch.outer(total, mean)).div_((n - 1) * SCALE**2)  # [D, D], now the covariance of images in [-1, 1]
    eigenvalues, eigenvectors = _spectrum(second)
    eigenvalues = eigenvalues.flip(0).clamp_(min=0)
    eigenvalues[min(n - 1, len(eigenvalues)):] = 0  # N images span at most N - 1 directions: the rest is round-off
    return GaussianStats((mean + (CENTRE - SCALE)) / SCALE, eigenvalues, eigenvectors.flip(1).contiguous(), n)


def _spectrum(covariance: Float[Tensor, "d d"]) -> tuple[Float[Tensor, "d"], Float[Tensor, "d d"]]:
    """Eigenvalues, ascending, and eigenvectors; of several processes one finds them, for they are not unique."""
    found = distributed.world().broadcast_tensors(
        lambda: dict(zip(("values", "vectors"), torch.linalg.eigh(covariance), strict=True)))
    assert found is not None
    return found["values"], found["vectors"]


def _fit_leading(images: ImageSet, components: int) -> GaussianStats:
    mean, eigenvalues, eigenvectors, missing = leading_components(images, components)
    return GaussianStats(mean, eigenvalues, eigenvectors, len(images), missing)


def _raw_moments(images: ImageSet) -> tuple[Float[Tensor, "d"], Float[Tensor, "d d"]]:
    """Sum and second moment of v = pixel - 128: sum_i v_i, sum_i v_i v_i^T; of bytes, which make v an integer, exactly.

    Pixels that are floats are counted in the same units, in float64. Several processes add up what each has of its own.
    """
    group, images = distributed.group(len(images)), images.shard()
    d, exact = images.dim, images.pixels.dtype == np.uint8
    dtype = torch.float32 if exact else torch.float64
    total, second = torch.zeros(d, dtype=torch.float64), torch.zeros(d, d, dtype=torch.float64)
    blocks = [slice(start, min(start + TILE, d)) for start in range(0, d, TILE)]
    buffer = torch.empty(min(EXACT_ROWS, len(images)), d, dtype=dtype)
    product = torch.empty(TILE**2, dtype=dtype)
    for start in progress.track(range(0, len(images), EXACT_ROWS), "covariance", unit="chunk"):
        raw = torch.from_numpy(images.pixels[start:start + EXACT_ROWS].reshape(-1, d).copy())
        v = buffer[:len(raw)].copy_(raw)  # [n, D]
        v = v.sub_(CENTRE) if exact else v.mul_(SCALE).add_(SCALE - CENTRE)
        total += v.sum(0, dtype=torch.float64)
        for i, rows in enumerate(blocks):
            for columns in blocks[i:]:
                block = second[rows, columns]
                block += torch.mm(v[:, rows].T, v[:, columns], out=product[:block.numel()].view(block.shape))
    return group.sum(total), group.sum(second.triu_().add_(second.triu(1).T))
