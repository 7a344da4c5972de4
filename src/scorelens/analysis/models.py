"""Denoisers and networks by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scorelens.analysis.guidance import Guidance
from scorelens.data.images import ImageSet
from scorelens.denoisers import build_denoiser, denoiser_names, denoiser_options
from scorelens.denoisers.specs import Spec, parse_specs
from scorelens.networks.adapters import Network
from scorelens.networks.load import load_network
from scorelens.networks.zoo import zoo_folder
from scorelens.types import Denoiser, ScorelensError


@dataclass(frozen=True)
class Loading:
    """Options of load_network for networks outside the zoo; those of the zoo need none."""

    module: str | None = None
    weights: str | None = None
    value_range: tuple[float, float] | None = None
    parametrization: str | None = None
    schedule: str | None = None
    trust_pickle: bool = False
    root: str | Path | None = None

    def network(self, name: str, images: ImageSet, label: int | str | None = None) -> Network:
        """The network of a name."""
        if zoo_folder(name) is not None:
            return load_network(name, shape=images.shape, label=label, latent=images.autoencoder is not None or None)
        options: dict[str, Any] = dict(vars(self))
        if not Path(name).expanduser().is_file():
            options |= {"module": None, "weights": None}
        return load_network(name, images=images, label=label, **options)


def build_model(name: str, images: ImageSet, guidance: Guidance | None = None) -> Denoiser:
    """The denoiser of a spec with one value per option, or the network of a zoo name, folder or hub id."""
    if name.partition(":")[0] in denoiser_names():
        (spec, *others) = parse_specs(name)
        if others:
            raise ScorelensError(f"{name} names several denoisers; give one value for each option")
        return build_spec(spec, images, guidance=guidance)
    network = load_for(name, images)
    return network if guidance is None else guidance.network(network)


def build_spec(spec: Spec, images: ImageSet, reference: Denoiser | None = None,
               guidance: Guidance | None = None) -> Denoiser:
    """The denoiser of a spec, guided if given.

    If it needs a network, that is its option `network`, by default the reference.
    """
    options = dict(spec.options)
    if "network" in denoiser_options(spec.name):
        given = options.get("network", reference)
        options["network"] = load_for(given, images) if isinstance(given, str) else given
    build = partial(build_denoiser, spec.name, images, **options)
    return build() if guidance is None else guidance.formula(build)


def load_for(name: str, images: ImageSet) -> Network:
    """The network of a zoo name, folder or hub id, for images of this shape and kind."""
    return load_network(name, shape=images.shape, latent=images.autoencoder is not None or None)


def named_network(network: str | Network, images: ImageSet, name: str | None) -> tuple[Network, str]:
    """The network, loaded if it is given by name, and its name: the one given, else its zoo name or folder."""
    if isinstance(network, str):
        return load_for(network, images), name or Path(network).name
    return network, name or "network"
