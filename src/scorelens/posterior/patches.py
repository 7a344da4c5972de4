"""Patches of images as a source, and the plan for thousands of queries at once that they need.

To compare every patch of a noisy image with every patch of the data is the posterior of whole images once more: of
small images, very many of them. The patches of the data are cut out of a few images at a time, never all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.posterior.plans import Buffers
from scorelens.posterior.slots import Chunk, Responses
from scorelens.posterior.softmax import LOG2_E, State, chunk_state, merge, weighted_state
from scorelens.types import Flat, Shape

CHUNK_ELEMENTS = 2**20  # weights at a time
TOGETHER = 2048  # noisy patches at a time
HUGE = 2.0**80  # weights relative to a reference that is this far off are computed again, relative to a better one


class Window(NamedTuple):
    """How far a patch reaches from its centre."""

    up: int
    down: int
    left: int
    right: int

    @property
    def sides(self) -> tuple[int, int]:
        return self.up + self.down + 1, self.left + self.right + 1

    def centre(self, channels: int) -> Int[Tensor, "c"]:
        """Where the centre's channels are among the coordinates of a patch."""
        rows, columns = self.sides
        return (torch.arange(channels) * rows + self.up) * columns + self.left


def wrapped(x: Tensor, window: Window) -> Tensor:
    """Images [..., H, W] continued around their borders, so that every pixel has a whole window."""
    (h, w), (up, down, left, right) = x.shape[-2:], window
    x = x[..., torch.arange(-up, h + down, device=x.device) % h, :]
    return x[..., torch.arange(-left, w + right, device=x.device) % w]


def cut_patches(x: Tensor, window: Window) -> Shaped[Tensor, "n places k"]:
    """All patches [C, rows, columns] of the images [n, C, H, W] that lie inside them, row by row."""
    rows, columns = window.sides
    return x.unfold(2, rows, 1).unfold(3, columns, 1).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


@dataclass(frozen=True, eq=False)
class Patches:
    """Source: the patches of all images, with their centres at the given places; image by image."""

    images: ImageSet
    window: Window
    rows: Sequence[int]
    columns: Sequence[int]
    wrap: bool = False  # continue images around their borders

    def __len__(self) -> int:
        return len(self.images) * self.places

    @property
    def places(self) -> int:
        return len(self.rows) * len(self.columns)

    @property
    def dim(self) -> int:
        rows, columns = self.window.sides
        return self.images.shape[0] * rows * columns

    @property
    def centre(self) -> np.ndarray:
        return np.full(self.dim, 128, np.uint8)

    def raw(self, start: int, stop: int) -> Tensor:
        first = start // self.places
        patches = self.of(self.images.raw(first, -(-stop // self.places))).flatten(0, 1)
        return patches[start - first * self.places:stop - first * self.places]

    def take(self, indices: Int[np.ndarray, "n"]) -> Tensor:
        """The patches of these indices, wherever they are."""
        image, place = np.divmod(indices, self.places)
        row, column = np.divmod(place, len(self.columns))
        (up, down, left, right), (_, h, w) = self.window, self.images.shape
        rows = (np.asarray(self.rows)[row][:, None] + np.arange(-up, down + 1)) % h  # [n, rows of a patch]
        columns = (np.asarray(self.columns)[column][:, None] + np.arange(-left, right + 1)) % w
        pixels = self.images.pixels[image[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return torch.from_numpy(np.moveaxis(pixels, 3, 1).reshape(len(indices), -1))  # from [n, rows, columns, C]

    def of(self, x: Tensor) -> Shaped[Tensor, "n places k"]:
        """The patches of these images: differentiable where they are floats."""
        if self.wrap:
            x, rows, columns = wrapped(x, self.window), list(self.rows), list(self.columns)
        else:
            rows, columns = [r - self.window.up for r in self.rows], [c - self.window.left for c in self.columns]
        high, wide = self.window.sides
        x = x[:, :, rows[0]:rows[-1] + high, columns[0]:columns[-1] + wide]  # places are neighbours of each other
        return cut_patches(x, self.window)


@dataclass(frozen=True, eq=False)
class SomePatches:
    """Source: some of the patches, by their indices."""

    patches: Patches
    indices: Int[np.ndarray, "n"]

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def dim(self) -> int:
        return self.patches.dim

    @property
    def centre(self) -> np.ndarray:
        return self.patches.centre

    def raw(self, start: int, stop: int) -> Tensor:
        return self.patches.take(self.indices[start:stop])


@dataclass(frozen=True, eq=False)
class Translations:
    """Source: every circular translation of every image; one translation of all images after the other."""

    images: ImageSet

    def __len__(self) -> int:
        _, h, w = self.images.shape
        return len(self.images) * h * w

    @property
    def dim(self) -> int:
        return self.images.dim

    @property
    def shape(self) -> Shape:
        return self.images.shape

    @cached_property
    def centre(self) -> np.ndarray:
        """The mean over all translations: one value for each channel."""
        mean = np.rint(self.images.centre.mean(axis=(1, 2), keepdims=True)).astype(np.uint8)
        return np.broadcast_to(mean, self.images.shape).copy()

    def raw(self, start: int, stop: int) -> Tensor:
        n, pieces = len(self.images), []
        while start < stop:
            translation, first = divmod(start, n)
            last = min(n, first + stop - start)
            down, right = divmod(translation, self.images.shape[2])
            pieces.append(self.images.raw(first, last).roll((down, right), dims=(2, 3)))
            start += last - first
        return torch.cat(pieces)


@dataclass(frozen=True)
class Products:
    """One weight per image, for thousands of noisy ones: a product whose result is already the logarithm of the
    weights, and little else.

    log2 w = (2 z.x - |x|^2 + best) scale log2(e): the last two terms are two more coordinates of z and x.
    """

    name: ClassVar[str] = "products"
    centred: ClassVar[bool] = False
    pixel_major: ClassVar[bool] = True
    together: ClassVar[int | None] = TOGETHER
    dtype: torch.dtype  # wide enough for the digits that the difference of the terms loses
    buffers: Buffers = field(default_factory=Buffers)
    chunk: dict[str, Tensor] = field(default_factory=dict)  # the one at hand, and its table
    queries: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # of each part: its reference, its rows

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return min(max(256, CHUNK_ELEMENTS // max(b, 1)), memory // ((3 * d + 2 * b) * itemsize))

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "b 1"] | None, margin: float) -> Float[Tensor, "b 1 n"]:
        """|x|^2 - 2 z.x"""
        return self._product(_rows(-2 * z, 1.0, z.new_zeros(len(z), 1)), x)[:, None]

    def with_chunk(self, so_far: State | None, z: Flat, x: Chunk, scale: float, responses: Responses | None) -> State:
        if so_far is not None:
            weights = self._product(self._query(z, so_far.best, scale * LOG2_E), x).exp2_()
            new = weighted_state(so_far.best, weights[:, None], responses, x)
            if (new.total < HUGE).all():
                return State(so_far.best, so_far.total + new.total, so_far.weighted + new.weighted)
        distances = self.distances(z, x, None, 0.0)
        return merge(so_far, chunk_state(distances, scale, responses, x), scale)

    def pull_back(self, cotangent: Float[Tensor, "b 1 n"], z: Flat, x: Chunk) -> Flat:
        c = cotangent[:, 0]
        return 2 * (c.sum(dim=1, keepdim=True) * z - c @ x.T)

    def _query(self, z: Flat, best: Float[Tensor, "b 1"], unit: float) -> Float[Tensor, "b k"]:
        """The rows of log2 w: they change only when the reference does."""
        known = self.queries.get(z.data_ptr())
        if known is None or known[0] is not best:
            known = self.queries[z.data_ptr()] = best, _rows(2 * unit * z, -unit, unit * best)
        return known[1]

    def _product(self, rows: Float[Tensor, "b k"], x: Chunk) -> Float[Tensor, "b n"]:
        return torch.mm(rows, self._table(x), out=self.buffers.get("product", x, len(rows), x.shape[1]))

    def _table(self, x: Chunk) -> Float[Tensor, "k n"]:
        """x, |x|^2 and 1: made once for a chunk, which all noisy patches meet one part after the other."""
        if self.chunk.get("x") is not x:
            d, n = x.shape
            table = self.buffers.get("table", x, d + 2, n)
            table[:d] = x
            torch.sum(x.square(), dim=0, out=table[d])
            table[d + 1] = 1
            self.chunk.update(x=x, table=table)
        return self.chunk["table"]


def _rows(z: Flat, of_norm: float, constant: Float[Tensor, "b 1"]) -> Float[Tensor, "b k"]:
    """Whose product with a chunk's table is z.x + of_norm |x|^2 + constant."""
    return torch.cat([z, z.new_full((len(z), 1), of_norm), constant], dim=1)
