"""The locality model with soft masks: pixels are weighted by their Wiener coefficients instead of kept or dropped."""

from __future__ import annotations

from functools import lru_cache

import torch

from scorelens.data.images import ImageSet
from scorelens.denoisers.locality import MASK_MEMORY, Locality
from scorelens.posterior import MEMORY, Masks
from scorelens.statistics import GaussianStats, fit_gaussian, wiener_matrix


def soft_locality(images: ImageSet, *, temperature: float = 1.0, stats: GaussianStats | None = None,
                  memory: int = MEMORY) -> Locality:
    """x0_hat_q = sum_i softmax_i(-sum_k p_qk (z - x_i)_k^2 / 2 sigma^2) x_i,q with p_qk = |W_qk| / max_k |W_qk|.

    Args:
        images: the training images.
        temperature: divides the logits.
        stats: moments that give the weights, instead of those of `images`.
        memory: workspace in bytes.
    """
    moments = stats or fit_gaussian(images)

    @lru_cache(maxsize=max(1, MASK_MEMORY // (8 * images.dim**2)))
    def precisions(sigma: float) -> Masks:
        w = wiener_matrix(moments, sigma).abs()
        largest = w.amax(dim=1, keepdim=True)
        constant = largest <= len(w) * torch.finfo(w.dtype).eps * largest.max()  # any weights return the constant
        return Masks(torch.where(constant, 1.0, w / largest.clamp(min=torch.finfo(w.dtype).tiny)))

    return Locality(images, precisions, temperature=temperature, memory=memory)
