"""Decode an image file with Pillow; resize uint8 images and convert their channels."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch.nn.functional import interpolate

from scorelens.types import ScorelensError

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
GREY_MODES = ("1", "L", "LA")  # and the 16-bit modes, which begin with "I"
LUMA = (0.299, 0.587, 0.114)  # Rec. 601 weights of red, green and blue, as in Pillow and torchvision
THIN = 4  # times as long as the requested shape: such images are cropped before they are scaled as well
CHUNK = 1024  # images converted to floats at a time


class Undecodable(ValueError):
    """A file that cannot be decoded as an image."""


@contextmanager
def undecodable() -> Iterator[None]:
    """Turn any exception into Undecodable: broken files make Pillow's decoders raise almost anything."""
    try:
        yield
    except Exception as error:
        raise Undecodable(str(error)) from error


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
        return image.mode not in GREY_MODES and not image.mode.startswith("I")


def _pixels(image: Any) -> UInt8[np.ndarray, "c h w"]:
    if image.mode == "F":
        raise Undecodable("floating-point pixels have no known range")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)[None]
        if values.min() < 0 or values.max() > 65535:
            raise Undecodable("32-bit pixels have no known range")
        return ((values + 128) // 257).astype(np.uint8)  # 0 ... 65535 to 0 ... 255, rounded; Pillow would clip
    image.info.pop("transparency", None)  # dropped on purpose; Pillow would warn
    if image.mode in GREY_MODES:
        return np.asarray(image.convert("L"))[None]
    return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))


def resize(pixels: UInt8[np.ndarray, "n c h w"], size: tuple[int, int]) -> UInt8[np.ndarray, "n c h2 w2"]:
    """Scale images (antialiased bicubic, aspect ratio kept) to cover `size` = (H, W), then crop the centre."""
    (h, w), (height, width) = pixels.shape[2:], size
    if (h, w) == size:
        return pixels
    scale = max(height / h, width / w)
    if max(h * scale / height, w * scale / width) > THIN:  # scaled whole, a thin image can take gigabytes
        pixels = _centre(pixels, round(2 * height / scale), round(2 * width / scale))
        h, w = pixels.shape[2:]
    covering = (round(h * scale), round(w * scale))
    top, left = (covering[0] - height) // 2, (covering[1] - width) // 2
    resized = np.empty((*pixels.shape[:2], *size), np.uint8)
    for start in range(0, len(pixels), CHUNK):
        x = torch.from_numpy(pixels[start:start + CHUNK].astype(np.float32))
        x = interpolate(x, size=covering, mode="bicubic", antialias=True)         # [n, c, >= height, >= width]
        x = x[:, :, top:top + height, left:left + width].round().clamp(0, 255)
        resized[start:start + CHUNK] = x.to(torch.uint8).numpy()
    return resized


def _centre(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """The central part of images, at most this high and wide; at least two pixels, for images smaller than one."""
    h, w = pixels.shape[2:]
    rows, columns = min(h, max(height, 2)), min(w, max(width, 2))
    top, left = (h - rows) // 2, (w - columns) // 2
    return np.ascontiguousarray(pixels[:, :, top:top + rows, left:left + columns])


def to_channels(pixels: UInt8[np.ndarray, "n c h w"], channels: int) -> UInt8[np.ndarray, "n c2 h w"]:
    """Convert grey to RGB by repeating the channel, or RGB to grey by luma."""
    if pixels.shape[1] == channels:
        return pixels
    if (pixels.shape[1], channels) == (1, 3):
        return np.repeat(pixels, 3, axis=1)
    if (pixels.shape[1], channels) == (3, 1):
        return np.concatenate([_luma(pixels[start:start + CHUNK]) for start in range(0, len(pixels), CHUNK)])
    raise ScorelensError(f"images of {pixels.shape[1]} channels cannot become images of {channels}; only 1 "
                         "(grayscale) and 3 (rgb) can be converted to each other")


def _luma(pixels: np.ndarray) -> np.ndarray:
    weighted = np.tensordot(np.array(LUMA, np.float32), pixels.astype(np.float32), axes=(0, 1))     # [n, h, w]
    return np.rint(weighted).astype(np.uint8)[:, None]
