"""Pixels kept between runs as memory-mapped .npy files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from scorelens.files import atomic_file, cache_folder
from scorelens.types import ScorelensError


def cached_path(key: str) -> Path:
    """Where the pixels of this key are, or will be."""
    return cache_folder("images") / f"{key}.npy"


@contextmanager
def new_array(path: Path, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """A uint8 array to fill, on disk rather than in memory; it becomes the file `path` when the block ends well."""
    _check_space(path.parent, int(np.prod(shape)))
    with atomic_file(path) as partial:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint8, shape=shape)
        yield array
        array.flush()


def keep_array(path: Path, array: np.ndarray) -> None:
    """The array as the file `path`, unless that is there already."""
    if not path.exists():
        _check_space(path.parent, array.nbytes)
        with atomic_file(path) as partial:
            np.save(partial, array, allow_pickle=False)


def open_array(path: Path) -> np.ndarray:
    """The file's array, read as it is needed; mode "c" (copy on write), because torch warns about read-only memory."""
    return np.load(path, mmap_mode="c")


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:  # a full disk under a memory map kills the process without a word
        raise ScorelensError(f"the images need {needed / 1e9:.1f} GB, but the cache folder {folder} has "
                             f"{free / 1e9:.1f} GB free; choose a smaller resolution, or set SCORELENS_CACHE elsewhere")
