"""The smoothed optimal denoiser of Scarvelis et al. (2023): it interpolates between training images."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.denoisers.common import Formula
from scorelens.denoisers.optimal import optimal
from scorelens.posterior import MEMORY
from scorelens.types import ScorelensError
from scorelens.validation import at_least_float32, check_memory


def smoothed(images: ImageSet, *, draws: int = 10, scale: float = 0.1, neighbours: int | None = None, seed: int = 0,
             memory: int = MEMORY) -> Formula:
    """x0_hat = mean_m optimal(z + s sqrt(1 + sigma^2) eps_m), with eps_m drawn once and shared by all images.

    Args:
        images: the training images.
        draws: M, the number of perturbed copies to average.
        scale: s, the size of the perturbation (published: 0.1; 1 on MNIST).
        neighbours: average only this many nearest images (published: 200), an approximation; None for all.
        seed: seed of the perturbations.
        memory: workspace in bytes.
    """
    if draws < 1:
        raise ScorelensError(f"draws must be at least 1, got {draws}")
    if scale < 0:
        raise ScorelensError(f"scale must be at least 0, got {scale:g}")
    check_memory(4 * draws * images.dim, f"{draws:,} draws")
    eps = torch.randn((draws, *images.shape), generator=torch.Generator().manual_seed(seed))
    plain = optimal(images, neighbours=neighbours, memory=memory)

    def predict(z: Tensor, sigma: float) -> Tensor:
        wide = at_least_float32(z)
        shifts = scale * math.sqrt(1 + sigma**2) * eps.to(wide)  # [M, C, H, W]
        predictions = plain((wide[:, None] + shifts).flatten(0, 1), sigma)  # [B * M, C, H, W]
        return predictions.unflatten(0, (len(z), draws)).mean(dim=1).to(z.dtype)

    return Formula(images, predict, converges_to_mean=neighbours is None)
