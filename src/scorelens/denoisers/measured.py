"""Masks measured on a network (Niedoba et al. 2024): an output looks where the network's own output is sensitive."""

from __future__ import annotations

from functools import lru_cache

from scorelens.data.images import ImageSet
from scorelens.denoisers.heat import measured_heat
from scorelens.denoisers.locality import Locality
from scorelens.posterior import MEMORY, Masks
from scorelens.statistics.masks import mass_masks
from scorelens.types import Denoiser


def measured(images: ImageSet, *, network: str | Denoiser | None = None, share: float = 0.5, per_pixel: bool = False,
             samples: int = 32, seed: int = 0, memory: int = MEMORY) -> Locality:
    """The local model whose masks are those of a network: for each place the inputs that hold a share of its field.

    Args:
        images: the training images.
        network: whose fields are measured; without one, the Wiener filter of the images.
        share: of a field's mass that its mask holds.
        per_pixel: a mask for each place from its own field; otherwise all fields are moved on top of each other.
        samples: noisy training images that a field is averaged over.
        seed: of the images, their noise and the places.
        memory: workspace in bytes.
    """
    heat = measured_heat(images, network, per_pixel, samples, seed)

    @lru_cache(maxsize=16)
    def masks(sigma: float) -> Masks:
        c, h, w = images.shape
        return Masks(mass_masks(heat(sigma), share).repeat(1, c), (1, h, w))

    return Locality(images, masks, memory=memory)
