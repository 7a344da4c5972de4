"""Pixels in memory-mapped .npy files: cached between runs, and shared by the processes of a node."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from scorelens import distributed
from scorelens.data.images import ImageSet
from scorelens.files import atomic_file, cache_folder
from scorelens.types import ScorelensError


def cached_path(key: str) -> Path:
    """The cache file for this key, whether or not it exists yet."""
    return cache_folder("images") / f"{key}.npy"


@contextmanager
def new_array(path: Path, shape: tuple[int, ...], dtype: Any = np.uint8) -> Iterator[np.ndarray]:
    """An array on disk to fill; it becomes the file `path` if the block succeeds."""
    needed, free = int(np.prod(shape)) * np.dtype(dtype).itemsize, shutil.disk_usage(path.parent).free
    if needed > free:  # writing to a memory map on a full disk kills the process silently
        raise ScorelensError(f"the images need {needed / 1e9:.1f} GB, but the cache folder {path.parent} has "
                             f"{free / 1e9:.1f} GB free; choose a smaller resolution, or move SCORELENS_CACHE")
    with atomic_file(path) as partial:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=dtype, shape=shape)
        yield array
        array.flush()


def open_array(path: Path) -> np.ndarray:
    """Memory-map the array; copy-on-write (mode "c"), because torch warns about read-only memory."""
    return np.load(path, mmap_mode="c")


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
    path = cached_path(f"shared-{fingerprint}")
    if not path.exists():
        with new_array(path, pixels.shape, pixels.dtype) as array:
            array[:] = pixels
    return path, slice(0, len(images)), metadata, fingerprint
