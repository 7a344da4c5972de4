"""The Wiener matrix, and the locality masks read off it, a few rows at a time: it is never held as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scorelens.statistics.moments import GaussianStats
from scorelens.types import ScorelensError
from scorelens.validation import unknown

ROWS = 1024  # of the Wiener matrix, held at a time
PAIR_ELEMENTS = 2**22  # values held while single entries are computed again


def shrinkage(stats: GaussianStats, sigma: float) -> Float[Tensor, "k"]:
    """SNR_k / (SNR_k + 1) = lambda_k^2 / (lambda_k^2 + sigma^2)   # eq:sensitivity_snr"""
    return stats.eigenvalues / (stats.eigenvalues + sigma**2)


def wiener_matrix(stats: GaussianStats, sigma: float) -> Float[Tensor, "d d"]:
    """W = U diag(lambda^2 / (lambda^2 + sigma^2)) U^T   # eq:wiener, without its 1/sqrt(alpha): ours acts on z"""
    return torch.cat([w for _, w in _wiener_rows(*_factors(stats, sigma))])


def paper_masks(u: Float[Tensor, "d k"], gain: Float[Tensor, "k"], threshold: float) -> Bool[Tensor, "d d"]:
    """B_qk = |W_qk| >= tau max_k |W_qk|: row q of the binarized Wiener matrix   # eq:optimal_denoiserbinary_ours

    A large matrix is computed in float32, and in float64 again wherever its rounding could decide.
    """
    fast = torch.float32 if len(u) > 2 * ROWS else u.dtype
    diagonal = (u.square() * gain).sum(dim=1)  # |W_qk| <= sqrt(W_qq W_kk), and so is its rounding, up to eps
    keep, peaks = torch.empty(len(u), len(u), dtype=torch.bool), torch.empty(len(u), 1, dtype=u.dtype)
    for rows, w in _wiener_rows(u.to(fast), gain.to(fast)):
        size = w.abs_()
        largest = size.argmax(dim=1)
        peaks[rows] = ((u[rows] * gain) * u[largest]).sum(dim=1, keepdim=True).abs()
        doubt = 16 * torch.finfo(w.dtype).eps * (diagonal[rows, None] * diagonal.max()).sqrt()
        cut = threshold * peaks[rows]
        above = size.sub_(cut.to(fast))
        keep[rows] = above >= 0
        _decide(keep[rows], above.abs_() <= doubt, u[rows], u, gain, cut)
    return _for_constant_pixels(keep, peaks)


def published_masks(u: Float[Tensor, "d k"], gain: Float[Tensor, "k"], threshold: float) -> Bool[Tensor, "d d"]:
    """The rule of the published code: each row divided by its diagonal (below 1e-6 it counts as 1), the threshold
    relative to the largest entry of the whole matrix, and column q as the mask of output q. A mask can be empty: its
    weights are then uniform and the output is the mean."""
    diagonal = (u.square() * gain).sum(dim=1, keepdim=True)
    divisor = diagonal.where(diagonal >= 1e-6, 1.0)
    largest = torch.stack([(w / divisor[rows]).abs().max() for rows, w in _wiener_rows(u, gain)]).max()
    keep = torch.empty(len(u), len(u), dtype=torch.bool)
    for rows, w in _wiener_rows(u, gain):
        keep[:, rows] = ((w / divisor[rows]).abs_() >= threshold * largest).T
    return keep


MASK_RULES = {"paper": paper_masks, "published": published_masks}


def locality_masks(stats: GaussianStats, sigma: float, threshold: float, rule: str = "paper") -> Bool[Tensor, "d d"]:
    """Which input pixels (columns) each output pixel (row) is allowed to look at."""
    if rule not in MASK_RULES:
        raise unknown("mask rule", rule, MASK_RULES)
    if not 0 <= threshold <= 1:
        raise ScorelensError(f"threshold must be between 0 and 1, got {threshold:g}")
    return MASK_RULES[rule](*_factors(stats, sigma), threshold)


def _factors(stats: GaussianStats, sigma: float) -> tuple[Float[Tensor, "d k"], Float[Tensor, "k"]]:
    """U and the gains of the components that have any variance: W = U diag(gain) U^T."""
    kept = int((stats.eigenvalues > 0).sum())
    return stats.eigenvectors[:, :kept], shrinkage(stats, sigma)[:kept]


def _wiener_rows(u: Float[Tensor, "d k"], gain: Float[Tensor, "k"]) -> Iterator[tuple[slice, Float[Tensor, "r d"]]]:
    for start in range(0, len(u), ROWS):
        rows = slice(start, start + ROWS)
        yield rows, (u[rows] * gain) @ u.T


def _decide(keep: Bool[Tensor, "r d"], doubtful: Bool[Tensor, "r d"], left: Float[Tensor, "r k"],
            right: Float[Tensor, "d k"], gain: Float[Tensor, "k"], cut: Float[Tensor, "r 1"]) -> None:
    """The doubtful entries, from their own dot product, in place."""
    q, k = doubtful.nonzero(as_tuple=True)
    step = max(1, PAIR_ELEMENTS // max(1, len(gain)))
    for start in range(0, len(q), step):
        some, other = q[start:start + step], k[start:start + step]
        keep[some, other] = ((left[some] * gain) * right[other]).sum(dim=1).abs() >= cut[some, 0]


def _for_constant_pixels(keep: Bool[Tensor, "d d"], peaks: Float[Tensor, "d 1"]) -> Bool[Tensor, "d d"]:
    """A pixel that never varies has a row of zeros up to round-off, and its mask would be one of noise. Any mask gives
    the same answer there, its constant value: it takes that of the pixel before it, so that neighbours stay alike."""
    constant = (peaks <= len(peaks) * torch.finfo(peaks.dtype).eps * peaks.max())[:, 0]
    if constant.all():
        return torch.ones_like(keep)
    varying = torch.where(constant, -1, torch.arange(len(keep))).cummax(dim=0).values
    first = int((~constant).nonzero()[0])
    keep[constant] = keep[varying.clamp(min=first)[constant]]
    return keep


def mass_masks(heat: Float[Tensor, "q k"], share: float) -> Bool[Tensor, "q k"]:
    """For each query its largest entries, as few as hold this share of the sum; the largest one always."""
    if not 0 < share <= 1:
        raise ScorelensError(f"share must be above 0 and at most 1, got {share:g}")
    values, order = heat.sort(dim=1, descending=True, stable=True)
    before = values.cumsum(dim=1) - values  # what the larger ones hold
    kept = before < share * values.sum(dim=1, keepdim=True) * (1 - 1e-12)
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter_(1, order, kept)


def recentred(heat: Float[Tensor, "p h w"], pixels: Sequence[tuple[int, int]]) -> Float[Tensor, "h w h w"]:
    """One heat map for all pixels: the mean of those given, moved on top of each other, and put back at each pixel."""
    _, h, w = heat.shape
    total, count = heat.new_zeros(2 * h - 1, 2 * w - 1), heat.new_zeros(2 * h - 1, 2 * w - 1)
    for one, (row, column) in zip(heat, pixels, strict=True):
        place = (slice(h - 1 - row, 2 * h - 1 - row), slice(w - 1 - column, 2 * w - 1 - column))
        total[place] += one
        count[place] += 1
    mean = total / count.clamp(min=1)
    return torch.stack([torch.stack([mean[h - 1 - row:2 * h - 1 - row, w - 1 - column:2 * w - 1 - column]
                                     for column in range(w)]) for row in range(h)])
