"""Between the optimal denoiser and the Wiener filter: every training image is the centre of a Gaussian."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.posterior import MEMORY, Posterior, Source, WholeImage, WholeOutput, posterior_mean
from scorelens.posterior.projected import COPIES, row_dtype
from scorelens.posterior.sources import Projected, Scaled
from scorelens.statistics import GaussianStats, fit_gaussian
from scorelens.statistics.bandwidth import bandwidth_rule, held_out_bandwidth
from scorelens.statistics.rotation import rotated
from scorelens.validation import at_least_float32, check_noisy, check_sigma, wide_dtype

SMALL = 2**30  # multiplications: fewer, and the images are rotated again at every call rather than kept


@dataclass(frozen=True)
class Kernel:
    """p = (1/N) sum_i N(m_i, h^2 Sigma), m_i = mu + sqrt(1 - h^2) (x_i - mu): its covariance is Sigma, whatever h (with
    the 1/N estimate; ours divides by N - 1). With K = h^2 Sigma + sigma^2 I,

    x0_hat = m + h^2 Sigma K^-1 (z - m),   m = sum_i softmax_i(-(z - m_i)^T K^-1 (z - m_i) / 2) m_i

    K is diagonal in the basis of the principal components: rotated and divided by sqrt(K), this is the posterior mean
    of whole images. h = 0 is the optimal denoiser, h = 1 the Wiener filter.
    """

    converges_to_mean: ClassVar[bool] = True
    images: ImageSet
    stats: GaussianStats
    bandwidth: Callable[[float], float]  # h of a noise level
    temperature: float = 1.0
    memory: int = MEMORY

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        sigma, z = check_sigma(sigma), check_noisy(z, self.images.shape)
        h, parts = self.bandwidth(sigma), (self.stats.mean, self.stats.eigenvectors, self.stats.eigenvalues)
        mu, u, variance = (part.to(wide_dtype(z)).to(z.device) for part in parts)  # in this order: mps has no float64
        k = h**2 * variance + sigma**2
        scale = sigma / k.sqrt()  # K^-1/2, but for the 1 / sigma that is the engine's
        zeta = (z.flatten(1).to(mu.dtype) - mu) @ u  # [B, k]
        source, dtype = self._rows(mu, u, math.sqrt(1 - h**2) * scale, sigma, at_least_float32(z))
        mean = posterior_mean(Posterior(WholeImage(), WholeOutput(), source), (scale * zeta).to(dtype), sigma,
                              temperature=self.temperature, memory=self.memory // COPIES)
        x0_hat = mu + (h**2 * variance / k * zeta + scale * mean) @ u.T  # scale mean = sigma^2 K^-1 (m - mu)
        return x0_hat.to(z.dtype).view(z.shape)

    def _rows(self, mu: Float[Tensor, "d"], u: Float[Tensor, "d k"], scale: Float[Tensor, "k"], sigma: float,
              z: Tensor) -> tuple[Source, torch.dtype]:
        """scale U^T (x_i - mu), and the precision that they need."""
        turned = Projected(self.images, mu, torch.arange(len(mu)), u * scale, torch.arange(0))
        dtype = row_dtype(turned, len(scale), sigma, z)
        if dtype == torch.float64 or len(self.images) * u.numel() <= SMALL:
            return turned, dtype
        return Scaled(self._rotated, scale.float().cpu()), dtype

    @cached_property
    def _rotated(self) -> np.ndarray:
        return rotated(self.images, self.stats)


def kernel(images: ImageSet, *, bandwidth: float | Literal["auto"] | Callable[[float], float] = "auto",
           temperature: float = 1.0, stats: GaussianStats | None = None, memory: int = MEMORY) -> Kernel:
    """The kernel denoiser of these images.

    Args:
        images: the training images.
        bandwidth: h, from 0 (optimal) to 1 (Wiener), or a function of sigma; auto denoises held-out images best.
        temperature: divides the logits.
        stats: moments to use instead of those of `images`.
        memory: workspace in bytes.
    """
    moments = stats or fit_gaussian(images)
    rule = bandwidth_rule(bandwidth, lambda sigma: held_out_bandwidth(images, moments, sigma))
    return Kernel(images, moments, rule, temperature, memory)
