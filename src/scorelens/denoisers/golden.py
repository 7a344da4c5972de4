"""The golden subset (Shang et al. 2026): the locality model over a few training images chosen for each noisy one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from scorelens import distributed
from scorelens.data.images import ImageSet
from scorelens.denoisers.common import Formula, each_image
from scorelens.denoisers.locality import Locality, locality
from scorelens.posterior import MEMORY
from scorelens.statistics import GaussianStats, fit_gaussian
from scorelens.statistics.nearest import nearest_images
from scorelens.types import ScorelensError
from scorelens.validation import at_least_float32


def golden(images: ImageSet, *, threshold: float = 0.03, smallest: float = 1 / 20, largest: float = 1 / 10,
           seed: int = 0, stats: GaussianStats | None = None, memory: int = MEMORY) -> Formula:
    """Locality, with the published mask rule, over the training images nearest to z: fewer at low noise, from a random
    subset at high noise.

    Args:
        images: the training images.
        threshold: tau of the published mask rule (published: 0.03 for CIFAR-10 and CelebA-HQ, 0.02 for MNIST).
        smallest: share of the images to keep at low noise.
        largest: share of the images to keep at high noise.
        seed: seed of the draw.
        stats: moments that give the masks, instead of those of `images`.
        memory: workspace in bytes.
    """
    if not 0 < smallest <= largest <= 1:
        raise ScorelensError(f"the shares must be 0 < smallest <= largest <= 1, got {smallest:g} and {largest:g}")
    moments = stats or fit_gaussian(images)
    plain = locality(images, threshold=threshold, mask_rule="published", stats=moments, memory=memory)
    least, most = (max(1, round(share * len(images))) for share in (smallest, largest))

    @cache
    def pooled_images() -> ImageSet:
        return replace(images, pixels=np.concatenate([_pooled(x).numpy() for x in images.chunks()]))

    def choose(z: Tensor, sigma: float) -> Int[np.ndarray, "b k"]:
        """Training images for each noisy one: a random draw, of it the nearest by pooled pixels, then by all pixels."""
        g = 1 - sigma / math.sqrt(1 + sigma**2)
        kept, count = round(most - (most - least) * g), round(most + (len(images) - most) * g)
        drawn = np.sort(np.random.default_rng(seed).permutation(len(images))[:count])
        coarse = nearest_images(_pooled(z), pooled_images().subset(drawn), most).indices.cpu().numpy()
        candidates = np.sort(drawn[coarse], axis=1)  # [B, most]
        nearest = [nearest_images(one, images.subset(rows), kept).indices[0].cpu().numpy()
                   for one, rows in zip(z.split(1), candidates, strict=True)]
        return np.sort(np.take_along_axis(candidates, np.stack(nearest), axis=1), axis=1)

    def models(z: Tensor, sigma: float) -> Iterator[Locality]:
        chosen = distributed.world().broadcast(torch.from_numpy(choose(at_least_float32(z), sigma)))
        return (replace(plain, source=images.subset(rows)) for rows in chosen.numpy())

    return each_image(images, models, partial(golden, threshold=threshold, smallest=smallest, largest=largest,
                                              seed=seed, stats=moments, memory=memory))


def _pooled(x: Tensor) -> Tensor:
    """Block averages: half the resolution, or a quarter for sides of at least 64."""
    h, w = (max(1, side // (4 if side >= 64 else 2)) for side in x.shape[2:])
    return adaptive_avg_pool2d(x, (h, w))
