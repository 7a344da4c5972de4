"""Resize uint8 images and convert their channels."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import UInt8
from torch.nn.functional import interpolate

from scorelens.types import ScorelensError

LUMA = (0.299, 0.587, 0.114)  # Rec. 601 weights of red, green and blue, as in Pillow and torchvision
CHUNK = 1024  # images converted to floats at a time


def resize(pixels: UInt8[np.ndarray, "n c h w"], size: tuple[int, int]) -> UInt8[np.ndarray, "n c h2 w2"]:
    """Scale images (antialiased bicubic, aspect ratio kept) to cover `size` = (H, W), then crop the centre."""
    if pixels.shape[2:] == size:
        return pixels
    resized = np.empty((*pixels.shape[:2], *size), np.uint8)
    for start in range(0, len(pixels), CHUNK):
        resized[start:start + CHUNK] = _resize_chunk(pixels[start:start + CHUNK], size)
    return resized


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


def _resize_chunk(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    (h, w), (height, width) = pixels.shape[2:], size
    scale = max(height / h, width / w)
    covering = (round(h * scale), round(w * scale))
    x = torch.from_numpy(pixels.astype(np.float32))
    x = interpolate(x, size=covering, mode="bicubic", antialias=True)         # [n, c, >= height, >= width]
    top, left = (covering[0] - height) // 2, (covering[1] - width) // 2
    return x[:, :, top:top + height, left:left + width].round().clamp(0, 255).to(torch.uint8).numpy()


def _luma(pixels: np.ndarray) -> np.ndarray:
    weighted = np.tensordot(np.array(LUMA, np.float32), pixels.astype(np.float32), axes=(0, 1))     # [n, h, w]
    return np.rint(weighted).astype(np.uint8)[:, None]
