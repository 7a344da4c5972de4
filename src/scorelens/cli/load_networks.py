"""The flags that say how a network is loaded, the same for every command that names one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scorelens.analysis.guidance import Guidance
from scorelens.analysis.models import Loading, build_model
from scorelens.data.images import ImageSet
from scorelens.denoisers import denoiser_names
from scorelens.networks.adapters import Network
from scorelens.types import Denoiser, ScorelensError


def loading_flags(*, module: str | None = None, weights: str | None = None, value_range: Sequence[float] | None = None,
                  parametrization: str | None = None, schedule: str | None = None,
                  trust_pickle: bool = False) -> Loading:
    """How networks outside the zoo are loaded.

    Args:
        module: the class of the network in a checkpoint file: package.module:Class or path/to/file.py:Class.
        weights: which weights of a checkpoint file to take: ema, model, ...; by default the averaged ones.
        value_range: black and white in the data of the network: 0 1, or -0.5 0.5. By default -1 1.
        parametrization: what the network predicts: epsilon, x0, v, velocity or denoised; by default from its config, or
            found out by trying.
        schedule: its noise levels: linear, cosine, scaled_linear, flow or sigma, and the number of steps if it is not
            1000 (cosine:100); by default from its config or file, or found out by trying.
        trust_pickle: load pickles, which can run code.
    """
    if value_range is not None and len(value_range) != 2:
        raise ScorelensError(f"--value-range takes two numbers, black and white, got {len(value_range)}")
    pair = None if value_range is None else (float(value_range[0]), float(value_range[1]))
    return Loading(module, weights, pair, parametrization, schedule, trust_pickle)


def load_named(name: str, images: ImageSet, loading: Loading | None, label: int | str | None = None) -> Network:
    """The network of a name; prints what was found out about it."""
    network = (loading or Loading()).network(name, images, label)
    for note in network.notes:
        print(f"{Path(name).name}: {note}")
    return network


def load_model(name: str, images: ImageSet, loading: Loading | None, guidance: Guidance | None = None) -> Denoiser:
    """The denoiser of a spec, or the network of a name; guided, if there is guidance."""
    if name.partition(":")[0] in denoiser_names():
        return build_model(name, images, guidance)
    network = load_named(name, images, loading)
    return network if guidance is None else guidance.network(network)
