"""Patches of images as a source, all of them or, as an approximation, those of the nearest clusters only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from scorelens import distributed, progress
from scorelens.data.images import ImageSet, to_floats
from scorelens.posterior.sources import Origin
from scorelens.types import ScorelensError

SAMPLE = 100  # patches for each cluster that the centres are fitted to
CHUNK = 2**15  # patches at a time


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

    def origins(self, rows: Int[np.ndarray, "n"]) -> Origin:
        """The image of each patch, and its centre."""
        image, position = np.divmod(rows if self.indices is None else self.indices[rows], self.positions)
        row, column = np.divmod(position, len(self.columns))
        centre = np.asarray(self.rows)[row] * self.images.shape[2] + np.asarray(self.columns)[column]
        return Origin(self.images.numbers[image], centre)

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
        up, _, left, _ = (0, 0, 0, 0) if self.wrap else self.window
        x = wrapped(x, self.window) if self.wrap else x
        spans = zip((self.rows, self.columns), (up, left), self.window.sides, strict=True)
        rows, columns = (slice(at[0] - before, at[-1] - before + side) for at, before, side in spans)  # neighbours
        return cut_patches(x[:, :, rows, columns], self.window)


@dataclass(frozen=True, eq=False)
class Clusters:
    """Patches of the data in clusters. A noisy patch is compared with the `searched` clusters nearest to its own."""

    patches: Patches
    centres: Float[np.ndarray, "k d"]
    members: list[Int[np.ndarray, "_"]]  # of each cluster
    searched: int

    def groups(self, z: Float[Tensor, "n d"]) -> Iterator[tuple[Int[Tensor, "m"], Patches]]:
        """The noisy patches of each cluster, and the source to compare them with."""
        own = _broadcast(_nearest(z.detach().float().cpu().numpy(), self.centres))
        for cluster in np.unique(own):
            distances = ((self.centres - self.centres[cluster]) ** 2).sum(axis=1)
            near = np.argsort(distances, kind="stable")[:self.searched]
            indices = np.sort(np.concatenate([self.members[k] for k in near]))
            yield torch.from_numpy(np.flatnonzero(own == cluster)).to(z.device), replace(self.patches, indices=indices)


def fit_clusters(patches: Patches, count: int, searched: int, seed: int = 0) -> Clusters:
    """k-means of a sample of the patches, then every patch to its nearest centre."""
    from sklearn.cluster import MiniBatchKMeans

    if count > len(patches):
        raise ScorelensError(f"clusters must be at most the {len(patches):,} patches, got {count}")
    rng = np.random.default_rng(seed)
    sample = np.sort(rng.choice(len(patches), min(len(patches), SAMPLE * count), replace=False))
    means = MiniBatchKMeans(count, random_state=seed % 2**32, n_init=1).fit(_floats(patches.take(sample)))
    starts = progress.track(range(0, len(patches), CHUNK), "clusters", unit="chunk")
    chunks = (_floats(patches.raw(start, min(start + CHUNK, len(patches)))) for start in starts)
    centres = _broadcast(means.cluster_centers_)
    own = _broadcast(np.concatenate([_nearest(chunk, centres) for chunk in chunks]))
    return Clusters(patches, centres, [np.flatnonzero(own == k) for k in range(count)], searched)


def _floats(raw: Tensor) -> Float[np.ndarray, "n d"]:
    return to_floats(raw, torch.empty(raw.shape)).numpy()


def _nearest(x: Float[np.ndarray, "n d"], centres: Float[np.ndarray, "k d"]) -> Int[np.ndarray, "n"]:
    return np.argmin((centres**2).sum(axis=1) - 2 * x @ centres.T, axis=1)


def _broadcast(array: np.ndarray) -> np.ndarray:
    """Rank 0's array, for all processes."""
    return distributed.world().broadcast(torch.from_numpy(array)).numpy()
