"""Kamb & Ganguli's boundary-broken model: equivariant in the interior of the image, position-aware at its border."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from scorelens.data.edits import limited
from scorelens.data.images import ImageSet
from scorelens.denoisers.ls import local_score
from scorelens.denoisers.patch_sizes import PatchSize, Size, patch_sizes
from scorelens.posterior import MEMORY, PartOfOutput, Posterior, WholePatch, posterior_mean
from scorelens.posterior.sources import Patches, Window
from scorelens.validation import per_level


@dataclass(frozen=True)
class BBELS:
    """ELS, except that a pixel is compared only with pixels whose windows the border cuts alike: an interior pixel with
    the interior, an edge pixel with its edge, a corner with itself. Windows larger than the image reduce it to LS."""

    converges_to_mean: ClassVar[bool] = False  # but to the mean over the pixels compared
    images: ImageSet
    size: Callable[[float], Size]
    temperature: float
    memory: int

    @per_level
    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        size, (_, h, w) = self.size(sigma), self.images.shape
        x0_hat = local_score(self.images, self.size, self.temperature, self.memory)(z, sigma)
        if size is None or size >= min(h, w):
            return x0_hat
        blocks = [[self._block(z, sigma, size, rows, columns, x0_hat) for columns in _blocks(w, size // 2)]
                  for rows in _blocks(h, size // 2)]
        return torch.cat([torch.cat(row, dim=3) for row in blocks], dim=2)

    def _block(self, z: Tensor, sigma: float, size: int, rows: range, columns: range, ls: Tensor) -> Tensor:
        """x0_hat of a block of pixels whose windows are cut alike; a block of one pixel is copied from LS."""
        if len(rows) == len(columns) == 1:
            return ls[:, :, rows.start:rows.stop, columns.start:columns.stop]
        c, h, w = self.images.shape
        up, down = min(size // 2, rows.start), min(size // 2, h - rows.stop)
        left, right = min(size // 2, columns.start), min(size // 2, w - columns.stop)
        source = Patches(self.images, Window(up, down, left, right), rows, columns)
        posterior = Posterior(WholePatch(), PartOfOutput(source.window.centre(c).to(z.device)), source)
        means = posterior_mean(posterior, source.of(z).flatten(0, 1), sigma, temperature=self.temperature,
                               memory=self.memory)
        return means.view(len(z), len(rows), len(columns), c).permute(0, 3, 1, 2)


def _blocks(length: int, reach: int) -> list[range]:
    """Ranges of positions whose windows the border cuts alike: each position near an end, and all between."""
    start, end = ([range(k, k + 1) for k in positions] for positions in (range(reach), range(length - reach, length)))
    return [*start, range(reach, length - reach), *end]


def bbels(images: ImageSet, *, patch_size: PatchSize = "cifar10", temperature: float = 1.0,
          images_limit: int | None = None, seed: int = 0, memory: int = MEMORY) -> BBELS:
    """The boundary-broken equivariant local score model of these images.

    Args:
        images: the training images.
        patch_size: side of the patches: a number, a number for each step, a preset or a calibration file.
        temperature: divides the logits.
        images_limit: average only this many images, drawn at random; an approximation.
        seed: seed of the draw.
        memory: workspace in bytes.
    """
    return BBELS(limited(images, images_limit, seed), patch_sizes(patch_size, images.shape), temperature, memory)
