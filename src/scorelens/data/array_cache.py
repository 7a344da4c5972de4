"""Pixels cached between runs as memory-mapped .npy files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from scorelens.files import atomic_file, cache_folder
from scorelens.types import ScorelensError


def cached_path(key: str) -> Path:
    """The cache file for this key, whether or not it exists yet."""
    return cache_folder("images") / f"{key}.npy"


@contextmanager
def new_array(path: Path, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """A uint8 array on disk to fill; it becomes the file `path` if the block succeeds."""
    _check_space(path.parent, int(np.prod(shape)))
    with atomic_file(path) as partial:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=shape)
        yield array
        array.flush()


def keep_array(path: Path, array: np.ndarray) -> None:
    """Save the array as `path`, unless that file exists."""
    if not path.exists():
        _check_space(path.parent, array.nbytes)
        with atomic_file(path) as partial:
            np.save(partial, array, allow_pickle=False)


def open_array(path: Path) -> np.ndarray:
    """Memory-map the array; copy-on-write (mode "c"), because torch warns about read-only memory."""
    return np.load(path, mmap_mode="c")


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:  # writing to a memory map on a full disk kills the process silently
        raise ScorelensError(f"the images need {needed / 1e9:.1f} GB, but the cache folder {folder} has "
                             f"{free / 1e9:.1f} GB free; choose a smaller resolution, or move SCORELENS_CACHE")
