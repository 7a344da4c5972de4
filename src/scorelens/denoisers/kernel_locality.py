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
from scorelens.denoisers.common import bandwidth_rule, by_mask, mask_groups, mask_regression, widened
from scorelens.denoisers.selection import Selected, selected
from scorelens.posterior import MEMORY, Affine, Posterior, Term, WholeOutput, Writers, posterior_mean
from scorelens.posterior.engine import COPIES
from scorelens.posterior.sources import Pixels
from scorelens.statistics import GaussianStats, fit_gaussian, locality_masks
from scorelens.statistics.masks import tile_masks
from scorelens.statistics.rotation import digest
from scorelens.statistics.whitening import product_dtype, whitened_lengths
from scorelens.types import Flat, ScorelensError
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
        flat, pixels = at_least_float32(z).flatten(1), pixels.cpu()
        whole = len(pixels) == self.images.dim  # what some outputs need alone is not cached
        return by_mask(self.masks(sigma)[pixels], pixels, partial(self._outputs, flat, sigma, whole)).to(z.dtype)

    def terms(self, z: Tensor, sigma: float) -> Iterator[Term]:
        """The posterior parts; the linear part, mu_q + R_q (z - mu)_M, has no weights."""
        flat = at_least_float32(z).flatten(1)
        for seen, outputs in mask_groups(self.masks(sigma), torch.arange(self.images.dim)):
            posterior, query, _ = self._compared(flat, sigma, True, seen, outputs)
            yield Term(posterior, query, sigma, torch.arange(len(z)), Writers(outputs, torch.zeros_like(outputs)),
                       temperature=self.temperature, memory=self.memory // COPIES)

    def over(self, images: ImageSet) -> KernelLocality:
        """The same moments, masks and bandwidths with other images."""
        return replace(self, images=images)

    def _outputs(self, z: Flat, sigma: float, cache: bool, seen: Int[Tensor, "m"],
                 outputs: Int[Tensor, "r"]) -> Float[Tensor, "b r"]:
        posterior, query, predict = self._compared(z, sigma, cache, seen, outputs)
        mean = posterior_mean(posterior, query, sigma, temperature=self.temperature, memory=self.memory // COPIES)
        return predict(mean)

    def _compared(self, z: Flat, sigma: float, cache: bool, seen: Int[Tensor, "m"], outputs: Int[Tensor, "r"]) -> tuple[
            Posterior, Float[Tensor, "b k"], Callable[[Float[Tensor, "b k"]], Float[Tensor, "b r"]]]:
        """One posterior over y_i = (x_i - mu)[M and q]; its query; and the outputs as a function of its mean y.

        With zeta = (z - mu)[M] and s = sqrt(1 - h^2), the logits are s zeta^T K^-1 y_i - s^2 y_i^T K^-1 y_i / 2 and the
        outputs mu + R zeta + s (y_q - R y_M).
        """
        h, used = self.bandwidth(sigma), torch.cat([seen, outputs]).unique()
        at, targets = torch.searchsorted(used, seen), torch.searchsorted(used, outputs)
        cholesky, regression = mask_regression(h**2 * self._covariance[seen], seen, outputs, sigma)
        dtype = product_dtype(self.images, self.stats.mean[seen], seen, cholesky, sigma, z)
        lengths = whitened_lengths(self.images, self.stats.mean[seen], seen, cholesky, dtype, z.device,
                                   [self._digest, sigma, h] if cache else None)
        s = math.sqrt(1 - h**2)
        mu, regression = widened(z, self.stats.mean, regression)
        source = Pixels(self.images, mu[used].to(dtype), used, (sigma * s) ** 2 * lengths)
        zeta = z[:, seen].to(mu.dtype) - mu[seen]  # [B, m]
        (solved,) = widened(z, torch.cholesky_solve(zeta.T.cpu().double(), cholesky).T)  # K^-1 zeta; mps lacks it
        query = sigma**2 * s * solved  # the engine divides by sigma^2
        padded = zeta.new_zeros(len(z), source.dim).index_copy(1, at.to(z.device), query).to(dtype)
        posterior = Posterior(Affine(), WholeOutput(torch.arange(len(used), device=z.device)), source)

        def predict(mean: Float[Tensor, "b k"]) -> Float[Tensor, "b r"]:
            y = mean.to(mu.dtype)
            return mu[outputs] + zeta @ regression.T + s * (y[:, targets] - y[:, at] @ regression.T)

        return posterior, padded, predict

    @cached_property
    def _covariance(self) -> Float[Tensor, "d d"]:
        return self.stats.covariance()

    @cached_property
    def _digest(self) -> str:
        return digest(self.stats)


def kernel_locality(images: ImageSet, *, bandwidth: float | Literal["auto"] | Callable[[float], float] = "auto",
                    threshold: float = 0.05, tile: int | None = None, temperature: float = 1.0,
                    stats: GaussianStats | None = None, memory: int = MEMORY) -> KernelLocality | Selected:
    """The kernel denoiser of these images with the locality model's masks.

    Args:
        images: the training images.
        bandwidth: h, from 0 (locality) to 1 (linear), or a function of sigma; auto has the least held-out error.
        threshold: tau, relative to the largest entry of the Wiener matrix's row.
        tile: outputs in squares of this side share the union of their masks; 1 for a mask of each output's own. By
            default 1, 2, 4 or 8, by the size of the masks: each distinct mask takes a pass over the images.
        temperature: divides the logits.
        stats: moments to use instead of those of `images`.
        memory: workspace in bytes.
    """
    if tile is not None and tile < 1:
        raise ScorelensError(f"tile must be at least 1, got {tile}")
    if bandwidth == "auto":
        return selected(images, "kernel-locality", kernel_locality, {
            "bandwidth": bandwidth, "threshold": threshold, "tile": tile, "temperature": temperature, "stats": stats,
            "memory": memory})
    moments = stats or fit_gaussian(images)

    @lru_cache(maxsize=16)
    def masks(sigma: float) -> Bool[Tensor, "d d"]:
        return tile_masks(locality_masks(moments, sigma, threshold), images.shape, tile)

    return KernelLocality(images, moments, bandwidth_rule(bandwidth), masks, temperature, memory)
