"""Many files: bad ones, mixed ones, and the cache."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scorelens.data import filesets, load_images
from scorelens.types import ScorelensError
from tests.data.writers import truncate, write_image, write_images

NAMES = [f"{k:02}.png" for k in range(20)]


@pytest.fixture
def folder(tmp_path: Path, fresh_cache: Path) -> Path:
    return write_images(tmp_path / "pictures", NAMES)


def values(folder: Path, **options: object) -> list[int]:
    """One number for each image of `write_images`."""
    return load_images(f"folder:{folder}", **{"split": "all", **options}).pixels[:, 0, 0, 0].tolist()


def test_the_second_load_decodes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_images(f"folder:{folder}")
    monkeypatch.setattr(filesets, "decode", None)
    second = load_images(f"folder:{folder}")
    np.testing.assert_array_equal(first.pixels, second.pixels)
    assert first.fingerprint == second.fingerprint


def test_one_changed_byte_is_noticed(folder: Path) -> None:
    """Same name, same length, same date: another content."""
    assert values(folder)[3] == 3
    path, before = folder / NAMES[3], (folder / NAMES[3]).stat()
    other = write_images(folder.parent / "other", NAMES[:18])  # the last is a file of the value 17
    changed = (other / NAMES[17]).read_bytes()
    assert len(changed) == before.st_size
    path.write_bytes(changed)
    assert values(folder)[3] == 17


@pytest.mark.parametrize("options", [{"resolution": 3}, {"channels": 3}])
def test_options_have_caches_of_their_own(folder: Path, fresh_cache: Path, options: dict) -> None:
    """Scaled or recoloured pixels are cached as such, and never served to those who asked for the plain ones."""
    changed, plain = load_images(f"folder:{folder}", **options), load_images(f"folder:{folder}")
    assert plain.shape == (1, 4, 6) != changed.shape
    assert {np.load(path).shape[1:] for path in fresh_cache.rglob("*.npy")} == {plain.shape, changed.shape}


def test_a_renamed_file_is_another_dataset(folder: Path) -> None:
    """Not only its pixels: its place in the order changes."""
    assert values(folder)[:2] == [0, 1]
    (folder / NAMES[0]).rename(folder / "zz.png")
    assert values(folder) == [*range(1, 20), 0]


def test_parts_are_read_from_the_memory_map(folder: Path) -> None:
    """A part is a view: nothing is copied into memory, and torch does not warn about it (warnings fail here)."""
    for split in ("train", "test"):
        images = load_images(f"folder:{folder}", split=split)
        assert isinstance(images.pixels, np.memmap) and images.pixels.base is not None
        torch.from_numpy(images.pixels)


def test_the_parts_are_in_the_order_of_the_files(folder: Path) -> None:
    train, test = values(folder, split="train"), values(folder, split="test")
    assert len(test) == 2 and train == sorted(train) and test == sorted(test)
    assert values(folder) == sorted(train + test) == list(range(20))


def test_an_interruption_leaves_nothing(folder: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(filesets, "_check_shapes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_images(f"folder:{folder}")
    assert not [path for path in fresh_cache.rglob("*") if path.is_file()]


def test_a_full_disk_is_announced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100})())
    with pytest.raises(ScorelensError, match=r"0.0 GB free; .* SCORELENS_CACHE"):
        load_images(f"folder:{folder}")


def test_all_bad_files_are_listed(folder: Path, fresh_cache: Path) -> None:
    """A truncated image, one that is none, an empty one and a dead link; and nothing is cached."""
    truncate(folder / NAMES[4])
    (folder / NAMES[7]).write_bytes(b"<html>not found</html>")
    (folder / NAMES[9]).write_bytes(b"")
    (folder / "link.png").symlink_to(folder / "nowhere.png")
    with pytest.raises(ScorelensError, match=r"4 of its files .* 04.png, 07.png, 09.png, link.png; .* skip_bad"):
        load_images(f"folder:{folder}")
    assert not [path for path in fresh_cache.rglob("*") if path.is_file()]


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    folder = write_images(tmp_path, [f"{k:02}.png" for k in range(30)])
    for k in range(25):
        truncate(folder / f"{k:02}.png")
    with pytest.raises(ScorelensError, match=r"25 of its files .*, 19.png and 5 more;") as error:
        load_images(f"folder:{folder}")
    assert "20.png" not in str(error.value)


def test_bad_files_are_skipped_and_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the rest comes from the cache; and without skip_bad the cache does not hide them."""
    truncate(folder / NAMES[4])
    truncate(folder / NAMES[0])
    expected = [k for k in range(20) if k not in (0, 4)]
    for _ in ("decoded", "cached"):
        images = load_images(f"folder:{folder}", split="all", skip_bad=True)
        assert images.pixels[:, 0, 0, 0].tolist() == expected
        assert images.record == {"skipped": ["00.png", "04.png"]}
        monkeypatch.setattr(filesets, "decode", None)
    with pytest.raises(ScorelensError, match=r"00.png, 04.png"):
        load_images(f"folder:{folder}")


def test_a_bad_file_moves_no_other_between_the_parts(folder: Path) -> None:
    train, test = values(folder, split="train"), values(folder, split="test")
    truncate(folder / NAMES[train[0]])
    assert values(folder, split="test", skip_bad=True) == test
    assert values(folder, split="train", skip_bad=True) == train[1:]


def test_a_bad_file_of_the_other_part_counts(folder: Path) -> None:
    truncate(folder / NAMES[values(folder, split="test")[0]])
    with pytest.raises(ScorelensError, match="1 of its files"):
        load_images(f"folder:{folder}", split="train")


def test_labels_stay_with_their_images(tmp_path: Path) -> None:
    folder = write_images(tmp_path, ["a/0.png", "a/1.png", "b/2.png", "b/3.png"])
    truncate(folder / "a" / "1.png")
    images = load_images(f"folder:{folder}", split="all", skip_bad=True)
    assert images.pixels[:, 0, 0, 0].tolist() == [0, 2, 3] and images.labels.tolist() == [0, 1, 1]


def test_only_bad_files(tmp_path: Path) -> None:
    folder = write_images(tmp_path, NAMES[:2])
    for name in NAMES[:2]:
        truncate(folder / name)
    with pytest.raises(ScorelensError, match="2 of its files cannot be decoded"):
        load_images(f"folder:{folder}", skip_bad=True)


@pytest.mark.parametrize("limit", [20, 30], ids=["Pillow's error", "Pillow's warning"])
def test_a_decompression_bomb_is_a_bad_file(folder: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(folder / "bomb.png", np.zeros((6, 7), np.uint8))  # the others have 4 x 6 pixels
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    if limit == 20:  # Pillow raises above twice its limit, and the others must stay below it
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 24)
        write_image(folder / "bomb.png", np.zeros((7, 7), np.uint8))
    with pytest.raises(ScorelensError, match=r"1 of its files cannot be decoded: bomb.png"):
        load_images(f"folder:{folder}")


def test_mixed_sizes_need_a_resolution(folder: Path) -> None:
    write_image(folder / "wide.png", np.zeros((4, 9), np.uint8))
    with pytest.raises(ScorelensError, match=r"\d\d.png is 4x6 but wide.png is 4x9.* resolution"):
        load_images(f"folder:{folder}", split="all")
    assert load_images(f"folder:{folder}", resolution=4).shape == (1, 4, 4)


def test_bad_files_are_told_before_mixed_sizes(folder: Path) -> None:
    write_image(folder / "wide.png", np.zeros((4, 9), np.uint8))
    truncate(folder / NAMES[0])
    with pytest.raises(ScorelensError, match=r"cannot be decoded: 00.png"):
        load_images(f"folder:{folder}")


def test_one_coloured_image_makes_all_of_them_rgb(folder: Path) -> None:
    """Wherever it is: both parts have the same shape."""
    assert load_images(f"folder:{folder}").shape == (1, 4, 6)
    write_image(folder / "zz.png", np.full((4, 6, 3), (1, 2, 3), np.uint8))
    images = load_images(f"folder:{folder}", split="all")
    assert images.shape == (3, 4, 6) and images.pixels[5].tolist() == np.full((3, 4, 6), 5).tolist()
    assert images.pixels[20, :, 0, 0].tolist() == [1, 2, 3]
    assert {load_images(f"folder:{folder}", split=split).shape for split in ("train", "test")} == {(3, 4, 6)}


def test_channels_overrule_the_files(folder: Path) -> None:
    write_image(folder / "red.png", np.full((4, 6, 3), (255, 0, 0), np.uint8))
    images = load_images(f"folder:{folder}", split="all", channels=1)
    assert images.shape == (1, 4, 6) and (images.pixels[-1] == 76).all()
