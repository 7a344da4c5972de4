"""Kamb & Ganguli's boundary-broken model: equivariant in the middle of the image, aware of its border."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from scorelens.data.edits import limited
from scorelens.data.images import ImageSet
from scorelens.denoisers.ls import LS
from scorelens.denoisers.patch_sizes import PatchSize, Size, patch_sizes
from scorelens.posterior import MEMORY, PartOfOutput, Posterior, WholePatch, posterior_mean
from scorelens.posterior.sources import Patches, Window
from scorelens.validation import check_noisy, check_sigma


@dataclass(frozen=True)
class BBELS:
    """As ELS, but a place is compared only with those whose window the border cuts alike: one in the middle with all in
    the middle, one at an edge with those along it, one in a corner with itself. Windows larger than the image: LS."""

    converges_to_mean: ClassVar[bool] = False  # but to the mean of the places that are compared
    images: ImageSet
    size: Callable[[float], Size]
    temperature: float
    memory: int

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        sigma, z = check_sigma(sigma), check_noisy(z, self.images.shape)
        size, (_, h, w) = self.size(sigma), self.images.shape
        same_place = LS(self.images, self.size, self.temperature, self.memory)(z, sigma)
        if size is None or size >= min(h, w):
            return same_place
        blocks = self._blocks(z, sigma, size, same_place)
        return torch.cat([torch.cat(columns, dim=3) for columns in blocks], dim=2)

    def _blocks(self, z: Tensor, sigma: float, size: int, same_place: Tensor) -> Iterator[list[Tensor]]:
        """The image in blocks of places that the border cuts alike, row by row; single ones, in the corners, are LS."""
        _, h, w = self.images.shape
        for rows in _alike(h, size // 2):
            yield [same_place[:, :, rows, columns] if len(range(h)[rows]) == len(range(w)[columns]) == 1
                   else self._block(z, sigma, size, rows, columns) for columns in _alike(w, size // 2)]

    def _block(self, z: Tensor, sigma: float, size: int, rows: slice, columns: slice) -> Tensor:
        c, h, w = self.images.shape
        up, down = min(size // 2, rows.start), min(size // 2, h - rows.stop)
        left, right = min(size // 2, columns.start), min(size // 2, w - columns.stop)
        source = Patches(self.images, Window(up, down, left, right), range(h)[rows], range(w)[columns])
        posterior = Posterior(WholePatch(), PartOfOutput(source.window.centre(c).to(z.device)), source)
        means = posterior_mean(posterior, source.of(z).flatten(0, 1), sigma, temperature=self.temperature,
                               memory=self.memory)
        return means.view(len(z), len(source.rows), len(source.columns), c).permute(0, 3, 1, 2)


def _alike(length: int, reach: int) -> list[slice]:
    """Places along an axis whose windows the border cuts alike: each of the first and last ones, and all between."""
    ends = [*range(reach), *range(length - reach, length)]
    single = [slice(k, k + 1) for k in ends]
    return [*single[:reach], slice(reach, length - reach), *single[reach:]]


def bbels(images: ImageSet, *, patch_size: PatchSize = "cifar10", temperature: float = 1.0,
          images_limit: int | None = None, seed: int = 0, memory: int = MEMORY) -> BBELS:
    """The boundary-broken equivariant local score model of these images.

    Args:
        images: the training images.
        patch_size: side of the patches: a number, one for each step, a preset or a calibration file.
        temperature: divides the logits.
        images_limit: average only this many images, drawn at random: an approximation.
        seed: of that draw.
        memory: workspace in bytes.
    """
    return BBELS(limited(images, images_limit, seed), patch_sizes(patch_size, images.shape), temperature, memory)
