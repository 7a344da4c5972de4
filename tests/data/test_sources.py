"""The registry and the options that all sources share."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorelens.data import SOURCES, ImageSet, load_images
from scorelens.data.sources import CHANNELS
from scorelens.types import ScorelensError
from tests.data.writers import write_image, write_images

ROOTED = [name for name, source in SOURCES.items() if source.needs == "root"]
FOLDERS = {"celeba-hq": "celeba-hq", "afhqv2": "afhqv2", "celeba": "celeba64", "afhq-cats": "afhq-cats64"}


@pytest.fixture
def numbered(tmp_path: Path) -> str:
    """Image k has the value and the label k, of 40."""
    values = np.arange(40, dtype=np.uint8)
    np.savez(tmp_path / "numbered.npz", images=np.broadcast_to(values[:, None, None], (40, 4, 6)), labels=values)
    return f"npz:{tmp_path / 'numbered.npz'}"


def labels(images: ImageSet) -> list[int]:
    """Which images these are, if labels and pixels agree."""
    assert images.labels is not None and images.pixels[:, 0, 0, 0].tolist() == images.labels.tolist()
    return images.labels.tolist()


@settings(deadline=None, max_examples=30)
@given(limits=st.tuples(st.integers(1, 1796), st.integers(1, 1796)), seed=st.integers(0, 2**32))
def test_a_smaller_limit_is_a_prefix_of_a_larger_one(limits: tuple[int, int], seed: int) -> None:
    small, large = (load_images("digits", limit=limit, seed=seed) for limit in sorted(limits))
    assert (len(small), len(large)) == tuple(sorted(limits))
    np.testing.assert_array_equal(large.pixels[:len(small)], small.pixels)
    np.testing.assert_array_equal(large.labels[:len(small)], small.labels)


def test_a_limit_takes_a_seeded_shuffle(numbered: str) -> None:
    first, again, other = (labels(load_images(numbered, limit=20, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other and len(set(first)) == 20 and first != sorted(first)
    assert first == np.random.default_rng(0).permutation(40)[:20].tolist()


@pytest.mark.parametrize("limit", [40, 1000])
def test_a_limit_beyond_the_end_keeps_everything_in_order(numbered: str, limit: int) -> None:
    images = load_images(numbered, limit=limit)
    assert labels(images) == list(range(40)) and images.record == {"limit": limit, "seed": 0}


def test_classes_come_before_the_limit(numbered: str) -> None:
    assert sorted(labels(load_images(numbered, classes=[3, 4, 5], limit=3))) == [3, 4, 5]


def test_a_single_name_is_one_class(tmp_path: Path) -> None:
    write_images(tmp_path, ["cat/0.png", "dog/1.png"])
    assert load_images(f"folder:{tmp_path}", classes="dog", split="all").labels.tolist() == [1]


def test_everything_unusual_is_recorded(numbered: str) -> None:
    assert load_images(numbered).record == {}
    images = load_images(numbered, classes=[1, 2, 3, 5, 8], limit=2, seed=7, resolution=(2, 3),
                         channels="rgb", flips=True)
    assert images.record == {"classes": [1, 2, 3, 5, 8], "limit": 2, "seed": 7, "resolution": [2, 3], "channels": 3,
                             "flips": True}
    assert len(images) == 4 and images.shape == (3, 2, 3)


@pytest.mark.parametrize(("resolution", "shape"), [(5, (1, 5, 5)), ((5, 7), (1, 5, 7)), ([2, 3], (1, 2, 3))])
def test_resolution(numbered: str, resolution: int | tuple, shape: tuple) -> None:
    images = load_images(numbered, resolution=resolution)
    assert images.shape == shape and labels(images) == list(range(40))


@pytest.mark.parametrize(("channels", "count"), [(1, 1), (3, 3), ("grayscale", 1), ("rgb", 3), ("3", 3)])
def test_channels(numbered: str, channels: int | str, count: int) -> None:
    assert load_images(numbered, channels=channels).shape[0] == count


def test_flips(tmp_path: Path) -> None:
    """The mirror of an image whose left half is black has a black right half."""
    write_image(tmp_path / "half.png", np.array([[0, 0, 9, 9]], np.uint8))
    images = load_images(f"folder:{tmp_path}", flips=True)
    np.testing.assert_array_equal(images.pixels[:, 0, 0], [[0, 0, 9, 9], [9, 9, 0, 0]])


@pytest.mark.parametrize(("options", "message"), [
    ({"limit": 0}, "limit must be at least 1, got 0"),
    ({"limit": -3}, "limit must be at least 1"),
    ({"seed": -1}, "seed must not be negative, got -1"),
    ({"resolution": 0}, "resolution must be .*got 0"),
    ({"resolution": (4, -1)}, r"resolution must be .*got \(4, -1\)"),
    ({"resolution": (4, 4, 4)}, "resolution must be"),
    ({"channels": 2}, "unknown channels '2'.* known: 1, 3, grayscale, rgb"),
    ({"channels": "greyscale"}, "unknown channels 'greyscale', did you mean 'grayscale'"),
    ({"split": "validation"}, "unknown split 'validation'.* known: all, test, train"),
    ({"classes": [11]}, "digits has no class 11; known: 0, 1, 2"),
])
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ScorelensError, match=message):
        load_images("digits", **options)


@pytest.mark.parametrize(("source", "message"), [
    ("cifar", "unknown source 'cifar', did you mean 'cifar10'"),
    ("floder:x", "unknown source 'floder', did you mean 'folder'"),
    ("", "unknown source ''"),
    ("folder", "the source 'folder' needs a path or name after a colon: folder:PATH"),
    ("npz:", "the source 'npz' needs a path or name after a colon: npz:PATH"),
    ("digits:x", "the source 'digits' takes nothing after a colon, got 'digits:x'"),
])
def test_bad_sources_are_named(source: str, message: str) -> None:
    with pytest.raises(ScorelensError, match=message):
        load_images(source)


@pytest.mark.parametrize("source", ROOTED)
def test_a_root_is_asked_for_by_both_its_names(source: str) -> None:
    with pytest.raises(ScorelensError, match=f"'{source}' needs .*--root.*SCORELENS_DATA"):
        load_images(source)


@pytest.mark.parametrize(("source", "folder"), FOLDERS.items())
def test_folders_under_the_root(tmp_path: Path, source: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / folder, [f"{k:02}.png" for k in range(11)])
    assert len(load_images(source, root=tmp_path)) == 10
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    monkeypatch.setenv("SCORELENS_DATA", f"~/{tmp_path.name}")
    images = load_images(source, split="test")
    assert len(images) == 1 and images.name == source


@pytest.mark.parametrize(("source", "folder"), FOLDERS.items())
def test_where_to_get_an_absent_folder(tmp_path: Path, source: str, folder: str) -> None:
    with pytest.raises(ScorelensError, match=f"{source}: there is no folder {tmp_path}/{folder}; get it: .*https://.*ROOT/{folder}"):
        load_images(source, root=tmp_path)


def test_the_registry_describes_itself() -> None:
    """Names, defaults and needs as DESIGN.md and the documentation list them."""
    assert list(SOURCES) == ["digits", "leaves", "mnist", "fashion-mnist", "cifar10", "celeba-hq", "afhqv2", "celeba",
                             "afhq-cats", "tiny-imagenet", "folder", "zip", "npz", "hf"]
    whole = {name for name, source in SOURCES.items() if source.split == "all"}
    assert whole == {"digits", "leaves", "tiny-imagenet", "npz"}
    assert all(source.about and source.get and "\n" not in source.about for source in SOURCES.values())
    assert set(CHANNELS.values()) == {1, 3}


@pytest.mark.slow
def test_heavy_packages_wait_until_they_are_needed() -> None:
    heavy = "{'sklearn', 'PIL', 'torchvision', 'datasets', 'diffusers', 'matplotlib'}"
    code = f"import sys, scorelens.data.sources; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
