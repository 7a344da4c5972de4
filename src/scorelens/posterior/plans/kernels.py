"""The fused kernels, compiled by Numba: distances, online softmax and response in one pass over LANES images at a time.

They need the extra `fast` and are imported only where it is installed. `best` [b, q] and `sums` [b, q, 1 + r] are the
softmax's state (softmax.py) over the images seen so far: the smallest distance; the total weight, and the weighted sum
of each value that a query writes, `writes` [q, r].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from inspect import unwrap
from typing import Any

import numpy as np
from numba import njit

from scorelens.posterior.plans.simd import LANES, count_ones, exp2, full, least, load, store, total

LOG2_E = math.log2(math.e)
FAR = np.float32(1e30)  # the distance of lanes without an image


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with Numba and keep the result on disk; without the wrapper of a type checker, if there is one."""
    return njit(nogil=True, cache=True, error_model="numpy")(unwrap(function))


@_compiled
def masks_kernel(pixels: np.ndarray, zero: np.ndarray, unit: np.float32, z: np.ndarray, squares: bool,
                 steps: np.ndarray, rows: np.ndarray, writes: np.ndarray, scale: float, margin: float,
                 best: np.ndarray, sums: np.ndarray, x: np.ndarray, terms: np.ndarray, chain: np.ndarray) -> None:
    """Add images [n, d] to the state of b noisy images z, for masks that are linked to others (`link_masks`).

    Step j of the chain is query steps[j, 0]. Its distance is that in slot steps[j, 1] of the chain, plus the terms of
    the rows from steps[j, 3], minus those from steps[j, 4] to steps[j + 1, 3]. It is kept in slot steps[j, 2]. Terms
    are (x - z)^2, or x (x - 2 z), which is smaller by z^2.
    """
    for first in range(0, len(pixels), LANES):
        some = pixels[first:first + LANES]
        _transpose(some, x)
        far = _far(len(some), chain)
        for b in range(len(z)):
            _terms(x, zero, unit, z[b], squares, terms)
            for j in range(len(steps) - 1):
                distance = load(chain, steps[j, 1])
                for e in range(steps[j, 3], steps[j, 4]):
                    distance = distance + load(terms, rows[e])
                for e in range(steps[j, 4], steps[j + 1, 3]):
                    distance = distance - load(terms, rows[e])
                store(chain, steps[j, 2], distance)
                _add(distance + far, x, zero, unit, writes, steps[j, 0], scale, margin, best, sums, b, steps[j, 0])


@_compiled
def windows_kernel(pixels: np.ndarray, zero: np.ndarray, unit: np.float32, z: np.ndarray, shape: tuple[int, int, int],
                   sides: tuple[int, int], margins: tuple[int, int], wrap: bool, shifts: np.ndarray,
                   writes: np.ndarray, scale: float, margin: float, best: np.ndarray, sums: np.ndarray, x: np.ndarray,
                   plane: np.ndarray, line: np.ndarray) -> None:
    """Add images [n, d], translated circularly by each of `shifts` [t, 2], to the state of b noisy images z, for
    windows of all channels.

    Windows of sides `sides` start `margins` before their pixel; beyond the border there is nothing, or the image again.
    """
    c, h, w = shape
    rows, columns = h - sides[0] + 1 + 2 * margins[0], w - sides[1] + 1 + 2 * margins[1]  # of windows
    for first in range(0, len(pixels), LANES):
        some = pixels[first:first + LANES]
        _transpose(some, x)
        far = _far(len(some), line)
        for b in range(len(z)):
            for t in range(len(shifts)):
                down, right = shifts[t]
                for row in range(h):
                    for column in range(w):
                        at, pixel = _wrapped(row - down, h) * w + _wrapped(column - right, w), row * w + column
                        store(plane, pixel, _square(x, zero, unit, at, z, b, pixel, c, h * w))
                    _slide(plane, row * w, 1, w, sides[1], margins[1], wrap, line)
                for column in range(columns):
                    _slide(plane, column, w, h, sides[0], margins[0], wrap, line)
                    for row in range(rows):
                        at = _wrapped(row - down, h) * w + _wrapped(column - right, w)
                        _add(load(plane, row * w + column) + far, x, zero, unit, writes, at, scale, margin, best, sums,
                             b, row * columns + column)


@_compiled
def _square(x, zero, unit, at, z, b, pixel, channels, size):  # type: ignore[no-untyped-def]
    """The squared difference of pixel `at` of the images and `pixel` of z, summed over channels of `size` pixels."""
    square = full(np.float32(0))
    for channel in range(channels):
        k = channel * size + at
        difference = (load(x, k) - full(zero[k])) * full(unit) - full(z[b, channel * size + pixel])
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
def _transpose(pixels: np.ndarray, x: np.ndarray) -> None:
    """Images as columns; lanes without an image repeat the first."""
    if len(pixels) < LANES:
        for k in range(len(x)):
            for lane in range(LANES):
                x[k, lane] = pixels[lane if lane < len(pixels) else 0, k]
    else:
        for k in range(len(x)):
            for lane in range(LANES):
                x[k, lane] = pixels[lane, k]


@_compiled
def _far(count, scratch):  # type: ignore[no-untyped-def]
    """A vector that is 0 for the first `count` lanes, and FAR for the others."""
    last = len(scratch) - 1
    for lane in range(LANES):
        scratch[last, lane] = np.float32(0) if lane < count else FAR
    return load(scratch, last)


@_compiled
def _terms(x: np.ndarray, zero: np.ndarray, unit: np.float32, z: np.ndarray, squares: bool, terms: np.ndarray) -> None:
    for k in range(len(terms)):
        value = (load(x, k) - full(zero[k])) * full(unit)
        if squares:
            difference = value - full(z[k])
            store(terms, k, difference * difference)
        else:
            store(terms, k, value * (value - full(np.float32(2) * z[k])))


@_compiled
def _add(distance, x, zero, unit, writes, at, scale, margin, best, sums, b, q):  # type: ignore[no-untyped-def]
    """Add LANES images to the softmax of query q, unless all are too far away to have any weight."""
    nearest, before = least(distance), best[b, q]
    if nearest > before + margin:
        return
    if nearest < before:
        shrink = math.exp((nearest - before) * scale) if before < FAR else 0.0
        for r in range(sums.shape[2]):
            sums[b, q, r] *= shrink
        best[b, q] = before = nearest
    weights = exp2((distance - full(before)) * full(np.float32(-scale * LOG2_E)))
    sums[b, q, 0] += total(weights)
    for r in range(writes.shape[1]):
        k = writes[at, r]
        sums[b, q, 1 + r] += total(weights * (load(x, k) - full(zero[k]))) * unit


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
