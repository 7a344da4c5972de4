"""Array sources: the embedded digits and .npz files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from scorelens.data.images import ImageSet
from scorelens.data.splits import seeded_part
from scorelens.types import ScorelensError

Labelled = tuple[np.ndarray, np.ndarray | None]  # pixels uint8 [N, C, H, W], labels int64 [N]

DIGIT_NAMES = tuple("0123456789")


def load_digits(split: str) -> ImageSet:
    """Scikit-learn's 1,797 handwritten digits, 8x8, with grey levels 0 ... 16 scaled to 0 ... 255."""
    from sklearn.datasets import load_digits as load_embedded

    digits = load_embedded()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]                 # [N, 1, 8, 8]
    labels = digits.target.astype(np.int64)
    return seeded_part(ImageSet(pixels, "digits", labels=labels, class_names=DIGIT_NAMES), split)


def load_npz(source: str, path: Path, split: str) -> ImageSet:
    """Load an .npz file: `images`, uint8 [N, H, W] or [N, H, W, C], and optionally `labels`."""
    if not path.is_file():
        raise ScorelensError(f"{source}: there is no file {path}")
    pixels, labels = read_npz(source, path)
    return seeded_part(ImageSet(pixels, source, labels=labels), split)


def read_npz(source: str, path: Path) -> Labelled:
    """The images, channels first, and labels of an .npz file; pickles are refused."""
    arrays = _npz_arrays(source, path)
    if "images" not in arrays:
        raise ScorelensError(f"{source}: {path} has no array named 'images'")
    labels = arrays.get("labels")
    return _checked_images(source, arrays["images"]), None if labels is None else _checked_labels(source, labels)


def channels_first(images: UInt8[np.ndarray, "n h w c"]) -> UInt8[np.ndarray, "n c h w"]:
    """A contiguous copy with channels first."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _npz_arrays(source: str, path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is a single array; save it with np.savez(path, images=array)")
            return {key: archive[key] for key in ("images", "labels") if key in archive}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ScorelensError(f"{source}: {path} cannot be read as .npz: {error}") from error


def _checked_images(source: str, images: np.ndarray) -> UInt8[np.ndarray, "n c h w"]:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise ScorelensError(f"{source}: 'images' must be uint8 [N,H,W] or [N,H,W,C], "
                             f"got {images.dtype} {list(images.shape)}")
    if images.ndim == 3:
        return images[:, None]
    if images.shape[1] in (1, 3) and images.shape[3] >= 8:
        raise ScorelensError(f"{source}: 'images' must be [N,H,W,C], but {list(images.shape)} looks like [N,C,H,W]")
    return channels_first(images)


def _checked_labels(source: str, labels: np.ndarray) -> Int64[np.ndarray, " n"]:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ScorelensError(f"{source}: 'labels' must be integers [N], got {labels.dtype} {list(labels.shape)}")
    return labels.astype(np.int64)
