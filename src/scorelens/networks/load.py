"""`load_network`: networks from the zoo, a folder saved by diffusers, the hub, or a Python object."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scorelens.networks.adapters import PARAMETRIZATIONS, Network
from scorelens.networks.architectures import require_diffusers
from scorelens.networks.folders import PREDICTION_TYPES, Folder, load_model, one_line, open_folder
from scorelens.networks.zoo import zoo_folder, zoo_names
from scorelens.noise import FlowSchedule, Schedule, SigmaSchedule, beta_schedule, given_betas
from scorelens.types import ScorelensError, Shape
from scorelens.validation import unknown

Config = Mapping[str, Any]
Noise = tuple[str, Schedule, dict[str, str]]  # parametrization, noise levels, where this information came from
MODELS = ("UNet2DModel", "DiTTransformer2DModel")
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
OWN_SCHEDULES: dict[str, Schedule] = {"velocity": FlowSchedule(), "denoised": SigmaSchedule()}  # fixed for these
PREDICTIONS = {theirs: ours for ours, theirs in PREDICTION_TYPES.items()}
FLOW = "FlowMatchEulerDiscreteScheduler"
# settings that change the meaning of t in some schedulers, and the only value of each that we support
SUPPORTED = {"snr_shift_scale": 1.0, "timestep_type": "discrete", "use_flow_sigmas": False, "invert_sigmas": False}


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
    if not isinstance(source, (str, Path)):
        return _from_callable(source, parametrization, schedule, shape, label)
    require_diffusers()
    folder = open_folder(_find(source, trust_pickle))
    parametrization, schedule, record = _noise(folder, parametrization, schedule)
    shape, label = _fit(folder.config, str(folder.path), shape, label)  # before the weights are loaded
    return Network(load_model(folder, trust_pickle), parametrization, schedule, shape, label, card=folder.card,
                   origin={"source": str(source), **record})


def _from_callable(model: Callable[..., Any], parametrization: str | None, schedule: Schedule | None,
                   shape: Shape | None, label: int | str | None) -> Network:
    """A diffusers model defines its inputs in its config; for other models `shape` and `label` are used as given."""
    if parametrization is None:
        raise ScorelensError("specify what this network predicts: parametrization=, one of "
                             f"{', '.join(PARAMETRIZATIONS)}")
    schedule = schedule or OWN_SCHEDULES.get(parametrization)
    if schedule is None:
        raise ScorelensError(f"specify the noise levels of a network that predicts {parametrization}: schedule=, "
                             "e.g. scorelens.noise.beta_schedule('linear')")
    name, config = type(model).__name__, getattr(model, "config", None)
    if name in MODELS and config is not None:
        shape, label = _fit({**config, "_class_name": name}, name, shape, label)
    if isinstance(label, str):
        raise ScorelensError(f"the label must be a class number, got {label!r}")
    return Network(model, parametrization, schedule, shape, label, origin={"source": "python"})


def _find(source: str | Path, trust_pickle: bool) -> Path:
    """The folder of a network: in the zoo, on disk, or downloaded."""
    name, path = str(source), Path(source).expanduser()
    known = zoo_folder(name) if isinstance(source, str) else None
    if known is not None or path.is_dir():
        return known or path
    if path.is_file():
        raise ScorelensError(f"{name} is a file; give the folder saved by diffusers that contains config.json")
    if isinstance(source, str) and HUB_ID.fullmatch(name):
        import huggingface_hub

        kinds = ["*.json", "*.safetensors", *(["*.bin"] if trust_pickle else [])]
        with one_line(f"{name} is not a folder and could not be downloaded from the hub"):
            return Path(huggingface_hub.snapshot_download(name, allow_patterns=kinds))
    if isinstance(source, Path) or "/" in name:
        raise ScorelensError(f"there is no folder {name}")
    raise ScorelensError(f"{unknown('network', name, zoo_names())}; "
                         "or give a folder saved by diffusers or a hub id such as google/ddpm-cifar10-32")


def _noise(folder: Folder, parametrization: str | None, schedule: Schedule | None) -> Noise:
    """The arguments if given, else the folder's scheduler config, else DDPM's defaults."""
    if parametrization is not None and schedule is not None:
        return parametrization, schedule, {}
    saved: Noise = ("epsilon", beta_schedule(), {})
    if folder.scheduler is not None:
        saved = _read_scheduler(folder.scheduler, str(folder.path))
    predicts, levels, record = saved
    parametrization = parametrization or predicts
    schedule = schedule or {**OWN_SCHEDULES, predicts: levels}.get(parametrization, levels)
    assumed = f"no scheduler config: assumed to predict {parametrization} at {schedule.kind} noise levels"
    return parametrization, schedule, record or {"assumed": assumed}


def _read_scheduler(config: Config, name: str) -> Noise:
    """Prediction type and noise levels from a scheduler_config.json."""
    import diffusers

    kind = str(config.get("_class_name"))
    with one_line(f"the scheduler config of {name} cannot be read"):
        full = _with_defaults(kind, config) if hasattr(diffusers, kind) else dict(config)
        if kind != FLOW and "beta_schedule" not in full:
            raise ScorelensError(f"{name} has the unsupported scheduler {kind}; supported: those with betas (DDPM, "
                                 f"DDIM, ...) and {FLOW}; for others give parametrization= and schedule= in Python")
        for key, value in SUPPORTED.items():
            if full.get(key, value) != value:
                raise ScorelensError(f"{name} has a {kind} with {key} = {full[key]!r}; only {value!r} is supported")
        if kind == FLOW:
            return "velocity", FlowSchedule(full["num_train_timesteps"]), {"scheduler": FLOW}
        prediction, zero_snr = full.get("prediction_type", "epsilon"), bool(full.get("rescale_betas_zero_snr"))
        if prediction not in PREDICTIONS:
            raise unknown(f"prediction type of {name}:", str(prediction), PREDICTIONS)
        if full.get("trained_betas") is not None:
            schedule = given_betas(full["trained_betas"], zero_snr=zero_snr)
        else:
            schedule = beta_schedule(str(full["beta_schedule"]), start=full["beta_start"], end=full["beta_end"],
                                     steps=full["num_train_timesteps"], zero_snr=zero_snr)
        return PREDICTIONS[prediction], schedule, {"scheduler": full["_class_name"], "prediction_type": prediction}


def _with_defaults(kind: str, config: Config) -> dict[str, Any]:
    """The config, completed with the defaults of its diffusers class."""
    import diffusers

    parameters = inspect.signature(getattr(diffusers, kind).__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty} | dict(config)


def _fit(config: Config, name: str, shape: Shape | None, label: int | str | None) -> tuple[Shape | None, int | None]:
    """The shape and the label of the images to call the network of this config.json with."""
    kind = str(config.get("_class_name"))
    if kind not in MODELS:
        raise unknown(f"network class in {name}'s config.json:", kind, MODELS)
    with one_line(f"the config.json of {name} does not describe a {kind}"):
        full = _with_defaults(kind, config)
        channels, returned = full["in_channels"], full["out_channels"] or full["in_channels"]
        if returned not in (channels, 2 * channels):  # twice: a learned variance
            raise ScorelensError(f"{name} takes {channels} channels and returns {returned}: its output is not an image")
        size = full["sample_size"]
        if size is not None:
            height, width = (size, size) if isinstance(size, int) else size
            size = (int(height), int(width))
        if kind == "DiTTransformer2DModel":
            multiple, classes, null = full["patch_size"], full["num_embeds_ada_norm"], full["num_embeds_ada_norm"]
        else:
            _check_unet(full, name)
            multiple, classes, null = 2 ** (len(full["block_out_channels"]) - 1), full["num_class_embeds"], None
        return _fit_shape(name, channels, size, multiple, shape), _fit_label(name, classes, null, label)


def _check_unet(config: Config, name: str) -> None:
    if config["class_embed_type"] is not None:
        raise ScorelensError(f"{name} has class_embed_type {config['class_embed_type']!r}: only class numbers work")
    if config["time_embedding_type"] == "learned":
        raise ScorelensError(f"{name} has a learned time embedding: it cannot take noise levels between its timesteps")


def _fit_shape(name: str, channels: int, size: tuple[int, int] | None, multiple: int,
               shape: Shape | None) -> Shape | None:
    """(C, H, W) of the network's images, or of the data if it takes any size; None if both are unknown."""
    expected, size = (channels, *(size or ("any", "any"))), size or (shape and shape[1:])
    if shape is not None and (channels, size) != (shape[0], shape[1:]):
        raise ScorelensError(f"{name} expects {' x '.join(map(str, expected))} images, the data are "
                             f"{' x '.join(map(str, shape))}; convert the data with --channels / --resolution")
    if size and any(side % multiple for side in size):
        raise ScorelensError(f"{name} takes images whose sides are multiples of {multiple}, not {size[0]} x {size[1]}; "
                             "resize the data with --resolution")
    return (channels, *size) if size else None


def _fit_label(name: str, classes: int | None, null: int | None, label: int | str | None) -> int | None:
    """The label to call the network with; None for an unconditional network."""
    if classes is None:
        if label is not None:
            raise ScorelensError(f"{name} is not conditional on classes; omit the label {label!r}")
        return None
    if label in (None, "null", null) and null is not None:
        return null
    known = f"0 ... {classes - 1}" + (" or null" if null is not None else "")
    if label is None:
        raise ScorelensError(f"{name} is conditional on a class: give label=, one of {known}")
    if not str(label).isdecimal() or int(label) >= classes:
        raise ScorelensError(f"{name} has no class {label!r}; its labels are {known}")
    return int(label)
