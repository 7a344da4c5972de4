"""The fused kernels, compiled by Numba: distances, online softmax and response in one pass over LANES images at a time.

They need the extra `fast` and are imported only where it is installed. Noisy images are computed in groups. `best`
[groups, q, group] and `sums` [groups, q, 1 + r, group] are the softmax's state (softmax.py) over the images seen:
the smallest distance; the total weight, and the weighted sum of each value that a query writes, `writes` [q, r].
If the nearest images are asked for, `squares` [groups, q, group] are the sums of squared weights, `near` and `which`
[groups, q, group, k] the k smallest distances, sorted, and their images, and `limit` [groups, q, group] the largest
distance that is still of interest. Empty arrays ask for nothing.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from inspect import unwrap
from pathlib import Path
from typing import Any

import numpy as np
from numba import config, njit

from scorelens.posterior.plans import simd
from scorelens.posterior.plans.simd import (
    LANES,
    add_totals,
    any_above,
    count_ones,
    full,
    highest,
    least,
    load,
    load_group,
    minus,
    nearness,
    plus,
    plus_squares,
    powers,
    settle,
    squared,
    store,
    store_group,
    times,
)

VERSION = zlib.crc32(Path(simd.__file__).read_bytes())
LOG2_E = math.log2(math.e)
FAR = np.float32(1e30)  # the distance of lanes without an image
LOWEST = np.float32(126)  # weights below 2^-LOWEST are 0
NEARER = np.float32(10)  # images whose weight exceeds that of the best before them by 2^NEARER become the best


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with Numba and keep the result on disk; without the wrapper of a type checker, if there is one.

    Numba notices changes of this file only, so that each content of simd.py has a folder of its own.
    """
    users = config.CACHE_DIR
    config.CACHE_DIR = str(Path(users or Path(__file__).with_name("__pycache__")) / f"simd-{VERSION:08x}")
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(unwrap(function))
    finally:
        config.CACHE_DIR = users


@_compiled
def masks_kernel(pixels: np.ndarray, zero: np.ndarray, unit: np.float32, shifts: np.ndarray, members: tuple[int, ...],
                 squares: bool, steps: np.ndarray, rows: np.ndarray, writes: np.ndarray, scale: float, margin: float,
                 best: np.ndarray, sums: np.ndarray, squared_sums: np.ndarray, limit: np.ndarray, near: np.ndarray,
                 which: np.ndarray, x: np.ndarray, chain: np.ndarray) -> None:
    """Add images [n, d] to the state of groups of noisy images z, for masks that are linked to others (`link_masks`).

    Step j of the chain is query steps[j, 0]. Its distance is that in slot steps[j, 1] of the chain, plus the terms of
    the rows from steps[j, 3], minus those from steps[j, 4] to steps[j + 1, 3]. It is kept in slot steps[j, 2]. Terms
    are (x - z)^2, with z = `shifts` [groups, d, group]; or x (x - 2 z), which is smaller by z^2, with -2 z = `shifts`:
    a slot holds the sums of -2 x z for each noisy image of the group, and that of x^2, which they share. `members` is
    as long as a slot.
    """
    bits, lowest = _limits(scale, margin)
    count = len(members)
    for first in range(0, len(pixels), LANES):
        some = pixels[first:first + LANES]
        _transpose(some, zero, unit, x)
        far = _far(len(some), chain)
        for g in range(len(shifts)):
            for j in range(len(steps) - 1):
                chains = load_group(members, chain, steps[j, 1] * count)
                if squares:
                    for e in range(steps[j, 3], steps[j + 1, 3]):
                        chains = plus_squares(chains, load(x, rows[e]), shifts[g], rows[e])
                else:
                    for e in range(steps[j, 3], steps[j, 4]):
                        chains = plus(chains, load(x, rows[e]), shifts[g], rows[e])
                    for e in range(steps[j, 4], steps[j + 1, 3]):
                        chains = minus(chains, load(x, rows[e]), shifts[g], rows[e])
                store_group(chain, steps[j, 2] * count, chains)
                _add(settle(chains, far), x, writes, steps[j, 0], bits, lowest, best, sums, squared_sums, limit, near,
                     which, first, g, steps[j, 0], chain)


@_compiled
def windows_kernel(pixels: np.ndarray, zero: np.ndarray, unit: np.float32, z: np.ndarray, shape: tuple[int, int, int],
                   sides: tuple[int, int], margins: tuple[int, int], wrap: bool, shifts: np.ndarray,
                   writes: np.ndarray, scale: float, margin: float, best: np.ndarray, sums: np.ndarray,
                   squared_sums: np.ndarray, limit: np.ndarray, near: np.ndarray, which: np.ndarray, x: np.ndarray,
                   plane: np.ndarray, line: np.ndarray) -> None:
    """Add images [n, d], translated circularly by each of `shifts` [t, 2], to the state of b noisy images z, for
    windows of all channels.

    Windows of sides `sides` start `margins` before their pixel; beyond the border there is nothing, or the image again.
    """
    c, h, w = shape
    bits, lowest = _limits(scale, margin)
    rows, columns = h - sides[0] + 1 + 2 * margins[0], w - sides[1] + 1 + 2 * margins[1]  # of windows
    for first in range(0, len(pixels), LANES):
        some = pixels[first:first + LANES]
        _transpose(some, zero, unit, x)
        far = _far(len(some), line)
        for b in range(len(z)):
            for t in range(len(shifts)):
                down, right = shifts[t]
                for row in range(h):
                    for column in range(w):
                        at, pixel = _wrapped(row - down, h) * w + _wrapped(column - right, w), row * w + column
                        store(plane, pixel, _square(x, at, z, b, pixel, c, h * w))
                    _slide(plane, row * w, 1, w, sides[1], margins[1], wrap, line)
                for column in range(columns):
                    _slide(plane, column, w, h, sides[0], margins[0], wrap, line)
                    for row in range(rows):
                        at = _wrapped(row - down, h) * w + _wrapped(column - right, w)
                        store(line, len(line) - 1, load(plane, row * w + column) + far)
                        _add(load_group((0,), line, len(line) - 1), x, writes, at, bits, lowest, best, sums,
                             squared_sums, limit, near, which, first * len(shifts) + t, b, row * columns + column, line)


@_compiled
def _square(x, at, z, b, pixel, channels, size):  # type: ignore[no-untyped-def]
    """The squared difference of pixel `at` of the images and `pixel` of z, summed over channels of `size` pixels."""
    square = full(np.float32(0))
    for channel in range(channels):
        difference = load(x, channel * size + at) - full(z[b, channel * size + pixel])
        square = square + difference * difference
    return square


@_compiled
def _wrapped(k: int, length: int) -> int:
    return k + length if k < 0 else k - length if k >= length else k


@_compiled
def _slide(plane, start, step, length, side, margin, wrap, line):  # type: ignore[no-untyped-def]
    """Replace `length` values of a plane by sums over `side` neighbours, the first of them `margin` before.

    A window spans at most two blocks of `side` values: it is the sum to the end of one, and from the start of the next.
    """
    padded = length + 2 * margin
    for k in range(padded):
        if wrap or margin <= k < margin + length:
            store(line, k, load(plane, start + _wrapped(k - margin, length) * step))
        else:
            store(line, k, full(np.float32(0)))
    for block in range(0, padded, side):
        stop = min(block + side, padded)
        before = after = full(np.float32(0))
        for k in range(block, stop):
            before = before + load(line, k)
            store(line, padded + k, before)
        for k in range(stop - 1, block - 1, -1):
            after = after + load(line, k)
            store(line, k, after)
    for k in range(padded - side + 1):
        value = load(line, k)
        if k % side > 0:
            value = value + load(line, padded + k + side - 1)
        store(plane, start + k * step, value)


@_compiled
def _transpose(pixels: np.ndarray, zero: np.ndarray, unit: np.float32, x: np.ndarray) -> None:
    """Images as columns, in units of z; lanes without an image repeat the first."""
    for k in range(len(x)):
        for lane in range(LANES):
            x[k, lane] = (pixels[lane if lane < len(pixels) else 0, k] - zero[k]) * unit


@_compiled
def _far(count, scratch):  # type: ignore[no-untyped-def]
    """A vector that is 0 for the first `count` lanes, and FAR for the others."""
    last = len(scratch) - 1
    for lane in range(LANES):
        scratch[last, lane] = np.float32(0) if lane < count else FAR
    return load(scratch, last)


@_compiled
def _limits(scale: float, margin: float) -> tuple[np.float32, np.float32]:
    """A distance in bits of the weight, and the bits below which an image has none."""
    bits = np.float32(scale * LOG2_E)
    return bits, -min(np.float32(margin) * bits, LOWEST)


@_compiled
def _add(distances, x, writes, at, bits, lowest, best, sums, squared_sums, limit, near, which, first, g, q,
         scratch):  # type: ignore[no-untyped-def]
    """Add LANES images to the softmaxes of query q for group g, unless all are too far away to have any weight."""
    count, values = best.shape[2], sums.shape[2]
    state = g * best.shape[1] + q
    nearer = nearness(distances, best, state * count, bits)
    top = highest(nearer)
    if not any_above(top, lowest):
        return
    if any_above(top, NEARER):
        _rebase(distances, bits, best[g, q], sums[g, q], squared_sums[g, q], scratch)
        nearer = nearness(distances, best, state * count, bits)
    weights = powers(nearer, lowest)
    if near.shape[3] > 0:
        add_totals(squared_sums, state * count, squared(weights))
        if any_above(highest(nearness(distances, limit, state * count, np.float32(1))), np.float32(0)):
            _keep(distances, limit[g, q], near[g, q], which[g, q], first, scratch)
    add_totals(sums, state * values * count, weights)
    for r in range(writes.shape[1]):
        add_totals(sums, (state * values + 1 + r) * count, times(weights, load(x, writes[at, r])))


@_compiled
def _rebase(distances, bits, best, sums, squared_sums, scratch):  # type: ignore[no-untyped-def]
    """Make the nearest image the best where it is much nearer, and the sums relative to it."""
    row = len(scratch) - len(best)
    store_group(scratch, row, distances)
    for b in range(len(best)):
        nearest, before = least(load(scratch, row + b)), best[b]
        if (before - nearest) * bits > NEARER:
            shrink = 2.0 ** ((nearest - before) * float(bits)) if before < FAR else 0.0
            for r in range(len(sums)):
                sums[r, b] *= shrink
            squared_sums[b] *= shrink * shrink
            best[b] = nearest


@_compiled
def _keep(distances, limit, near, which, first, scratch):  # type: ignore[no-untyped-def]
    """Insert the distances below the limit into the sorted lists; image `first` is in the first lane."""
    row, last = len(scratch) - len(limit), near.shape[1] - 1
    store_group(scratch, row, distances)
    for b in range(len(limit)):
        if least(load(scratch, row + b)) < limit[b]:
            for lane in range(LANES):
                distance = scratch[row + b, lane]
                if distance < limit[b]:
                    k = last
                    while k > 0 and near[b, k - 1] > distance:
                        near[b, k], which[b, k] = near[b, k - 1], which[b, k - 1]
                        k -= 1
                    near[b, k], which[b, k] = distance, first + lane
                    limit[b] = min(limit[b], near[b, last])


@_compiled
def link_masks(packed: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """For each mask, how far back the most similar of the masks at these offsets is; 0 if an empty mask is nearer.

    `packed` [q, words] are bits; offsets [q, candidates] with 0 for none.
    """
    back = np.zeros(len(packed), np.int64)
    for j in range(len(packed)):
        fewest = count_ones_of(packed[j], np.zeros_like(packed[j]))
        for offset in offsets[j]:
            if offset > 0:
                changed = count_ones_of(packed[j], packed[j - offset])
                if changed < fewest:
                    fewest, back[j] = changed, offset
    return back


@_compiled
def count_ones_of(a: np.ndarray, b: np.ndarray) -> int:
    """How many bits differ."""
    changed = 0
    for k in range(len(a)):
        changed += count_ones(a[k] ^ b[k])
    return changed


@_compiled
def list_changes(keep: np.ndarray, back: np.ndarray, starts: np.ndarray, ends: np.ndarray, rows: np.ndarray) -> int:
    """The pixels that enter each mask, and then those that leave it, relative to the mask `back` before it (none: 0).

    Fills starts, ends [q + 1] and as much of `rows` as it holds; returns the length needed.
    """
    count = 0
    for j in range(len(keep)):
        starts[j] = count
        for sign in (True, False):
            for k in range(keep.shape[1]):
                before = back[j] > 0 and keep[j - back[j], k]
                if keep[j, k] == sign and before != sign:
                    if count < len(rows):
                        rows[count] = k
                    count += 1
            if sign:
                ends[j] = count
    starts[len(keep)] = ends[len(keep)] = count
    return count
