"""Image folders and zips: subfolders are classes, and `train` and `test` above them are splits."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from scorelens.data.decode import EXTENSIONS, Decoding
from scorelens.data.filesets import Files, load_files
from scorelens.data.images import ImageSet
from scorelens.data.splits import seeded_test
from scorelens.types import ScorelensError


def load_folder(source: str, folder: Path, split: str, decoding: Decoding) -> ImageSet:
    """Load the images in a folder and its subfolders."""
    if not folder.exists():
        raise ScorelensError(f"{source}: there is no folder {folder}")
    if not folder.is_dir():
        raise ScorelensError(f"{source}: {folder} is a file, not a folder; load a zip with zip:PATH")
    try:
        names = [path.relative_to(folder).as_posix() for path in _walk(folder, set())]
    except OSError as error:
        raise ScorelensError(f"{source}: cannot read {error.filename}: {error.strerror}") from error
    return load_files(_files(source, names, lambda name: (folder / name).read_bytes()), split, decoding)


def load_zip(source: str, path: Path, split: str, decoding: Decoding) -> ImageSet:
    """Load the images in a zip; a single folder around all of them is ignored."""
    if not path.exists():
        raise ScorelensError(f"{source}: there is no file {path}")
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise ScorelensError(f"{source}: {path} is not a zip file that can be read: {error}") from error
    with archive:
        wrapper = _wrapper(_image_names(archive.namelist()))
        names = [name.removeprefix(wrapper) for name in archive.namelist()]
        return load_files(_files(source, names, lambda name: archive.read(wrapper + name)), split, decoding)


def _walk(folder: Path, parents: set[Path]) -> Iterator[Path]:
    """All files below a folder; links to folders are followed, except those that form a loop."""
    visited = parents | {folder.resolve()}
    for path in sorted(folder.iterdir()):
        if not path.is_dir():
            yield path
        elif path.resolve() not in visited:
            yield from _walk(path, visited)


def _image_names(names: list[str]) -> list[str]:
    def is_image(name: str) -> bool:
        return name.lower().endswith(EXTENSIONS) and not any(part.startswith(".") for part in PurePosixPath(name).parts)

    return sorted(filter(is_image, set(names)))


def _wrapper(names: list[str]) -> str:
    """The folder that contains all images, as "faces/", or "" if there is none or it is a split."""
    tops = {_top(name) for name in names}
    return f"{tops.pop()}/" if len(tops) == 1 and not tops & {"", "train", "test"} else ""


def _files(source: str, names: list[str], read: Callable[[str], bytes]) -> Files:
    """The splits and classes of image files, from their names."""
    names = _image_names(names)
    if not names:
        raise ScorelensError(f"{source}: no images found (files ending in {' '.join(EXTENSIONS)})")
    if not _has_splits(source, names):
        return Files(source, tuple(names), read, seeded_test(len(names)), *_classes(names))
    names.sort(key=lambda name: _top(name) == "test")  # stable: train first, each split in order
    test = np.array([_top(name) == "test" for name in names])
    return Files(source, tuple(names), read, test, *_classes([name.partition("/")[2] for name in names]))


def _has_splits(source: str, names: list[str]) -> bool:
    tops = {_top(name) for name in names}
    splits, others = sorted(tops & {"train", "test"}), sorted(tops - {"train", "test"})
    if splits and others:
        raise ScorelensError(f"{source}: {splits[0]!r} cannot be both a split and a class: there are also images in "
                             f"{others[0] or '.'!r}; keep only train and test, load one of them, or rename it")
    return bool(splits)


def _classes(names: list[str]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Labels and class names, if every image is in a class folder."""
    tops = [_top(name) for name in names]
    if "" in tops:
        return None, ()
    class_names, labels = np.unique(tops, return_inverse=True)
    return labels, tuple(class_names.tolist())


def _top(name: str) -> str:
    """The first folder of a path, or "" for a file outside of folders."""
    return name.partition("/")[0] if "/" in name else ""
