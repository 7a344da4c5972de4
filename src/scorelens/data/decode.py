"""Decode one image file with Pillow."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8

from scorelens.data.resize import resize, to_channels

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
GREY_MODES = ("1", "L", "LA")  # and the 16-bit modes, which begin with "I"


@dataclass(frozen=True)
class Decoding:
    """How to decode image files."""

    size: tuple[int, int] | None = None  # (H, W); None keeps the size of the files
    channels: int | None = None  # None: 1 if all files are grey, else 3
    skip_bad: bool = False


class Undecodable(ValueError):
    """A file that cannot be decoded as an image."""


@contextmanager
def undecodable() -> Iterator[None]:
    """Turn any exception into Undecodable: broken files make Pillow's decoders raise almost anything."""
    try:
        yield
    except Exception as error:
        raise Undecodable(str(error)) from error


@contextmanager
def bombs_as_errors() -> Iterator[None]:
    """Make Pillow's warning about huge images (decompression bombs) an error, in all threads."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode(data: bytes, size: tuple[int, int] | None, channels: int) -> UInt8[np.ndarray, "c h w"]:
    """The first frame, rotated upright as its EXIF says, without alpha."""
    from PIL import Image, ImageOps

    with undecodable(), Image.open(io.BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image)
    pixels = _pixels(upright)[None]
    if size is not None:
        pixels = resize(pixels, size)
    return to_channels(pixels, channels)[0]


def has_colour(data: bytes) -> bool:
    """Whether the header declares a colour mode; any palette counts as colour."""
    from PIL import Image

    with undecodable(), Image.open(io.BytesIO(data)) as image:
        return not _is_grey(image.mode)


def _pixels(image: Any) -> UInt8[np.ndarray, "c h w"]:
    if image.mode.startswith("I"):
        return _from_16_bits(np.asarray(image))[None]
    if image.mode == "F":
        raise Undecodable("floating-point pixels have no known range")
    image.info.pop("transparency", None)  # dropped on purpose; Pillow would warn
    if _is_grey(image.mode):
        return np.asarray(image.convert("L"))[None]
    return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))


def _is_grey(mode: str) -> bool:
    return mode in GREY_MODES or mode.startswith("I")


def _from_16_bits(values: np.ndarray) -> np.ndarray:
    """Scale 0 ... 65535 to 0 ... 255, rounded; Pillow's own conversion would clip."""
    if values.min() < 0 or values.max() > 65535:
        raise Undecodable("32-bit pixels have no known range")
    return ((values.astype(np.int64) + 128) // 257).astype(np.uint8)
