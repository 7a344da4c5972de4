"""The Wiener matrix, and the locality masks read off it."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, finfo

from scorelens.statistics.moments import GaussianStats
from scorelens.types import ScorelensError, unknown


def shrinkage(stats: GaussianStats, sigma: float) -> Float[Tensor, "d"]:
    """SNR_k / (SNR_k + 1) = lambda_k^2 / (lambda_k^2 + sigma^2)   # eq:sensitivity_snr"""
    return stats.eigenvalues / (stats.eigenvalues + sigma**2)


def wiener_matrix(stats: GaussianStats, sigma: float) -> Float[Tensor, "d d"]:
    """W = U diag(lambda^2 / (lambda^2 + sigma^2)) U^T   # eq:wiener, without its 1/sqrt(alpha): ours acts on z"""
    kept = int((stats.eigenvalues > 0).sum())
    u = stats.eigenvectors[:, :kept]
    return (u * shrinkage(stats, sigma)[:kept]) @ u.T


def paper_masks(w: Float[Tensor, "d d"], threshold: float) -> Bool[Tensor, "d d"]:
    """B_qk = |W_qk| >= tau max_k |W_qk|: row q of the binarized Wiener matrix   # eq:optimal_denoiserbinary_ours

    A pixel that never varies has a zero row up to round-off, which would make its mask one of noise. Any mask gives
    the same answer there, its constant value: it keeps all pixels, as a zero row does by the inequality.
    """
    size = w.abs()
    peak = size.amax(dim=1, keepdim=True)
    constant = peak <= len(w) * finfo(w.dtype).eps * size.max()
    return (size >= threshold * peak) | constant


def published_masks(w: Float[Tensor, "d d"], threshold: float) -> Bool[Tensor, "d d"]:
    """The rule of the published code: each row divided by its diagonal (below 1e-6 it counts as 1), the threshold
    relative to the largest entry of the whole matrix, and column q as the mask of output q. A mask can be empty: its
    weights are then uniform and the output is the mean."""
    diagonal = w.diagonal()
    scaled = (w / diagonal.where(diagonal >= 1e-6, 1.0)[:, None]).abs()
    return (scaled >= threshold * scaled.max()).T.contiguous()


MASK_RULES = {"paper": paper_masks, "published": published_masks}


def locality_masks(stats: GaussianStats, sigma: float, threshold: float, rule: str = "paper") -> Bool[Tensor, "d d"]:
    """Which input pixels (columns) each output pixel (row) is allowed to look at."""
    if rule not in MASK_RULES:
        raise unknown("mask rule", rule, MASK_RULES)
    if not 0 <= threshold <= 1:
        raise ScorelensError(f"threshold must be between 0 and 1, got {threshold:g}")
    return MASK_RULES[rule](wiener_matrix(stats, sigma), threshold)
