"""One weight per image and mask or window: distances, softmax and response in one compiled pass over the images.

Blocks of images stay in the cache of a core, and no distance is written to memory. A thread takes a whole span of
images and returns its softmax state; threads meet once for each call. Spans, and so the results, do not depend on the
number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt
from torch import Tensor

from scorelens import progress
from scorelens.posterior.plans.base import Plan
from scorelens.posterior.responses import AllChannels, Chunk, Responses
from scorelens.posterior.softmax import Nearest, State
from scorelens.posterior.sources import Source, Translations
from scorelens.posterior.windows import WindowGrid
from scorelens.types import Flat, Shape

SPAN = 2048  # images, or translations of them, that a thread takes at a time
GROUP, FEW = 8, 3  # noisy images that share the loads of training images; up to FEW are faster one by one
COMPILING = 10.0  # seconds, for the progress bar
FAR = np.float32(1e30)  # farther than any image


def available(z: Tensor) -> bool:
    """Whether the compiled kernels can be used: Numba is installed, and z is float32 on a CPU."""
    return z.device.type == "cpu" and z.dtype == torch.float32 and find_spec("numba") is not None


@dataclass(frozen=True, eq=False)
class Links:
    """Masks as changes of earlier ones: the table that the kernel follows, see `kernels.masks_kernel`."""

    steps: UInt[np.ndarray, "steps 5"]
    rows: Int[np.ndarray, "entries"]
    slots: int  # distances that are kept for later masks

    @property
    def entries(self) -> int:
        return len(self.rows)


def linked(keep: Bool[Tensor, "q d"], grid: Shape | None) -> Links:
    """Each mask linked to the most similar of its neighbours before it on the grid (layers, H, W), in which all layers
    of a pixel come before the next pixel; without a grid, to none."""
    from scorelens.posterior.plans.kernels import link_masks, list_changes

    masks = keep.numpy()
    order, offsets = _neighbours(grid) if grid else (np.arange(len(masks)), np.zeros((len(masks), 1), np.int64))
    masks = np.ascontiguousarray(masks[order])
    words = np.zeros((len(masks), -(-masks.shape[1] // 64) * 8), np.uint8)
    words[:, :-(-masks.shape[1] // 8)] = np.packbits(masks, axis=1)
    back = link_masks(words.view(np.uint64), offsets)
    starts, ends = np.empty((2, len(masks) + 1), np.int64)
    rows = np.empty(list_changes(masks, back, starts, ends, np.empty(0, np.int32)), np.int32)
    list_changes(masks, back, starts, ends, rows)
    slots, at = int(offsets.max()) + 1, np.arange(len(masks))
    steps = np.zeros((len(masks) + 1, 5), np.uint64)  # unsigned: no negative indices to look out for
    steps[:, 3], steps[:, 4] = starts, ends
    steps[:-1, 0], steps[:-1, 1], steps[:-1, 2] = order, np.where(back > 0, (at - back) % slots, slots), at % slots
    return Links(steps, rows, slots)


def _neighbours(grid: Shape) -> tuple[Int[np.ndarray, "q"], Int[np.ndarray, "q k"]]:
    """The queries in order, pixel by pixel; and how far before each its neighbours are, 0 where it has none: to the
    left, above, above to the right, and the three layers before."""
    c, h, w = grid
    order = np.arange(c * h * w).reshape(grid).transpose(1, 2, 0).ravel()
    row, column, layer = np.indices((h, w, c)).reshape(3, -1)
    exists = {c: column > 0, w * c: row > 0, (w - 1) * c: (row > 0) & (column < w - 1),
              **{back: layer >= back for back in (1, 2, 3) if back < c}}
    return order, np.stack([np.where(where, offset, 0) for offset, where in exists.items()], axis=1)


@dataclass(frozen=True)
class _Compiled(Plan):
    """A plan whose states come from a compiled kernel, and whose gradients come from a plan with the same distances."""

    build_plain: Callable[[], Plan]

    @cached_property
    def plain(self) -> Plan:
        return self.build_plain()

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return self.plain.chunk_rows(b, d, itemsize, memory)

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "b q"] | None, margin: float) -> Float[Tensor, "b q n"]:
        return self.plain.distances(z, x, best, margin)

    def pull_back(self, cotangent: Float[Tensor, "b q n"], z: Flat, x: Chunk) -> Flat:
        return self.plain.pull_back(cotangent, z, x)


@dataclass(frozen=True)
class FusedMasks(_Compiled):
    """Masks as sums over the pixels in which they differ from an earlier mask; if not chained, over all of theirs."""

    name: ClassVar[str] = "fused"
    links: Links
    chained: bool  # distances are relative to that of the mean image

    @property
    def centred(self) -> bool:  # type: ignore[override]
        return self.chained

    def spans(self, z: Flat, source: Source, images: range, zero: float | Tensor, scale: float, margin: float,
              responses: Responses | None) -> Iterator[tuple[State, float]]:
        for state, _, done in self._spans(z, source, images, zero, scale, margin, written(responses, z.shape[1]), 0):
            yield state, done

    def nearest_spans(self, z: Flat, source: Source, images: range, zero: float | Tensor, scale: float, margin: float,
                      count: int) -> Iterator[tuple[Nearest, float]]:
        """As `spans`, with the `count` nearest images of each span instead of their weighted sum. Images that are
        farther than as many of earlier spans are left out."""
        found = self._spans(z, source, images, zero, scale, margin, written(None, z.shape[1]), count)
        return ((nearest, done) for _, nearest, done in found if nearest is not None)

    def _spans(self, z: Flat, source: Source, images: range, zero: float | Tensor, scale: float, margin: float,
               writes: np.ndarray, count: int) -> Iterator[tuple[State, Nearest | None, float]]:
        from scorelens.posterior.plans.kernels import masks_kernel
        from scorelens.posterior.plans.simd import LANES, aligned

        d, queries = z.shape[1], len(self.links.steps) - 1

        def run(pixels: np.ndarray, zeros: np.ndarray, unit: np.float32, noisy: np.ndarray, best: np.ndarray,
                sums: np.ndarray, *top: np.ndarray) -> None:
            members = best.shape[2] + 1  # of a slot
            chain = aligned(((self.links.slots + 1) * members + members, LANES), np.float32)  # the last: workspace
            chain[self.links.slots * members:] = 0
            shifts = np.ascontiguousarray((-2 * noisy if self.chained else noisy).swapaxes(1, 2))
            masks_kernel(pixels, zeros, unit, shifts, tuple(range(members)), not self.chained, self.links.steps,
                         self.links.rows, writes, scale, margin, best, sums, *top, aligned((d, LANES), np.float32),
                         chain)

        return _spans(run, z, GROUP, source, images, zero, queries, writes.shape[1], count)


@dataclass(frozen=True)
class FusedWindows(_Compiled):
    """Box sums, over all translations of an image while it is in the cache if the source consists of them."""

    name: ClassVar[str] = "fused box sums"
    windows: WindowGrid

    def spans(self, z: Flat, source: Source, images: range, zero: float | Tensor, scale: float, margin: float,
              responses: Responses | None) -> Iterator[tuple[State, float]]:
        from scorelens.posterior.plans.kernels import windows_kernel
        from scorelens.posterior.plans.simd import LANES, aligned

        (c, h, w), grid = self.windows.shape, self.windows
        shifts, writes = np.zeros((1, 2), np.int64), written(responses, z.shape[1])
        if isinstance(source, Translations) and images == range(len(source)):
            whole = source.images
            source, images = whole, range(len(whole))
            shifts = np.indices((h, w)).reshape(2, -1).T.copy()
        margins = tuple(0 if grid.border == "inside" else min(grid.size // 2, length - 1) for length in (h, w))
        sides = grid.sides if grid.border == "inside" else tuple(2 * margin + 1 for margin in margins)
        most = max(length + 2 * margin for length, margin in zip((h, w), margins, strict=True))

        def run(pixels: np.ndarray, zeros: np.ndarray, unit: np.float32, noisy: np.ndarray, best: np.ndarray,
                sums: np.ndarray, *top: np.ndarray) -> None:
            windows_kernel(pixels, zeros, unit, noisy[:, 0], (c, h, w), sides, margins, grid.border == "wrap", shifts,
                           writes, scale, margin, best, sums, *top, aligned((c * h * w, LANES), np.float32),
                           aligned((h * w, LANES), np.float32), aligned((2 * most + 1, LANES), np.float32))

        found = _spans(run, z, 1, source, images, zero, math.prod(grid.positions), writes.shape[1],
                       span_length=max(LANES, SPAN // len(shifts)))
        return ((state, done) for state, _, done in found)


def _spans(run: Callable[..., None], z: Flat, group: int, source: Source, images: range, zero: float | Tensor,
           queries: int, values: int, count: int = 0,
           span_length: int | None = None) -> Iterator[tuple[State, Nearest | None, float]]:
    """The states of spans of images, in order, each with the share that is done; with as many threads as torch uses.

    Noisy images [b, d] are passed to `run` as [groups, group, d]. With `count`, also the nearest images of each span.
    """
    d, noisy, length = z.shape[1], _grouped(z.numpy(), group), span_length or SPAN
    limits = [np.full((groups.shape[0], queries, groups.shape[1]), FAR, np.float32) for groups in noisy]

    def state(start: int, stop: int) -> tuple[State, Nearest | None]:
        pixels = source.raw(start, max(stop, start + 1))[:stop - start].flatten(1).contiguous().numpy()
        zeros, unit = np.broadcast_to(np.asarray(zero, np.float32).reshape(-1), d).copy(), np.float32(1 / 127.5)
        if pixels.dtype != np.uint8:  # floats in units of z
            zeros, unit = (zeros - np.float32(127.5)) * unit, np.float32(1)
        states = []
        for groups, limit in zip(noisy, limits, strict=True):
            shape = (len(groups), queries, groups.shape[1])
            best, sums = np.full(shape, np.inf, np.float32), np.zeros((*shape[:2], 1 + values, shape[2]))
            squares, own = np.zeros(shape), limit.copy()
            near, which = np.full((*shape, count), FAR, np.float32), np.full((*shape, count), -1, np.int64)
            run(pixels, zeros, unit, groups, best, sums, squares, own, near, which)
            if count and stop > start:  # of all spans that are done, the smallest count-th distance; any order will do
                np.minimum(limit, near[..., -1], out=limit)
            own_rows = (shape[0] * shape[2], queries)
            states.append((best.swapaxes(1, 2).reshape(own_rows),
                           sums.transpose(0, 3, 1, 2).reshape(*own_rows, 1 + values),
                           squares.swapaxes(1, 2).reshape(own_rows),
                           *(each.swapaxes(1, 2).reshape(*own_rows, count) for each in (near, which))))
        nearest, totals, squared, distance, row = (torch.from_numpy(np.concatenate(parts)[:len(z)])
                                                   for parts in zip(*states, strict=True))
        whole = State(nearest, totals[:, :, 0], totals[:, :, 1:])
        if not count:
            return whole, None
        return whole, Nearest(nearest, totals[:, :, 0], squared, distance, torch.where(row < 0, -1, row + start))

    def span(start: int) -> tuple[State, Nearest | None, float]:
        stop = min(start + length, images.stop)
        return *state(start, stop), (stop - images.start) / len(images)

    progress.estimated(lambda: state(images.start, images.start), "compiling the kernel (once)", lambda: COMPILING)
    starts = range(images.start, images.stop, length)
    threads = min(torch.get_num_threads(), len(starts))
    if threads == 1:
        yield from map(span, starts)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(span, starts)


def _grouped(noisy: Float[np.ndarray, "b d"], group: int) -> list[Float[np.ndarray, "groups group d"]]:
    """Noisy images in groups of this size; the last ones one by one, or with repeated images to complete a group."""
    whole = len(noisy) // group * group
    if len(noisy) - whole > FEW:
        return [np.resize(noisy, (-(-len(noisy) // group), group, noisy.shape[1]))]
    parts = (noisy[:whole].reshape(-1, group, noisy.shape[1]), noisy[whole:, None])
    return [part for part in parts if len(part)]


def written(responses: Responses | None, d: int) -> UInt[np.ndarray, "q r"]:
    """The coordinates that each query writes, channel by channel."""
    if responses is None:
        return np.empty((d, 0), np.uint64)
    if isinstance(responses, AllChannels):
        return np.arange(d, dtype=np.uint64).reshape(responses.channels, -1).T.copy()
    return torch.arange(d)[responses.pixels].numpy().astype(np.uint64).reshape(-1, 1)
