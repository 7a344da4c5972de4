"""A mixture of Gaussians, one around each training image: between the optimal denoiser and the Wiener filter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.denoisers.common import Components, bandwidth_rule, principal_components
from scorelens.denoisers.selection import Selected, selected
from scorelens.posterior import MEMORY, Posterior, Source, Term, WholeImage, WholeOutput, Writers, posterior_mean
from scorelens.posterior.engine import COPIES
from scorelens.posterior.sources import Projected, Scaled
from scorelens.statistics import GaussianStats, fit_gaussian
from scorelens.statistics.rotation import rotated
from scorelens.validation import at_least_float32, per_level

SMALL = 2**30  # multiplications; up to this many, every call rotates the images instead of caching them


@dataclass(frozen=True)
class Kernel:
    """p = (1/N) sum_i N(m_i, h^2 Sigma), m_i = mu + sqrt(1 - h^2) (x_i - mu): its covariance is Sigma for every h
    (with the 1/N estimate; ours divides by N - 1). With K = h^2 Sigma + sigma^2 I,

    x0_hat = m + h^2 Sigma K^-1 (z - m),   m = sum_i softmax_i(-(z - m_i)^T K^-1 (z - m_i) / 2) m_i

    K is diagonal in the basis of the principal components: m is the posterior mean over whole images, rotated and
    divided by sqrt(K). h = 0 is the optimal denoiser, h = 1 the Wiener filter.
    """

    converges_to_mean: ClassVar[bool] = True
    images: ImageSet
    stats: GaussianStats
    bandwidth: Callable[[float], float]  # h as a function of sigma
    temperature: float = 1.0
    memory: int = MEMORY

    @per_level
    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        h, basis = self.bandwidth(sigma), principal_components(self.stats, z)
        scale, (posterior, query) = self._scale(basis, sigma), self._compared(basis, z, sigma)
        mean = posterior_mean(posterior, query, sigma, temperature=self.temperature, memory=self.memory // COPIES)
        gain = h**2 * basis.variances / (h**2 * basis.variances + sigma**2)
        return basis.restore(gain * basis.rotate(z) + scale * mean, z)  # scale mean = sigma^2 K^-1 (m - mu)

    def terms(self, z: Tensor, sigma: float) -> Iterator[Term]:
        """The posterior part; the linear part, mu + h^2 Sigma K^-1 (z - mu), has no weights."""
        posterior, query = self._compared(principal_components(self.stats, z), z, sigma)
        outputs = torch.arange(self.images.dim)
        yield Term(posterior, query, sigma, torch.arange(len(z)), Writers(outputs, torch.zeros_like(outputs)),
                   temperature=self.temperature, memory=self.memory // COPIES)

    def over(self, images: ImageSet) -> Kernel:
        """The same moments and bandwidths with other images."""
        return replace(self, images=images)

    def _scale(self, basis: Components, sigma: float) -> Float[Tensor, "k"]:
        """sigma K^-1/2: the engine divides by sigma."""
        return sigma / (self.bandwidth(sigma)**2 * basis.variances + sigma**2).sqrt()

    def _compared(self, basis: Components, z: Tensor, sigma: float) -> tuple[Posterior, Float[Tensor, "b k"]]:
        """The posterior over the rotated and scaled images, and z as one of them."""
        scale, shrink = self._scale(basis, sigma), math.sqrt(1 - self.bandwidth(sigma)**2)
        source, dtype = self._rows(basis, shrink * scale, sigma, at_least_float32(z))
        return Posterior(WholeImage(), WholeOutput(), source), (scale * basis.rotate(z)).to(dtype)

    def _rows(self, basis: Components, scale: Float[Tensor, "k"], sigma: float,
              z: Tensor) -> tuple[Source, torch.dtype]:
        """The rows scale U^T (x_i - mu), and the dtype that they need."""
        mu, u, _ = basis
        projected = Projected(self.images, mu, torch.arange(len(mu)), u * scale, torch.arange(0))
        dtype = projected.dtype(len(scale), sigma, z)
        if dtype == torch.float64 or len(self.images) * u.numel() <= SMALL:
            return projected, dtype
        return Scaled(self.images, self._rotated, scale.float().cpu()), dtype

    @cached_property
    def _rotated(self) -> np.ndarray:
        return rotated(self.images, self.stats)


def kernel(images: ImageSet, *, bandwidth: float | Literal["auto"] | Callable[[float], float] = "auto",
           temperature: float = 1.0, stats: GaussianStats | None = None,
           memory: int = MEMORY) -> Kernel | Selected:
    """The kernel denoiser of these images.

    Args:
        images: the training images.
        bandwidth: h, from 0 (optimal) to 1 (Wiener), or a function of sigma; auto has the least held-out error.
        temperature: divides the logits.
        stats: moments to use instead of those of `images`.
        memory: workspace in bytes.
    """
    if bandwidth == "auto":
        return selected(images, "kernel", kernel, {"bandwidth": bandwidth, "temperature": temperature, "stats": stats,
                                                   "memory": memory})
    return Kernel(images, stats or fit_gaussian(images), bandwidth_rule(bandwidth), temperature, memory)
