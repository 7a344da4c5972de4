"""Image files in folders and zips (subfolders are classes, `train` and `test` above them splits) and hub datasets.

A dataset.json beside the images, as EDM's dataset_tool writes it, gives their classes instead of the subfolders.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import numpy as np

from scorelens.data.decode import EXTENSIONS
from scorelens.data.edits import seeded_test
from scorelens.data.filesets import Files, load_files
from scorelens.data.images import ImageSet, Request
from scorelens.files import read_file
from scorelens.types import ScorelensError

LARGEST = 2**28  # bytes of an image file
EDM_LABELS = "dataset.json"  # beside the images in a dataset prepared for EDM, EDM2 or StyleGAN


def load_folder(request: Request) -> ImageSet:
    """Load the images in a folder and its subfolders."""
    source, folder = request.source, request.path
    if not folder.exists():
        raise ScorelensError(f"{source}: there is no folder {folder}")
    if not folder.is_dir():
        raise ScorelensError(f"{source}: {folder} is a file, not a folder; load a zip with zip:PATH")
    try:
        names = [path.relative_to(folder).as_posix() for path in _walk(folder, set())]
    except OSError as error:
        raise ScorelensError(f"{source}: cannot read {error.filename}: {error.strerror}") from error
    return load_files(_files(request, names, lambda name: read_file(folder / name)))


def load_zip(request: Request) -> ImageSet:
    """Load the images in a zip; a single folder around all of them is ignored."""
    source, path = request.source, request.path
    if not path.exists():
        raise ScorelensError(f"{source}: there is no file {path}")
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:  # NotImplementedError: its version
        raise ScorelensError(f"{source}: {path} is not a zip file that can be read: {error}") from error
    with archive:
        tops = {_top(name) for name in _image_names(archive.namelist())}
        wrapper = f"{tops.pop()}/" if len(tops) == 1 and not tops & {"", "train", "test"} else ""
        names = [name.removeprefix(wrapper) for name in archive.namelist()]
        return load_files(_files(request, names, lambda name: _member(archive, wrapper + name)))


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a file in a zip, unless they are more than those of any image: a few kB can expand to gigabytes."""
    if archive.getinfo(name).file_size > LARGEST:
        raise OSError(f"{name} expands to more than {LARGEST / 2**20:,.0f} MiB")
    return archive.read(name)


def load_tiny_imagenet(request: Request) -> ImageSet:
    """Load Tiny-ImageNet from train.zip, or from its folders."""
    archive = request.path / "train.zip"
    return load_zip(replace(request, location=str(archive))) if archive.exists() else load_folder(request)


def load_hub(request: Request) -> ImageSet:
    """Load a dataset of the Hugging Face hub (extra `hf`); the package `datasets` downloads and caches it."""
    source = request.source
    try:
        import datasets
    except ImportError as error:
        raise ScorelensError(f"{source} needs the package `datasets`; install the extra scorelens[hf]") from error
    parts = _fetch(source, request.location, datasets)
    features = next(iter(parts.values())).features
    image, label = (next((name for name, feature in features.items() if isinstance(feature, kind)), None)
                    for kind in (datasets.Image, datasets.ClassLabel))
    if image is None:
        raise ScorelensError(f"{source} has no column of images; its columns: {', '.join(features)}")
    names = [f"{part}/{row}" for part, rows in parts.items() for row in range(len(rows))]
    test = np.array([name.startswith("test/") for name in names]) if "test" in parts else seeded_test(len(names))
    undecoded = {part: rows.select_columns([image]).cast_column(image, datasets.Image(decode=False))
                 for part, rows in parts.items()}

    def read(name: str) -> bytes:
        part, row = name.split("/")
        stored = undecoded[part][int(row)][image]
        return stored["bytes"] or read_file(Path(stored["path"]))

    if label is None:
        return load_files(Files(request, names, read, test))
    labels = np.concatenate([np.asarray(rows[label][:], np.int64) for rows in parts.values()])
    return load_files(Files(request, names, read, test, labels, tuple(features[label].names)))


def _fetch(source: str, name: str, datasets: ModuleType) -> dict[str, Any]:
    """The train and test splits that the dataset has."""
    try:
        dataset = datasets.load_dataset(name)
    except Exception as error:  # unknown name, no network, missing config, damaged files, ...
        raise ScorelensError(f"{source} cannot be loaded: {(str(error) or repr(error)).splitlines()[0]}") from error
    parts = {part: dataset[part] for part in ("train", "test") if part in dataset}  # train first
    if not parts:
        raise ScorelensError(f"{source} has no split named train or test; its splits: {', '.join(dataset)}")
    return parts


def _walk(folder: Path, parents: set[Path]) -> Iterator[Path]:
    """All files below a folder; links to folders are followed, except those that form a loop."""
    visited = parents | {folder.resolve()}
    for path in sorted(folder.iterdir()):
        if not path.is_dir():
            yield path
        elif path.resolve() not in visited:
            yield from _walk(path, visited)


def _image_names(names: list[str]) -> list[str]:
    """The sorted names of the image files, without hidden files and folders."""
    return sorted(name for name in set(names) if name.lower().endswith(EXTENSIONS)
                  and not any(part.startswith(".") for part in PurePosixPath(name).parts))


def _files(request: Request, names: list[str], read: Callable[[str], bytes]) -> Files:
    """The splits and classes of image files, from their names, or the classes from EDM's dataset.json."""
    labels = _edm_labels(request.source, read) if EDM_LABELS in names else None
    names = _image_names(names)
    if not names:
        raise ScorelensError(f"{request.source}: no images found (files ending in {' '.join(EXTENSIONS)})")
    if labels is not None:
        missing = [name for name in names if name not in labels]
        if labels and missing:
            raise ScorelensError(f"{request.source}: {EDM_LABELS} has no label for {len(missing)} images, e.g. "
                                 f"{missing[0]}")
        numbers = np.array([labels[name] for name in names], np.int64) if labels else None
        return Files(request, names, read, seeded_test(len(names)), numbers)
    tops = {_top(name) for name in names}
    splits, others = sorted(tops & {"train", "test"}), sorted(tops - {"train", "test"})
    if not splits:
        return Files(request, names, read, seeded_test(len(names)), *_classes(names))
    if others:
        raise ScorelensError(f"{request.source}: {splits[0]!r} cannot be both a split and a class: there are "
                             f"also images in {others[0] or '.'!r}; keep only train and test, load one, or rename it")
    names.sort(key=lambda name: _top(name) == "test")  # stable: train first, each split in order
    test = np.array([_top(name) == "test" for name in names])
    return Files(request, names, read, test, *_classes([name.partition("/")[2] for name in names]))


def _edm_labels(source: str, read: Callable[[str], bytes]) -> dict[str, int]:
    """The label of each image, by EDM's dataset.json; empty if it has no labels. Folders are not classes there."""
    try:
        rows = json.loads(read(EDM_LABELS)).get("labels") or []
        labels = {str(name): label for name, label in rows}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ScorelensError(f"{source}: {EDM_LABELS} is not a list of labels as EDM writes it: {error}") from error
    if not all(isinstance(label, int) for label in labels.values()):
        raise ScorelensError(f"{source}: the labels in {EDM_LABELS} must be whole numbers")
    return labels


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
