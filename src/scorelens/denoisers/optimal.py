"""The optimal denoiser: the posterior mean under the empirical distribution. It can only reproduce training images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from scorelens import distributed
from scorelens.data.images import ImageSet
from scorelens.posterior import (
    MEMORY,
    Choice,
    Posterior,
    WholeImage,
    WholeOutput,
    logit_scale,
    plan_for,
    posterior_mean,
)
from scorelens.statistics.nearest import nearest_images
from scorelens.validation import at_least_float32, per_level


@dataclass(frozen=True)
class Optimal:
    """x0_hat = sum_i softmax_i(-||z - x_i||^2 / 2 sigma^2) x_i   # eq:optimal_denoiser

    Args:
        images: the training images.
        neighbours: average only this many nearest images (published code: 200), an approximation; None for all.
        temperature: divides the logits.
        memory: workspace in bytes.
    """

    converges_to_mean: ClassVar[bool] = True
    images: ImageSet
    neighbours: int | None = None
    temperature: float = 1.0
    memory: int = MEMORY

    @per_level
    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        if self.neighbours is None:
            return self._mean(self.images, z, sigma)
        near = nearest_images(at_least_float32(z), self.images, self.neighbours).indices
        chosen = distributed.world().broadcast(near).cpu().numpy()
        return torch.cat([self._mean(self.images.subset(rows), z[k:k + 1], sigma) for k, rows in enumerate(chosen)])

    def choice(self, z: Tensor, sigma: float) -> Choice:
        """The plan that a call takes, and its expected cost."""
        return plan_for(_posterior(self.images), at_least_float32(z).flatten(1), logit_scale(sigma, self.temperature))

    def _mean(self, source: ImageSet, z: Tensor, sigma: float) -> Tensor:
        return posterior_mean(_posterior(source), z, sigma, temperature=self.temperature, memory=self.memory)


def _posterior(source: ImageSet) -> Posterior:
    return Posterior(WholeImage(), WholeOutput(), source)
