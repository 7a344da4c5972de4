"""What the layout of a folder or a zip means."""

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from scorelens.data import ImageSet, load_images
from scorelens.types import ScorelensError
from tests.data.writers import truncate, write_images


def as_folder(folder: Path) -> str:
    return f"folder:{folder}"


def as_zip(folder: Path) -> str:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.rglob("*"):
            archive.write(file, file.relative_to(folder).as_posix())
    return f"zip:{path}"


@pytest.fixture(params=[as_folder, as_zip])
def source(request: pytest.FixtureRequest, tmp_path: Path):
    """A folder, or a zip, of these names, each image with the value of its position in the list."""
    def make(names: Iterable[str]) -> str:
        return request.param(write_images(tmp_path / "pictures", names))

    return make


def values(images: ImageSet) -> list[int]:
    return images.pixels[:, 0, 0, 0].tolist()


def test_files_are_sorted_and_others_ignored(source) -> None:
    name = source(["b.png", "a.JPG", "c.gif", ".hidden.png", ".git/x.png"])
    Path(name.partition(":")[2]).parent.joinpath("pictures", "notes.txt").write_text("not an image")
    images = load_images(name, split="all")
    assert values(images) == [1, 0, 2] and images.labels is None and images.name == name


def test_subfolders_are_classes(source) -> None:
    """Named in sorted order; what lies deeper belongs to the class above."""
    images = load_images(source(["dog/0.png", "cat/1.png", "dog/old/2.png", "bird/3.png"]), split="all")
    assert images.class_names == ("bird", "cat", "dog")
    assert values(images) == [3, 1, 0, 2] and images.labels.tolist() == [0, 1, 2, 2]


def test_images_beside_subfolders_have_no_class(source) -> None:
    images = load_images(source(["dog/0.png", "1.png"]), split="all")
    assert images.labels is None and images.class_names == ()


def test_train_and_test_are_splits(source) -> None:
    name = source(["train/1.png", "train/0.png", "test/2.png"])
    assert values(load_images(name)) == [1, 0] and load_images(name).split == "train"
    assert values(load_images(name, split="test")) == [2]
    assert values(load_images(name, split="all")) == [1, 0, 2]
    assert load_images(name).labels is None


def test_splits_may_have_classes(source) -> None:
    """A class has the same label in both, also where one of them lacks it."""
    name = source(["train/cat/0.png", "train/dog/1.png", "test/dog/2.png", "test/ant/3.png"])
    train, test = load_images(name), load_images(name, split="test")
    assert train.class_names == test.class_names == ("ant", "cat", "dog")
    assert train.labels.tolist() == [1, 2] and test.labels.tolist() == [0, 2]


def test_without_a_test_folder_there_is_no_test_part(source) -> None:
    """An own split is not split again."""
    name = source([f"train/{k}.png" for k in range(20)])
    assert len(load_images(name)) == 20
    with pytest.raises(ScorelensError, match="the test split is empty"):
        load_images(name, split="test")


def test_train_beside_other_folders_is_ambiguous(source) -> None:
    with pytest.raises(ScorelensError, match=r"'train' cannot be both a split and a class.* in 'val'"):
        load_images(source(["train/0.png", "val/1.png"]))


def test_without_splits_there_is_a_seeded_one(source) -> None:
    name = source([f"{k:02}.png" for k in range(25)])
    assert len(load_images(name, split="test")) == 2 and len(load_images(name)) == 23


def test_nothing_there(source) -> None:
    with pytest.raises(ScorelensError, match=r"pictures.*: no images found \(files ending in .bmp"):
        load_images(source([".hidden.png"]))


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ScorelensError, match=f"folder:{tmp_path}: no images found"):
        load_images(f"folder:{tmp_path}")


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_missing_path(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ScorelensError, match=f"there is no (folder|file) {tmp_path}/nowhere"):
        load_images(f"{kind}:{tmp_path}/nowhere")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    write_images(tmp_path, ["0.png"])
    with pytest.raises(ScorelensError, match=r"0.png is a file, not a folder"):
        load_images(f"folder:{tmp_path}/0.png")


@pytest.mark.parametrize("name", ["0.png", ""])
def test_not_a_zip(tmp_path: Path, name: str) -> None:
    write_images(tmp_path, ["0.png"])
    with pytest.raises(ScorelensError, match="is not a zip file"):
        load_images(f"zip:{tmp_path / name}")


def test_a_zip_may_wrap_everything_in_one_folder(tmp_path: Path) -> None:
    """faces/cat/0.png: `faces` is no class. A folder does not do this: its user can point deeper."""
    folder = write_images(tmp_path / "pictures", ["faces/cat/0.png", "faces/dog/1.png"])
    assert load_images(as_zip(folder), split="all").class_names == ("cat", "dog")
    assert load_images(as_folder(folder), split="all").class_names == ("faces",)


def test_a_broken_member_of_a_zip_is_a_bad_file(tmp_path: Path) -> None:
    """Both kinds: an image that is cut, and a member whose checksum fails."""
    folder = write_images(tmp_path / "pictures", ["0.png", "1.png", "2.png"])
    truncate(folder / "1.png")
    path = Path(as_zip(folder).removeprefix("zip:"))
    data, content = path.read_bytes(), (folder / "2.png").read_bytes()
    path.write_bytes(data.replace(content, content[:-1] + b"?"))
    with pytest.raises(ScorelensError, match=r"cannot be decoded: 1.png, 2.png"):
        load_images(f"zip:{path}")
    assert values(load_images(f"zip:{path}", skip_bad=True)) == [0]


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write_images(tmp_path / "elsewhere", ["0.png"])
    write_images(tmp_path / "pictures", ["cat/0.png", "cat/1.png"])
    (tmp_path / "pictures" / "dog").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "pictures" / "cat" / "loop").symlink_to(tmp_path / "pictures")
    images = load_images(f"folder:{tmp_path / 'pictures'}", split="all")
    assert images.class_names == ("cat", "dog") and images.labels.tolist() == [0, 0, 1]


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "pictures", ["0.png"])
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(load_images("folder:~/pictures")) == 1


def test_images_need_not_be_square(source) -> None:
    images = load_images(source(["0.png"]))
    assert images.shape == (1, 4, 6) and images.pixels.dtype == np.uint8


def edm(folder: Path, labels: object) -> str:
    """A dataset as EDM's tool writes it: numbered folders that are not classes, and a dataset.json."""
    names = [f"{k // 2:05d}/img{k:08d}.png" for k in range(4)]
    write_images(folder, names)
    content = {"labels": [[name, labels[k]] for k, name in enumerate(names)] if isinstance(labels, list) else labels}
    (folder / "dataset.json").write_text(json.dumps(content))
    return as_zip(folder)


def test_the_labels_of_edms_datasets(tmp_path: Path) -> None:
    images = load_images(edm(tmp_path / "edm", [6, 9, 9, 4]), split="all")
    assert images.labels is not None and images.labels.tolist() == [6, 9, 9, 4] and images.class_names == ()
    assert values(load_images(f"folder:{tmp_path / 'edm'}", split="all", classes=[9])) == [1, 2]
    assert load_images(edm(tmp_path / "plain", None), split="all").labels is None
    for labels, message in (([[0, 1]] * 4, "must be whole numbers"), (3, "not a list of labels as EDM writes it")):
        with pytest.raises(ScorelensError, match=message):
            load_images(edm(tmp_path / f"bad{len(str(labels))}", labels), split="all")
    path = tmp_path / "edm" / "dataset.json"
    path.write_text(json.dumps({"labels": [["00000/img00000000.png", 6]]}))
    with pytest.raises(ScorelensError, match="has no label for 3 images, e.g. 00000/img00000001.png"):
        load_images(f"folder:{tmp_path / 'edm'}")


def test_tiny_imagenet_is_a_folder_or_a_zip_of_classes(tmp_path):
    folder = write_images(tmp_path / "tiny-imagenet64", ["n01/a.png", "n01/b.png", "n02/c.png"])
    unpacked = load_images("tiny-imagenet", root=tmp_path)
    Path(as_zip(folder).removeprefix("zip:")).rename(folder / "train.zip")
    zipped = load_images("tiny-imagenet", root=tmp_path)
    assert zipped.class_names == unpacked.class_names == ("n01", "n02") and zipped.labels.tolist() == [0, 0, 1]
    assert zipped.fingerprint == unpacked.fingerprint
