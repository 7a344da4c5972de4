"""Small datasets on disk, with pixels that tests can predict."""

import gzip
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image


def write_images(folder: Path, names: Iterable[str], size: tuple[int, int] = (4, 6)) -> Path:
    """One grey PNG for each name, [H, W] = size; the k-th has the value k everywhere."""
    for k, name in enumerate(names):
        write_image(folder / name, np.full(size, k, np.uint8))
    return folder


def write_image(path: Path, pixels: np.ndarray) -> Path:
    """[H, W], [H, W, 3] or [H, W, 4]"""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def write_idx(path: Path, values: np.ndarray) -> None:
    """The idx format of MNIST, by its description."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    data = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_mnist(raw: Path, train: int = 6, test: int = 3, suffix: str = "") -> np.ndarray:
    """Both parts; the images of the training part."""
    images = np.random.default_rng(1).integers(0, 256, (train + test, 5, 7))
    labels = np.arange(train + test) % 10
    for prefix, part in (("train", slice(0, train)), ("t10k", slice(train, None))):
        write_idx(raw / f"{prefix}-images-idx3-ubyte{suffix}", images[part])
        write_idx(raw / f"{prefix}-labels-idx1-ubyte{suffix}", labels[part])
    return images[:train]
