"""Many image files to one ImageSet: decoded once, in parallel, into a memory-mapped cache keyed by their content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from scorelens.data.array_cache import cached_path, new_array, open_array
from scorelens.data.decode import Decoding, Undecodable, bombs_as_errors, decode, has_colour, undecodable
from scorelens.data.images import ImageSet
from scorelens.data.splits import empty_part
from scorelens.files import atomic_file
from scorelens.progress import track
from scorelens.types import ScorelensError

T = TypeVar("T")
WORKERS = min(8, os.cpu_count() or 1)
NAMES_SHOWN = 20
CACHE_VERSION = 1  # part of the key: raise it when the same files shall decode to other pixels


@dataclass(frozen=True)
class Files:
    """Image files wherever they are: in a folder, in a zip, in the rows of a dataset."""

    source: str  # as the user wrote it
    names: tuple[str, ...]
    read: Callable[[str], bytes]
    test: np.ndarray  # bool [N]: which are the test part
    labels: np.ndarray | None = None  # int64 [N]
    class_names: tuple[str, ...] = ()


class BadFiles(ScorelensError):
    """Files that cannot be decoded."""

    def __init__(self, source: str, names: Sequence[str]) -> None:
        self.names = sorted(names)
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        super().__init__(f"{source}: {len(names)} of its files cannot be decoded: "
                         f"{', '.join(self.names[:NAMES_SHOWN])}{more}; mend or remove them, or go on without them "
                         "with skip_bad")


def load_files(files: Files, split: str, decoding: Decoding) -> ImageSet:
    """One part of the files. All are decoded whatever the split: a bad file anywhere is a bad dataset."""
    order = np.argsort(files.test, kind="stable")  # training images first: each part is a slice of the memory map
    pixels, skipped = _decoded([files.names[i] for i in order], files, decoding)
    without = set(skipped)
    kept = np.array([i for i in order if files.names[i] not in without])     # kept[row of pixels] = file
    rows = _rows(files.test[kept], kept, split)
    if not len(kept[rows]):
        raise empty_part(files.source, split)
    labels = None if files.labels is None else files.labels[kept[rows]]
    record = {"skipped": skipped} if skipped else {}
    return ImageSet(pixels[rows], files.source, split, labels, files.class_names, record)


def _rows(test: np.ndarray, kept: np.ndarray, split: str) -> slice | np.ndarray:
    """The rows of a part in the order of the files: a slice, which copies nothing, where that is possible."""
    if split == "all":
        return slice(None) if np.all(np.diff(kept) > 0) else np.argsort(kept)
    boundary = int(np.count_nonzero(~test))
    return slice(0, boundary) if split == "train" else slice(boundary, None)


def _decoded(names: list[str], files: Files, decoding: Decoding) -> tuple[np.ndarray, list[str]]:
    """The pixels of all files that can be decoded, and the names of those that cannot."""
    path = cached_path(_content_key(names, files, decoding))
    notes = path.with_suffix(".json")
    if not (path.exists() and notes.exists()):
        with bombs_as_errors():
            _fill_cache(path, notes, names, files, decoding)
    skipped = json.loads(notes.read_text())["skipped"]
    if skipped and not decoding.skip_bad:
        raise BadFiles(files.source, skipped)
    return open_array(path), skipped


def _content_key(names: list[str], files: Files, decoding: Decoding) -> str:
    def digest(name: str) -> bytes:
        try:
            return hashlib.sha256(_read(name, files)).digest()
        except Undecodable:  # a dead link, a broken zip member: named with the other bad files when it is decoded
            return b"unreadable"

    digests = _in_parallel(digest, names, "reading")
    listing = repr((CACHE_VERSION, decoding.size, decoding.channels, list(zip(names, digests, strict=True))))
    return hashlib.sha256(listing.encode()).hexdigest()


def _read(name: str, files: Files) -> bytes:
    with undecodable():
        return files.read(name)


def _fill_cache(path: Path, notes: Path, names: list[str], files: Files, decoding: Decoding) -> None:
    skipped: list[str] = []
    try:
        _decode_to(path, names, files, decoding)
    except BadFiles as bad:
        if not decoding.skip_bad or len(bad.names) == len(names):
            raise
        skipped, without = bad.names, set(bad.names)
        _decode_to(path, [name for name in names if name not in without], files, decoding)
    with atomic_file(notes) as partial:
        partial.write_text(json.dumps({"skipped": skipped}))


def _decode_to(path: Path, names: list[str], files: Files, decoding: Decoding) -> None:
    """All of `names` as one array file; BadFiles, and no array file, if any of them cannot be decoded."""
    channels = decoding.channels or _common_channels(names, files)

    def decoded(name: str) -> np.ndarray | None:
        try:
            return decode(_read(name, files), decoding.size, channels)
        except Undecodable:
            return None

    first = next((pixels for pixels in map(decoded, names) if pixels is not None), None)
    if first is None:
        raise BadFiles(files.source, names)
    with new_array(path, (len(names), *first.shape)) as array:
        shapes = _write(array, names, decoded)
        _check_shapes(files.source, names, shapes)


def _write(array: np.ndarray, names: list[str], decoded: Callable[[str], np.ndarray | None]) -> list[tuple | None]:
    """Every image that fits into its row; the shapes of all, None where there is no image."""
    def write(row: int) -> tuple | None:
        pixels = decoded(names[row])
        if pixels is not None and pixels.shape == array.shape[1:]:
            array[row] = pixels
        return None if pixels is None else pixels.shape

    return _in_parallel(write, range(len(names)), "decoding")


def _check_shapes(source: str, names: list[str], shapes: list[tuple | None]) -> None:
    bad = [name for name, shape in zip(names, shapes, strict=True) if shape is None]
    if bad:
        raise BadFiles(source, bad)
    sizes = [f"{name} is {shape[1]}x{shape[2]}" for name, shape in zip(names, shapes, strict=True) if shape]
    other = next((size for size, shape in zip(sizes, shapes, strict=True) if shape != shapes[0]), None)
    if other is not None:
        raise ScorelensError(f"{source}: images of mixed sizes ({sizes[0]} but {other}, height x width); give a "
                             "resolution to scale them to")


def _common_channels(names: list[str], files: Files) -> int:
    def colourful(name: str) -> bool:
        try:
            return has_colour(_read(name, files))
        except Undecodable:  # the decoding that follows reports it
            return False

    return 3 if any(map(colourful, track(names, "inspecting", unit="file"))) else 1


def _in_parallel(work: Callable[..., T], items: Sequence, label: str) -> list[T]:
    """[work(item) for each], in threads (Pillow and hashlib release the lock), with a progress bar."""
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            return list(track(pool.map(work, items), label, total=len(items), unit="file"))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # else Ctrl-C waits for every file
            raise
