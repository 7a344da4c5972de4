"""Uploaded pictures: limited in bytes and pixels, decoded in memory, resized to the shape of the data."""

from __future__ import annotations

import io
import threading
import warnings

import numpy as np
from jaxtyping import UInt8

from scorelens.data.decode import Undecodable, decode, undecodable
from scorelens.types import ScorelensError, Shape

MAX_BYTES = 5 * 2**20
MAX_PIXELS = 2**24  # 4096 x 4096; resizing such a picture in float takes 200 MB
FORMATS = ("PNG", "JPEG", "WEBP")
_decoding = threading.Lock()  # one picture at a time, which bounds the memory


def read_picture(data: bytes, shape: Shape) -> UInt8[np.ndarray, "c h w"]:
    """The picture, scaled, cropped and converted to this shape."""
    c, h, w = shape
    with _decoding:
        width, height = _size(data)
        if width * height > MAX_PIXELS:
            raise _too_large(f"{width} x {height}")
        try:
            return decode(data, (h, w), c)
        except Undecodable as error:
            raise ScorelensError(f"the picture cannot be decoded: {error}") from error


def _size(data: bytes) -> tuple[int, int]:
    """Width and height, read from the header."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our limit is lower
        try:
            with undecodable(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
                return image.size
        except Undecodable as error:
            if isinstance(error.__cause__, Image.DecompressionBombError):
                raise _too_large("too many") from error
            raise ScorelensError("this file is not a PNG, JPEG or WebP picture") from error


def _too_large(count: str) -> ScorelensError:
    return ScorelensError(f"the picture has {count} pixels; the limit is {MAX_PIXELS // 10**6} million")
