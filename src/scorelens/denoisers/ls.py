"""Kamb & Ganguli's local score model: each pixel has its own posterior, given a square window around it."""

from __future__ import annotations

from collections.abc import Callable

from scorelens.data.edits import limited
from scorelens.data.images import ImageSet
from scorelens.denoisers.common import PosteriorMean
from scorelens.denoisers.patch_sizes import PatchSize, Size, patch_sizes
from scorelens.posterior import MEMORY, AllChannels, Posterior, Windows


def local_score(images: ImageSet, size: Callable[[float], Size], temperature: float, memory: int) -> PosteriorMean:
    """x0_hat_q = sum_i softmax_i(-||window_q (z - x_i)||^2 / 2 sigma^2) x_i,q; windows are cut at the border."""
    c, h, w = images.shape

    def posterior(sigma: float) -> Posterior:
        return Posterior(Windows(images.shape, size(sigma) or 2 * max(h, w) - 1), AllChannels(c), images)

    return PosteriorMean(images, posterior, temperature, memory, converges_to_mean=True)


def ls(images: ImageSet, *, patch_size: PatchSize = "cifar10", temperature: float = 1.0,
       images_limit: int | None = None, seed: int = 0, memory: int = MEMORY) -> PosteriorMean:
    """The local score model of these images.

    Args:
        images: the training images.
        patch_size: side of the window: a number, a number for each step, a preset or a calibration file.
        temperature: divides the logits.
        images_limit: average only this many images, drawn at random; an approximation.
        seed: seed of the draw.
        memory: workspace in bytes.
    """
    return local_score(limited(images, images_limit, seed), patch_sizes(patch_size, images.shape), temperature, memory)
