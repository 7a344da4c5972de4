"""ImageSet: the training images that everything is derived from; and the request to load them.

Pixels are uint8 [N, C, H, W], in memory or memory-mapped. Images edited beyond the range of bytes are float32, on the
scale of [-1, 1] but not clipped to it; so are latents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from scorelens import distributed
from scorelens.types import ScorelensError, Shape

if TYPE_CHECKING:
    from scorelens.data.latents import Autoencoder


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images as stored, with the metadata needed to load them again. Immutable."""

    pixels: np.ndarray  # uint8 [N, C, H, W], possibly a memmap; or float32 on the scale of [-1, 1]
    name: str
    split: str = "all"
    labels: np.ndarray | None = None  # int64 [N]
    class_names: tuple[str, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)  # how the set was made: limit, seed, skipped files, ...
    autoencoder: Autoencoder | None = None  # which encoded the images, if these are latents
    rows: np.ndarray | None = None  # int64 [N], where each image is in the set it was taken from; None: in this

    def __post_init__(self) -> None:
        if self.pixels.dtype not in (np.uint8, np.float32) or self.pixels.ndim != 4:
            raise ScorelensError(f"{self.name}: images must be uint8 or float32 [N, C, H, W], "
                                 f"got {self.pixels.dtype} {list(self.pixels.shape)}")
        if 0 in self.pixels.shape:
            raise ScorelensError(f"{self.name}: no images (shape {list(self.pixels.shape)})")
        if self.labels is not None and self.labels.shape != (len(self.pixels),):
            raise ScorelensError(f"{self.name}: {len(self.pixels)} images but labels of shape {self.labels.shape}")

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> Shape:
        """(C, H, W)"""
        return tuple(self.pixels.shape[1:])

    def pictures(self, x: Tensor) -> Tensor:
        """Images of this kind [n, C, H, W] as they are shown: latents are decoded, others returned."""
        return x if self.autoencoder is None else self.autoencoder.decode(x)

    @property
    def dim(self) -> int:
        """D = C * H * W"""
        return int(np.prod(self.shape))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the content (shape, pixels, labels), independent of the name."""
        digest = hashlib.sha256(repr((self.pixels.shape, self.labels is not None)).encode())
        for start in range(0, len(self), 4096):
            digest.update(np.ascontiguousarray(self.pixels[start:start + 4096]).data)
        if self.labels is not None:
            digest.update(np.ascontiguousarray(self.labels, dtype=np.int64).data)
        return digest.hexdigest()[:32]

    def chunks(self, size: int = 1024, *, dtype: torch.dtype = torch.float32,
               device: torch.device | str = "cpu", reuse: bool = False) -> Iterator[Tensor]:
        """Yield the images in order, `size` at a time, as floats in [-1, 1].

        With `reuse` all chunks share one buffer (allocating costs more than converting), so that each is valid only
        until the next.
        """
        buffer = torch.empty((min(size, len(self)), *self.shape), dtype=dtype, device=device) if reuse else None
        for start in range(0, len(self), size):
            raw = self.raw(start, start + size)
            out = torch.empty(raw.shape, dtype=dtype, device=device) if buffer is None else buffer[:len(raw)]
            yield to_floats(raw, out)

    def raw(self, start: int, stop: int) -> Tensor:
        """Images start ... stop - 1 as stored, uint8 or float32 [n, C, H, W]."""
        return _tensor(self.pixels[start:stop])

    def centre(self) -> np.ndarray:
        """The mean image rounded to uint8 [C, H, W], so that subtracting it is exact. The first call is collective."""
        return self._rounded_mean

    @cached_property
    def _rounded_mean(self) -> np.ndarray:
        own, group = self.shard(), distributed.group(len(self))
        total = sum((own.pixels[start:start + 4096].sum(0, dtype=np.float64) for start in range(0, len(own), 4096)),
                    np.zeros(self.shape))
        total = group.sum(torch.from_numpy(total)).numpy()
        mean = total / len(self) if self.pixels.dtype == np.uint8 else 127.5 * (1 + total / len(self))
        return np.rint(mean).clip(0, 255).astype(np.uint8)

    def __getitem__(self, index: int | slice | Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """Float32 images in [-1, 1]: [C, H, W] for one index, [n, C, H, W] for several."""
        pixels = self.pixels[index.cpu().numpy() if isinstance(index, Tensor) else index]
        return to_floats(_tensor(pixels), torch.empty(pixels.shape))

    def subset(self, indices: slice | Sequence[int] | np.ndarray, **record: Any) -> ImageSet:
        """The images at these indices, in this order; for a slice, a view."""
        rows = indices if isinstance(indices, slice) else np.asarray(indices, dtype=np.int64)
        return replace(self, pixels=self.pixels[rows], record={**self.record, **record}, rows=self.numbers[rows],
                       labels=None if self.labels is None else self.labels[rows])

    def without(self, indices: Sequence[int] | np.ndarray) -> ImageSet:
        """The images that remain when those of these numbers are removed."""
        return self.subset(np.flatnonzero(~np.isin(self.numbers, np.asarray(indices, dtype=np.int64))))

    @property
    def numbers(self) -> np.ndarray:
        """The number of each image: its index in the set that it was taken from, int64 [N]."""
        return np.arange(len(self)) if self.rows is None else self.rows

    @cached_property
    def renumbered(self) -> ImageSet:
        """The same images, numbered from 0 in their order."""
        return self if self.rows is None else replace(self, rows=None)

    def part(self, rows: range) -> ImageSet:
        """A contiguous range of the images, as a view."""
        return self.subset(slice(rows.start, rows.stop))

    def shard(self) -> ImageSet:
        """This process's images under torchrun; all images in a single process."""
        return self.part(distributed.group(len(self)).shard(len(self)))

    def describe(self) -> dict[str, Any]:
        """What a run records about its data."""
        return {"name": self.name, "split": self.split, "count": len(self), "shape": list(self.shape),
                "fingerprint": self.fingerprint, **self.record}


@dataclass(frozen=True)
class Request:
    """The options of `load_images`, for the loader of a source."""

    source: str  # as the user wrote it
    location: str  # the folder of the dataset or of all datasets, or the path or name after the colon
    split: str
    limit: int | None
    seed: int
    size: tuple[int, int] | None  # (H, W); None keeps the size of the images
    channels: int | None  # None: as stored; of files, 1 if all are grey, else 3
    skip_bad: bool
    download: bool

    @property
    def path(self) -> Path:
        return Path(self.location).expanduser()


def to_floats(raw: Tensor, out: Tensor, zero: float | Tensor = 127.5) -> Tensor:
    """Convert pixels to floats in `out`; the byte value `zero` maps to 0 (127.5 gives images in [-1, 1])."""
    if raw.is_floating_point():
        return out.copy_(raw.to(out.device)).sub_((zero - 127.5) / 127.5)
    return out.copy_(raw.to(out.device)).sub_(zero).div_(127.5)  # moves bytes to the device; u - zero is exact


def _tensor(pixels: np.ndarray) -> Tensor:
    """The pixels as a tensor, without a copy if they are writeable (torch warns about read-only memory)."""
    return torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy())


def to_uint8(x: Tensor) -> np.ndarray:
    """Convert images in [-1, 1] to uint8, rounded and clipped: the inverse of `ImageSet.chunks`."""
    return x.detach().cpu().float().mul(127.5).add(127.5).round().clamp(0, 255).to(torch.uint8).numpy()
