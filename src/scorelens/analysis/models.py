"""Denoisers and networks by one kind of name, for whoever takes both."""

from __future__ import annotations

from scorelens.data.images import ImageSet
from scorelens.denoisers import denoiser_names, denoiser_options
from scorelens.denoisers.specs import Spec, parse_specs
from scorelens.networks.load import load_network
from scorelens.types import Denoiser, ScorelensError


def build_model(name: str, images: ImageSet) -> Denoiser:
    """A denoiser by its spec, else a network by its name or folder."""
    if name.partition(":")[0] in denoiser_names():
        (spec, *others) = parse_specs(name)
        if others:
            raise ScorelensError(f"{name} names several denoisers; give one value for each option")
        return build_spec(spec, images)
    return load_network(name, shape=images.shape)


def build_spec(spec: Spec, images: ImageSet, reference: Denoiser | None = None) -> Denoiser:
    """The denoiser of a spec. One that is measured on a network takes it by name, else the reference."""
    if "network" not in denoiser_options(spec.name):
        return spec.build(images)
    given = spec.options.get("network", reference)
    network = load_network(given, shape=images.shape) if isinstance(given, str) else given
    return Spec(spec.name, {**spec.options, "network": network}).build(images)
