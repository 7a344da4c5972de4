"""The registry of image sources, and `load_images` with the options that all of them share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scorelens.data.arrays import load_digits, load_npz
from scorelens.data.classics import load_cifar10, load_mnist
from scorelens.data.decode import Decoding
from scorelens.data.edits import check_draw, limited, only_classes, with_flips
from scorelens.data.folders import load_folder, load_zip
from scorelens.data.hub import load_hub
from scorelens.data.images import ImageSet
from scorelens.data.leaves import load_leaves
from scorelens.data.resize import resize, to_channels
from scorelens.data.shared import shared
from scorelens.data.splits import SPLITS
from scorelens.types import ScorelensError
from scorelens.validation import unknown

CHANNELS = {"1": 1, "grayscale": 1, "3": 3, "rgb": 3}


@dataclass(frozen=True)
class Request:
    """The options of `load_images`, checked, for the loader of a source."""

    source: str  # as the user wrote it
    location: str  # the root folder, or the path or name after the colon
    split: str
    limit: int | None
    seed: int
    decoding: Decoding
    download: bool

    @property
    def path(self) -> Path:
        return Path(self.location).expanduser()


@dataclass(frozen=True)
class Source:
    """An entry of the registry."""

    load: Callable[[Request], ImageSet]
    about: str
    split: str = "train"  # the default
    needs: str = ""  # "root": a folder of datasets; "path": a path or name after the colon
    get: str = ""  # where to get it and its layout on disk


def _under_root(folder: str) -> Callable[[Request], ImageSet]:
    """A loader of the image folder ROOT/folder; if it is missing, the error says where to get it."""
    def load(r: Request) -> ImageSet:
        if not (r.path / folder).exists():
            raise ScorelensError(f"{r.source}: there is no folder {r.path / folder}; get it: {SOURCES[r.source].get}")
        return load_folder(r.source, r.path / folder, r.split, r.decoding)

    return load


SOURCES: dict[str, Source] = {
    "digits": Source(
        load=lambda r: load_digits(r.split), split="all",
        about="1,797 handwritten digits, 8x8 grey", get="embedded in scikit-learn"),
    "leaves": Source(
        load=lambda r: load_leaves(r.split, r.limit, r.decoding.size or (32, 32), r.decoding.channels or 3, r.seed),
        about="dead leaves, random overlapping discs: 10,000 of 32x32 colour, or any limit and resolution", split="all",
        get="rendered from the seed"),
    "mnist": Source(
        load=lambda r: load_mnist(r.source, r.path, r.split, r.download), needs="root",
        about="70,000 handwritten digits, 28x28 grey", get="ROOT/MNIST/raw/*-ubyte, or download=True"),
    "fashion-mnist": Source(
        load=lambda r: load_mnist(r.source, r.path, r.split, r.download), needs="root",
        about="70,000 pieces of clothing, 28x28 grey", get="ROOT/FashionMNIST/raw/*-ubyte, or download=True"),
    "cifar10": Source(
        load=lambda r: load_cifar10(r.path, r.split, r.download), needs="root",
        about="60,000 photographs of 10 classes, 32x32 colour",
        get="ROOT/cifar10/{train,test}.npz or ROOT/cifar-10-batches-py, or download=True"),
    "celeba-hq": Source(
        load=_under_root("celeba-hq"), needs="root", about="30,000 faces, high quality, 1024x1024 colour or smaller",
        get="https://github.com/tkarras/progressive_growing_of_gans (or download.sh celeba-hq-dataset of "
            "https://github.com/clovaai/stargan-v2), images anywhere below ROOT/celeba-hq"),
    "afhqv2": Source(
        load=_under_root("afhqv2"), needs="root", about="15,803 faces of cats, dogs and wild animals, 512x512 colour",
        get="download.sh afhq-v2-dataset of https://github.com/clovaai/stargan-v2, laid out as "
            "ROOT/afhqv2/{train,test}/{cat,dog,wild}"),
    "celeba": Source(
        load=_under_root("celeba64"), needs="root", about="aligned faces, 64x64 colour",
        get="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, cropped and scaled to 64x64, as ROOT/celeba64/*.jpg"),
    "afhq-cats": Source(
        load=_under_root("afhq-cats64"), needs="root", about="faces of cats, 64x64 colour",
        get="download.sh afhq-dataset of https://github.com/clovaai/stargan-v2, its cats scaled to 64x64, as "
            "ROOT/afhq-cats64/*.jpg"),
    "folder": Source(
        load=lambda r: load_folder(r.source, r.path, r.split, r.decoding), needs="path",
        about="image files; subfolders are classes, train/ and test/ above them are splits", get="folder:PATH"),
    "zip": Source(
        load=lambda r: load_zip(r.source, r.path, r.split, r.decoding), needs="path",
        about="image files in a zip, laid out as in a folder", get="zip:PATH"),
    "npz": Source(
        load=lambda r: load_npz(r.source, r.path, r.split), needs="path", split="all",
        about="numpy arrays: images, uint8 [N,H,W] or [N,H,W,C], and optionally labels", get="npz:PATH"),
    "hf": Source(
        load=lambda r: load_hub(r.source, r.location, r.split, r.decoding), needs="path",
        about="a dataset of the Hugging Face hub (extra hf)", get="hf:NAME, downloaded on first use"),
}


def load_images(source: str, *, root: str | Path | None = None, split: str | None = None, limit: int | None = None,
                seed: int = 0, classes: Sequence[int | str] | None = None,
                resolution: int | Sequence[int] | None = None, channels: int | str | None = None, flips: bool = False,
                skip_bad: bool = False, download: bool = False) -> ImageSet:
    """Load images from a source, e.g. "digits", "cifar10" or "folder:PATH" (`SOURCES` lists all).

    Args:
        source: a name in SOURCES; for folder, zip, npz and hf followed by a colon and a path or name.
        root: the folder of datasets, by default $SCORELENS_DATA.
        split: "train", "test" or "all", by default that of the source.
        limit: keep this many images, the first after shuffling with `seed`.
        seed: seed of the shuffle; for "leaves", of the images themselves.
        classes: keep only these classes, given by label or name.
        resolution: scale to this side or (H, W) (--resolution 48x64), cropping the centre if the aspect ratio differs.
        channels: 1 or "grayscale", 3 or "rgb".
        flips: add the mirror image of each.
        skip_bad: leave out files that cannot be decoded; the record lists them.
        download: fetch the dataset (mnist, fashion-mnist, cifar10) if it is not under `root`.
    """
    entry, location = _find(source, root)
    decoding = Decoding(_size(resolution), _channels(channels), skip_bad)
    check_draw(limit, seed)
    split = split or entry.split
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    request = Request(source, location, split, limit, seed, decoding, download)

    def load() -> ImageSet:
        images = entry.load(request)
        if classes is not None:
            images = only_classes(images, [classes] if isinstance(classes, str) else classes)
        images = _converted(limited(images, limit, seed), decoding)
        return with_flips(images) if flips else images

    return shared(load)


def _find(source: str, root: str | Path | None) -> tuple[Source, str]:
    """The registry entry and the location it loads from."""
    name, colon, path = source.partition(":")
    if name not in SOURCES:
        raise unknown("source", name, SOURCES)
    entry = SOURCES[name]
    location = path if entry.needs == "path" else str(root or os.environ.get("SCORELENS_DATA") or "")
    if entry.needs == "path" and not path:
        raise ScorelensError(f"the source {name!r} needs a path or name after a colon: {entry.get}")
    if entry.needs != "path" and colon:
        raise ScorelensError(f"the source {name!r} takes nothing after a colon, got {source!r}")
    if entry.needs == "root" and not location:
        raise ScorelensError(f"the source {name!r} needs a folder of datasets: give --root or set SCORELENS_DATA")
    return entry, location


def _size(resolution: int | Sequence[int] | None) -> tuple[int, int] | None:
    if resolution is None:
        return None
    size = (resolution, resolution) if isinstance(resolution, int) else tuple(resolution)
    if len(size) != 2 or not all(isinstance(side, int) and side >= 1 for side in size):
        raise ScorelensError(f"resolution must be a positive number or a pair (H, W) of them, got {resolution!r}")
    return size[0], size[1]


def _channels(channels: int | str | None) -> int | None:
    if channels is None:
        return None
    if str(channels) not in CHANNELS:
        raise unknown("channels", str(channels), CHANNELS)
    return CHANNELS[str(channels)]


def _converted(images: ImageSet, decoding: Decoding) -> ImageSet:
    """Resize and convert channels, and record it; a no-op for pixels that were decoded or rendered that way."""
    if decoding.size is not None:
        images = replace(images, pixels=resize(images.pixels, decoding.size),
                         record={**images.record, "resolution": list(decoding.size)})
    if decoding.channels is not None:
        images = replace(images, pixels=to_channels(images.pixels, decoding.channels),
                         record={**images.record, "channels": decoding.channels})
    return images
