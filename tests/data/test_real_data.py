"""The datasets as they are laid out under $SCORELENS_DATA; skipped where it is not set."""

from pathlib import Path

import pytest

from scorelens.data import load_images

SHAPES = {("mnist", "train"): (60_000, 1, 28, 28), ("mnist", "test"): (10_000, 1, 28, 28),
          ("fashion-mnist", "train"): (60_000, 1, 28, 28), ("cifar10", "train"): (50_000, 3, 32, 32),
          ("cifar10", "test"): (10_000, 3, 32, 32), ("celeba", "train"): (9_000, 3, 64, 64),
          ("afhq-cats", "test"): (515, 3, 64, 64)}


@pytest.mark.parametrize(("source", "split"), SHAPES)
def test_the_real_datasets_load(real_data: Path, source: str, split: str) -> None:
    images = load_images(source, split=split)
    assert images.pixels.shape == SHAPES[source, split]
    assert 20 < images.pixels[:1000].mean() < 200
    if source in ("mnist", "fashion-mnist", "cifar10"):
        assert images.labels is not None and set(images.labels.tolist()) == set(range(10))
