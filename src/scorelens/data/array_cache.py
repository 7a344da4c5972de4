"""Pixels in memory-mapped .npy files: cached between runs, and shared by the processes of a node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from scorelens import distributed
from scorelens.data.images import ImageSet
from scorelens.entries import find_entry, new_entry
from scorelens.files import cache_folder
from scorelens.types import ScorelensError

HEADER = 4096  # bytes, more than an .npy header has


def cached_array(path: Path, shape: tuple[int, ...], fill: Callable[[np.ndarray], object], dtype: Any = np.uint8,
                 ) -> np.memmap:
    """The array of a cache entry, memory-mapped; if there is none, `fill` writes it."""
    stored = find_array(path, shape)
    if stored is None:
        with new_array(path, shape, dtype) as array:
            fill(array)
        stored = find_array(path, shape)
    if stored is None:
        raise ScorelensError(f"{path} was removed while it was written; run again")
    return stored


def cached_path(key: str) -> Path:
    """The cache entry of this key, whether or not it exists yet."""
    return cache_folder("images") / f"{key}.npy"


def find_array(path: Path, shape: tuple[int, ...] | None = None) -> np.memmap | None:
    """Memory-map the array of a cache entry; None if there is none. With `shape`, another shape is an error."""
    file = find_entry(path)
    if file is None:
        return None
    array = open_array(file)
    if shape is not None and array.shape != tuple(shape):
        raise ScorelensError(f"{file} holds an array {list(array.shape)} instead of {list(shape)}; remove it")
    return array


@contextmanager
def new_array(path: Path, shape: tuple[int, ...], dtype: Any = np.uint8) -> Iterator[np.ndarray]:
    """An array on disk to fill; it becomes the cache entry `path` if the block succeeds."""
    needed, free = int(np.prod(shape)) * np.dtype(dtype).itemsize, shutil.disk_usage(path.parent).free
    if needed > free:  # writing to a memory map on a full disk kills the process silently
        raise ScorelensError(f"the images need {needed / 1e9:.1f} GB, but the cache folder {path.parent} has "
                             f"{free / 1e9:.1f} GB free; choose a smaller resolution, or move SCORELENS_CACHE")
    with new_entry(path) as partial:
        if hasattr(os, "posix_fallocate"):  # also if another program fills the disk meanwhile
            with partial.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, needed + HEADER)
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=dtype, shape=shape)
        yield array
        array.flush()


def open_array(path: Path) -> np.memmap:
    """Memory-map the array; copy-on-write (mode "c"), because torch warns about read-only memory."""
    array: np.memmap = np.load(path, mmap_mode="c")
    return array


def shared(load: Callable[[], ImageSet]) -> ImageSet:
    """The result of `load`; with several processes, each node loads once and memory-maps the pixels.

    Pages that a process never reads take no memory; pages that several read are in memory once per node.
    """
    world = distributed.world()
    if world.size == 1:
        return load()
    by_node = world.once_per_node(lambda: _mapped(load()))
    path, rows, metadata, fingerprint = by_node[world.node]
    if any(other != fingerprint for *_, other in by_node.values()):
        raise ScorelensError(f"{metadata['name']}: the machines hold different images under this name")
    images = ImageSet(open_array(path)[rows], **metadata)
    vars(images)["fingerprint"] = fingerprint  # sets the cached property; hashing would read every image
    return images


def _mapped(images: ImageSet) -> tuple[Path, slice, dict[str, Any], str]:
    """The file that holds the pixels (that of their memory map, if any), their rows, the other fields, and the hash."""
    pixels, fingerprint = images.pixels, images.fingerprint
    metadata = {field.name: getattr(images, field.name) for field in fields(images) if field.name != "pixels"}
    whole = pixels
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    if isinstance(whole, np.memmap) and pixels.flags.c_contiguous and whole.shape[1:] == pixels.shape[1:]:
        first = (pixels.ctypes.data - whole.ctypes.data) // whole.strides[0]
        return Path(str(whole.filename)), slice(first, first + len(images)), metadata, fingerprint
    stored = cached_array(cached_path(f"shared-{fingerprint}"), pixels.shape,
                          lambda array: np.copyto(array, pixels), pixels.dtype)
    return Path(str(stored.filename)), slice(0, len(images)), metadata, fingerprint
