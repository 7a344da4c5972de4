"""Exact mean and covariance of the data in one pass, and the eigendecomposition of the covariance."""

from __future__ import annotations

import timeit
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

# Pixels minus 128 are integers up to 2^7 in magnitude, their products up to 2^14: a float32 matrix product over 2^10
# images sums integers up to 2^24, which float32 represents exactly. Single precision is fast and loses no digit.
EXACT_ROWS = 1024
CENTRE, SCALE = 128, 127.5
LARGEST_EXACT = 20_000  # coordinates: 3.2 GB of covariance in float64, and as much to decompose it
PILOT = 512  # side of the matrix that predicts the time of the decomposition
TILE = 512  # side of a block of the covariance; only blocks on and above the diagonal are computed


@dataclass(frozen=True)
class GaussianStats:
    """mu and Sigma = U diag(lambda^2) U^T (divided by N - 1) of N images flattened to D coordinates; float64.

    k = D, unless only the leading components were fitted; `missing` is then the share of the variance outside them.
    """

    mean: Float[Tensor, "d"]
    eigenvalues: Float[Tensor, "k"]  # the variances lambda^2, largest first
    eigenvectors: Float[Tensor, "d k"]  # column j belongs to eigenvalue j
    count: int
    missing: float = 0.0
    key: str = ""  # a hash of the data and options that they were fitted with, if known

    @property
    def rank(self) -> int:
        """Number of components with nonzero variance; they come first."""
        return int((self.eigenvalues > 0).sum())

    def covariance(self, pixels: Tensor | None = None) -> Float[Tensor, "m m"]:
        """Sigma, or its block at these pixels (indices or a boolean mask)."""
        u = self.eigenvectors if pixels is None else self.eigenvectors[pixels]
        return (u * self.eigenvalues) @ u.T

    def truncated(self, rank: int | None = None, energy: float = 0.0) -> GaussianStats:
        """Keep the `rank` largest components, and zero the smallest ones that hold at most `energy` of sum lambda^4.

        The energy cut-off is the paper's (tab:energy-cutoff-ablation): a share of the squared singular values of Sigma.
        """
        if rank is not None and not 0 <= rank <= len(self.eigenvalues):
            raise ScorelensError(f"rank must be between 0 and the {len(self.eigenvalues)} components, got {rank}")
        if not 0 <= energy < 1:
            raise ScorelensError(f"energy must be a share in [0, 1), got {energy:g}")
        kept = len(self.eigenvalues) if rank is None else rank
        if energy > 0:
            squares = self.eigenvalues.square()
            tails = squares.flip(0).cumsum(0).flip(0)  # energy lost by cutting at component k
            kept = min(kept, int((tails > energy * squares.sum()).sum()))
        keep = torch.arange(len(self.eigenvalues)) < kept
        return replace(self, eigenvalues=self.eigenvalues * keep, key=self.key and f"{self.key}, {kept} kept")


def fit_gaussian(images: ImageSet, *, components: int | None = None, cache: bool = True) -> GaussianStats:
    """Mean, variances and principal components of the images, cached under a hash of their content.

    `components` fits only that many leading components by an approximate, randomized method that never stores a D x D
    matrix, for images too large for the exact one. `missing` is then the share of the variance left out.
    """
    if len(images) < 2:
        raise ScorelensError(f"{images.name}: statistics need at least 2 images, got {len(images)}")
    if components is None and images.dim > LARGEST_EXACT:
        raise ScorelensError(f"{images.name}: the covariance of D = {images.dim} coordinates is too large; choose "
                             "a smaller resolution, or, for wiener and data info, components (--denoiser.components "
                             "500 or --components 500)")
    if components is not None and not 1 <= components <= min(images.dim, len(images) - 1):
        raise ScorelensError(f"components must be between 1 and {min(images.dim, len(images) - 1)}, got {components}")

    def fit() -> dict[str, Tensor]:
        parts = _fit(images) if components is None else leading_components(images, components)
        return dict(zip(("mean", "eigenvalues", "eigenvectors", "missing"), parts, strict=True))

    tensors = cached("gaussian", [images.fingerprint, components], fit) if cache else fit()
    missing = tensors.pop("missing").item()
    return GaussianStats(**tensors, count=len(images), missing=missing, key=f"{images.fingerprint}, {components}")


def _fit(images: ImageSet) -> tuple[
        Float[Tensor, "d"], Float[Tensor, "d"], Float[Tensor, "d d"], Float[Tensor, ""]]:
    """Mean, variances and directions of all components, and the share of the variance they miss: none."""
    total, second = _raw_moments(images)
    n = len(images)
    mean = total / n
    second.sub_(torch.outer(total, mean)).div_((n - 1) * SCALE**2)  # [D, D], now the covariance of images in [-1, 1]
    spectrum = distributed.world().broadcast_tensors(  # eigenvectors are not unique: all ranks take those of rank 0
        lambda: dict(zip(("values", "vectors"), _eigh(second), strict=True)))
    assert spectrum is not None
    eigenvalues = spectrum["values"].flip(0).clamp_(min=0)
    eigenvalues[min(n - 1, len(eigenvalues)):] = 0  # N images span at most N - 1 directions; the rest is round-off
    return (mean + (CENTRE - SCALE)) / SCALE, eigenvalues, spectrum["vectors"].flip(1).contiguous(), mean.new_zeros(())


def _eigh(matrix: Float[Tensor, "d d"]) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors by divide and conquer, with a bar whose estimate is scaled from a smaller matrix by
    the cube of the side. SciPy's LAPACK was faster than torch's on the CPUs that we tried."""
    from scipy.linalg import eigh

    d, side = len(matrix), min(len(matrix), PILOT)

    def solve(a: Float[Tensor, "k k"]) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = eigh(a.numpy(), driver="evd", overwrite_a=True)
        return values, vectors

    def seconds() -> float:
        small = matrix[:side, :side].clone()
        return timeit.timeit(lambda: solve(small), number=1) * (d / side) ** 3

    values, vectors = progress.estimated(lambda: solve(matrix), "principal components", seconds)
    return torch.from_numpy(values), torch.from_numpy(vectors)


def _raw_moments(images: ImageSet) -> tuple[Float[Tensor, "d"], Float[Tensor, "d d"]]:
    """sum_i v_i and sum_i v_i v_i^T of v = pixel - 128, summed over all ranks: exact for uint8 pixels.

    Float pixels are scaled to the same units and summed in float64.
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
