"""The Wiener filter: the optimal linear denoiser, and the optimal one for Gaussian data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.statistics import GaussianStats, fit_gaussian, shrinkage
from scorelens.validation import check_noisy, check_sigma, wide_dtype


@dataclass(frozen=True)
class Wiener:
    """x0_hat = mu + U diag(lambda^2 / (lambda^2 + sigma^2)) U^T (z - mu)   # eq:wiener

    Two thin products: computed in float64 where the device has it, returned in the precision of z.
    """

    converges_to_mean: ClassVar[bool] = True
    images: ImageSet
    stats: GaussianStats

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        sigma, z = check_sigma(sigma), check_noisy(z, self.images.shape)
        rank = int((self.stats.eigenvalues > 0).sum())
        parts = (self.stats.mean, self.stats.eigenvectors[:, :rank], shrinkage(self.stats, sigma)[:rank])
        mu, u, gain = (part.to(wide_dtype(z)).to(z.device) for part in parts)  # in this order: mps has no float64
        centred = z.flatten(1).to(mu.dtype) - mu  # [B, D]
        return (mu + ((centred @ u) * gain) @ u.T).to(z.dtype).view(z.shape)


def wiener(images: ImageSet, *, rank: int | None = None, energy: float = 0.0, components: int | None = None,
           stats: GaussianStats | None = None) -> Wiener:
    """The Wiener filter of these images.

    Args:
        images: the training images.
        rank: keep only this many principal components.
        energy: cut the smallest components, as long as they hold no more than this share of sum lambda^4.
        components: fit only this many leading components, by a randomized method; for images too large for all.
        stats: moments to use instead of those of `images`.
    """
    return Wiener(images, (stats or fit_gaussian(images, components=components)).truncated(rank, energy))
