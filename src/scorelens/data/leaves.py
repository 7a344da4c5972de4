"""Dead leaves: random overlapping discs, the classic model of natural image statistics (Lee, Mumford & Huang 2001).

Discs are stacked until they cover the image. Their radii follow p(r) ~ r^-3, which makes the statistics
scale-invariant, with edges, occlusion and a power spectrum close to 1/f^2.
"""

from __future__ import annotations

import hashlib

import numpy as np
from jaxtyping import Float32, Int, UInt8

from scorelens.data.array_cache import cached_array, cached_path
from scorelens.data.images import ImageSet, Request
from scorelens.progress import track

Generators = list[np.random.Generator]  # one per image

RADII = (1 / 16, 1.0)  # smallest and largest radius, as fractions of sqrt(H * W)
DISCS = 64  # drawn at a time for each image that is not covered yet
BATCH_PIXELS = 2**15  # pixels painted together; memory holds one float32 per pixel and disc
DEFAULT_COUNT = {"all": 10_000, "train": 9_000, "test": 1_000}
CACHED_FROM = 2_000  # images; fewer are not worth a file
CACHE_VERSION = 1  # part of the key: increase it when the same seed gives different images


def load_leaves(request: Request) -> ImageSet:
    """The first images of a split, as many as the limit."""
    split, count = request.split, request.limit or DEFAULT_COUNT[request.split]
    pixels = dead_leaves(count, request.size or (32, 32), request.channels or 3, request.seed, split)
    return ImageSet(pixels, "leaves", split, record={"seed": request.seed})


def dead_leaves(count: int, size: tuple[int, int] = (32, 32), channels: int = 3, seed: int = 0,
                split: str = "all") -> UInt8[np.ndarray, "n c h w"]:
    """The first `count` images of a split of the infinite sequence, in which every tenth is a test image.

    Image k depends only on (seed, k, size, channels). Many images are cached.
    """
    k, shape = np.arange(count), (count, channels, *size)
    numbers = {"all": k, "train": k + k // 9, "test": 10 * k + 9}[split]
    if count < CACHED_FROM:
        return _render_all(np.empty(shape, np.uint8), numbers, seed)
    recipe = repr((CACHE_VERSION, np.__version__, RADII, DISCS, numbers[:10].tolist(), shape, seed))
    path = cached_path(f"leaves-{hashlib.sha256(recipe.encode()).hexdigest()}")
    return cached_array(path, shape, lambda array: _render_all(array, numbers, seed))


def _render_all(pixels: UInt8[np.ndarray, "n c h w"], numbers: Int[np.ndarray, " n"],
                seed: int) -> UInt8[np.ndarray, "n c h w"]:
    """Render image number numbers[i] into pixels[i], and return pixels."""
    _, channels, *size = pixels.shape
    batch = max(1, BATCH_PIXELS // (size[0] * size[1]))
    for start in track(range(0, len(numbers), batch), "rendering leaves", unit="batch"):
        generators = [np.random.default_rng([seed, number]) for number in numbers[start:start + batch]]
        pixels[start:start + batch] = _render(generators, channels, *size)
    return pixels


def _render(generators: Generators, channels: int, height: int, width: int) -> UInt8[np.ndarray, "n c h w"]:
    """One image per generator, painted front to back: each pixel keeps the first disc that covers it."""
    painted = np.empty((len(generators), height, width, channels), np.uint8)
    image, row, column = np.indices(painted.shape[:3]).reshape(3, -1)                        # the P uncovered pixels
    while len(image):
        unfinished, image_index = np.unique(image, return_inverse=True)
        y, x, colour = _draw([generators[i] for i in unfinished], channels, height, width)
        inside = y[image_index, row] + x[image_index, column] <= 1                           # [P, DISCS]
        first = inside.argmax(1)
        hit = inside[np.arange(len(image)), first]
        painted[image[hit], row[hit], column[hit]] = colour[image_index[hit], first[hit]]
        image, row, column = image[~hit], row[~hit], column[~hit]
    return painted.transpose(0, 3, 1, 2)


def _draw(generators: Generators, channels: int, height: int, width: int) -> tuple[
        Float32[np.ndarray, "n h discs"], Float32[np.ndarray, "n w discs"], UInt8[np.ndarray, "n discs c"]]:
    """Draw DISCS discs per image: squared distances of rows and columns to the centres, in radii, and colours."""
    u = np.stack([g.random((3, DISCS)) for g in generators])                                 # [n, 3, DISCS]
    colour = np.stack([g.integers(0, 256, (DISCS, channels), np.uint8) for g in generators])
    smallest, largest = (fraction * np.sqrt(height * width) for fraction in RADII)
    radius = (smallest**-2 - u[:, 0] * (smallest**-2 - largest**-2)) ** -0.5                 # p(r) ~ r^-3
    squares = []
    for axis, length in enumerate((height, width), start=1):
        centre = u[:, axis] * (length + 2 * largest) - largest  # up to one radius outside: borders look like the centre
        distance = (np.arange(length) + 0.5)[:, None] - centre[:, None, :]                   # [n, length, DISCS]
        squares.append(np.square(distance / radius[:, None, :]).astype(np.float32))
    return squares[0], squares[1], colour
