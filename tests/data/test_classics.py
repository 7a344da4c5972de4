"""MNIST, Fashion-MNIST and CIFAR-10 from small files in their layouts; torchvision is played by a stand-in."""

import builtins
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scorelens.data import load_images
from scorelens.types import ScorelensError
from tests.data.writers import write_mnist

CIFAR = np.random.default_rng(0).integers(0, 256, (7, 32, 32, 3), np.uint8)


def write_cifar10(root: Path) -> None:
    (root / "cifar10").mkdir()
    for part, rows in (("train", slice(0, 5)), ("test", slice(5, None))):
        np.savez(root / "cifar10" / f"{part}.npz", images=CIFAR[rows], labels=np.arange(7, dtype=np.uint8)[rows])


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in whose `datasets` a test fills."""
    module = ModuleType("torchvision")
    module.datasets = SimpleNamespace()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", module)
    return module


@pytest.fixture
def broken_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the build from PyPI is beside a CPU-only torch."""
    real_import = builtins.__import__

    def failing(name: str, *rest: Any) -> Any:
        if name.startswith("torchvision"):
            raise RuntimeError("operator torchvision::nms does not exist")
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", failing)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("source", "folder", "third"), [("mnist", "MNIST", "2"),
                                                         ("fashion-mnist", "FashionMNIST", "pullover")])
def test_idx_files(tmp_path: Path, source: str, folder: str, third: str, suffix: str) -> None:
    train = write_mnist(tmp_path / folder / "raw", suffix=suffix)
    images = load_images(source, root=tmp_path)
    np.testing.assert_array_equal(images.pixels[:, 0], train)
    assert images.labels.tolist() == [0, 1, 2, 3, 4, 5] and images.class_names[2] == third
    assert load_images(source, root=tmp_path, split="test").labels.tolist() == [6, 7, 8]
    assert load_images(source, root=tmp_path, split="all").labels.tolist() == list(range(9))


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"PK" + data[2:],
                                    lambda data: b"", lambda data: data[:3] + b"\x02" + data[4:]])
def test_a_damaged_idx_file_is_named(tmp_path: Path, damage: Any) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ScorelensError, match="train-images-idx3-ubyte is damaged"):
        load_images("mnist", root=tmp_path)


def test_a_damaged_gz_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw", suffix=".gz")
    path = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ScorelensError, match=r"train-labels-idx1-ubyte.gz cannot be read"):
        load_images("mnist", root=tmp_path)


def test_cifar10_from_npz(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    images = load_images("cifar10", root=tmp_path)
    np.testing.assert_array_equal(images.pixels, CIFAR[:5].transpose(0, 3, 1, 2))
    assert images.pixels.flags.c_contiguous and images.class_names[3] == "cat"
    assert load_images("cifar10", root=tmp_path, split="test").labels.tolist() == [5, 6]
    everything = load_images("cifar10", root=tmp_path, split="all")
    np.testing.assert_array_equal(everything.pixels, CIFAR.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("downloads", [True, False])
def test_cifar10_from_torchvision(tmp_path: Path, torchvision: ModuleType, downloads: bool) -> None:
    """Asked for the right part; told to download only when the user said so."""
    def dataset(root: Path, train: bool, download: bool) -> SimpleNamespace:
        assert root == tmp_path and download is downloads
        rows = slice(0, 5) if train else slice(5, None)
        return SimpleNamespace(data=CIFAR[rows], targets=list(range(7))[rows])

    torchvision.datasets.CIFAR10 = dataset
    if not downloads:
        (tmp_path / "cifar-10-batches-py").mkdir()
    images = load_images("cifar10", root=tmp_path, split="all", download=downloads)
    np.testing.assert_array_equal(images.pixels, CIFAR.transpose(0, 3, 1, 2))
    assert images.labels.tolist() == list(range(7))


def test_mnist_is_downloaded_when_asked_and_absent(tmp_path: Path, torchvision: ModuleType) -> None:
    calls = []

    def dataset(root: Path, train: bool, download: bool) -> None:
        calls.append(download)
        write_mnist(root / "MNIST" / "raw")

    torchvision.datasets.MNIST = dataset
    assert len(load_images("mnist", root=tmp_path, download=True)) == 6
    assert len(load_images("mnist", root=tmp_path, download=True)) == 6
    assert calls == [True]


@pytest.mark.parametrize("source", ["mnist", "fashion-mnist", "cifar10"])
def test_a_missing_dataset_names_the_place_and_the_way(tmp_path: Path, source: str) -> None:
    with pytest.raises(ScorelensError, match=rf"{source}: there is n.* {tmp_path}.*--root.*download=True"):
        load_images(source, root=tmp_path)


@pytest.mark.parametrize("source", ["mnist", "cifar10"])
def test_a_broken_torchvision_is_one_line(tmp_path: Path, source: str, broken_torchvision: None) -> None:
    with pytest.raises(ScorelensError, match=r"torchvision::nms does not exist.*scorelens\[torchvision\]") as error:
        load_images(source, root=tmp_path, download=True)
    assert "\n" not in str(error.value)


def test_a_failed_download_is_one_line(tmp_path: Path, torchvision: ModuleType) -> None:
    def dataset(root: Path, train: bool, download: bool) -> None:
        raise OSError("no route to host")

    torchvision.datasets.CIFAR10 = dataset
    with pytest.raises(ScorelensError, match=r"cifar10: .* no route to host"):
        load_images("cifar10", root=tmp_path, download=True)


def test_files_that_are_there_need_no_torchvision(tmp_path: Path, broken_torchvision: None) -> None:
    write_cifar10(tmp_path)
    write_mnist(tmp_path / "MNIST" / "raw")
    assert len(load_images("cifar10", root=tmp_path, download=True)) == 5
    assert len(load_images("mnist", root=tmp_path, download=True)) == 6
