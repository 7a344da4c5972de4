"""MNIST, Fashion-MNIST and CIFAR-10 in torchvision's layout, and CIFAR-10 as .npz files."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from scorelens.data.arrays import DIGIT_NAMES, Labelled, channels_first, read_npz
from scorelens.data.images import ImageSet
from scorelens.types import ScorelensError

FASHION_NAMES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MNISTS = {"mnist": ("MNIST", DIGIT_NAMES), "fashion-mnist": ("FashionMNIST", FASHION_NAMES)}
UBYTE = 8  # type code of uint8 in the idx format


def load_cifar10(root: Path, split: str, download: bool) -> ImageSet:
    """Load ROOT/cifar10/{train,test}.npz if it exists, else torchvision's copy, which verifies its checksums."""
    pixels, labels = _read_split(lambda part: _read_cifar10(root, part, download), split)
    return ImageSet(pixels, "cifar10", split, labels, CIFAR_NAMES)


def load_mnist(name: str, root: Path, split: str, download: bool) -> ImageSet:
    """Load ROOT/MNIST/raw or ROOT/FashionMNIST/raw; `name` is a key of MNISTS."""
    kind, class_names = MNISTS[name]
    raw = root / kind / "raw"

    def read(part: str) -> Labelled:
        prefix = "train" if part == "train" else "t10k"
        pixels = _read_idx(_idx_file(name, raw, f"{prefix}-images-idx3-ubyte"), ndim=3)       # [N, H, W]
        labels = _read_idx(_idx_file(name, raw, f"{prefix}-labels-idx1-ubyte"), ndim=1)
        return pixels[:, None], labels.astype(np.int64)

    if download and not _is_complete(raw):
        _torchvision_dataset(name, kind, root, train=True, download=True)
    pixels, labels = _read_split(read, split)
    return ImageSet(pixels, name, split, labels, class_names)


def _is_complete(raw: Path) -> bool:
    files = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return all((raw / file).exists() or (raw / f"{file}.gz").exists() for file in files)


def _read_split(read: Callable[[str], Labelled], split: str) -> Labelled:
    """Read one split; "all" is train followed by test."""
    if split != "all":
        return read(split)
    (pixels, labels), (test_pixels, test_labels) = read("train"), read("test")
    both = None if labels is None or test_labels is None else np.concatenate([labels, test_labels])
    return np.concatenate([pixels, test_pixels]), both


def _idx_file(name: str, raw: Path, file: str) -> Path:
    for path in (raw / file, raw / f"{file}.gz"):
        if path.exists():
            return path
    raise ScorelensError(f"{name}: there is no {raw / file} (or .gz); point --root to the folder that holds "
                         f"{raw.parent.name}, or fetch it with download=True")


def _read_idx(path: Path, ndim: int) -> UInt8[np.ndarray, ...]:
    """Read an idx file: two zero bytes, type code, number of axes, each axis as a big-endian int32, then the values."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ScorelensError(f"{path} cannot be read: {error}") from error
    start = 4 + 4 * ndim
    shape = [int.from_bytes(data[at:at + 4], "big") for at in range(4, start, 4)]
    if data[:4] != bytes([0, 0, UBYTE, ndim]) or len(data) != start + math.prod(shape):
        raise ScorelensError(f"{path} is damaged: it is not an idx file with {ndim} axes")
    return np.frombuffer(bytearray(data), np.uint8, offset=start).reshape(shape)  # bytearray: writable, for torch


def _read_cifar10(root: Path, part: str, download: bool) -> Labelled:
    path, batches = root / "cifar10" / f"{part}.npz", root / "cifar-10-batches-py"
    if path.exists():
        return read_npz("cifar10", path)
    if not (download or batches.exists()):
        raise ScorelensError(f"cifar10: there is neither {path} nor {batches}; point --root to the folder that holds "
                             "one of them, or fetch the latter with download=True")
    dataset = _torchvision_dataset("cifar10", "CIFAR10", root, train=part == "train", download=download)
    return channels_first(dataset.data), np.asarray(dataset.targets, np.int64)


def _torchvision_dataset(name: str, kind: str, root: Path, train: bool, download: bool) -> Any:
    try:
        from torchvision import datasets
    except Exception as error:  # the PyPI build raises RuntimeError next to a CPU-only torch
        raise ScorelensError(f"{name}: torchvision is required but cannot be imported ({error}); install the extra "
                             "scorelens[torchvision], built for your torch, or copy the files by hand") from error
    try:
        return getattr(datasets, kind)(root, train=train, download=download)
    except (OSError, RuntimeError) as error:
        raise ScorelensError(f"{name}: torchvision could not load it under {root}: {error}") from error
