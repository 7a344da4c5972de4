"""Measured sensitivity of each output pixel to each input pixel, from which some methods derive their masks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens import progress
from scorelens.data.images import ImageSet
from scorelens.denoisers.wiener import wiener
from scorelens.jacobian import Pixel, sensitivity
from scorelens.noise import seeded_noise
from scorelens.statistics.masks import recentred
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import at_least_float32

PIXELS = 64  # output pixels whose fields are averaged into a shared one

Sensitivity = Callable[[float], Float[Tensor, "pixels pixels"]]  # at sigma: row q is the field of output pixel q


def measured_sensitivity(images: ImageSet, network: str | Denoiser | None, per_pixel: bool, samples: int,
                         seed: int) -> Sensitivity:
    """Mean |d x0_hat / d z| between pixels over noisy images; unless `per_pixel`, one translated field for all."""
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
        fields = _fields(model, z, sigma, pixels)
        return (fields if per_pixel else recentred(fields, pixels)).reshape(h * w, h * w)

    return measure


def _fields(model: Denoiser, z: Tensor, sigma: float, pixels: list[Pixel]) -> Float[Tensor, "p h w"]:
    """Mean absolute sensitivity field of each pixel, summed over input and output channels."""
    return torch.stack([at_least_float32(sensitivity(model, z, sigma, pixel)).abs().mean(dim=0).sum(dim=0)
                        for pixel in progress.track(pixels, "fields", unit="pixel")])
