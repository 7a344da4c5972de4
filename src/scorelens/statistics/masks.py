"""The Wiener matrix and the locality masks derived from it, in blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scorelens import progress
from scorelens.statistics.cache import cached
from scorelens.statistics.moments import GaussianStats
from scorelens.types import ScorelensError, Shape
from scorelens.validation import unknown

ROWS = 1024  # of the Wiener matrix in a block
LARGE = 1024  # coordinates of images whose masks are kept on disk, as bits
TILES = ((1, 16), (2, 128), (4, 320), (8, math.inf))  # side of a tile, and the most pixels in a mask that it is for
NEARLY_ALL = 0.9  # share of pixels from which a tile's mask becomes the whole image
PAIR_ELEMENTS = 2**22  # values held at once while single entries are recomputed


def shrinkage(stats: GaussianStats, sigma: float) -> Float[Tensor, "k"]:
    """SNR_k / (SNR_k + 1) = lambda_k^2 / (lambda_k^2 + sigma^2)   # eq:sensitivity_snr"""
    return stats.eigenvalues / (stats.eigenvalues + sigma**2)


def wiener_matrix(stats: GaussianStats, sigma: float) -> Float[Tensor, "d d"]:
    """W = U diag(lambda^2 / (lambda^2 + sigma^2)) U^T   # eq:wiener, without its 1/sqrt(alpha): ours acts on z"""
    return torch.cat([w for _, w in _wiener_rows(*_factors(stats, sigma))])


def paper_masks(u: Float[Tensor, "d k"], gain: Float[Tensor, "k"], threshold: float) -> Bool[Tensor, "d d"]:
    """B_qk = |W_qk| >= tau max_k |W_qk|: row q of the binarized Wiener matrix   # eq:optimal_denoiserbinary_ours

    Large matrices are computed in float32, and in float64 where rounding could decide a comparison.
    """
    fast = torch.float32 if len(u) > 2 * ROWS else u.dtype
    diagonal = (u.square() * gain).sum(dim=1)  # |W_qk| <= sqrt(W_qq W_kk) bounds its rounding error, up to eps
    keep, peaks = torch.empty(len(u), len(u), dtype=torch.bool), torch.empty(len(u), 1, dtype=u.dtype)
    for rows, w in _wiener_rows(u.to(fast), gain.to(fast)):
        size = w.abs_()
        largest = size.argmax(dim=1)
        peaks[rows] = ((u[rows] * gain) * u[largest]).sum(dim=1, keepdim=True).abs()
        slack = 16 * torch.finfo(w.dtype).eps * (diagonal[rows, None] * diagonal.max()).sqrt()
        cut = threshold * peaks[rows]
        above = size.sub_(cut.to(fast))
        keep[rows] = above >= 0
        _recompute(keep[rows], above.abs_() <= slack, u[rows], u, gain, cut)
    return _fill_constant_pixels(keep, peaks)


def published_masks(u: Float[Tensor, "d k"], gain: Float[Tensor, "k"], threshold: float) -> Bool[Tensor, "d d"]:
    """The rule of the published code: each row is divided by its diagonal entry (by 1 if that is below 1e-6), the
    threshold is relative to the largest entry of the matrix, and column q is the mask of output q. An empty mask gives
    uniform weights, hence the mean."""
    diagonal = (u.square() * gain).sum(dim=1, keepdim=True)
    divisor = diagonal.where(diagonal >= 1e-6, 1.0)
    largest = torch.stack([(w / divisor[rows]).abs().max() for rows, w in _wiener_rows(u, gain)]).max()
    keep = torch.empty(len(u), len(u), dtype=torch.bool)
    for rows, w in _wiener_rows(u, gain):
        keep[:, rows] = ((w / divisor[rows]).abs_() >= threshold * largest).T
    return keep


MASK_RULES = {"paper": paper_masks, "published": published_masks}


def locality_masks(stats: GaussianStats, sigma: float, threshold: float, rule: str = "paper") -> Bool[Tensor, "d d"]:
    """The input pixels (columns) that each output pixel (row) compares."""
    if rule not in MASK_RULES:
        raise unknown("mask rule", rule, MASK_RULES)
    if not 0 <= threshold <= 1:
        raise ScorelensError(f"threshold must be between 0 and 1, got {threshold:g}")

    def compute() -> Bool[Tensor, "d d"]:
        return MASK_RULES[rule](*_factors(stats, sigma), threshold)

    if not stats.key or len(stats.mean) < LARGE:
        return compute()
    bits = cached("masks", [stats.key, sigma, threshold, rule],
                  lambda: {"bits": torch.from_numpy(np.packbits(compute().numpy(), axis=1))})["bits"]
    return torch.from_numpy(np.unpackbits(bits.numpy(), axis=1, count=len(stats.mean)).view(bool))


def tile_masks(keep: Bool[Tensor, "d d"], shape: Shape, tile: int | None = None) -> Bool[Tensor, "d d"]:
    """For each output the union of the masks in its tile of tile x tile pixels, over all channels.

    A union that holds nearly all pixels becomes all of them, so that such tiles share one mask. Without a size, it is
    1, 2, 4 or 8, by the number of pixels that the masks keep. The masks themselves for a size of 1.
    """
    c, h, w = shape
    size = tile or next(size for size, most in TILES if keep.sum(dim=1).float().mean() / c <= most)
    if size == 1:
        return keep
    tiles = (torch.arange(h)[:, None] // size * w + torch.arange(w) // size).flatten().repeat(c)  # by output
    union = torch.zeros(h * w, len(keep)).index_add_(0, tiles, keep.float()) > 0
    union[union.float().mean(dim=1) >= NEARLY_ALL] = True
    return union[tiles]


def _factors(stats: GaussianStats, sigma: float) -> tuple[Float[Tensor, "d k"], Float[Tensor, "k"]]:
    """U and gains of the components with nonzero variance: W = U diag(gain) U^T."""
    return stats.eigenvectors[:, :stats.rank], shrinkage(stats, sigma)[:stats.rank]


def _wiener_rows(u: Float[Tensor, "d k"], gain: Float[Tensor, "k"]) -> Iterator[tuple[slice, Float[Tensor, "r d"]]]:
    """Blocks of rows. The matrix is symmetric: what is left of the diagonal comes from the rows above."""
    blocks, above = [slice(start, start + ROWS) for start in range(0, len(u), ROWS)], list[Tensor]()
    for rows in progress.track(blocks, "Wiener matrix", unit="block"):
        right = (u[rows] * gain) @ u[rows.start:].T  # [r, d - start]
        left = [block[:, -right.shape[1]:][:, :len(right)].T for block in above]
        above.append(right.clone())  # the caller may overwrite what it gets
        yield rows, torch.cat([*left, right], dim=1)


def _recompute(keep: Bool[Tensor, "r d"], uncertain: Bool[Tensor, "r d"], left: Float[Tensor, "r k"],
               right: Float[Tensor, "d k"], gain: Float[Tensor, "k"], cut: Float[Tensor, "r 1"]) -> None:
    """Decide the uncertain entries from their own dot products, in place."""
    step = max(1, PAIR_ELEMENTS // max(1, len(gain)))
    for pairs in uncertain.nonzero().split(step):
        q, k = pairs.T
        keep[q, k] = ((left[q] * gain) * right[k]).sum(dim=1).abs() >= cut[q, 0]


def _fill_constant_pixels(keep: Bool[Tensor, "d d"], peaks: Float[Tensor, "d 1"]) -> Bool[Tensor, "d d"]:
    """Masks in which constant pixels have the mask of the last varying pixel before them (or of the first one).

    Their Wiener rows hold only round-off. Any mask returns the constant; a neighbour's keeps adjacent masks equal."""
    constant = (peaks <= len(peaks) * torch.finfo(peaks.dtype).eps * peaks.max())[:, 0]
    if constant.all():
        return torch.ones_like(keep)
    varying = torch.where(constant, -1, torch.arange(len(keep))).cummax(dim=0).values
    first = int((~constant).nonzero()[0])
    keep[constant] = keep[varying.clamp(min=first)[constant]]
    return keep


def mass_masks(sensitivity: Float[Tensor, "q k"], share: float) -> Bool[Tensor, "q k"]:
    """The fewest largest entries of each row that hold this share of its sum; at least one."""
    if not 0 < share <= 1:
        raise ScorelensError(f"share must be above 0 and at most 1, got {share:g}")
    values, order = sensitivity.sort(dim=1, descending=True, stable=True)
    before = values.cumsum(dim=1) - values  # sum of the larger entries
    kept = before < share * values.sum(dim=1, keepdim=True) * (1 - 1e-12)
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter_(1, order, kept)


def recentred(fields: Float[Tensor, "p h w"], pixels: Sequence[tuple[int, int]]) -> Float[Tensor, "h w h w"]:
    """The fields of these pixels, aligned at their pixel and averaged, then translated to every pixel."""
    _, h, w = fields.shape
    total, count = fields.new_zeros(2 * h - 1, 2 * w - 1), fields.new_zeros(2 * h - 1, 2 * w - 1)

    def window(row: int, column: int) -> tuple[slice, slice]:
        return slice(h - 1 - row, 2 * h - 1 - row), slice(w - 1 - column, 2 * w - 1 - column)

    for field, pixel in zip(fields, pixels, strict=True):
        total[window(*pixel)] += field
        count[window(*pixel)] += 1
    mean = total / count.clamp(min=1)
    return torch.stack([torch.stack([mean[window(row, column)] for column in range(w)]) for row in range(h)])
