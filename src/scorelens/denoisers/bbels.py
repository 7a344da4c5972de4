"""Kamb & Ganguli's boundary-broken model: equivariant in the interior of the image, position-aware at its border."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from scorelens.data.edits import limited
from scorelens.data.images import ImageSet
from scorelens.denoisers.common import Formula
from scorelens.denoisers.els import patch_term
from scorelens.denoisers.ls import local_score
from scorelens.denoisers.patch_sizes import PatchSize, patch_sizes
from scorelens.posterior import MEMORY, Posterior, Term, WholeOutput, WholePatch, posterior_mean
from scorelens.posterior.patches import Patches, Window
from scorelens.validation import at_least_float32


def bbels(images: ImageSet, *, patch_size: PatchSize = "cifar10", temperature: float = 1.0,
          images_limit: int | None = None, seed: int = 0, memory: int = MEMORY) -> Formula:
    """ELS, except that a pixel is compared only with pixels whose windows the border cuts alike: an interior pixel with
    the interior, an edge pixel with its edge, a corner with itself. Windows larger than the image reduce it to LS.

    Args:
        images: the training images.
        patch_size: side of the patches: a number, a number for each step, a preset or a calibration file.
        temperature: divides the logits.
        images_limit: average only this many images, drawn at random; an approximation.
        seed: seed of the draw.
        memory: workspace in bytes.
    """
    source, sizes, (c, h, w) = limited(images, images_limit, seed), patch_sizes(patch_size, images.shape), images.shape
    ls = local_score(source, sizes, temperature, memory)

    def posterior(z: Tensor, reach: int, rows: range, columns: range) -> tuple[Posterior, Tensor]:
        """The posterior of a block of pixels whose windows are cut alike, and the patches of z."""
        window = Window(min(reach, rows.start), min(reach, h - rows.stop),
                        min(reach, columns.start), min(reach, w - columns.stop))
        patches = Patches(source, window, rows, columns)
        return (Posterior(WholePatch(), WholeOutput(window.centre(c).to(z.device)), patches),
                patches.of(z).flatten(0, 1))

    def block(z: Tensor, sigma: float, reach: int, rows: range, columns: range, x0_hat: Tensor) -> Tensor:
        """x0_hat of a block of pixels; a block of one pixel is copied from LS."""
        if len(rows) == len(columns) == 1:
            return x0_hat[:, :, rows.start:rows.stop, columns.start:columns.stop]
        means = posterior_mean(*posterior(z, reach, rows, columns), sigma, temperature=temperature, memory=memory)
        return means.view(len(z), len(rows), len(columns), c).permute(0, 3, 1, 2)

    def predict(z: Tensor, sigma: float) -> Tensor:
        size, x0_hat = sizes(sigma), ls(z, sigma)
        if size is None or size >= min(h, w):
            return x0_hat
        reach = size // 2
        blocks = [[block(z, sigma, reach, rows, columns, x0_hat) for columns in _blocks(w, reach)]
                  for rows in _blocks(h, reach)]
        return torch.cat([torch.cat(row, dim=3) for row in blocks], dim=2)

    def terms(z: Tensor, sigma: float) -> Iterator[Term]:
        """LS at the corners, or everywhere; a posterior over patches for each other block."""
        size, (whole,) = sizes(sigma), ls.terms(z, sigma)
        reach = h if size is None or size >= min(h, w) else size // 2
        blocks = list(product(_blocks(h, reach), _blocks(w, reach))) if reach < h else []
        large = [pair for pair in blocks if len(pair[0]) * len(pair[1]) > 1]
        corners = torch.ones(h, w, dtype=torch.bool)
        for rows, columns in large:
            corners[rows.start:rows.stop, columns.start:columns.stop] = False
            yield patch_term(*posterior(at_least_float32(z), reach, rows, columns), sigma, len(z), temperature, memory)
        ls_term = whole.at(corners.expand(c, h, w).flatten().nonzero()[:, 0])
        if ls_term is not None:
            yield ls_term

    rebuild = partial(bbels, patch_size=patch_size, temperature=temperature, memory=memory)
    return Formula(source, predict, terms=terms, rebuild=rebuild)  # converges to the mean over the pixels compared


def _blocks(length: int, reach: int) -> list[range]:
    """Ranges of positions whose windows the border cuts alike: each position near an end, and all between."""
    start, end = ([range(k, k + 1) for k in positions] for positions in (range(reach), range(length - reach, length)))
    return [*start, range(reach, length - reach), *end]
