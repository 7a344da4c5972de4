"""The kernel denoiser with locality masks: each output pixel has its own posterior over the Gaussians."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.denoisers.common import by_mask, mask_groups, mask_regression, widened
from scorelens.posterior import MEMORY, Term, Writers
from scorelens.posterior.engine import COPIES, mean_behind, posterior_behind
from scorelens.posterior.sources import Projected
from scorelens.statistics import GaussianStats, fit_gaussian, locality_masks
from scorelens.statistics.bandwidth import bandwidth_rule, held_out_bandwidth
from scorelens.types import Flat, ScorelensError, Shape
from scorelens.validation import at_least_float32, per_level


@dataclass(frozen=True)
class KernelLocality:
    """x0_hat_q = sum_i w_i^q [m_iq + R_q (z - m_i)_M],   w^q = softmax_i(-(z - m_i)_M^T K_q^-1 (z - m_i)_M / 2)

    with M the mask of output q, m_i = mu + sqrt(1 - h^2) (x_i - mu), K_q = h^2 Sigma[M,M] + sigma^2 I and
    R_q = h^2 Sigma[q,M] K_q^-1. Outputs with equal masks share one factorization and one posterior. h = 0 is the
    locality model, h = 1 linear regression on the mask.
    """

    converges_to_mean: ClassVar[bool] = True
    images: ImageSet
    stats: GaussianStats
    bandwidth: Callable[[float], float]  # h as a function of sigma
    masks: Callable[[float], Bool[Tensor, "d d"]]  # at sigma: row q is for output q
    temperature: float = 1.0
    memory: int = MEMORY

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        return self.at(z, sigma, torch.arange(self.images.dim)).view(z.shape)

    @per_level
    def at(self, z: Tensor, sigma: float, pixels: Int[Tensor, "q"]) -> Tensor:
        """x0_hat at these coordinates only, [B, q]; costs only their masks."""
        h, flat, pixels = self.bandwidth(sigma), at_least_float32(z).flatten(1), pixels.cpu()
        return by_mask(self.masks(sigma)[pixels], pixels, partial(self._outputs, flat, sigma, h)).to(z.dtype)

    def terms(self, z: Tensor, sigma: float) -> Iterator[Term]:
        """The posterior parts; the linear part, mu_q + R_q (z - mu)_M, has no weights."""
        h, flat = self.bandwidth(sigma), at_least_float32(z).flatten(1)
        for seen, outputs in mask_groups(self.masks(sigma), torch.arange(self.images.dim)):
            _, query, source = self._compared(flat, sigma, h, seen, outputs)
            posterior, padded = posterior_behind(flat, query, source, sigma)
            yield Term(posterior, padded, sigma, torch.arange(len(z)), Writers(outputs, torch.zeros_like(outputs)),
                       temperature=self.temperature, memory=self.memory // COPIES)

    def over(self, images: ImageSet) -> KernelLocality:
        """The same moments, masks and bandwidths with other images."""
        return replace(self, images=images)

    def _outputs(self, z: Flat, sigma: float, h: float, seen: Int[Tensor, "m"],
                 outputs: Int[Tensor, "r"]) -> Float[Tensor, "b r"]:
        linear, query, source = self._compared(z, sigma, h, seen, outputs)
        return linear + mean_behind(z, query, source, sigma, self.temperature, self.memory)

    def _compared(self, z: Flat, sigma: float, h: float, seen: Int[Tensor, "m"],
                  outputs: Int[Tensor, "r"]) -> tuple[Float[Tensor, "b r"], Float[Tensor, "b m"], Projected]:
        """mu_q + R (z - mu)[M]; sigma L^-1 (z - mu)[M], K = L L^T; and rows sigma L^-1 (m_i - mu)[M], followed by
        (m_i - mu)[q] - R (m_i - mu)[M]."""
        cholesky, regression = mask_regression(h**2 * self._covariance[seen], seen, outputs, sigma)
        unit = torch.eye(len(seen), dtype=cholesky.dtype)
        whitening = torch.linalg.solve_triangular(cholesky, sigma * unit, upper=False)  # sigma L^-1
        mu, whitening, regression = widened(z, self.stats.mean, whitening, regression)
        matrix = mu.new_zeros(len(mu), len(seen) + len(outputs))
        matrix[seen] = torch.cat([whitening.T, -regression.T], dim=1)
        matrix[outputs, torch.arange(len(seen), matrix.shape[1])] += 1
        used = matrix.any(dim=1).nonzero()[:, 0].cpu()
        source = Projected(self.images, mu, used, math.sqrt(1 - h**2) * matrix[used], torch.arange(0))
        zeta = z[:, seen].to(mu.dtype) - mu[seen]  # [B, m]
        return mu[outputs] + zeta @ regression.T, zeta @ whitening.T, source

    @cached_property
    def _covariance(self) -> Float[Tensor, "d d"]:
        return self.stats.covariance()


def united(keep: Bool[Tensor, "d d"], shape: Shape, tile: int) -> Bool[Tensor, "d d"]:
    """For each output the union of the masks in its tile of tile x tile pixels, over all channels."""
    c, h, w = shape
    tiles = (torch.arange(h)[:, None] // tile * w + torch.arange(w) // tile).flatten().repeat(c)  # by output
    return torch.zeros(h * w, len(keep)).index_add_(0, tiles, keep.float())[tiles] > 0


def kernel_locality(images: ImageSet, *, bandwidth: float | Literal["auto"] | Callable[[float], float] = "auto",
                    threshold: float = 0.02, tile: int | None = None, temperature: float = 1.0,
                    stats: GaussianStats | None = None, memory: int = MEMORY) -> KernelLocality:
    """The kernel denoiser of these images with the locality model's masks.

    Args:
        images: the training images.
        bandwidth: h, from 0 (locality) to 1 (linear), or a function of sigma; auto has the least leave-one-out error.
        threshold: tau, relative to the largest entry of the Wiener matrix's row.
        tile: outputs in squares of this side share the union of their masks, an approximation; exact for 1 or None.
        temperature: divides the logits.
        stats: moments to use instead of those of `images`.
        memory: workspace in bytes.
    """
    if tile is not None and tile < 1:
        raise ScorelensError(f"tile must be at least 1, got {tile}")
    moments = stats or fit_gaussian(images)

    @lru_cache(maxsize=16)
    def masks(sigma: float) -> Bool[Tensor, "d d"]:
        keep = locality_masks(moments, sigma, threshold)
        return keep if tile in (None, 1) else united(keep, images.shape, tile)

    rule = bandwidth_rule(bandwidth, lambda sigma: held_out_bandwidth(images, moments, sigma, masks(sigma)))
    return KernelLocality(images, moments, rule, masks, temperature, memory)
