"""Train and test parts, for sources that bring none: one 90/10 split that depends on the number of images alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool

from scorelens.data.images import ImageSet
from scorelens.types import ScorelensError
from scorelens.validation import unknown

SPLITS = ("train", "test", "all")
SPLIT_SEED = 9010  # a constant: a user's seed must never move an image from the test part to the training part


def check_split(split: str) -> str:
    """The split's name, if it is one."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    return split


def seeded_test(count: int) -> Bool[np.ndarray, " n"]:
    """Which of `count` images are the test part: a tenth of them, rounded down."""
    test = np.zeros(count, dtype=bool)
    test[np.random.default_rng(SPLIT_SEED).permutation(count)[:count // 10]] = True
    return test


def seeded_part(images: ImageSet, split: str) -> ImageSet:
    """One part of an image set that has no split of its own, in the original order."""
    if split == "all":
        return images
    part = np.flatnonzero(seeded_test(len(images)) == (split == "test"))
    if not len(part):
        raise empty_part(images.name, split)
    return replace(images.subset(part), split=split)


def empty_part(name: str, split: str) -> ScorelensError:
    """The error for a part that holds nothing."""
    return ScorelensError(f"{name}: the {split} part is empty (one image in ten, where there are no train/test "
                          "folders); use another split")
