"""Denoisers and networks by name."""

from __future__ import annotations

from pathlib import Path

from scorelens.data.images import ImageSet
from scorelens.denoisers import denoiser_names, denoiser_options
from scorelens.denoisers.specs import Spec, parse_specs
from scorelens.networks.adapters import Network
from scorelens.networks.load import load_network
from scorelens.types import Denoiser, ScorelensError


def build_model(name: str, images: ImageSet) -> Denoiser:
    """The denoiser of a spec with one value per option, or the network of a zoo name, folder or hub id."""
    if name.partition(":")[0] in denoiser_names():
        (spec, *others) = parse_specs(name)
        if others:
            raise ScorelensError(f"{name} names several denoisers; give one value for each option")
        return build_spec(spec, images)
    return load_network(name, shape=images.shape)


def build_spec(spec: Spec, images: ImageSet, reference: Denoiser | None = None) -> Denoiser:
    """The denoiser of a spec. If it needs a network, that is its option `network`, by default the reference."""
    if "network" not in denoiser_options(spec.name):
        return spec.build(images)
    given = spec.options.get("network", reference)
    network = load_network(given, shape=images.shape) if isinstance(given, str) else given
    return Spec(spec.name, {**spec.options, "network": network}).build(images)


def named_network(network: str | Network, images: ImageSet, name: str | None) -> tuple[Network, str]:
    """The network, loaded if it is given by name, and its name: the one given, else its zoo name or folder."""
    if isinstance(network, str):
        return load_network(network, shape=images.shape), name or Path(network).name
    return network, name or "network"
