"""Patch set posterior composites: posterior means of whole windows, averaged where the windows overlap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from scorelens.data.edits import with_flips
from scorelens.data.images import ImageSet
from scorelens.denoisers.heat import measured_heat
from scorelens.denoisers.patch_sizes import PatchSize, by_level, size_table
from scorelens.posterior import MEMORY, MaskMeans, Masks, Posterior, WindowMeans, Windows, posterior_mean
from scorelens.statistics.masks import mass_masks
from scorelens.types import Denoiser, Shape
from scorelens.validation import check_noisy, check_sigma

# Published for CIFAR-10, at the 18 noise levels of EDM's sampler
SIZES = (*[32] * 7, 23, 15, 11, 7, 5, *[3] * 6)
SHARES = (*[1.0] * 7, 0.7, 0.7, 0.5, 0.4, 0.4, 0.4, 0.4, 0.3, 0.3, 0.3, 0.3)


def edm_sigmas(count: int, largest: float = 80.0, smallest: float = 0.002, rho: float = 7.0) -> list[float]:
    """(a + k / (n - 1) (b - a))^rho with a, b the rho-th roots of the ends   # Karras et al. 2022, Eq. 5"""
    steps = torch.linspace(0, 1, count, dtype=torch.float64)
    return (largest ** (1 / rho) + steps * (smallest ** (1 / rho) - largest ** (1 / rho))).pow(rho).tolist()


@dataclass(frozen=True)
class PSPC:
    """x0_hat = sum_c C_c^T E_c / sum_c C_c^T 1; E_c the posterior mean of window c, given the pixels of window c."""

    converges_to_mean: ClassVar[bool] = True
    images: ImageSet
    windows: Callable[[float], Posterior]
    memory: int

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        sigma, z = check_sigma(sigma), check_noisy(z, self.images.shape)
        return posterior_mean(self.windows(sigma), z, sigma, memory=self.memory)


def pspc_square(images: ImageSet, *, patch_size: PatchSize = "published", flips: bool = False,
                memory: int = MEMORY) -> PSPC:
    """All square windows inside the image, of one size.

    Args:
        images: the training images.
        patch_size: side of the windows, odd or even: a number, one for each step, or "published", those of CIFAR-10
            scaled to the side of the images.
        flips: average over the mirrored images too, as the published code does.
        memory: workspace in bytes.
    """
    source = with_flips(images) if flips else images
    published = patch_size == "published"
    at = by_level(*_published_sizes(images.shape) if published else size_table(patch_size, images.shape))

    def windows(sigma: float) -> Posterior:
        squares = Windows(images.shape, at(sigma), "inside")
        return Posterior(squares, WindowMeans(squares), source)

    return PSPC(source, windows, memory)


def _published_sizes(shape: Shape) -> tuple[list[float], list[int]]:
    return edm_sigmas(len(SIZES)), [max(1, round(size * max(shape[1:]) / max(SIZES))) for size in SIZES]


def pspc_flex(images: ImageSet, *, network: str | Denoiser | None = None,
              share: float | Literal["published"] = "published", flips: bool = False, samples: int = 32, seed: int = 0,
              memory: int = MEMORY) -> PSPC:
    """For each place the pixels that a network's output there is most sensitive to.

    Args:
        images: the training images.
        network: whose fields are measured; without one, the Wiener filter of the images.
        share: of a field's mass that its window holds; "published": from all of it at high noise to 0.3.
        flips: average over the mirrored images too, as the published code does.
        samples: noisy training images that a field is averaged over.
        seed: of the images and their noise.
        memory: workspace in bytes.
    """
    source = with_flips(images) if flips else images
    heat = measured_heat(images, network, True, samples, seed)
    at = by_level(edm_sigmas(len(SHARES)), SHARES) if share == "published" else by_level([1.0], [float(share)])

    @lru_cache(maxsize=16)
    def windows(sigma: float) -> Posterior:
        c, h, w = images.shape
        own = torch.eye(h * w, dtype=torch.bool)  # so that every pixel is written
        keep = (mass_masks(heat(sigma), at(sigma)) | own).repeat(1, c)
        return Posterior(Masks(keep, (1, h, w)), MaskMeans(keep), source)

    return PSPC(source, windows, memory)
