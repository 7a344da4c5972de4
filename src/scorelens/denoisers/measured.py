"""Masks measured on a network (Niedoba et al. 2024): the input pixels to which its outputs are most sensitive."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens import progress
from scorelens.data.images import ImageSet
from scorelens.denoisers.locality import Locality
from scorelens.denoisers.wiener import wiener
from scorelens.jacobian import sensitivity
from scorelens.noise import seeded_noise
from scorelens.posterior import MEMORY, Masks
from scorelens.statistics.masks import mass_masks, recentred
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import at_least_float32

PIXELS = 64  # output pixels whose fields are averaged into a shared one

Sensitivity = Callable[[float], Float[Tensor, "pixels pixels"]]  # at sigma: row q is the field of output pixel q


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
    fields = measured_sensitivity(images, network, per_pixel, samples, seed)

    @lru_cache(maxsize=16)
    def masks(sigma: float) -> Masks:
        c, h, w = images.shape
        return Masks(mass_masks(fields(sigma), share).repeat(1, c), (1, h, w))

    return Locality(images, masks, memory=memory)


def measured_sensitivity(images: ImageSet, network: str | Denoiser | None, per_pixel: bool, samples: int,
                         seed: int) -> Sensitivity:
    """Mean |d x0_hat / d z| between pixels, over noisy images and summed over channels.

    Unless `per_pixel`, all pixels share one field, translated to each.
    """
    if samples < 1:
        raise ScorelensError(f"samples must be at least 1, got {samples}")
    if isinstance(network, str):
        raise ScorelensError(f"network must be a denoiser, not the name {network!r}; give load_network({network!r})")
    _, h, w = images.shape
    rng = torch.Generator().manual_seed(seed)
    x0 = images[torch.randperm(len(images), generator=rng)[:samples]]
    order = torch.arange(h * w) if per_pixel else torch.randperm(h * w, generator=rng)[:PIXELS]
    pixels = [divmod(int(index), w) for index in order]
    model = wiener(images) if network is None else network

    @lru_cache(maxsize=16)
    def measure(sigma: float) -> Float[Tensor, "pixels pixels"]:
        z = x0 + sigma * seeded_noise(images.shape, range(seed, seed + len(x0)))
        fields = torch.stack([at_least_float32(sensitivity(model, z, sigma, pixel)).abs().mean(dim=0).sum(dim=0)
                              for pixel in progress.track(pixels, "fields", unit="pixel")])  # [P, H, W]
        return (fields if per_pixel else recentred(fields, pixels)).reshape(h * w, h * w)

    return measure
