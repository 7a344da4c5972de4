"""`hf:NAME`, with a stand-in for `datasets` that knows just the calls we make."""

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from scorelens.data import load_images
from scorelens.types import ScorelensError


class Image:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class ClassLabel:
    names = ("cat", "dog")


class Value:
    pass


class Dataset:
    """Columns of equal length; images come undecoded only after the cast that asks for it."""

    def __init__(self, columns: dict[str, list], features: dict[str, Any]) -> None:
        self.columns, self.features = columns, features

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        assert not any(isinstance(feature, Image) and feature.decode for feature in self.features.values())
        return {name: values[key] for name, values in self.columns.items()}

    def select_columns(self, names: list[str]) -> "Dataset":
        return Dataset({name: self.columns[name] for name in names}, {name: self.features[name] for name in names})

    def cast_column(self, name: str, feature: Any) -> "Dataset":
        return Dataset(self.columns, {**self.features, name: feature})


def rows(start: int, stop: int) -> Dataset:
    """Image k has the value k and the label k % 2; the columns' names say nothing."""
    numbers = range(start, stop)
    return Dataset({"note": ["-" for _ in numbers], "picture": [{"bytes": png(k), "path": None} for k in numbers],
                    "animal": [k % 2 for k in numbers]},
                   {"note": Value(), "picture": Image(), "animal": ClassLabel()})


def png(value: int) -> bytes:
    file = io.BytesIO()
    Pillow.fromarray(np.full((3, 5), value, np.uint8)).save(file, "png")
    return file.getvalue()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the hub holds: name -> parts."""
    holdings: dict[str, Any] = {}
    module = ModuleType("datasets")
    for name, thing in {"Image": Image, "ClassLabel": ClassLabel, "load_dataset": holdings.__getitem__}.items():
        setattr(module, name, thing)
    monkeypatch.setitem(sys.modules, "datasets", module)
    return holdings


def test_columns_are_found_by_their_kind(hub: dict) -> None:
    hub["user/pets"] = {"train": rows(0, 12), "test": rows(12, 15)}
    images = load_images("hf:user/pets")
    assert images.pixels[:, 0, 1, 1].tolist() == list(range(12)) and images.shape == (1, 3, 5)
    assert images.labels.tolist() == [0, 1] * 6 and images.class_names == ("cat", "dog")
    assert images.name == "hf:user/pets" and images.split == "train"


def test_its_own_split(hub: dict) -> None:
    hub["pets"] = {"test": rows(12, 15), "validation": rows(20, 30), "train": rows(0, 12)}
    assert load_images("hf:pets", split="test").pixels[:, 0, 0, 0].tolist() == [12, 13, 14]
    assert load_images("hf:pets", split="all").pixels[:, 0, 0, 0].tolist() == list(range(15))


def test_a_seeded_split_where_it_has_none(hub: dict) -> None:
    hub["pets"] = {"train": rows(0, 20)}
    train, test = (load_images("hf:pets", split=split) for split in ("train", "test"))
    assert len(test) == 2 and len(train) == 18
    assert all(part.labels.tolist() == [k % 2 for k in part.pixels[:, 0, 0, 0]] for part in (train, test))


def test_images_may_be_files(hub: dict, tmp_path: Path) -> None:
    (tmp_path / "7.png").write_bytes(png(7))
    hub["pets"] = {"train": Dataset({"image": [{"bytes": None, "path": str(tmp_path / "7.png")}]}, {"image": Image()})}
    images = load_images("hf:pets")
    assert images.pixels.max() == 7 and images.labels is None


def test_bad_rows_are_bad_files(hub: dict) -> None:
    hub["pets"] = {"train": rows(0, 5)}
    hub["pets"]["train"].columns["picture"][3] = {"bytes": b"junk", "path": None}
    with pytest.raises(ScorelensError, match="hf:pets: 1 of its files cannot be decoded: train/3"):
        load_images("hf:pets")
    assert load_images("hf:pets", skip_bad=True).pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 4]


def test_no_images(hub: dict) -> None:
    hub["texts"] = {"train": Dataset({"text": ["a"]}, {"text": Value()})}
    with pytest.raises(ScorelensError, match="hf:texts has no column of images; its columns: text"):
        load_images("hf:texts")


def test_no_part_that_we_know(hub: dict) -> None:
    hub["pets"] = {"validation": rows(0, 3)}
    with pytest.raises(ScorelensError, match="hf:pets has no split named train or test; its splits: validation"):
        load_images("hf:pets")


def test_an_error_of_the_hub_is_one_line(hub: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise FileNotFoundError(f"{name} doesn't exist on the Hub\nand more lines")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", missing)
    with pytest.raises(ScorelensError, match=r"hf:pets cannot be loaded: pets doesn't exist on the Hub$"):
        load_images("hf:pets")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ScorelensError, match=r"hf:pets needs the package `datasets`.*scorelens\[hf\]"):
        load_images("hf:pets")
