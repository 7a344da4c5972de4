"""Configs of a saved network: the images and classes it takes, what it predicts, and its noise levels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from scorelens.noise import FlowSchedule, Schedule, beta_schedule, given_betas
from scorelens.types import ScorelensError, Shape
from scorelens.validation import unknown

Config = Mapping[str, Any]
PREDICTIONS = {"epsilon": "epsilon", "sample": "x0", "v_prediction": "v"}  # diffusers' names: ours
FLOW = "FlowMatchEulerDiscreteScheduler"
# settings that change the meaning of t in some schedulers, and the only value of each that we support
SUPPORTED = {"snr_shift_scale": 1.0, "timestep_type": "discrete", "use_flow_sigmas": False, "invert_sigmas": False}


@dataclass(frozen=True)
class Inputs:
    """The images and class labels that a network takes."""

    name: str
    channels: int
    size: tuple[int, int] | None  # None: any
    multiple: int = 1  # height and width must be divisible by it
    classes: int | None = None  # labels are 0 ... classes - 1
    null: int | None = None  # the label for "no class"


@dataclass(frozen=True)
class Noise:
    """What a network predicts, its noise levels, and where this information came from."""

    parametrization: str
    schedule: Schedule
    record: dict[str, str] = field(default_factory=dict)


@contextmanager
def one_line(problem: str) -> Iterator[None]:
    """Report any error within the block in one line that starts with `problem`."""
    try:
        yield
    except ScorelensError:
        raise
    except Exception as error:  # third-party code raises many kinds
        detail = " ".join((str(error) or repr(error)).split())
        raise ScorelensError(f"{problem}: {detail[:300]}") from error


def read_inputs(config: Config, name: str) -> Inputs:
    """The images and labels that the network of this config.json takes."""
    kind = str(config.get("_class_name"))
    if kind not in MODELS:
        raise unknown(f"network class in {name}'s config.json:", kind, MODELS)
    with one_line(f"the config.json of {name} does not describe a {kind}"):
        full = with_defaults(kind, config)
        channels, returned = full["in_channels"], full["out_channels"] or full["in_channels"]
        if returned not in (channels, 2 * channels):  # twice: a learned variance
            raise ScorelensError(f"{name} takes {channels} channels and returns {returned}: its output is not an image")
        return MODELS[kind](full, name)


def with_defaults(kind: str, config: Config) -> dict[str, Any]:
    """The config, completed with the defaults of its diffusers class."""
    import diffusers

    parameters = inspect.signature(getattr(diffusers, kind).__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty} | dict(config)


def _unet_inputs(config: Config, name: str) -> Inputs:
    if config["class_embed_type"] is not None:
        raise ScorelensError(f"{name} has class_embed_type {config['class_embed_type']!r}: only class numbers work")
    if config["time_embedding_type"] == "learned":
        raise ScorelensError(f"{name} has a learned time embedding: it cannot take noise levels between its timesteps")
    return Inputs(name, config["in_channels"], _size(config["sample_size"]), classes=config["num_class_embeds"],
                  multiple=2 ** (len(config["block_out_channels"]) - 1))


def _dit_inputs(config: Config, name: str) -> Inputs:
    classes = config["num_embeds_ada_norm"]
    return Inputs(name, config["in_channels"], _size(config["sample_size"]), config["patch_size"], classes, classes)


MODELS: dict[str, Callable[[Config, str], Inputs]] = {
    "UNet2DModel": _unet_inputs,
    "DiTTransformer2DModel": _dit_inputs,
}


def _size(sample_size: Any) -> tuple[int, int] | None:
    if sample_size is None:
        return None
    height, width = (sample_size, sample_size) if isinstance(sample_size, int) else sample_size
    return int(height), int(width)


def fit_shape(inputs: Inputs, shape: Shape | None) -> Shape | None:
    """(C, H, W) of the network's images, or of the data if it takes any size; None if both are unknown."""
    size = inputs.size or (shape and shape[1:])
    if shape is not None and (inputs.channels, size) != (shape[0], shape[1:]):
        expected = " x ".join(str(n) for n in (inputs.channels, *(inputs.size or ("any", "any"))))
        raise ScorelensError(f"{inputs.name} expects {expected} images, the data are {' x '.join(map(str, shape))}; "
                             "convert the data with --channels / --resolution")
    if size and any(side % inputs.multiple for side in size):
        raise ScorelensError(f"{inputs.name} takes images whose sides are multiples of {inputs.multiple}, "
                             f"not {size[0]} x {size[1]}; resize the data with --resolution")
    return (inputs.channels, *size) if size else None


def fit_label(inputs: Inputs, label: int | str | None) -> int | None:
    """The label to call the network with; None for an unconditional network."""
    if inputs.classes is None:
        if label is not None:
            raise ScorelensError(f"{inputs.name} is not conditional on classes; omit the label {label!r}")
        return None
    if label in (None, "null", inputs.null) and inputs.null is not None:
        return inputs.null
    known = f"0 ... {inputs.classes - 1}" + (" or null" if inputs.null is not None else "")
    if label is None:
        raise ScorelensError(f"{inputs.name} is conditional on a class: give label=, one of {known}")
    if not str(label).isdecimal() or int(label) >= inputs.classes:
        raise ScorelensError(f"{inputs.name} has no class {label!r}; its labels are {known}")
    return int(label)


def read_scheduler(config: Config, name: str) -> Noise:
    """Prediction type and noise levels from a scheduler_config.json."""
    import diffusers

    kind = str(config.get("_class_name"))
    with one_line(f"the scheduler config of {name} cannot be read"):
        full = with_defaults(kind, config) if hasattr(diffusers, kind) else dict(config)
        if kind != FLOW and "beta_schedule" not in full:
            raise ScorelensError(f"{name} has the unsupported scheduler {kind}; supported: those with betas (DDPM, "
                                 f"DDIM, ...) and {FLOW}; for others give parametrization= and schedule= in Python")
        for key, value in SUPPORTED.items():
            if full.get(key, value) != value:
                raise ScorelensError(f"{name} has a {kind} with {key} = {full[key]!r}; only {value!r} is supported")
        if kind == FLOW:
            return Noise("velocity", FlowSchedule(full["num_train_timesteps"]), {"scheduler": FLOW})
        return _noise_from_betas(full, name)


def _noise_from_betas(config: Config, name: str) -> Noise:
    prediction = config.get("prediction_type", "epsilon")
    if prediction not in PREDICTIONS:
        raise unknown(f"prediction type of {name}:", str(prediction), PREDICTIONS)
    return Noise(PREDICTIONS[prediction], _schedule(config),
                 {"scheduler": config["_class_name"], "prediction_type": prediction})


def _schedule(config: Config) -> Schedule:
    zero_snr = bool(config.get("rescale_betas_zero_snr"))
    if config.get("trained_betas") is not None:
        return given_betas(config["trained_betas"], zero_snr=zero_snr)
    return beta_schedule(str(config["beta_schedule"]), start=config["beta_start"], end=config["beta_end"],
                         steps=config["num_train_timesteps"], zero_snr=zero_snr)
