"""Image folders and zips: subfolders are classes, and `train`/`test` above them are splits."""

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
    """The images in a folder and below it."""
    if not folder.exists():
        raise ScorelensError(f"{source}: there is no folder {folder}")
    if not folder.is_dir():
        raise ScorelensError(f"{source}: {folder} is a file, not a folder; a zip is loaded with zip:PATH")
    try:
        names = [path.relative_to(folder).as_posix() for path in _walk(folder, set())]
    except OSError as error:
        raise ScorelensError(f"{source}: cannot read {error.filename}: {error.strerror}") from error
    return load_files(_lay_out(source, names, lambda name: (folder / name).read_bytes()), split, decoding)


def load_zip(source: str, path: Path, split: str, decoding: Decoding) -> ImageSet:
    """The images in a zip, which may wrap them all in one folder that means nothing."""
    if not path.exists():
        raise ScorelensError(f"{source}: there is no file {path}")
    with _open_zip(source, path) as archive:
        wrapper = _wrapper(_images_among(archive.namelist()))
        names = [name.removeprefix(wrapper) for name in archive.namelist()]
        return load_files(_lay_out(source, names, lambda name: archive.read(wrapper + name)), split, decoding)


def _open_zip(source: str, path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise ScorelensError(f"{source}: {path} is not a zip file that can be read: {error}") from error


def _walk(folder: Path, above: set[Path]) -> Iterator[Path]:
    """All files below a folder, through links to folders, but not around in circles."""
    here = above | {folder.resolve()}
    for path in sorted(folder.iterdir()):
        if not path.is_dir():
            yield path
        elif path.resolve() not in here:
            yield from _walk(path, here)


def _images_among(names: list[str]) -> list[str]:
    def is_image(name: str) -> bool:
        return name.lower().endswith(EXTENSIONS) and not any(part.startswith(".") for part in PurePosixPath(name).parts)

    return sorted(filter(is_image, set(names)))


def _wrapper(names: list[str]) -> str:
    """"faces/" if every image lies in the folder `faces` and it is not a split; else nothing."""
    tops = {_top(name) for name in names}
    return f"{tops.pop()}/" if len(tops) == 1 and not tops & {"", "train", "test"} else ""


def _lay_out(source: str, names: list[str], read: Callable[[str], bytes]) -> Files:
    names = _images_among(names)
    if not names:
        raise ScorelensError(f"{source}: no images there (files ending in {' '.join(EXTENSIONS)})")
    if not _has_splits(source, names):
        return Files(source, tuple(names), read, seeded_test(len(names)), *_classes(names))
    names.sort(key=lambda name: _top(name) == "test")  # a stable sort: training images first, each part in order
    test = np.array([_top(name) == "test" for name in names])
    return Files(source, tuple(names), read, test, *_classes([name.partition("/")[2] for name in names]))


def _has_splits(source: str, names: list[str]) -> bool:
    tops = {_top(name) for name in names}
    splits, others = sorted(tops & {"train", "test"}), sorted(tops - {"train", "test"})
    if splits and others:
        raise ScorelensError(f"{source}: {splits[0]!r} cannot be both a split and a class: there are images beside it, "
                             f"in {others[0] or '.'!r}; keep only train and test, or load one of them, or rename it")
    return bool(splits)


def _classes(names: list[str]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Labels and class names, if every image lies in some class's folder."""
    tops = [_top(name) for name in names]
    if "" in tops:
        return None, ()
    class_names = sorted(set(tops))
    label_of = {name: label for label, name in enumerate(class_names)}
    return np.array([label_of[top] for top in tops]), tuple(class_names)


def _top(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""
