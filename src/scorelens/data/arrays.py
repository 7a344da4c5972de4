"""Sources that are arrays: the embedded digits, .npz files, and MNIST, Fashion-MNIST and CIFAR-10 on disk."""

from __future__ import annotations

import gzip
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from scorelens.data.edits import seeded_part
from scorelens.data.images import ImageSet, Request
from scorelens.types import ScorelensError
from scorelens.validation import check_memory

Labelled = tuple[np.ndarray, np.ndarray | None]  # pixels uint8 [N, C, H, W], labels int64 [N]

DIGIT_NAMES = tuple("0123456789")
FASHION_NAMES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MNISTS = {"mnist": ("MNIST", DIGIT_NAMES), "fashion-mnist": ("FashionMNIST", FASHION_NAMES)}
LARGEST_IDX = 2**30  # bytes, for a compressed file that expands without end
UBYTE = 8  # type code of uint8 in the idx format


def load_digits(request: Request) -> ImageSet:
    """Scikit-learn's 1,797 handwritten digits, 8x8, with grey levels 0 ... 16 scaled to 0 ... 255."""
    *levels, labels = _embedded_digits().T
    pixels = np.rint(np.stack(levels, axis=1) * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    images = ImageSet(pixels, "digits", labels=labels.astype(np.int64), class_names=DIGIT_NAMES)
    return seeded_part(images, request.split)


def _embedded_digits() -> np.ndarray:
    """Grey levels and label, [N, 64 + 1], from scikit-learn's own file: importing scikit-learn takes seconds."""
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    with gzip.open(str(path), "rt") as file:
        return np.loadtxt(file, delimiter=",")


def load_npz(request: Request) -> ImageSet:
    """Load an .npz file: `images`, uint8 [N, H, W] or [N, H, W, C], and optionally `labels`."""
    if not request.path.is_file():
        raise ScorelensError(f"{request.source}: there is no file {request.path}")
    pixels, labels = _read_npz(request.source, request.path)
    return seeded_part(ImageSet(pixels, request.source, labels=labels), request.split)


def load_mnist(request: Request) -> ImageSet:
    """Load ROOT/MNIST/raw or ROOT/FashionMNIST/raw; the source is a key of MNISTS."""
    kind, class_names = MNISTS[request.source]
    raw = request.path / kind / "raw"
    files = {part: [raw / f"{prefix}-images-idx3-ubyte", raw / f"{prefix}-labels-idx1-ubyte"]
             for part, prefix in (("train", "train"), ("test", "t10k"))}

    def read(part: str) -> Labelled:
        pixels, labels = (_read_idx(request.source, file, ndim) for file, ndim in zip(files[part], (3, 1), strict=True))
        return pixels[:, None], labels.astype(np.int64)

    if request.download and not all(_stored(file).exists() for part in files.values() for file in part):
        _torchvision_dataset(request, kind, train=True)
    return _read_split(request, read, class_names)


def load_cifar10(request: Request) -> ImageSet:
    """Load ROOT/cifar10/{train,test}.npz if it exists, else torchvision's copy, which verifies its checksums."""
    def read(part: str) -> Labelled:
        path, batches = request.path / "cifar10" / f"{part}.npz", request.path / "cifar-10-batches-py"
        if path.exists():
            return _read_npz("cifar10", path)
        if not (request.download or batches.exists()):
            raise ScorelensError(f"cifar10: there is neither {path} nor {batches}; point --root to the folder that "
                                 "holds one of them, or fetch the latter with download=True")
        dataset = _torchvision_dataset(request, "CIFAR10", train=part == "train")
        return _channels_first(dataset.data), np.asarray(dataset.targets, np.int64)

    return _read_split(request, read, CIFAR_NAMES)


def _read_split(request: Request, read: Callable[[str], Labelled], class_names: tuple[str, ...]) -> ImageSet:
    """Read one split; "all" is train followed by test."""
    parts = [read(part) for part in (("train", "test") if request.split == "all" else (request.split,))]
    pixels = parts[0][0] if len(parts) == 1 else np.concatenate([part for part, _ in parts])
    labels = [part for _, part in parts if part is not None]
    return ImageSet(pixels, request.source, request.split,
                    np.concatenate(labels) if len(labels) == len(parts) else None, class_names)


def _read_npz(source: str, path: Path) -> Labelled:
    """The images, channels first, and labels of an .npz file; pickles are refused."""
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is a single array; save it with np.savez(path, images=array)")
            images, labels = (_array(archive, key) for key in ("images", "labels"))
    except (OSError, ValueError, EOFError, NotImplementedError, SyntaxError, RecursionError, tokenize.TokenError,
            struct.error, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise ScorelensError(f"{source}: {path} cannot be read as .npz: {error}") from error
    if images is None:
        raise ScorelensError(f"{source}: {path} has no array named 'images'")
    if labels is not None and (labels.ndim != 1 or labels.dtype.kind not in "iu"):
        raise ScorelensError(f"{source}: 'labels' must be integers [N], got {labels.dtype} {list(labels.shape)}")
    return _checked_images(source, images), None if labels is None else labels.astype(np.int64)


def _array(archive: Any, key: str) -> np.ndarray | None:
    """An array of an .npz file, after checking that its header is right and that memory can hold it."""
    if key not in archive.files:
        return None
    name = next(name for name in archive.zip.namelist() if name.removesuffix(".npy") == key)
    with archive.zip.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        promised, held = math.prod(shape) * dtype.itemsize, archive.zip.getinfo(name).file_size - file.tell()
    if promised != held and not dtype.hasobject:  # numpy refuses objects itself, and says why
        raise ValueError(f"the header of {key!r} promises {promised:,} bytes, but the file holds {held:,}")
    check_memory(promised, f"{key!r}")
    return archive[key]


def _checked_images(source: str, images: np.ndarray) -> UInt8[np.ndarray, "n c h w"]:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise ScorelensError(f"{source}: 'images' must be uint8 [N,H,W] or [N,H,W,C], "
                             f"got {images.dtype} {list(images.shape)}")
    if images.ndim == 3:
        return images[:, None]
    if images.shape[1] in (1, 3) and images.shape[3] >= 8:
        raise ScorelensError(f"{source}: 'images' must be [N,H,W,C], but {list(images.shape)} looks like [N,C,H,W]")
    return _channels_first(images)


def _channels_first(images: UInt8[np.ndarray, "n h w c"]) -> UInt8[np.ndarray, "n c h w"]:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _stored(file: Path) -> Path:
    """The file, or the name of its compressed copy if there is no such file."""
    return file if file.exists() else file.with_name(f"{file.name}.gz")


def _read_idx(source: str, file: Path, ndim: int) -> UInt8[np.ndarray, ...]:
    """Read an idx file: two zero bytes, type code, number of axes, each axis as a big-endian int32, then the values."""
    path = _stored(file)
    if not path.exists():
        raise ScorelensError(f"{source}: there is no {file} (or .gz); point --root to the folder that holds "
                             f"{file.parents[1].name}, or fetch it with download=True")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as content:
            data = content.read(LARGEST_IDX)
    except (OSError, EOFError, zlib.error) as error:
        raise ScorelensError(f"{path} cannot be read: {error}") from error
    start = 4 + 4 * ndim
    shape = [int.from_bytes(data[at:at + 4], "big") for at in range(4, start, 4)]
    if data[:4] != bytes([0, 0, UBYTE, ndim]) or len(data) != start + math.prod(shape):
        raise ScorelensError(f"{path} is damaged: it is not an idx file with {ndim} axes")
    return np.frombuffer(bytearray(data), np.uint8, offset=start).reshape(shape)  # bytearray: writable, for torch


def _torchvision_dataset(request: Request, kind: str, train: bool) -> Any:
    source, root = request.source, request.path
    try:
        from torchvision import datasets
    except Exception as error:  # the PyPI build raises RuntimeError next to a CPU-only torch
        raise ScorelensError(f"{source}: torchvision is required but cannot be imported ({error}); install the extra "
                             "scorelens[torchvision], built for your torch, or copy the files by hand") from error
    try:
        return getattr(datasets, kind)(root, train=train, download=request.download)
    except (OSError, RuntimeError) as error:
        raise ScorelensError(f"{source}: torchvision could not load it under {root}: {error}") from error
