"""The nearest training image: the limit of the optimal denoiser as sigma goes to 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.statistics.nearest import nearest_images
from scorelens.validation import at_least_float32, per_level


@dataclass(frozen=True)
class Nearest:
    """x0_hat = x_j, j = argmin_i ||z - x_i||, at any noise level. Piecewise constant: its gradient is zero.

    Args:
        images: the training images.
    """

    converges_to_mean: ClassVar[bool] = False
    images: ImageSet

    @per_level
    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        nearest = nearest_images(at_least_float32(z), self.images).indices[:, 0]
        return self.images[nearest].to(z) + 0 * z  # stays in the graph, with its true gradient
