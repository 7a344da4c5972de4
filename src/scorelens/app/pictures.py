"""A picture of the user's own: limited in bytes and pixels, decoded in memory, made to look like the data."""

from __future__ import annotations

import io
import threading
import warnings

import numpy as np
from jaxtyping import UInt8

from scorelens.data.decode import Undecodable, decode, undecodable
from scorelens.types import ScorelensError, Shape

MOST_BYTES = 5 * 2**20
MOST_PIXELS = 2**24  # a photograph of 4096 x 4096; as floats, while it is scaled, 200 MB
FORMATS = ("PNG", "JPEG", "WEBP")
_one_at_a_time = threading.Lock()


def read_picture(data: bytes, shape: Shape) -> UInt8[np.ndarray, "c h w"]:
    """The picture scaled, cropped and coloured as images of this shape are."""
    c, h, w = shape
    with _one_at_a_time:
        width, height = _size(data)
        if width * height > MOST_PIXELS:
            raise _too_large(f"has {width} x {height} pixels")
        try:
            return decode(data, (h, w), c)
        except Undecodable as error:
            raise ScorelensError(f"the picture cannot be decoded: {error}") from error


def _size(data: bytes) -> tuple[int, int]:
    """Width and height, from the header alone."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is lower
        try:
            with undecodable(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
                return image.size
        except Undecodable as error:
            if isinstance(error.__cause__, Image.DecompressionBombError):
                raise _too_large("has far too many pixels") from error
            raise ScorelensError("this is no picture that can be read here; PNG, JPEG and WebP can") from error


def _too_large(what: str) -> ScorelensError:
    return ScorelensError(f"the picture {what}; up to {MOST_PIXELS // 10**6} million are taken")
