"""Edits of an ImageSet: splits, flips, limits, classes and marks.

The W experiment adds a mark of random colour to every image, which gives the data one known correlation:
x_hat = x + gamma c s, with s a binary mask, the same for all images, and c ~ Uniform[-1, 1]^C, one colour per image.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from scorelens.data.array_cache import shared
from scorelens.data.images import ImageSet
from scorelens.files import read_file
from scorelens.types import ScorelensError

SPLITS = ("train", "test", "all")
SPLIT_SEED = 9010  # constant: the user's seed must never move images between train and test
LETTER_HEIGHT = 0.62  # height of a letter, as a fraction of the image


def seeded_test(count: int) -> Bool[np.ndarray, " n"]:
    """Mask of the test split of `count` images: a tenth of them, rounded down. Depends only on `count`."""
    test = np.zeros(count, dtype=bool)
    test[np.random.default_rng(SPLIT_SEED).permutation(count)[:count // 10]] = True
    return test


def seeded_part(images: ImageSet, split: str) -> ImageSet:
    """One split of images that come without splits, in the original order."""
    if split == "all":
        return images
    indices = np.flatnonzero(seeded_test(len(images)) == (split == "test"))
    if not len(indices):
        raise empty_split(images.name, split)
    return replace(images.subset(indices), split=split)


def empty_split(name: str, split: str) -> ScorelensError:
    """The error for a split without images."""
    return ScorelensError(f"{name}: the {split} split is empty (without train/test folders, one image in ten is a test "
                          "image); use another split")


def with_flips(images: ImageSet) -> ImageSet:
    """The images followed by their left-right mirror images."""
    return replace(images, pixels=np.concatenate([images.pixels, images.pixels[..., ::-1]]),
                   labels=None if images.labels is None else np.tile(images.labels, 2),
                   rows=np.tile(images.numbers, 2), record={**images.record, "flips": True})


def limited(images: ImageSet, limit: int | None, seed: int) -> ImageSet:
    """The first `limit` images after a seeded shuffle (a smaller limit gives a prefix); None keeps all."""
    check_draw(limit, seed)
    if limit is None:
        return images
    rows = slice(None) if limit >= len(images) else np.random.default_rng(seed).permutation(len(images))[:limit]
    return images.subset(rows, limit=limit, seed=seed)


def check_draw(limit: int | None, seed: int) -> None:
    """Raise unless limit and seed are valid."""
    if limit is not None and limit < 1:
        raise ScorelensError(f"limit must be at least 1, got {limit}")
    if seed < 0:
        raise ScorelensError(f"seed must not be negative, got {seed}")


def only_classes(images: ImageSet, classes: Sequence[int | str]) -> ImageSet:
    """The images of these classes, given by label or name; labels and class names are unchanged."""
    indices = np.flatnonzero(np.isin(_labels(images), find_classes(images, classes)))
    if not len(indices):
        raise ScorelensError(f"{images.name}: no images of the classes {list(classes)} in the split {images.split!r}")
    return images.subset(indices, classes=list(classes))


def class_list(images: ImageSet) -> tuple[str, ...]:
    """The names of the classes 0 ... K - 1; classes without a name are called by their number."""
    labels = _labels(images)
    if labels.min() < 0:
        raise ScorelensError(f"{images.name}: classes must be numbered from 0, got the label {labels.min()}")
    return images.class_names or tuple(map(str, range(int(labels.max()) + 1)))


def find_classes(images: ImageSet, classes: Iterable[int | str]) -> list[int]:
    """The labels of these classes, given by label or name."""
    named = {name: label for label, name in enumerate(images.class_names)}
    known = named or {str(label): int(label) for label in np.unique(_labels(images))}
    return [_label(images.name, wanted, known) for wanted in classes]


def _labels(images: ImageSet) -> np.ndarray:
    if images.labels is None:
        raise ScorelensError(f"{images.name} has no labels, so it has no classes")
    return images.labels


def _label(source: str, wanted: int | str, known: Mapping[str, int]) -> int:
    """The label of a class given by name or label; if any class name is a number, numbers are read as names only."""
    if str(wanted) in known:
        return known[str(wanted)]
    if str(wanted).isdecimal() and int(wanted) in known.values() and not any(name.isdigit() for name in known):
        return int(wanted)
    raise ScorelensError(f"{source} has no class {wanted!r}; known: {', '.join(known)}")


def add_mark(images: ImageSet, mark: str | Path, gamma: float = 0.5, seed: int = 0) -> ImageSet:
    """Add a mark of random colour to every image. Pixels become floats, not clipped to [-1, 1].

    Args:
        images: the images to mark.
        mark: a letter, drawn large at the centre, or an image file of the same size.
        gamma: strength of the mark.
        seed: seed of the colours.
    """
    if not gamma > 0:
        raise ScorelensError(f"gamma, the strength of the mark, must be a number > 0, got {gamma:g}")

    def marked() -> ImageSet:
        s = mark_mask(mark, images.shape[1:])
        c = np.random.default_rng((seed, 87)).uniform(-1, 1, (len(images), images.shape[0])).astype(np.float32)
        pixels = images[:].numpy()
        pixels += np.float32(gamma) * c[:, :, None, None] * s
        return replace(images, pixels=pixels, record={**images.record, "mark": str(mark), "gamma": gamma,
                                                      "mark_pixels": int(s.sum()), "mark_seed": seed})

    return shared(marked)


def mark_mask(mark: str | Path, size: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    """The mask of a letter, drawn large at the centre, or of an image file of the same size (white is marked)."""
    mask = _letter_mask(str(mark), size) if len(str(mark)) == 1 else _file_mask(Path(mark), size)
    if not mask.any():
        raise ScorelensError(f"the mark {str(mark)!r} marks no pixel of a {size[0]}x{size[1]} image")
    return mask


def _letter_mask(letter: str, size: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("L", (size[1], size[0]))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=min(size) * LETTER_HEIGHT / 0.72)  # capitals are about 0.72 of the font size
    left, top, right, bottom = draw.textbbox((0, 0), letter, font=font)
    draw.text(((size[1] - right - left) / 2, (size[0] - bottom - top) / 2), letter, fill=255, font=font)
    return np.asarray(image) >= 128


def _file_mask(path: Path, size: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(read_file(path.expanduser()))).convert("L")
    except (OSError, UnidentifiedImageError) as error:
        raise ScorelensError(f"the mark {path} is neither a single letter nor a readable image file") from error
    if image.size != (size[1], size[0]):
        raise ScorelensError(f"the mark {path} is {image.size[1]}x{image.size[0]}, the images are "
                             f"{size[0]}x{size[1]}; use a mark of the same size")
    return np.asarray(image) >= 128
