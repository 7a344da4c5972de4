import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scorelens.data.decode import CHUNK, resize, to_channels
from scorelens.types import ScorelensError

SIDE = st.integers(1, 40)


@settings(deadline=None, max_examples=50)
@example(h=49, w=49, height=1, width=1, value=200, channels=1)  # 49 * (1 / 49) < 1 in floating point
@given(h=SIDE, w=SIDE, height=SIDE, width=SIDE, value=st.integers(0, 255), channels=st.integers(1, 5))
def test_a_constant_image_stays_constant(h: int, w: int, height: int, width: int, value: int, channels: int) -> None:
    """The filter's weights sum to 1, whatever the two sizes, and the target is covered: no border shows."""
    resized = resize(np.full((2, channels, h, w), value, np.uint8), (height, width))
    np.testing.assert_array_equal(resized, np.full((2, channels, height, width), value))


def test_the_same_size_is_the_same_image() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 8, 6), np.uint8)
    np.testing.assert_array_equal(resize(pixels, (8, 6)), pixels)


@pytest.mark.parametrize(("size", "target", "kept"), [((10, 30), (10, 10), (slice(None), slice(10, 20))),
                                                      ((30, 10), (10, 10), (slice(10, 20), slice(None))),
                                                      ((12, 12), (12, 4), (slice(None), slice(4, 8)))])
def test_the_centre_is_kept(size: tuple, target: tuple, kept: tuple) -> None:
    """Where the shorter side fits already, scaling is the identity and the crop is the middle."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, *size), np.uint8)
    np.testing.assert_array_equal(resize(pixels, target), pixels[:, :, kept[0], kept[1]])


def test_the_aspect_ratio_is_kept() -> None:
    """A centred square of half the height in a wide image is a centred square of half the height."""
    pixels = np.zeros((1, 1, 64, 128), np.uint8)
    pixels[:, :, 16:48, 48:80] = 255
    bright = resize(pixels, (32, 32))[0, 0] > 127
    assert bright.any(0).sum() == bright.any(1).sum() == 16
    assert bright[8:24, 8:24].all()


def test_it_is_antialiased() -> None:
    """Every eighth column is bright: the mean is 255/8. Interpolation of the nearest four would miss them all."""
    stripes = np.zeros((1, 1, 64, 64), np.uint8)
    stripes[..., ::8] = 255
    np.testing.assert_array_equal(resize(stripes, (8, 8))[..., 2:-2], 32)


def test_overshoot_is_clipped_rather_than_wrapped() -> None:
    """Bicubic rings at an edge: below 0 stays black, beyond 255 stays white."""
    edge = np.repeat(np.array([[0] * 8 + [255] * 8], np.uint8), 16, axis=0)[None, None]
    resized = resize(edge, (32, 32))
    assert (resized[..., :16] < 128).all() and (resized[..., 16:] >= 128).all()


def test_chunks_do_not_show() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (CHUNK + 3, 1, 4, 4), np.uint8)
    np.testing.assert_array_equal(resize(pixels, (2, 2))[CHUNK - 2:], resize(pixels[CHUNK - 2:], (2, 2)))
    np.testing.assert_array_equal(to_channels(to_channels(pixels, 3), 1), pixels)


def test_luma_is_that_of_rec_601() -> None:
    """Pure red, green, blue and white weigh 0.299, 0.587, 0.114 and 1."""
    pixels = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], np.uint8)[:, :, None, None]
    np.testing.assert_array_equal(to_channels(pixels, 1).ravel(), [76, 150, 29, 255])


def test_other_channel_counts_are_refused() -> None:
    with pytest.raises(ScorelensError, match="images of 4 channels cannot become images of 3"):
        to_channels(np.zeros((1, 4, 2, 2), np.uint8), 3)
