"""The flags that select the images of a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from scorelens.data import ImageSet, add_mark, encode_images, load_images
from scorelens.data.latents import load_autoencoder
from scorelens.networks.zoo import zoo_folder


def load_data(source: str, /, *, root: Path | None = None, split: str | None = None, limit: int | None = None,
              data_seed: int = 0, classes: Sequence[str] | None = None, resolution: int | Sequence[int] | None = None,
              channels: str | None = None, flips: bool = False, mark: str | None = None, gamma: float = 0.5,
              skip_bad: bool = False, download: bool = False, autoencoder: str | None = None,
              latent_dtype: Literal["float32", "float16"] = "float32") -> ImageSet:
    """Load images, add a mark to them if one is given, and encode them if there is an autoencoder.

    Args:
        root: the folder of datasets, by default $SCORELENS_DATA.
        split: train, test or all, by default the source's own.
        limit: load only this many images, chosen at random.
        data_seed: seed of that choice; of the images themselves for leaves.
        classes: load only these classes, given by label or name.
        resolution: side, or HEIGHTxWIDTH, to scale to; the centre is cropped if needed.
        channels: 1 or grayscale, 3 or rgb.
        flips: add the mirror image of each image.
        mark: add this mark to every image in a random colour: a letter, or an image file of the same size.
        gamma: strength of the mark.
        skip_bad: skip files that cannot be decoded; the record lists them.
        download: download the dataset (mnist, fashion-mnist, cifar10) if it is not under the root.
        autoencoder: encode the images with this autoencoder: a zoo name, or a folder saved by diffusers that holds an
            AutoencoderKL or AutoencoderTiny, or a pipeline with one; everything then works on latents.
        latent_dtype: float32, or float16 to halve the cache of latents on disk.
    """
    images = load_images(source, root=root, split=split, limit=limit, seed=data_seed, classes=classes,
                         resolution=resolution, channels=channels, flips=flips, skip_bad=skip_bad, download=download)
    images = images if mark is None else add_mark(images, mark, gamma, data_seed)
    if autoencoder is None:
        return images
    coder = load_autoencoder(zoo_folder(autoencoder) or autoencoder, autoencoder)
    return encode_images(images, coder, latent_dtype)
