"""Single files: what each kind of image becomes."""

import io

import numpy as np
import pytest
from PIL import Image

from scorelens.data.decode import Undecodable, decode, has_colour

COLOURS = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
GREYS = COLOURS[..., 0]


def stored(image: Image.Image, kind: str = "png", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def native(data: bytes) -> np.ndarray:
    """Decoded in the channels that its header speaks of."""
    return decode(data, None, channels=3 if has_colour(data) else 1)


def test_colour_is_channels_first() -> None:
    np.testing.assert_array_equal(native(stored(Image.fromarray(COLOURS))), COLOURS.transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["L", "LA"])
def test_grey_has_one_channel(mode: str) -> None:
    np.testing.assert_array_equal(native(stored(Image.fromarray(GREYS).convert(mode))), GREYS[None])


def test_bits_are_black_and_white() -> None:
    np.testing.assert_array_equal(native(stored(Image.fromarray(GREYS > 100))), 255 * (GREYS > 100)[None])


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_16_bits_are_scaled_rather_than_clipped(kind: str) -> None:
    """round(v / 257): black, the first step on both sides, the middle, white."""
    values = np.array([[0, 128, 129, 257, 32768, 65535]], np.uint16)
    np.testing.assert_array_equal(native(stored(Image.fromarray(values), kind)), [[[0, 0, 1, 1, 128, 255]]])


@pytest.mark.parametrize("values", [np.array([[70000]], np.int32), np.array([[-1]], np.int32),
                                    np.array([[0.5]], np.float32)])
def test_values_of_unknown_range_are_refused(values: np.ndarray) -> None:
    with pytest.raises(Undecodable, match="no known range"):
        decode(stored(Image.fromarray(values), "tiff"), None, 1)


def test_alpha_is_dropped() -> None:
    with_alpha = np.concatenate([COLOURS, GREYS[..., None]], axis=2)
    np.testing.assert_array_equal(native(stored(Image.fromarray(with_alpha))), COLOURS.transpose(2, 0, 1))


@pytest.mark.parametrize("transparency", [None, 0, bytes([0, 128])])
def test_palettes_are_colours(transparency: int | bytes | None) -> None:
    image = Image.fromarray((GREYS > 100).astype(np.uint8))
    image = Image.frombytes("P", image.size, image.tobytes())
    image.putpalette([10, 20, 30, 40, 50, 60])
    options = {} if transparency is None else {"transparency": transparency}
    expected = np.where(GREYS > 100, np.array([40, 50, 60])[:, None, None], np.array([10, 20, 30])[:, None, None])
    np.testing.assert_array_equal(native(stored(image, **options)), expected)


def test_cmyk_is_colour() -> None:
    """Full cyan is no red; JPEG loses a little."""
    pixels = native(stored(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "jpeg"))
    assert pixels.shape == (3, 8, 8) and pixels[0].max() < 10 and pixels[1:].min() > 245


@pytest.mark.parametrize(("orientation", "upright"), [(3, np.rot90(COLOURS, 2)), (6, np.rot90(COLOURS, -1)),
                                                      (8, np.rot90(COLOURS)), (2, COLOURS[:, ::-1])])
def test_the_camera_is_held_upright(orientation: int, upright: np.ndarray) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(native(stored(Image.fromarray(COLOURS), exif=exif)), upright.transpose(2, 0, 1))


def test_the_size_and_channels_asked_for() -> None:
    assert decode(stored(Image.fromarray(COLOURS)), (5, 3), 1).shape == (1, 5, 3)
    assert decode(stored(Image.fromarray(GREYS)), (2, 9), 3).shape == (3, 2, 9)
