"""How strongly each output of a network depends on each input: for the methods that take their masks from it."""

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

PIXELS = 64  # output pixels whose fields are averaged, where all share one

Heat = Callable[[float], Float[Tensor, "places places"]]  # of a noise level


def measured_heat(images: ImageSet, network: str | Denoiser | None, per_pixel: bool, samples: int, seed: int) -> Heat:
    """How strongly the output at each place depends on the input at each place, on average over noisy images."""
    if samples < 1:
        raise ScorelensError(f"samples must be at least 1, got {samples}")
    if isinstance(network, str):
        raise ScorelensError(f"network must be a denoiser, not the name {network!r}; load_network({network!r}) is one")
    _, h, w = images.shape
    rng = torch.Generator().manual_seed(seed)
    x0 = images[torch.randperm(len(images), generator=rng)[:samples]]
    order = torch.arange(h * w) if per_pixel else torch.randperm(h * w, generator=rng)[:PIXELS]
    pixels = [divmod(int(place), w) for place in order]
    model = wiener(images) if network is None else network

    @lru_cache(maxsize=16)
    def heat(sigma: float) -> Float[Tensor, "places places"]:
        z = x0 + sigma * seeded_noise(images.shape, range(seed, seed + len(x0)))
        fields = _fields(model, z, sigma, pixels)
        return (fields if per_pixel else recentred(fields, pixels)).reshape(h * w, h * w)

    return heat


def _fields(model: Denoiser, z: Tensor, sigma: float, pixels: list[Pixel]) -> Float[Tensor, "p h w"]:
    """Mean size of the field of each pixel, summed over the channels of input and output."""
    each = progress.track(pixels, "fields", unit="pixel")
    return torch.stack([at_least_float32(sensitivity(model, z, sigma, pixel)).abs().mean(dim=0).sum(dim=0)
                        for pixel in each])
