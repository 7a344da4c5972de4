"""`load_network`: networks from the zoo, a folder saved by diffusers, the hub, or a Python object."""

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
OWN_SCHEDULES: dict[str, Schedule] = {"velocity": FlowSchedule(), "denoised": SigmaSchedule()}  # fixed for these


def load_network(source: str | Path | Callable[..., Any], *, parametrization: str | None = None,
                 schedule: Schedule | None = None, shape: Shape | None = None, label: int | str | None = None,
                 trust_pickle: bool = False) -> Network:
    """A trained network as a denoiser.

    Args:
        source: a name of the zoo, a folder saved by diffusers (a pipeline or a model), a hub id such as
            "google/ddpm-cifar10-32", a torch module, or any callable model(x_t, t).
        parametrization: what it predicts, a name in PARAMETRIZATIONS; by default from the folder's config.
        schedule: its noise levels; by default from the folder's config.
        shape: images.shape of the data. A network of another shape is refused before its weights are loaded.
        label: the class to denoise, a number or "null", for class-conditional networks.
        trust_pickle: load weights saved as a pickle if there are no safetensors.
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
    """The folder of a network: in the zoo, on disk, or downloaded."""
    name, path = str(source), Path(source).expanduser()
    known = zoo_folder(name) if isinstance(source, str) else None
    if known is not None or path.is_dir():
        return known or path
    if path.is_file():
        raise ScorelensError(f"{name} is a file; give the folder saved by diffusers that contains config.json")
    if isinstance(source, str) and HUB_ID.fullmatch(name):
        return _download(name, trust_pickle)
    if isinstance(source, Path) or "/" in name:
        raise ScorelensError(f"there is no folder {name}")
    raise ScorelensError(f"{unknown('network', name, zoo_names())}; "
                         "or give a folder saved by diffusers or a hub id such as google/ddpm-cifar10-32")


def _download(name: str, trust_pickle: bool) -> Path:
    import huggingface_hub

    kinds = ["*.json", "*.safetensors", *(["*.bin"] if trust_pickle else [])]
    with one_line(f"{name} is not a folder and could not be downloaded from the hub"):
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=kinds))


def _noise_of_folder(folder: Folder, parametrization: str | None, schedule: Schedule | None) -> Noise:
    """The arguments if given, else the folder's scheduler config, else DDPM's defaults."""
    if parametrization is not None and schedule is not None:
        return Noise(parametrization, schedule)
    config = folder.scheduler
    saved = Noise("epsilon", beta_schedule()) if config is None else read_scheduler(config, str(folder.path))
    parametrization = parametrization or saved.parametrization
    if schedule is None:
        schedules = {**OWN_SCHEDULES, saved.parametrization: saved.schedule}
        schedule = schedules.get(parametrization, saved.schedule)
    assumed = f"no scheduler config: assumed to predict {parametrization} at {schedule.kind} noise levels"
    return Noise(parametrization, schedule, saved.record or {"assumed": assumed})


def _noise_of_callable(parametrization: str | None, schedule: Schedule | None) -> Noise:
    if parametrization is None:
        raise ScorelensError("specify what this network predicts: parametrization=, one of "
                             f"{', '.join(PARAMETRIZATIONS)}")
    schedule = schedule or OWN_SCHEDULES.get(parametrization)
    if schedule is None:
        raise ScorelensError(f"specify the noise levels of a network that predicts {parametrization}: schedule=, "
                             "e.g. scorelens.noise.beta_schedule('linear')")
    return Noise(parametrization, schedule)


def _from_folder(folder: Folder, source: str, noise: Noise, shape: Shape | None, label: int | str | None,
                 trust_pickle: bool) -> Network:
    inputs = read_inputs(folder.config, str(folder.path))
    shape, label = fit_shape(inputs, shape), fit_label(inputs, label)  # before the weights are loaded
    return Network(load_model(folder, trust_pickle), noise.parametrization, noise.schedule, shape, label,
                   card=folder.card, origin={"source": source, **noise.record})


def _from_callable(model: Callable[..., Any], noise: Noise, shape: Shape | None, label: int | str | None) -> Network:
    """A diffusers model defines its inputs in its config; for other models `shape` and `label` are used as given."""
    name, config = type(model).__name__, getattr(model, "config", None)
    if name in MODELS and config is not None:
        inputs = read_inputs({**config, "_class_name": name}, name)
        shape, label = fit_shape(inputs, shape), fit_label(inputs, label)
    if isinstance(label, str):
        raise ScorelensError(f"the label must be a class number, got {label!r}")
    return Network(model, noise.parametrization, noise.schedule, shape, label, origin={"source": "python"})
