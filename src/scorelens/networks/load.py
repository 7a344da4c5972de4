"""`load_network`: networks by the name of the zoo, from a folder of diffusers, from the hub, or as Python objects."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scorelens.networks.adapters import PARAMETRIZATIONS, Network
from scorelens.networks.architectures import require_diffusers
from scorelens.networks.configs import MODELS, Noise, fit_label, fit_shape, one_line, read_inputs, read_scheduler
from scorelens.networks.folders import Folder, load_model, open_folder
from scorelens.networks.zoo import zoo_folder, zoo_names
from scorelens.noise import FlowSchedule, Schedule, SigmaSchedule, beta_schedule
from scorelens.types import ScorelensError, Shape
from scorelens.validation import unknown

HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
OWN_SCHEDULES: dict[str, Schedule] = {"velocity": FlowSchedule(), "denoised": SigmaSchedule()}  # they leave no choice


def load_network(source: str | Path | Callable[..., Any], *, parametrization: str | None = None,
                 schedule: Schedule | None = None, shape: Shape | None = None, label: int | str | None = None,
                 trust_pickle: bool = False) -> Network:
    """A trained network as a denoiser.

    Args:
        source: a name of the zoo, a folder saved by diffusers (a pipeline or a model), a hub id such as
            "google/ddpm-cifar10-32"; or a torch module or any callable model(x_t, t).
        parametrization: what it predicts, a name in PARAMETRIZATIONS; by default what the folder says.
        schedule: its noise levels; by default what the folder says.
        shape: of the data, images.shape: a network that does not fit them is refused before its weights are read.
        label: the class it is to denoise, a number or "null", for networks that know classes.
        trust_pickle: read weights saved as a pickle where there are no safetensors.
    """
    if parametrization is not None and parametrization not in PARAMETRIZATIONS:
        raise unknown("parametrization", parametrization, PARAMETRIZATIONS)
    if isinstance(source, (str, Path)):
        require_diffusers()
        folder = open_folder(_find(source, trust_pickle))
        noise = _noise_of_folder(folder, parametrization, schedule)
        return _from_folder(folder, str(source), noise, shape, label, trust_pickle)
    return _from_callable(source, _noise_of_callable(parametrization, schedule), shape, label)


def _find(source: str | Path, trust_pickle: bool) -> Path:
    """The folder of a network: of the zoo, on disk, or downloaded."""
    name, path = str(source), Path(source).expanduser()
    known = zoo_folder(name) if isinstance(source, str) else None
    if known is not None or path.is_dir():
        return known or path
    if path.is_file():
        raise ScorelensError(f"{name} is a file; give the folder that diffusers saved, with config.json in it")
    if isinstance(source, str) and HUB_ID.fullmatch(name):
        return _download(name, trust_pickle)
    if isinstance(source, Path) or "/" in name:
        raise ScorelensError(f"there is no folder {name}")
    raise ScorelensError(f"{unknown('network', name, zoo_names())}; "
                         "a folder saved by diffusers or a hub id such as google/ddpm-cifar10-32 also goes")


def _download(name: str, trust_pickle: bool) -> Path:
    import huggingface_hub

    kinds = ["*.json", "*.safetensors", *(["*.bin"] if trust_pickle else [])]
    with one_line(f"{name} is neither a folder nor could it be downloaded from the hub"):
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=kinds))


def _noise_of_folder(folder: Folder, parametrization: str | None, schedule: Schedule | None) -> Noise:
    """What was asked for, else what the folder's scheduler config says, else DDPM's defaults."""
    if parametrization is not None and schedule is not None:
        return Noise(parametrization, schedule)
    name = str(folder.path)
    said = Noise("epsilon", beta_schedule()) if folder.scheduler is None else read_scheduler(folder.scheduler, name)
    parametrization = parametrization or said.parametrization
    if schedule is None:
        own = {**OWN_SCHEDULES, said.parametrization: said.schedule}
        schedule = own.get(parametrization, said.schedule)
    assumed = f"there is no scheduler config: taken to predict {parametrization} at {schedule.kind} noise levels"
    return Noise(parametrization, schedule, said.record or {"assumed": assumed})


def _noise_of_callable(parametrization: str | None, schedule: Schedule | None) -> Noise:
    if parametrization is None:
        raise ScorelensError(f"say what this network predicts: parametrization=, one of {', '.join(PARAMETRIZATIONS)}")
    schedule = schedule or OWN_SCHEDULES.get(parametrization)
    if schedule is None:
        raise ScorelensError(f"say at which noise levels this network predicts {parametrization}: schedule=, "
                             "e.g. scorelens.noise.beta_schedule('linear')")
    return Noise(parametrization, schedule)


def _from_folder(folder: Folder, source: str, noise: Noise, shape: Shape | None, label: int | str | None,
                 trust_pickle: bool) -> Network:
    inputs = read_inputs(folder.config, str(folder.path))
    fitted = fit_shape(inputs, shape), fit_label(inputs, label)
    model = load_model(folder, trust_pickle)
    return Network(model, noise.parametrization, noise.schedule, *fitted, card=folder.card,
                   origin={"source": source, **noise.record})


def _from_callable(model: Callable[..., Any], noise: Noise, shape: Shape | None, label: int | str | None) -> Network:
    """A model of diffusers says itself what it takes; of any other we know what we are told."""
    name, config = type(model).__name__, getattr(model, "config", None)
    if name in MODELS and config is not None:
        inputs = read_inputs({**config, "_class_name": name}, name)
        shape, label = fit_shape(inputs, shape), fit_label(inputs, label)
    if isinstance(label, str):
        raise ScorelensError(f"the label must be the number of a class, got {label!r}")
    return Network(model, noise.parametrization, noise.schedule, shape, label, origin={"source": "python"})
