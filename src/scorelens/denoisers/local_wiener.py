"""The Wiener filter of the images nearest to the one that is denoised, as the appendix suggests (analysis of SNR)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.denoisers.wiener import Wiener
from scorelens.statistics import GaussianStats, fit_gaussian
from scorelens.statistics.nearest import nearest_images
from scorelens.types import ScorelensError
from scorelens.validation import at_least_float32, check_noisy, check_sigma, wide_dtype


@dataclass(frozen=True)
class LocalWiener:
    """x0_hat = mu_loc + Sigma_loc (Sigma_loc + sigma^2 I)^-1 (z - mu_loc),   Sigma_loc = (1 - rho) S + rho Sigma

    mu_loc and S (divided by k - 1) are those of the k training images nearest to the Wiener filter's x0_hat. Which they
    are is a constant of the gradient: it is that of a linear filter, and jumps where a neighbour is replaced.

    In the basis of Sigma, Sigma_loc + sigma^2 I = A + B^T B with A diagonal and B the neighbours, so that
    (A + B^T B)^-1 = A^-1 - A^-1 B^T (I + B A^-1 B^T)^-1 B A^-1 (Woodbury): a system of k equations, or D if fewer.
    """

    images: ImageSet
    stats: GaussianStats
    neighbours: int
    shrinkage: float

    @property
    def converges_to_mean(self) -> bool:
        return self.neighbours == len(self.images)

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        sigma, z = check_sigma(sigma), check_noisy(z, self.images.shape)
        with torch.no_grad():
            estimate = Wiener(self.images, self.stats)(at_least_float32(z), sigma)
        near = nearest_images(estimate, self.images, self.neighbours).indices.cpu().numpy()
        parts = (self.stats.mean, self.stats.eigenvectors, self.stats.eigenvalues)
        mu, u, variance = (part.to(wide_dtype(z)).to(z.device) for part in parts)  # in this order: mps has no float64
        zeta = (z.flatten(1).to(mu.dtype) - mu) @ u  # [B, k]
        chosen = (self.images.subset(rows).chunks(len(rows), dtype=mu.dtype, device=z.device) for rows in near)
        rotated = ((next(x).flatten(1) - mu) @ u for x in chosen)
        x0_hat = torch.stack([self._filter(one, y, variance, sigma) for one, y in zip(zeta, rotated, strict=True)])
        return (mu + x0_hat @ u.T).to(z.dtype).view(z.shape)

    def _filter(self, zeta: Float[Tensor, "k"], y: Float[Tensor, "n k"], variance: Float[Tensor, "k"],
                sigma: float) -> Float[Tensor, "k"]:
        """In the basis of Sigma, and relative to mu."""
        mean, share = y.mean(dim=0), (1 - self.shrinkage) / max(1, len(y) - 1)
        b = torch.linalg.qr(math.sqrt(share) * (y - mean), mode="r").R  # B^T B = (1 - rho) S, of no more than D rows
        a = self.shrinkage * variance + sigma**2
        v = (zeta - mean) / a
        inner = torch.eye(len(b), dtype=b.dtype, device=b.device) + (b / a) @ b.T
        w = v - (b.T @ torch.linalg.solve(inner, b @ v)) / a  # (Sigma_loc + sigma^2 I)^-1 (zeta - mean)
        return mean + self.shrinkage * variance * w + b.T @ (b @ w)


def local_wiener(images: ImageSet, *, neighbours: int = 500, shrinkage: float = 0.1,
                 stats: GaussianStats | None = None) -> LocalWiener:
    """The Wiener filter of the nearest images.

    Args:
        images: the training images.
        neighbours: k, how many; all images if there are fewer.
        shrinkage: rho, the share of the covariance of all images in that of the nearest.
        stats: moments of all images to use instead of those of `images`.
    """
    if neighbours < 1:
        raise ScorelensError(f"neighbours must be at least 1, got {neighbours}")
    if not 0 <= shrinkage <= 1:
        raise ScorelensError(f"shrinkage must be between 0 and 1, got {shrinkage:g}")
    return LocalWiener(images, stats or fit_gaussian(images), min(neighbours, len(images)), shrinkage)
