from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scorelens.data import leaves, load_images
from scorelens.data.leaves import dead_leaves


def test_the_same_seed_gives_the_same_pictures() -> None:
    np.testing.assert_array_equal(dead_leaves(5, seed=3), dead_leaves(5, seed=3))
    assert (dead_leaves(5, seed=3) != dead_leaves(5, seed=4)).mean() > 0.9


def test_a_picture_does_not_depend_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number k is the same among 3 and among 50 pictures, and rendered alone."""
    many = dead_leaves(50, (12, 20), seed=1)
    np.testing.assert_array_equal(dead_leaves(3, (12, 20), seed=1), many[:3])
    monkeypatch.setattr(leaves, "BATCH_PIXELS", 1)
    np.testing.assert_array_equal(dead_leaves(50, (12, 20), seed=1), many)


@pytest.mark.parametrize(("size", "channels"), [((32, 32), 3), ((8, 24), 1), ((1, 5), 3), ((1, 1), 1)])
def test_shapes(size: tuple[int, int], channels: int) -> None:
    pictures = dead_leaves(4, size, channels)
    assert pictures.shape == (4, channels, *size) and pictures.dtype == np.uint8


def test_every_pixel_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """With leaves of one colour nothing else shows through, down to the last pixel."""
    draw = leaves._draw

    def draw_in_one_colour(*arguments: Any) -> tuple:
        y, x, colour = draw(*arguments)
        return y, x, np.full_like(colour, 77)

    monkeypatch.setattr(leaves, "_draw", draw_in_one_colour)
    assert (dead_leaves(100) == 77).all()


def test_the_first_disc_lies_on_top() -> None:
    """Against the plain loop over discs and pixels, with the same random numbers."""
    generator = np.random.default_rng([5, 0])
    y, x, colour = (part[0] for part in leaves._draw([generator], 3, 16, 16))
    picture = dead_leaves(1, (16, 16), seed=5)[0]
    for row, column in np.ndindex(16, 16):
        inside = np.flatnonzero(y[row] + x[column] <= 1)
        if len(inside):
            np.testing.assert_array_equal(picture[:, row, column], colour[inside[0]])


def test_radii_follow_the_power_law() -> None:
    """p(r) ~ r^-3 between a and b: P(r > t) = (t^-2 - b^-2) / (a^-2 - b^-2), and no radius is outside."""
    height = width = 64
    y, _, _ = leaves._draw([np.random.default_rng([0, k]) for k in range(500)], 1, height, width)
    root = np.sqrt(y.astype(np.float64))  # |row - centre| / r, whose slope is 1 / r at one end at least
    radius = 1 / np.maximum(np.abs(root[:, 1] - root[:, 0]), np.abs(root[:, -1] - root[:, -2])).ravel()
    smallest, largest = (fraction * 64 for fraction in leaves.RADII)
    assert radius.min() > 0.999 * smallest and radius.max() < 1.001 * largest
    for t in (6, 10, 20, 40):
        expected = (t**-2 - largest**-2) / (smallest**-2 - largest**-2)
        assert (radius > t).mean() == pytest.approx(expected, abs=4 * np.sqrt(expected / len(radius)))


def test_the_power_spectrum_is_that_of_natural_images() -> None:
    """About 1/f^2, averaged over directions."""
    pictures = dead_leaves(400) / 255
    power = (np.abs(np.fft.fft2(pictures - pictures.mean())) ** 2).mean((0, 1))
    frequency = np.hypot(*np.meshgrid(*[np.fft.fftfreq(32, 1 / 32)] * 2))
    bands = np.arange(1, 16)
    mean_power = [power[np.abs(frequency - band) <= 0.5].mean() for band in bands]
    slope, _ = np.polyfit(np.log(bands), np.log(mean_power), 1)
    assert -2.5 < slope < -1.8


def test_borders_are_like_the_middle() -> None:
    """Stationary: neighbouring pixels differ as often at the border as in the centre."""
    pictures = dead_leaves(1500, channels=1)[:, 0].astype(int)
    edges = (np.diff(pictures, axis=1) != 0).mean((0, 2))
    assert np.abs(edges - edges.mean()).max() < 0.05 * edges.mean()


def test_options_of_load_images_are_rendered_rather_than_resized() -> None:
    images = load_images("leaves", limit=7, resolution=(10, 14), channels="grayscale", seed=2)
    np.testing.assert_array_equal(images.pixels, dead_leaves(7, (10, 14), 1, seed=2))
    assert images.record == {"seed": 2, "limit": 7, "resolution": [10, 14], "channels": 1}


def test_parts_are_disjoint_and_of_the_size_asked_for() -> None:
    """Every tenth picture of the sequence is a test picture, however many are asked for."""
    everything = load_images("leaves", limit=40).pixels
    train, test = (load_images("leaves", limit=n, split=split).pixels for n, split in ((36, "train"), (4, "test")))
    np.testing.assert_array_equal(test, everything[9::10])
    np.testing.assert_array_equal(train, np.delete(everything, np.s_[9::10], axis=0))


def test_many_pictures_come_from_the_cache_the_second_time(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "CACHED_FROM", 20)
    options = {"resolution": 6, "seed": 1}
    first = {limit: load_images("leaves", limit=limit, **options).pixels for limit in (19, 20, 21)}
    test_part = load_images("leaves", limit=20, split="test", **options).pixels
    assert not np.array_equal(test_part, first[20])
    assert not np.array_equal(load_images("leaves", limit=20, resolution=6, seed=2).pixels, first[20])

    monkeypatch.setattr(leaves, "_render", None)
    np.testing.assert_array_equal(load_images("leaves", limit=20, **options).pixels, first[20])
    np.testing.assert_array_equal(first[21][:20], first[20])
    assert len(list(fresh_cache.rglob("*.npy"))) == 4  # 20, 21, the test part, the other seed; not 19
