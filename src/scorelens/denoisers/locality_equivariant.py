"""The locality model over all translations of the images: an ablation of the paper, where they do not help."""

from __future__ import annotations

from dataclasses import replace

from scorelens.data.images import ImageSet
from scorelens.denoisers.locality import Locality, locality
from scorelens.posterior import MEMORY
from scorelens.posterior.sources import Translations
from scorelens.statistics import GaussianStats


def locality_equivariant(images: ImageSet, *, threshold: float = 0.02, temperature: float = 1.0,
                         stats: GaussianStats | None = None, memory: int = MEMORY) -> Locality:
    """x0_hat_q = sum_it softmax_it(-||M_q (z - T_t x_i)||^2 / 2 sigma^2) (T_t x_i)_q, T_t all circular translations.

    The cost grows by H x W: for small images.

    Args:
        images: the training images.
        threshold: tau, relative to the largest entry of the Wiener matrix's row.
        temperature: divides the logits.
        stats: moments that give the masks, instead of those of `images`.
        memory: workspace in bytes.
    """
    plain = locality(images, threshold=threshold, temperature=temperature, stats=stats, memory=memory)
    return replace(plain, source=Translations(images))
