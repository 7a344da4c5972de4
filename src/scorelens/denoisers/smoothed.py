"""The smoothed optimal denoiser of Scarvelis et al. (2023): it interpolates between training images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.denoisers.common import Formula
from scorelens.denoisers.optimal import optimal
from scorelens.posterior import MEMORY, Term
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

    def perturbed(z: Tensor, sigma: float) -> Tensor:
        wide = at_least_float32(z)
        shifts = scale * math.sqrt(1 + sigma**2) * eps.to(wide)  # [M, C, H, W]
        return (wide[:, None] + shifts).flatten(0, 1)  # [B * M, C, H, W]

    def predict(z: Tensor, sigma: float) -> Tensor:
        return plain(perturbed(z, sigma), sigma).unflatten(0, (len(z), draws)).mean(dim=1).to(z.dtype)

    def terms(z: Tensor, sigma: float) -> Iterator[Term]:
        """One that mixes the draws; or one for each draw, where each has its own neighbours."""
        for each in plain.terms(perturbed(z, sigma), sigma):  # type: ignore[misc]
            if neighbours is None:
                mixed = each.writers._replace(mix=torch.full((1, draws), 1 / draws, dtype=torch.float64))
                yield replace(each, noisy=torch.arange(len(z)), each=draws, writers=mixed)
            else:
                yield replace(each, noisy=each.noisy // draws, share=1 / draws)

    rebuild = partial(smoothed, draws=draws, scale=scale, neighbours=neighbours, seed=seed, memory=memory)
    return Formula(images, predict, neighbours is None, terms, rebuild)
