"""What a posterior averages, read in chunks: images, their translations, or linear maps of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens import distributed
from scorelens.data.images import ImageSet, to_floats
from scorelens.distributed import World
from scorelens.statistics.whitening import pixels_of
from scorelens.types import ScorelensError
from scorelens.validation import wide_dtype

ROUNDING = 2e-4  # nats that rows rounded to float32 may cost
SAMPLE = 64  # rows from which the length of rows is estimated


class Origin(NamedTuple):
    """Where rows of a source come from."""

    image: Int[np.ndarray, "n"]  # the number of the image
    place: Int[np.ndarray, "n"]  # down * W + right: a translation, or the centre of a patch; + H * W if mirrored


def origins(source: Source, rows: Int[np.ndarray, "n"]) -> Origin:
    """The images that these rows of a source come from, and their places."""
    if isinstance(source, ImageSet):
        half = len(source) // 2
        mirrored = source.rows is not None and "flips" in source.record and np.array_equal(*source.rows[:2 * half]
                                                                                           .reshape(2, half))
        place = (rows >= half) * math.prod(source.shape[1:]) if mirrored else np.zeros_like(rows)
        return Origin(source.numbers[rows], place)
    if hasattr(source, "origins"):
        found: Origin = source.origins(rows)
        return found
    raise ScorelensError(f"a source of type {type(source).__name__} does not tell which images its rows come from; "
                         "give it a method origins(rows)")


@runtime_checkable
class Source(Protocol):
    """What is averaged: an ImageSet, or anything that can be read like one, a few images at a time.

    A source may have `centre()`: an image in the middle of all, as pixel values 0 ... 255, d of them; and
    `origins(rows)`, which tells where its rows come from.
    """

    def __len__(self) -> int: ...

    @property
    def dim(self) -> int:
        """d: how many coordinates an image has."""

    def raw(self, start: int, stop: int) -> Tensor:
        """Images start ... stop - 1, [n, ...] with d coordinates each: uint8, or floats in units of [-1, 1]."""


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

    def origins(self, rows: Int[np.ndarray, "n"]) -> Origin:
        place, row = np.divmod(rows, len(self.images))
        return Origin(self.images.numbers[row], place)

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

    def origins(self, rows: Int[np.ndarray, "n"]) -> Origin:
        return origins(self.images, rows)

    def raw(self, start: int, stop: int) -> Float[Tensor, "n k"]:
        raw, origin = self.images.raw(start, stop).flatten(1), self.origin.to(self.matrix.dtype)  # [n, d]
        seen, kept = (to_floats(raw[:, pixels], self.matrix.new_empty(len(raw), len(pixels))).sub_(origin[pixels])
                      for pixels in (self.seen, self.kept))
        return torch.cat([seen @ self.matrix, kept], dim=1)

    def dtype(self, compared: int, sigma: float, z: Tensor) -> torch.dtype:
        """The dtype of z, or float64 (if the device has it) where rounding rows to z's dtype would change the logits.

        Each of r coordinates of a row of length l rounds by eps l / sqrt(r), and differs from that of a noisy image by
        l / sqrt(r) or sigma.
        """
        length = self.raw(0, SAMPLE)[:, :compared].norm(dim=1).max().item()
        error = torch.finfo(z.dtype).eps / 2 * length * (2 * length / math.sqrt(compared) + sigma) / sigma**2
        return z.dtype if error < ROUNDING else wide_dtype(z)


@dataclass(frozen=True, eq=False)
class Scaled:
    """The rows of a table, each coordinate times a number."""

    images: ImageSet  # whose rows they are
    rows: np.ndarray  # float32 [N, k], perhaps a memmap
    scale: Float[Tensor, "k"]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dim(self) -> int:
        return self.rows.shape[1]

    def origins(self, rows: Int[np.ndarray, "n"]) -> Origin:
        return origins(self.images, rows)

    def raw(self, start: int, stop: int) -> Float[Tensor, "n k"]:
        return torch.from_numpy(self.rows[start:stop]) * self.scale


@dataclass(frozen=True, eq=False)
class Pixels:
    """Some pixels of the images relative to an origin, followed by one number for each image."""

    images: ImageSet
    origin: Float[Tensor, "m"]  # its device and precision are those of the rows
    seen: Int[Tensor, "m"]  # coordinates of the images
    numbers: Float[Tensor, "n"]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def dim(self) -> int:
        return len(self.seen) + 1

    def origins(self, rows: Int[np.ndarray, "n"]) -> Origin:
        return origins(self.images, rows)

    def raw(self, start: int, stop: int) -> Float[Tensor, "n k"]:
        rows = pixels_of(self.images, start, stop, self.seen, self.origin, more=1)
        rows[:, -1] = self.numbers[start:start + len(rows)]
        return rows


class Shard(NamedTuple):
    """The rows of a source that this process reads, and the processes that read the others."""

    source: Source
    rows: range
    group: World


def shard_of(source: Source) -> Shard:
    """Contiguous images for each process, so that it maps only its part of a file into memory."""
    count = len(source.images) if isinstance(source, Translations) else len(source)
    group = distributed.group(count)
    if isinstance(source, Translations):  # ordered by translation: shard the images instead
        source = Translations(source.images.part(group.shard(count)))
        return Shard(source, range(len(source)), group)
    return Shard(source, group.shard(count), group)


@dataclass(frozen=True, eq=False)
class Chosen:
    """A few rows of a source, centred as all of them are."""

    source: Source
    rows: Int[np.ndarray, "n"]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dim(self) -> int:
        return self.source.dim

    def origins(self, rows: Int[np.ndarray, "n"]) -> Origin:
        return origins(self.source, self.rows[rows])

    def raw(self, start: int, stop: int) -> Tensor:
        return torch.cat([self.source.raw(int(row), int(row) + 1) for row in self.rows[start:stop]])


def rows_of(source: Source, numbers: Int[np.ndarray, "n"]) -> Int[np.ndarray, "m"]:
    """The rows of a source that come from the images of these numbers."""
    return np.flatnonzero(np.isin(origins(source, np.arange(len(source))).image, numbers))
