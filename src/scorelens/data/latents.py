"""Latents: images encoded by an autoencoder of diffusers, once for each content; decoded again for pictures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from scorelens import progress
from scorelens.data.array_cache import cached_array, cached_path, shared
from scorelens.data.images import ImageSet
from scorelens.types import ScorelensError
from scorelens.validation import unknown, weights_hash

CLASSES = ("AutoencoderKL", "AutoencoderTiny")
PART = "vae"  # the folder of an autoencoder in a pipeline
BATCH = 64  # images at a time


@dataclass(frozen=True, eq=False)
class Autoencoder:
    """An AutoencoderKL or AutoencoderTiny. Latents are in the units of diffusion: (mean - shift) * scaling factor."""

    model: Any  # of diffusers
    name: str

    @property
    def kind(self) -> str:
        return type(self.model).__name__

    @property
    def scaling(self) -> float:
        return float(self._config.get("scaling_factor") or 1.0)

    @property
    def shift(self) -> float:
        return float(self._config.get("shift_factor") or 0.0)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the config and the weights."""
        settings = {key: value for key, value in self._config.items() if not key.startswith("_")}
        text = f"{self.kind} {json.dumps(settings, sort_keys=True, default=str)} {weights_hash(self.model)}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def encode(self, x: Tensor) -> Tensor:
        """The latents [n, c, h, w] of images [n, C, H, W]; of an AutoencoderKL, the means of the posterior."""
        def encoded(part: Tensor) -> Tensor:
            output = self.model.encode(part)
            return output.latents if self.kind == "AutoencoderTiny" else output.latent_dist.mean

        return (self._in_batches(encoded, x) - self.shift) * self.scaling

    def decode(self, latents: Tensor) -> Tensor:
        """The images of latents, about in [-1, 1]."""
        return self._in_batches(lambda part: self.model.decode(part).sample, latents / self.scaling + self.shift)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "class": self.kind, "scaling_factor": self.scaling, "shift_factor": self.shift,
                "fingerprint": self.fingerprint}

    @property
    def _config(self) -> Any:
        return self.model.config

    @torch.no_grad()
    def _in_batches(self, call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """On the device and in the dtype of the weights; the result has those of x."""
        own = next(self.model.parameters())
        return torch.cat([call(part.to(own)).to(x) for part in x.split(BATCH)])


def load_autoencoder(source: str | Path | nn.Module | Autoencoder, name: str | None = None) -> Autoencoder:
    """An autoencoder of diffusers: its folder, that of a pipeline which contains it, or the module; called `name`."""
    if isinstance(source, Autoencoder):
        return source
    if isinstance(source, nn.Module):
        return _checked(source, name or type(source).__name__)
    path = Path(source).expanduser()
    folder = path / PART if (path / PART / "config.json").is_file() else path
    if not (folder / "config.json").is_file():
        raise ScorelensError(f"there is no autoencoder in {path}: give a folder saved by diffusers that contains "
                             f"config.json or {PART}/config.json")
    return _checked(_from_folder(folder), name or str(source))


def _from_folder(folder: Path) -> nn.Module:
    import diffusers

    kind = json.loads((folder / "config.json").read_text()).get("_class_name")
    if kind not in CLASSES:
        raise unknown(f"autoencoder class in {folder}:", str(kind), CLASSES)
    try:
        model: nn.Module = getattr(diffusers, kind).from_pretrained(
            str(folder), use_safetensors=True, local_files_only=True, low_cpu_mem_usage=False)
    except Exception as error:  # third-party code raises many kinds
        raise ScorelensError(f"the weights in {folder} are damaged, missing or not of the {kind} in its config.json: "
                             f"{' '.join(str(error).split())[:300]}") from error
    return model.float()


def _checked(model: nn.Module, name: str) -> Autoencoder:
    if type(model).__name__ not in CLASSES:
        raise unknown("autoencoder class", type(model).__name__, CLASSES)
    return Autoencoder(model.eval().requires_grad_(False), name)


def encode_images(images: ImageSet, autoencoder: str | Path | nn.Module | Autoencoder,
                  dtype: Literal["float32", "float16"] = "float32") -> ImageSet:
    """The latents of images, as an ImageSet whose pictures are decoded. They are cached by content.

    Args:
        images: the images to encode.
        autoencoder: a folder saved by diffusers, or an AutoencoderKL or AutoencoderTiny.
        dtype: of the cached latents; float16 halves their size on disk.
    """
    if images.autoencoder is not None:
        raise ScorelensError(f"{images.name} are latents already")
    coder = load_autoencoder(autoencoder)
    channels = coder._config.in_channels
    if channels != images.shape[0]:
        raise ScorelensError(f"the autoencoder {coder.name} takes {channels} channels, the images have "
                             f"{images.shape[0]}; convert them with --channels")
    key = hashlib.sha256(f"{images.fingerprint} {coder.fingerprint} {dtype}".encode()).hexdigest()[:32]

    def load() -> ImageSet:
        shape = (len(images), *coder.encode(images[:1]).shape[1:])
        pixels = cached_array(cached_path(f"latents-{key}"), shape, lambda array: _encode(images, coder, array),
                              np.dtype(dtype))
        return replace(images, pixels=pixels if pixels.dtype == np.float32 else pixels.astype(np.float32),
                       autoencoder=coder, record={**images.record, "autoencoder": coder.describe(),
                                                      "image_shape": list(images.shape)})

    return shared(load)


def _encode(images: ImageSet, coder: Autoencoder, array: np.ndarray) -> None:
    """Fill the array with the latents of all images."""
    for start in progress.track(range(0, len(images), BATCH), "encoding", unit="batch"):
        array[start:start + BATCH] = coder.encode(images[start:start + BATCH]).numpy()
