"""Image sets made from image sets: mirrored, fewer, of some classes only, or marked.

The W experiment: a mark of random colour added to every image, so that the data gain one correlation we know.
x_hat = x + gamma c s: s a binary mask, the same for all images; c ~ Uniform[-1, 1]^C, one colour per image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from scorelens.data.images import ImageSet
from scorelens.data.shared import shared
from scorelens.types import ScorelensError

LETTER_SHARE = 0.62  # height of a letter, relative to the image


def with_flips(images: ImageSet) -> ImageSet:
    """All the images, then the left-right mirror of each."""
    return replace(images, pixels=np.concatenate([images.pixels, images.pixels[..., ::-1]]),
                   labels=None if images.labels is None else np.tile(images.labels, 2),
                   record={**images.record, "flips": True})


def limited(images: ImageSet, limit: int | None, seed: int) -> ImageSet:
    """The first `limit` of the shuffled images, so that a smaller limit is a prefix of a larger one; all, if None."""
    check_draw(limit, seed)
    if limit is None:
        return images
    if limit >= len(images):
        return replace(images, record={**images.record, "limit": limit, "seed": seed})
    return images.subset(np.random.default_rng(seed).permutation(len(images))[:limit], limit=limit, seed=seed)


def check_draw(limit: int | None, seed: int) -> None:
    """Raise unless so many things can be drawn with this seed."""
    if limit is not None and limit < 1:
        raise ScorelensError(f"limit must be at least 1, got {limit}")
    if seed < 0:
        raise ScorelensError(f"seed must not be negative, got {seed}")


def only_classes(images: ImageSet, classes: Sequence[int | str]) -> ImageSet:
    """The images of these classes, each given by its label or its name; labels and names stay what they were."""
    if images.labels is None:
        raise ScorelensError(f"{images.name} has no labels, so that classes cannot be chosen")
    known = _label_of(images.labels, images.class_names)
    wanted = [_label(images.name, one, known) for one in classes]
    chosen = np.flatnonzero(np.isin(images.labels, wanted))
    if not len(chosen):
        raise ScorelensError(f"{images.name}: no image of the classes {list(classes)} in the part {images.split!r}")
    return images.subset(chosen, classes=list(classes))


def _label_of(labels: np.ndarray, class_names: tuple[str, ...]) -> dict[str, int]:
    if class_names:
        return {name: label for label, name in enumerate(class_names)}
    return {str(label): int(label) for label in np.unique(labels)}


def _label(source: str, wanted: int | str, known: Mapping[str, int]) -> int:
    """The label of a class; where classes are named by numbers, a number is a name, not a position among the names."""
    if str(wanted) in known:
        return known[str(wanted)]
    if wanted in known.values() and not any(name.isdigit() for name in known):
        return int(wanted)
    raise ScorelensError(f"{source} has no class {wanted!r}; known: {', '.join(known)}")


def add_mark(images: ImageSet, mark: str | Path, gamma: float = 0.5, seed: int = 0) -> ImageSet:
    """Add a mark of random colour to every image. The pixels become floats: they leave [-1, 1] and are not clipped.

    Args:
        images: the images to mark.
        mark: a letter, drawn large in the middle, or an image file of the same size.
        gamma: strength of the mark.
        seed: of the colours.
    """
    if not gamma > 0:
        raise ScorelensError(f"gamma, the strength of the mark, must be a number > 0, got {gamma:g}")
    return shared(lambda: _marked(images, mark, gamma, seed))


def _marked(images: ImageSet, mark: str | Path, gamma: float, seed: int) -> ImageSet:
    s = mark_mask(mark, images.shape[1:])
    c = np.random.default_rng((seed, 87)).uniform(-1, 1, (len(images), images.shape[0])).astype(np.float32)
    pixels = images.pixels.astype(np.float32)
    if images.pixels.dtype == np.uint8:
        pixels = (pixels - 127.5) / 127.5
    pixels += np.float32(gamma) * c[:, :, None, None] * s
    return replace(images, pixels=pixels, record={**images.record, "mark": str(mark), "gamma": gamma,
                                                  "mark_pixels": int(s.sum()), "mark_seed": seed})


def mark_mask(mark: str | Path, size: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    """The mask: a single letter, drawn large in the middle, or an image file of the same size (white is marked)."""
    mask = _letter(str(mark), size) if len(str(mark)) == 1 else _file(Path(mark), size)
    if not mask.any():
        raise ScorelensError(f"the mark {str(mark)!r} marks no pixel of a {size[0]}x{size[1]} image")
    return mask


def _letter(letter: str, size: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    """A letter as large as fits, centred by its ink."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("L", (size[1], size[0]))
    pen = ImageDraw.Draw(picture)
    font = ImageFont.load_default(size=min(size) * LETTER_SHARE / 0.72)  # capitals are about 0.72 of a font's size
    left, top, right, bottom = pen.textbbox((0, 0), letter, font=font)
    pen.text(((size[1] - right - left) / 2, (size[0] - bottom - top) / 2), letter, fill=255, font=font)
    return np.asarray(picture) >= 128


def _file(path: Path, size: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(path.expanduser()).convert("L")
    except (OSError, UnidentifiedImageError) as error:
        raise ScorelensError(f"the mark {path} is neither a single letter nor an image that can be read") from error
    if picture.size != (size[1], size[0]):
        raise ScorelensError(f"the mark {path} is {picture.size[1]}x{picture.size[0]}, the images are "
                             f"{size[0]}x{size[1]}; they must be of one size")
    return np.asarray(picture) >= 128
