"""Patch sizes: one number, one for each step, those the paper fitted, or those that `scorelens calibrate` wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from scorelens.noise import ddim_sigmas
from scorelens.posterior.sources import Window
from scorelens.types import ScorelensError, Shape
from scorelens.validation import nearest_name

# Fitted in the paper for Kamb & Ganguli's models, t = 900 ... 0; the largest is the side of the images.
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
    """The patch size at a noise level: that of the nearest level, by ratio, of those that sizes are given for.

    Args:
        given: a number; one for each step of `ddim_sigmas`; the name of a preset, scaled to the side of the images; the
            JSON file of a calibration; or numbers in one word, "32-25-9".
        shape: of the images.
    """
    sigmas, sizes = size_table(given, shape)
    return by_level(sigmas, [_size(size, shape) for size in sizes])


def by_level(sigmas: Sequence[float], values: Sequence[T]) -> Callable[[float], T]:
    """The value of the nearest of these noise levels, by ratio."""
    def at(sigma: float) -> T:
        return min(zip(sigmas, values, strict=True), key=lambda pair: abs(math.log(pair[0] / sigma)))[1]

    return at


def size_table(given: PatchSize, shape: Shape) -> tuple[Sequence[float], Sequence[int]]:
    """Noise levels and the sizes given for them."""
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
        raise ScorelensError(f"patch size {text!r} is no number, no list like 32-25-9, no calibration.json and none of "
                             f"the presets {', '.join(PRESETS)}{nearest_name(text, PRESETS)}")
    return int(text) if len(words) == 1 else [int(word) for word in words]


def _calibrated(path: Path) -> tuple[list[float], list[int]]:
    try:
        found = json.loads(path.read_text())
        return [float(sigma) for sigma in found["sigmas"]], [int(size) for size in found["sizes"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ScorelensError(f"{path} is not a calibration: {error!r}; `scorelens calibrate` writes one") from error


def _scaled(sizes: Sequence[int], side: int) -> list[int]:
    """Sizes fitted to larger or smaller images: odd, but for the whole image."""
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
    """How far a patch reaches; along an axis that it is too long for, it is as long as the image."""
    (up, down), (left, right) = (_reach(size, side) for side in shape[1:])
    return Window(up, down, left, right)


def _reach(size: Size, side: int) -> tuple[int, int]:
    if size is None or size >= side:
        return side // 2, side - 1 - side // 2
    return size // 2, size // 2
