"""Kamb & Ganguli's local score model: each place has its own posterior, which sees a square window around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from scorelens.data.edits import limited
from scorelens.data.images import ImageSet
from scorelens.denoisers.patch_sizes import PatchSize, Size, patch_sizes
from scorelens.posterior import MEMORY, AllChannels, Posterior, Windows, posterior_mean
from scorelens.validation import check_noisy, check_sigma


@dataclass(frozen=True)
class LS:
    """x0_hat_q = sum_i softmax_i(-||window_q (z - x_i)||^2 / 2 sigma^2) x_i,q; windows are cut at the border."""

    converges_to_mean: ClassVar[bool] = True
    images: ImageSet
    size: Callable[[float], Size]
    temperature: float
    memory: int

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        sigma, z = check_sigma(sigma), check_noisy(z, self.images.shape)
        c, h, w = self.images.shape
        windows = Windows(self.images.shape, self.size(sigma) or 2 * max(h, w) - 1)
        return posterior_mean(Posterior(windows, AllChannels(c), self.images), z, sigma, temperature=self.temperature,
                              memory=self.memory)


def ls(images: ImageSet, *, patch_size: PatchSize = "cifar10", temperature: float = 1.0,
       images_limit: int | None = None, seed: int = 0, memory: int = MEMORY) -> LS:
    """The local score model of these images.

    Args:
        images: the training images.
        patch_size: side of the window: a number, one for each step, a preset or a calibration file.
        temperature: divides the logits.
        images_limit: average only this many images, drawn at random: an approximation.
        seed: of that draw.
        memory: workspace in bytes.
    """
    return LS(limited(images, images_limit, seed), patch_sizes(patch_size, images.shape), temperature, memory)
