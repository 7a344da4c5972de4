"""Decode many image files, in parallel, into a memory-mapped cache keyed by their content."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from scorelens.data.array_cache import cached_path, find_array, new_array
from scorelens.data.decode import Undecodable, decode, has_colour, undecodable
from scorelens.data.edits import empty_split
from scorelens.data.images import ImageSet, Request
from scorelens.entries import find_entry, new_entry
from scorelens.progress import track
from scorelens.types import ScorelensError

T = TypeVar("T")
WORKERS = min(8, os.cpu_count() or 1)
NAMES_SHOWN = 20
CACHE_VERSION = 1  # part of the key: increase it when the same files decode to different pixels


@dataclass(frozen=True)
class Files:
    """Image files in a folder, in a zip or in the rows of a dataset, and how to load them."""

    request: Request
    names: Sequence[str]
    read: Callable[[str], bytes]
    test: np.ndarray  # bool [N]: which files are the test split
    labels: np.ndarray | None = None  # int64 [N]
    class_names: tuple[str, ...] = ()

    def apply(self, work: Callable[[bytes], T], name: str) -> T | None:
        """work(the file's bytes), or None if the file cannot be read or decoded."""
        try:
            with undecodable():
                data = self.read(name)
            return work(data)
        except Undecodable:
            return None


class BadFiles(ScorelensError):
    """Files that cannot be decoded."""

    def __init__(self, source: str, names: Sequence[str]) -> None:
        self.names = sorted(names)
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        super().__init__(f"{source}: {len(names)} of its files cannot be decoded: "
                         f"{', '.join(self.names[:NAMES_SHOWN])}{more}; repair or remove them, or leave them out "
                         "with skip_bad")


def load_files(files: Files) -> ImageSet:
    """Load one split of the files. All files are decoded, so a bad file in any split is an error."""
    source, split = files.request.source, files.request.split
    order = np.argsort(files.test, kind="stable")  # train before test: each split is a slice of the memory map
    pixels, skipped = _decoded(files, [files.names[i] for i in order])
    excluded = set(skipped)
    kept = np.array([i for i in order if files.names[i] not in excluded])     # kept[row of pixels] = file
    boundary = int(np.count_nonzero(~files.test[kept]))
    in_order = slice(None) if np.all(np.diff(kept) > 0) else np.argsort(kept)  # a slice is a view: nothing is copied
    rows = {"train": slice(0, boundary), "test": slice(boundary, None), "all": in_order}[split]
    if not len(kept[rows]):
        raise empty_split(source, split)
    labels = None if files.labels is None else files.labels[kept[rows]]
    return ImageSet(pixels[rows], source, split, labels, files.class_names, {"skipped": skipped} if skipped else {})


def _decoded(files: Files, names: list[str]) -> tuple[np.ndarray, list[str]]:
    """The pixels of all files that can be decoded, and the names of the others."""
    from PIL import Image

    path = cached_path(_content_key(files, names))
    notes, stored = find_entry(path.with_suffix(".json")), find_array(path)
    if notes is not None and stored is not None:
        skipped = json.loads(notes.read_text())["skipped"]
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)  # huge images are errors, in all threads
            skipped = _fill_cache(files, names, path)
        with new_entry(path.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps({"skipped": skipped}))
        stored = find_array(path)
    if skipped and not files.request.skip_bad:
        raise BadFiles(files.request.source, skipped)
    if stored is None or len(stored) + len(skipped) != len(names):
        raise ScorelensError(f"{path} changed while it was read; run again")
    return stored, skipped


def _content_key(files: Files, names: list[str]) -> str:
    def digest(name: str) -> bytes:  # unreadable files (dead links, broken zip members) are reported when decoding
        return files.apply(lambda data: hashlib.sha256(data).digest(), name) or b"unreadable"

    listing = list(zip(names, _in_parallel(digest, names, "reading"), strict=True))
    key = repr((CACHE_VERSION, files.request.size, files.request.channels, listing))
    return hashlib.sha256(key.encode()).hexdigest()


def _fill_cache(files: Files, names: list[str], path: Path) -> list[str]:
    """Decode the files into one array file, and return the names of those that were skipped."""
    try:
        _decode_to(path, files, names)
        return []
    except BadFiles as bad:
        if not files.request.skip_bad or len(bad.names) == len(names):
            raise
        excluded = set(bad.names)
        _decode_to(path, files, [name for name in names if name not in excluded])
        return bad.names


def _decode_to(path: Path, files: Files, names: list[str]) -> None:
    """Decode all files into one array file; if any of them is bad, raise BadFiles and write nothing."""
    source, size = files.request.source, files.request.size
    in_colour = (files.apply(has_colour, name) for name in track(names, "inspecting", unit="file"))
    channels = files.request.channels or (3 if any(in_colour) else 1)

    def decoded(name: str) -> np.ndarray | None:
        return files.apply(lambda data: decode(data, size, channels), name)

    def write(row: int) -> tuple[int, ...] | None:
        pixels = decoded(names[row])
        if pixels is not None and pixels.shape == array.shape[1:]:
            array[row] = pixels
        return None if pixels is None else pixels.shape

    first = next((pixels for pixels in map(decoded, names) if pixels is not None), None)
    if first is None:
        raise BadFiles(source, names)
    with new_array(path, (len(names), *first.shape)) as array:
        _check_shapes(source, names, _in_parallel(write, range(len(names)), "decoding"))


def _check_shapes(source: str, names: list[str], shapes: list[tuple[int, ...] | None]) -> None:
    bad = [name for name, shape in zip(names, shapes, strict=True) if shape is None]
    if bad:
        raise BadFiles(source, bad)
    first, other = shapes[0], next((shape for shape in shapes if shape != shapes[0]), None)
    if first and other:
        raise ScorelensError(f"{source}: images of mixed sizes ({names[0]} is {first[1]}x{first[2]} but "
                             f"{names[shapes.index(other)]} is {other[1]}x{other[2]}, height x width); give a "
                             "resolution to scale them to")


def _in_parallel(work: Callable[..., T], items: Sequence[Any], label: str) -> list[T]:
    """[work(item) for item in items] in threads (Pillow and hashlib release the GIL), with a progress bar."""
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            return list(track(pool.map(work, items), label, total=len(items), unit="file"))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # otherwise Ctrl-C waits for every file
            raise
