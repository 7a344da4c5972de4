"""The Wiener filter: the optimal linear denoiser, and the optimal one for Gaussian data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.denoisers.common import principal_components
from scorelens.statistics import GaussianStats, fit_gaussian
from scorelens.validation import per_level


@dataclass(frozen=True)
class Wiener:
    """x0_hat = mu + U diag(lambda^2 / (lambda^2 + sigma^2)) U^T (z - mu)   # eq:wiener

    Two thin products, computed in float64 if the device has it and returned in the dtype of z.
    """

    converges_to_mean: ClassVar[bool] = True
    images: ImageSet
    stats: GaussianStats

    @per_level
    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        basis = principal_components(self.stats, z, self.stats.rank)
        gain = basis.variances / (basis.variances + sigma**2)
        return basis.restore(gain * basis.rotate(z), z)

    def over(self, images: ImageSet) -> Wiener:
        """The same filter: only the moments enter it, and they are kept."""
        return replace(self, images=images)


def wiener(images: ImageSet, *, rank: int | None = None, energy: float = 0.0, components: int | None = None,
           stats: GaussianStats | None = None) -> Wiener:
    """The Wiener filter of these images.

    Args:
        images: the training images.
        rank: keep only this many principal components.
        energy: cut the smallest components that together hold at most this share of sum lambda^4.
        components: fit only this many leading components, by a randomized method, if the images are too large for all.
        stats: moments to use instead of those of `images`.
    """
    return Wiener(images, (stats or fit_gaussian(images, components=components)).truncated(rank, energy))
