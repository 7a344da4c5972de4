"""The checked options of `load_images`, and the train and test splits of sources without their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from scorelens.data.images import ImageSet
from scorelens.types import ScorelensError

SPLITS = ("train", "test", "all")
SPLIT_SEED = 9010  # constant: the user's seed must never move images between train and test


@dataclass(frozen=True)
class Request:
    """The options of `load_images`, for the loader of a source."""

    source: str  # as the user wrote it
    location: str  # the folder of the dataset or of all datasets, or the path or name after the colon
    split: str
    limit: int | None
    seed: int
    size: tuple[int, int] | None  # (H, W); None keeps the size of the images
    channels: int | None  # None: as stored; of files, 1 if all are grey, else 3
    skip_bad: bool
    download: bool

    @property
    def path(self) -> Path:
        return Path(self.location).expanduser()


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
