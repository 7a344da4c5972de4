"""What a posterior averages, read in chunks: images, patches of them, their translations, or linear maps of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from scorelens import distributed
from scorelens.data.images import ImageSet, to_floats
from scorelens.distributed import World


@runtime_checkable
class Source(Protocol):
    """What is averaged: an ImageSet, or anything that can be read like one, a few images at a time.

    A source may have `centre()`: an image in the middle of all, as pixel values 0 ... 255, d of them.
    """

    def __len__(self) -> int: ...

    @property
    def dim(self) -> int:
        """d: how many coordinates an image has."""

    def raw(self, start: int, stop: int) -> Tensor:
        """Images start ... stop - 1, [n, ...] with d coordinates each: uint8, or floats in units of [-1, 1]."""


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


def cut_patches(x: Tensor, window: Window) -> Shaped[Tensor, "n positions k"]:
    """All patches [C, rows, columns] of the images [n, C, H, W] that lie inside them, row by row."""
    rows, columns = window.sides
    return x.unfold(2, rows, 1).unfold(3, columns, 1).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


@dataclass(frozen=True, eq=False)
class Patches:
    """The patches of all images, centred on the given rows and columns, image by image; or only some of them."""

    images: ImageSet
    window: Window
    rows: Sequence[int]
    columns: Sequence[int]
    wrap: bool = False  # continue images around their borders
    indices: Int[np.ndarray, "n"] | None = None  # of the patches that are averaged, None for all

    def __len__(self) -> int:
        return len(self.images) * self.positions if self.indices is None else len(self.indices)

    @property
    def positions(self) -> int:
        return len(self.rows) * len(self.columns)

    @property
    def dim(self) -> int:
        rows, columns = self.window.sides
        return self.images.shape[0] * rows * columns

    def raw(self, start: int, stop: int) -> Tensor:
        if self.indices is not None:
            return self.take(self.indices[start:stop])
        first = start // self.positions
        patches = self.of(self.images.raw(first, -(-stop // self.positions))).flatten(0, 1)
        return patches[start - first * self.positions:stop - first * self.positions]

    def take(self, indices: Int[np.ndarray, "n"]) -> Tensor:
        """The patches of these indices, in any order."""
        image, position = np.divmod(indices, self.positions)
        row, column = np.divmod(position, len(self.columns))
        (up, down, left, right), (_, h, w) = self.window, self.images.shape
        rows = (np.asarray(self.rows)[row][:, None] + np.arange(-up, down + 1)) % h  # [n, rows of a patch]
        columns = (np.asarray(self.columns)[column][:, None] + np.arange(-left, right + 1)) % w
        pixels = self.images.pixels[image[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return torch.from_numpy(np.moveaxis(pixels, 3, 1).reshape(len(indices), -1))  # from [n, rows, columns, C]

    def of(self, x: Tensor) -> Shaped[Tensor, "n positions k"]:
        """The patches of these images: differentiable where they are floats."""
        if self.wrap:
            x, rows, columns = wrapped(x, self.window), list(self.rows), list(self.columns)
        else:
            rows, columns = [r - self.window.up for r in self.rows], [c - self.window.left for c in self.columns]
        high, wide = self.window.sides
        x = x[:, :, rows[0]:rows[-1] + high, columns[0]:columns[-1] + wide]  # neighbouring positions
        return cut_patches(x, self.window)


@dataclass(frozen=True, eq=False)
class Translations:
    """Every circular translation of every image; one translation of all images after the other."""

    images: ImageSet

    def __len__(self) -> int:
        _, h, w = self.images.shape
        return len(self.images) * h * w

    @property
    def dim(self) -> int:
        return self.images.dim

    def centre(self) -> np.ndarray:
        """The mean over all translations: one value for each channel."""
        mean = np.rint(self.images.centre().mean(axis=(1, 2), keepdims=True)).astype(np.uint8)
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


@dataclass(frozen=True, eq=False)
class Projected:
    """Rows (x_i - origin)[seen] P, followed by (x_i - origin)[kept] unchanged; computed a few images at a time.

    They are computed in the precision of P, on its device.
    """

    images: ImageSet
    origin: Float[Tensor, "d"]
    seen: Int[Tensor, "m"]  # coordinates of the images
    matrix: Float[Tensor, "m r"]  # P
    kept: Int[Tensor, "v"]  # coordinates of the images

    def __len__(self) -> int:
        return len(self.images)

    @property
    def dim(self) -> int:
        return self.matrix.shape[1] + len(self.kept)

    def raw(self, start: int, stop: int) -> Float[Tensor, "n k"]:
        raw = self.images.raw(start, stop).flatten(1)  # [n, d]
        return torch.cat([self._centred(raw, self.seen) @ self.matrix, self._centred(raw, self.kept)], dim=1)

    def _centred(self, raw: Tensor, pixels: Int[Tensor, "p"]) -> Float[Tensor, "n p"]:
        some = raw[:, pixels]
        return to_floats(some, self.matrix.new_empty(some.shape)).sub_(self.origin[pixels].to(self.matrix.dtype))


@dataclass(frozen=True, eq=False)
class Scaled:
    """The rows of a table, each coordinate times a number."""

    rows: np.ndarray  # float32 [N, k], perhaps a memmap
    scale: Float[Tensor, "k"]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dim(self) -> int:
        return self.rows.shape[1]

    def raw(self, start: int, stop: int) -> Float[Tensor, "n k"]:
        return torch.from_numpy(self.rows[start:stop]) * self.scale


@dataclass(frozen=True)
class Shard:
    """The rows of a source that this process reads, and the processes that read the others."""

    source: Source
    rows: range
    group: World


def shard_of(source: Source) -> Shard:
    """Contiguous images for each process, so that it maps only its part of a file into memory."""
    if isinstance(source, Translations):  # ordered by translation: shard the images instead
        count = len(source.images)
        own = replace(source, images=source.images.part(distributed.group(count).shard(count)))
        return Shard(own, range(len(own)), distributed.group(count))
    group = distributed.group(len(source))
    return Shard(source, group.shard(len(source)), group)
