"""Train and test splits for sources without their own: 90/10, depending only on the number of images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool

from scorelens.data.images import ImageSet
from scorelens.types import ScorelensError

SPLITS = ("train", "test", "all")
SPLIT_SEED = 9010  # constant: the user's seed must never move images between train and test


def seeded_test(count: int) -> Bool[np.ndarray, " n"]:
    """Mask of the test split of `count` images: a tenth of them, rounded down."""
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
