"""Patch sizes by noise level: one number, one for each step, a preset of the paper, or a calibration file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from scorelens.files import read_file
from scorelens.noise import ddim_sigmas
from scorelens.posterior.patches import Window
from scorelens.types import ScorelensError, Shape
from scorelens.validation import nearest_name

# Fitted in the paper to Kamb & Ganguli's models at t = 900 ... 0; the largest is the side of the images.
PRESETS = {
    "cifar10": (32, 32, 32, 29, 25, 17, 13, 9, 7, 3),
    "celeba-hq": (64, 64, 45, 25, 17, 17, 9, 7, 5, 3),
    "afhqv2": (64, 64, 45, 33, 25, 17, 17, 9, 9, 3),
    "mnist": (28, 28, 23, 17, 13, 13, 13, 9, 9, 9),
    "fashion-mnist": (28, 25, 23, 17, 17, 13, 13, 9, 9, 5),
}

T = TypeVar("T")
PatchSize = int | str | Sequence[int]
Size = int | None  # None: the whole image


def patch_sizes(given: PatchSize, shape: Shape) -> Callable[[float], Size]:
    """The patch size as a function of sigma: that of the nearest noise level, by ratio, in the table of sizes.

    Args:
        given: a number; a number for each step of `ddim_sigmas`, as a sequence or as text, "32-25-9"; a preset, scaled
            to the side of the images; or the JSON file that `scorelens calibrate` writes.
        shape: shape of the images.
    """
    sigmas, sizes = size_table(given, shape)
    return at_nearest_level(sigmas, [_size(size, shape) for size in sizes])


def at_nearest_level(sigmas: Sequence[float], values: Sequence[T]) -> Callable[[float], T]:
    """A function of sigma: the value at the nearest of these noise levels, by ratio."""
    def at(sigma: float) -> T:
        return min(zip(sigmas, values, strict=True), key=lambda pair: abs(math.log(pair[0] / sigma)))[1]

    return at


def size_table(given: PatchSize, shape: Shape) -> tuple[Sequence[float], Sequence[int]]:
    """Noise levels and the size at each."""
    if isinstance(given, str) and given in PRESETS:
        given = _scaled(PRESETS[given], max(shape[1:]))
    elif isinstance(given, str) and given.endswith(".json"):
        return _calibrated(Path(given).expanduser())
    elif isinstance(given, str):
        given = _numbers(given)
    sizes = [given] if isinstance(given, int) else list(given)
    if not sizes or min(sizes) < 1:
        raise ScorelensError(f"patch sizes must be numbers of at least 1, got {given}; e.g. 9, or one for each step")
    return ddim_sigmas(len(sizes)).tolist(), sizes


def _numbers(text: str) -> int | list[int]:
    words = text.split("-")
    if not all(word.isdigit() for word in words):
        raise ScorelensError(f"patch size {text!r} is not a number, a list like 32-25-9, a calibration.json or one of "
                             f"the presets {', '.join(PRESETS)}{nearest_name(text, PRESETS)}")
    return int(text) if len(words) == 1 else [int(word) for word in words]


def _calibrated(path: Path) -> tuple[list[float], list[int]]:
    try:
        table = json.loads(read_file(path))
        sigmas, sizes = [float(sigma) for sigma in table["sigmas"]], [int(size) for size in table["sizes"]]
        if not sizes or len(sizes) != len(sigmas) or min(sizes) < 1 or sizes != list(table["sizes"]):
            raise ValueError(f"{len(sigmas)} noise levels and sizes {sizes[:5]}, which must be whole numbers from 1")
        if not all(0 < sigma < math.inf for sigma in sigmas):
            raise ValueError("a noise level is not a finite number > 0")
        return sigmas, sizes
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ScorelensError(f"{path} is not a calibration: {error!r}; `scorelens calibrate` writes one") from error


def _scaled(sizes: Sequence[int], side: int) -> list[int]:
    """The sizes, scaled to images of this side: odd, except for the whole image."""
    full = max(sizes)
    if side == full:
        return list(sizes)
    return [2 * side - 1 if size == full else 2 * round((size * side / full - 1) / 2) + 1 for size in sizes]


def _size(size: int, shape: Shape) -> Size:
    side = max(shape[1:])
    if size >= 2 * side - 1 or (size == side and size % 2 == 0):
        return None
    if size % 2 == 0:
        raise ScorelensError(f"patch size {size} is even and has no centre; give {size - 1} or {size + 1}, or {side} "
                             "for the whole image")
    return size


def patch_window(size: Size, shape: Shape) -> Window:
    """The extent of a patch around its centre; along each axis at most that of the image."""
    (up, down), (left, right) = ((n // 2, n - 1 - n // 2) for n in (min(size or side, side) for side in shape[1:]))
    return Window(up, down, left, right)
