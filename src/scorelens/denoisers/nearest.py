"""The nearest training image: what the optimal denoiser becomes as the noise vanishes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.statistics.nearest import nearest_images
from scorelens.validation import at_least_float32, check_noisy, check_sigma


@dataclass(frozen=True)
class Nearest:
    """x0_hat = x_j, j = argmin_i ||z - x_i||, at any noise level. Piecewise constant: its gradient is zero.

    Args:
        images: the training images.
    """

    converges_to_mean: ClassVar[bool] = False
    images: ImageSet

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        check_sigma(sigma)
        found = nearest_images(at_least_float32(check_noisy(z, self.images.shape)), self.images)
        return self.images[found.indices[:, 0]].to(z) + 0 * z  # stays in the graph, with its true gradient
