from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from scorelens.data import load_images
from scorelens.types import ScorelensError

COLOURS = np.random.default_rng(0).integers(0, 256, (30, 4, 6, 3), np.uint8)


def save(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path / "data.npz", **arrays)
    return f"npz:{path / 'data.npz'}"


def test_digits() -> None:
    """Grey level v of 16 becomes round(255 v / 16), all 1,797, labelled."""
    images, original = load_images("digits"), load_digits()
    assert images.shape == (1, 8, 8) and len(images) == 1797 and images.split == "all"
    np.testing.assert_array_equal(images.pixels[:, 0], np.round(original.images * 255 / 16))
    np.testing.assert_array_equal(images.labels, original.target)
    assert images.class_names == tuple("0123456789")


def test_npz_in_colour(tmp_path: Path) -> None:
    images = load_images(save(tmp_path, images=COLOURS, labels=np.arange(30, dtype=np.uint8)))
    np.testing.assert_array_equal(images.pixels, COLOURS.transpose(0, 3, 1, 2))
    assert images.pixels.flags.c_contiguous and images.split == "all"
    assert images.labels.tolist() == list(range(30)) and images.labels.dtype == np.int64


def test_npz_in_grey(tmp_path: Path) -> None:
    images = load_images(save(tmp_path, images=COLOURS[..., 0]))
    np.testing.assert_array_equal(images.pixels[:, 0], COLOURS[..., 0])
    assert images.labels is None


def test_npz_of_many_channels(tmp_path: Path) -> None:
    assert load_images(save(tmp_path, images=np.zeros((2, 8, 9, 7), np.uint8))).shape == (7, 8, 9)


def test_npz_has_a_seeded_split(tmp_path: Path) -> None:
    name = save(tmp_path, images=COLOURS, labels=np.arange(30))
    train, test = load_images(name, split="train"), load_images(name, split="test")
    assert sorted([*train.labels, *test.labels]) == list(range(30)) and len(test) == 3


@pytest.mark.parametrize(("arrays", "message"), [
    ({"pictures": COLOURS}, "data.npz has no array named 'images'"),
    ({"images": COLOURS / 255}, r"'images' must be uint8 \[N,H,W\] or \[N,H,W,C\], got float64 \[30, 4, 6, 3\]"),
    ({"images": COLOURS[0, 0]}, r"got uint8 \[6, 3\]"),
    ({"images": COLOURS[:0]}, "no images"),
    ({"images": np.zeros((30, 3, 8, 8), np.uint8)}, r"\[30, 3, 8, 8\] looks like \[N,C,H,W\]"),
    ({"images": COLOURS, "labels": np.zeros(30)}, r"'labels' must be integers \[N\], got float64 \[30\]"),
    ({"images": COLOURS, "labels": np.zeros((30, 1), int)}, r"got int64 \[30, 1\]"),
    ({"images": COLOURS, "labels": np.zeros(29, int)}, "30 images but labels of shape"),
    ({"images": np.array([{"a": 1}])}, "cannot be read as .npz.*allow_pickle"),
])
def test_npz_of_another_kind(tmp_path: Path, arrays: dict, message: str) -> None:
    name = save(tmp_path, **arrays)
    with pytest.raises(ScorelensError, match=message) as error:
        load_images(name)
    assert name in str(error.value)


def test_a_single_array_is_no_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", COLOURS)
    with pytest.raises(ScorelensError, match=r"data.npy cannot be read as .npz.*np.savez"):
        load_images(f"npz:{tmp_path / 'data.npy'}")


def test_a_truncated_npz(tmp_path: Path) -> None:
    path = Path(save(tmp_path, images=COLOURS).removeprefix("npz:"))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ScorelensError, match=r"data.npz cannot be read as .npz"):
        load_images(f"npz:{path}")


def test_a_missing_npz(tmp_path: Path) -> None:
    with pytest.raises(ScorelensError, match=r"there is no file .*/nowhere.npz"):
        load_images(f"npz:{tmp_path}/nowhere.npz")
