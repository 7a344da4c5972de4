"""Files that ask for more than they give: bombs, pipes, devices, headers that promise terabytes, thin images."""

import io
import os
import zipfile

import numpy as np
import pytest
from PIL import Image

from scorelens import ScorelensError, load_images
from scorelens.data import folders
from scorelens.data.decode import resize
from tests.data.writers import write_image


def test_a_pipe_and_a_device_are_bad_files(tmp_path, fresh_cache):
    """Neither ever ends; a link to one is no better."""
    write_image(tmp_path / "data" / "good.png", np.zeros((4, 4), np.uint8))
    os.mkfifo(tmp_path / "data" / "pipe.png")
    (tmp_path / "data" / "zero.png").symlink_to("/dev/zero")
    with pytest.raises(ScorelensError, match=r"2 of its files cannot be decoded: pipe\.png, zero\.png"):
        load_images(f"folder:{tmp_path / 'data'}", split="all")


def test_a_member_that_expands_without_end_is_a_bad_file(tmp_path, fresh_cache, monkeypatch):
    monkeypatch.setattr(folders, "LARGEST", 10_000)
    Image.new("L", (4, 4)).save(buffer := io.BytesIO(), "png")
    with zipfile.ZipFile(tmp_path / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("good.png", buffer.getvalue())
        archive.writestr("bomb.png", bytes(10_001))
    with pytest.raises(ScorelensError, match=r"1 of its files cannot be decoded: bomb\.png"):
        load_images(f"zip:{tmp_path / 'data.zip'}", split="all")


def test_a_zip_of_a_later_version_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("one.png", b"")
        archive.infolist()[0].extract_version = 95
    with pytest.raises(ScorelensError, match=r"data\.zip is not a zip file that can be read: zip file version 9\.5"):
        load_images(f"zip:{tmp_path / 'data.zip'}", split="all")


@pytest.mark.parametrize("count", [10**3, 10**12, 10**30])
def test_a_header_that_promises_too_much_is_refused(tmp_path, count):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (count, 8, 8)})
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(100))
    with pytest.raises(ScorelensError, match=r"data\.npz cannot be read as \.npz: the header of 'images' promises"):
        load_images(f"npz:{tmp_path / 'data.npz'}")


@pytest.mark.parametrize("shape", [(1, 100_000), (100_000, 1), (2, 9_999)])
def test_thin_images_are_cropped_before_they_are_scaled(shape):
    """Scaled whole to cover 64 x 64, 100,000 x 1 pixels would be 400 million; and the centre is what is kept."""
    thin = np.zeros((1, 1, *shape), np.uint8)
    long = thin.reshape(min(shape), max(shape)) if shape[0] < shape[1] else thin.reshape(max(shape), min(shape)).T
    long[:, max(shape) // 4:3 * max(shape) // 4] = 200
    assert (resize(thin, (64, 64)) == 200).all() and resize(thin, (100, 1)).shape == (1, 1, 100, 1)


def test_images_of_ordinary_shapes_are_scaled_as_before():
    """Up to four times as long as asked for, nothing is cropped first: the same pixels take part at the border."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (1, 3, 8, 31), np.uint8)
    assert resize(image, (8, 8)).tobytes() == image[..., 11:19].tobytes()
