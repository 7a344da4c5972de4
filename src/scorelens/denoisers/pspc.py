"""Patch set posterior composites: posterior means of windows, averaged where the windows overlap.

x0_hat = sum_c C_c^T E_c / sum_c C_c^T 1, where E_c is the posterior mean of window c given its pixels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch

from scorelens.data.edits import with_flips
from scorelens.data.images import ImageSet
from scorelens.denoisers.common import PosteriorMean
from scorelens.denoisers.measured import measured_sensitivity
from scorelens.denoisers.patch_sizes import PatchSize, at_nearest_level, size_table
from scorelens.posterior import MEMORY, MaskMeans, Masks, Posterior, WindowMeans, Windows
from scorelens.statistics.masks import mass_masks
from scorelens.types import Denoiser

# Published for CIFAR-10, at the 18 noise levels of EDM's sampler
SIZES = (*[32] * 7, 23, 15, 11, 7, 5, *[3] * 6)
SHARES = (*[1.0] * 7, 0.7, 0.7, 0.5, 0.4, 0.4, 0.4, 0.4, 0.3, 0.3, 0.3, 0.3)


def edm_sigmas(count: int, largest: float = 80.0, smallest: float = 0.002, rho: float = 7.0) -> list[float]:
    """(a + k / (n - 1) (b - a))^rho with a, b the rho-th roots of largest, smallest   # Karras et al. 2022, Eq. 5"""
    steps = torch.linspace(0, 1, count, dtype=torch.float64)
    return (largest ** (1 / rho) + steps * (smallest ** (1 / rho) - largest ** (1 / rho))).pow(rho).tolist()


def pspc_square(images: ImageSet, *, patch_size: PatchSize = "published", flips: bool = False,
                memory: int = MEMORY) -> PosteriorMean:
    """The composite of all square windows of one size inside the image.

    Args:
        images: the training images.
        patch_size: side of the windows, odd or even: a number, a number for each step, or "published" for those of
            CIFAR-10, scaled to the side of the images.
        flips: also average over the mirrored images, as in the published code.
        memory: workspace in bytes.
    """
    source = with_flips(images) if flips else images
    if patch_size == "published":
        scale = max(images.shape[1:]) / max(SIZES)
        size_at = at_nearest_level(edm_sigmas(len(SIZES)), [max(1, round(size * scale)) for size in SIZES])
    else:
        size_at = at_nearest_level(*size_table(patch_size, images.shape))

    def windows(sigma: float) -> Posterior:
        squares = Windows(images.shape, size_at(sigma), "inside")
        return Posterior(squares, WindowMeans(squares), source)

    return PosteriorMean(source, windows, memory=memory, converges_to_mean=True)


def pspc_flex(images: ImageSet, *, network: str | Denoiser | None = None,
              share: float | Literal["published"] = "published", flips: bool = False, samples: int = 32, seed: int = 0,
              memory: int = MEMORY) -> PosteriorMean:
    """The composite of windows that hold, for each pixel, the inputs to which a network's output is most sensitive.

    Args:
        images: the training images.
        network: the denoiser to measure; by default the Wiener filter of the images.
        share: share of a field's absolute sum that its window holds; "published" falls from 1 at high noise to 0.3.
        flips: also average over the mirrored images, as in the published code.
        samples: number of noisy training images to average over.
        seed: seed of the images and their noise.
        memory: workspace in bytes.
    """
    source = with_flips(images) if flips else images
    sensitivity = measured_sensitivity(images, network, True, samples, seed)
    shares = SHARES if share == "published" else (float(share),) * len(SHARES)
    share_at = at_nearest_level(edm_sigmas(len(SHARES)), shares)

    @lru_cache(maxsize=16)
    def windows(sigma: float) -> Posterior:
        c, h, w = images.shape
        centre = torch.eye(h * w, dtype=torch.bool)  # every pixel is in a window
        keep = (mass_masks(sensitivity(sigma), share_at(sigma)) | centre).repeat(1, c)
        return Posterior(Masks(keep, (1, h, w)), MaskMeans(keep), source)

    return PosteriorMean(source, windows, memory=memory, converges_to_mean=True)
