"""The registry of image sources, and `load_images` with the options that all of them share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import nn

from scorelens.data.array_cache import shared
from scorelens.data.arrays import load_cifar10, load_digits, load_mnist, load_npz
from scorelens.data.decode import resize, to_channels
from scorelens.data.edits import SPLITS, check_draw, limited, only_classes, with_flips
from scorelens.data.folders import load_folder, load_hub, load_tiny_imagenet, load_zip
from scorelens.data.images import ImageSet, Request
from scorelens.data.latents import Autoencoder, encode_images
from scorelens.data.leaves import load_leaves
from scorelens.types import ScorelensError
from scorelens.validation import unknown

LARGEST_SIDE = 8192  # pixels
CHANNELS = {"1": 1, "grayscale": 1, "3": 3, "rgb": 3}


@dataclass(frozen=True)
class Source:
    """An entry of the registry."""

    load: Callable[[Request], ImageSet]
    about: str
    get: str  # where to get it and its layout on disk
    needs: str = ""  # "root": a folder of datasets; "path": a path or name after the colon
    folder: str = ""  # its folder below the root
    split: str = "train"  # the default


SOURCES: dict[str, Source] = {
    "digits": Source(load_digits, "1,797 handwritten digits, 8x8 grey", "embedded in scikit-learn", split="all"),
    "leaves": Source(
        load_leaves, "dead leaves, random overlapping discs: 10,000 of 32x32 colour, or any limit and resolution",
        "rendered from the seed", split="all"),
    "mnist": Source(
        load_mnist, "70,000 handwritten digits, 28x28 grey", "ROOT/MNIST/raw/*-ubyte, or download=True", "root"),
    "fashion-mnist": Source(
        load_mnist, "70,000 pieces of clothing, 28x28 grey", "ROOT/FashionMNIST/raw/*-ubyte, or download=True", "root"),
    "cifar10": Source(
        load_cifar10, "60,000 photographs of 10 classes, 32x32 colour",
        "ROOT/cifar10/{train,test}.npz or ROOT/cifar-10-batches-py, or download=True", "root"),
    "celeba-hq": Source(
        load_folder, "30,000 faces, high quality, 1024x1024 colour or smaller",
        "https://github.com/tkarras/progressive_growing_of_gans (or download.sh celeba-hq-dataset of "
        "https://github.com/clovaai/stargan-v2), images anywhere below ROOT/celeba-hq", "root", "celeba-hq"),
    "afhqv2": Source(
        load_folder, "15,803 faces of cats, dogs and wild animals, 512x512 colour",
        "download.sh afhq-v2-dataset of https://github.com/clovaai/stargan-v2, laid out as "
        "ROOT/afhqv2/{train,test}/{cat,dog,wild}", "root", "afhqv2"),
    "celeba": Source(
        load_folder, "aligned faces, 64x64 colour", "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, cropped and "
        "scaled to 64x64, as ROOT/celeba64/*.jpg", "root", "celeba64"),
    "afhq-cats": Source(
        load_folder, "faces of cats, 64x64 colour", "download.sh afhq-dataset of "
        "https://github.com/clovaai/stargan-v2, its cats scaled to 64x64, as ROOT/afhq-cats64/*.jpg",
        "root", "afhq-cats64"),
    "tiny-imagenet": Source(
        load_tiny_imagenet, "100,000 photographs of 200 classes, 64x64 colour", "the training images of "
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip, a folder for each class, in ROOT/tiny-imagenet64 or in "
        "ROOT/tiny-imagenet64/train.zip", "root", "tiny-imagenet64", split="all"),
    "folder": Source(
        load_folder, "image files; subfolders are classes, train/ and test/ above them are splits", "folder:PATH",
        "path"),
    "zip": Source(
        load_zip, "image files in a zip, laid out as in a folder, or with EDM's dataset.json", "zip:PATH", "path"),
    "npz": Source(
        load_npz, "numpy arrays: images, uint8 [N,H,W] or [N,H,W,C], and optionally labels", "npz:PATH", "path",
        split="all"),
    "hf": Source(
        load_hub, "a dataset of the Hugging Face hub (extra hf)", "hf:NAME, downloaded on first use", "path"),
}


def load_images(source: str, *, root: str | Path | None = None, split: str | None = None, limit: int | None = None,
                seed: int = 0, classes: Sequence[int | str] | None = None,
                resolution: int | Sequence[int] | None = None, channels: int | str | None = None, flips: bool = False,
                skip_bad: bool = False, download: bool = False,
                autoencoder: str | Path | nn.Module | Autoencoder | None = None,
                latent_dtype: Literal["float32", "float16"] = "float32") -> ImageSet:
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
        autoencoder: encode the images once with this AutoencoderKL or AutoencoderTiny: its folder, that of a pipeline
            which contains it, or the module. The result is an ImageSet of latents, in the units of latent diffusion.
        latent_dtype: of the cached latents.
    """
    entry, location = _find(source, root)
    check_draw(limit, seed)
    split = split or entry.split
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if channels is not None and str(channels) not in CHANNELS:
        raise unknown("channels", str(channels), CHANNELS)
    request = Request(source, location, split, limit, seed, _size(resolution), CHANNELS.get(str(channels)), skip_bad,
                      download)

    def load() -> ImageSet:
        if entry.folder and not request.path.exists():
            raise ScorelensError(f"{source}: there is no folder {request.path}; get it: {entry.get}")
        images = entry.load(request)
        if classes is not None:
            images = only_classes(images, [classes] if isinstance(classes, str) else classes)
        images = _converted(limited(images, limit, seed), request)
        return (with_flips(images) if flips else images).renumbered

    images = shared(load)
    return images if autoencoder is None else encode_images(images, autoencoder, latent_dtype)


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
    return entry, str(Path(location, entry.folder)) if entry.folder else location


def _size(resolution: int | Sequence[int] | None) -> tuple[int, int] | None:
    if resolution is None:
        return None
    size = (resolution, resolution) if isinstance(resolution, int) else tuple(resolution)
    if len(size) != 2 or not all(isinstance(side, int) and side >= 1 for side in size):
        raise ScorelensError(f"resolution must be a positive number or a pair (H, W) of them, got {resolution!r}")
    if max(size) > LARGEST_SIDE:
        raise ScorelensError(f"resolution must be at most {LARGEST_SIDE:,}, got {max(size):,}")
    return size[0], size[1]


def _converted(images: ImageSet, request: Request) -> ImageSet:
    """Resize and convert channels, and record it; a no-op for pixels that were decoded or rendered that way."""
    pixels, record = images.pixels, dict(images.record)
    if request.size is not None:
        pixels, record["resolution"] = resize(pixels, request.size), list(request.size)
    if request.channels is not None:
        pixels, record["channels"] = to_channels(pixels, request.channels), request.channels
    return replace(images, pixels=pixels, record=record)
