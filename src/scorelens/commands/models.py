"""Denoisers and networks by one kind of name, for commands that take both."""

from __future__ import annotations

from scorelens.data.images import ImageSet
from scorelens.denoisers import DENOISERS
from scorelens.denoisers.specs import parse_specs
from scorelens.networks.load import load_network
from scorelens.types import Denoiser, ScorelensError


def build_model(name: str, images: ImageSet) -> Denoiser:
    """A denoiser by its spec, else a network by its name or folder."""
    if name.partition(":")[0] in DENOISERS:
        (spec, *others) = parse_specs(name)
        if others:
            raise ScorelensError(f"{name} names several denoisers; give one value for each option")
        return spec.build(images)
    return load_network(name, shape=images.shape)
