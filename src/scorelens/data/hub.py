"""Hugging Face datasets (extra `hf`): rows are read like the image files of a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from scorelens.data.decode import Decoding
from scorelens.data.filesets import Files, load_files
from scorelens.data.images import ImageSet
from scorelens.data.splits import seeded_test
from scorelens.types import ScorelensError


def load_hub(source: str, name: str, split: str, decoding: Decoding) -> ImageSet:
    """Load the images of a hub dataset; the package `datasets` downloads and caches it."""
    try:
        import datasets
    except ImportError as error:
        raise ScorelensError(f"{source} needs the package `datasets`; install the extra scorelens[hf]") from error
    parts = _fetch(source, name, datasets)
    features = next(iter(parts.values())).features
    image, label = _column(features, datasets.Image), _column(features, datasets.ClassLabel)
    if image is None:
        raise ScorelensError(f"{source} has no column of images; its columns: {', '.join(features)}")
    names = tuple(f"{part}/{row}" for part, rows in parts.items() for row in range(len(rows)))
    test = np.array([name.startswith("test/") for name in names]) if "test" in parts else seeded_test(len(names))
    files = Files(source, names, _reader(parts, image, datasets), test, *_labels(parts, label))
    return load_files(files, split, decoding)


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


def _column(features: dict[str, Any], kind: type) -> str | None:
    return next((name for name, feature in features.items() if isinstance(feature, kind)), None)


def _labels(parts: dict[str, Any], column: str | None) -> tuple[np.ndarray | None, tuple[str, ...]]:
    if column is None:
        return None, ()
    labels = [np.asarray(rows[column][:], np.int64) for rows in parts.values()]
    return np.concatenate(labels), tuple(next(iter(parts.values())).features[column].names)


def _reader(parts: dict[str, Any], column: str, datasets: ModuleType) -> Callable[[str], bytes]:
    undecoded = {part: rows.select_columns([column]).cast_column(column, datasets.Image(decode=False))
                 for part, rows in parts.items()}

    def read(name: str) -> bytes:
        part, row = name.split("/")
        stored = undecoded[part][int(row)][column]
        return stored["bytes"] or Path(stored["path"]).read_bytes()

    return read
