"""The flags that say which images a command works on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scorelens.data import ImageSet, add_mark, load_images


def load_data(source: str, *, root: Path | None = None, split: str | None = None, limit: int | None = None,
              seed: int = 0, classes: Sequence[str] | None = None, resolution: int | Sequence[int] | None = None,
              channels: str | None = None, flips: bool = False, mark: str | None = None, gamma: float = 0.5,
              skip_bad: bool = False, download: bool = False) -> ImageSet:
    """Load images, and mark them if that is wanted.

    Args:
        root: the folder of datasets, by default $SCORELENS_DATA.
        split: train, test or all, by default the source's own.
        limit: keep only so many images, the first of a shuffle.
        seed: of that shuffle; of the pictures themselves for leaves.
        classes: keep only these, given by label or name.
        resolution: side, or HEIGHTxWIDTH, to scale to; cropped at the centre where needed.
        channels: 1 or grayscale, 3 or rgb.
        flips: add the mirror image of each.
        mark: add this mark to every image in a random colour: a letter, or an image file of the same size.
        gamma: strength of the mark.
        skip_bad: leave out files that cannot be decoded; the record lists them.
        download: fetch the dataset (mnist, fashion-mnist, cifar10) if it is not under the root.
    """
    images = load_images(source, root=root, split=split, limit=limit, seed=seed, classes=classes,
                         resolution=resolution, channels=channels, flips=flips, skip_bad=skip_bad, download=download)
    return images if mark is None else add_mark(images, mark, gamma, seed)
