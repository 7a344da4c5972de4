"""Masks measured on a network (Niedoba et al. 2024): the input pixels to which its outputs are most sensitive."""

from __future__ import annotations

from functools import lru_cache

from scorelens.data.images import ImageSet
from scorelens.denoisers.locality import Locality
from scorelens.denoisers.measured_sensitivity import measured_sensitivity
from scorelens.posterior import MEMORY, Masks
from scorelens.statistics.masks import mass_masks
from scorelens.types import Denoiser


def measured(images: ImageSet, *, network: str | Denoiser | None = None, share: float = 0.5, per_pixel: bool = False,
             samples: int = 32, seed: int = 0, memory: int = MEMORY) -> Locality:
    """The locality model with masks from a network: for each pixel, the inputs that hold a share of its field.

    Args:
        images: the training images.
        network: the denoiser to measure; by default the Wiener filter of the images.
        share: share of a field's absolute sum that the mask holds.
        per_pixel: measure the field of every pixel; by default all share the mean of aligned fields.
        samples: number of noisy training images to average over.
        seed: seed of the images, their noise and the pixels measured.
        memory: workspace in bytes.
    """
    sensitivity = measured_sensitivity(images, network, per_pixel, samples, seed)

    @lru_cache(maxsize=16)
    def masks(sigma: float) -> Masks:
        c, h, w = images.shape
        return Masks(mass_masks(sensitivity(sigma), share).repeat(1, c), (1, h, w))

    return Locality(images, masks, memory=memory)
