"""`load_network`: networks from the zoo, folders of diffusers, the hub, checkpoint files, or Python objects."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scorelens.data.images import ImageSet
from scorelens.networks.adapters import DATA_RANGE, PARAMETRIZATIONS, Network
from scorelens.networks.architectures import require_diffusers
from scorelens.networks.checkpoint_files import SUFFIXES, Module
from scorelens.networks.checkpoints import open_checkpoint
from scorelens.networks.classes import Classes, Label, find_classes, label_numbers, label_parameter
from scorelens.networks.folders import PREDICTION_TYPES, Folder, load_model, one_line, open_folder
from scorelens.networks.paper_weights import PREFIX, paper_file, paper_network
from scorelens.networks.readings import Reading, assumed_reading, find_reading
from scorelens.networks.zoo import zoo_folder, zoo_names
from scorelens.networks.zoo_source import HUB_ID, NAME, known_networks, pull
from scorelens.noise import FlowSchedule, Schedule, SigmaSchedule, beta_schedule, given_betas, named_schedule
from scorelens.types import ScorelensError, Shape
from scorelens.validation import unknown

Config = Mapping[str, Any]
Noise = tuple[str, Schedule, dict[str, str]]  # parametrization, noise levels, where this information came from
MODELS = ("UNet2DModel", "DiTTransformer2DModel")
OWN_SCHEDULES: dict[str, Schedule] = {"velocity": FlowSchedule(), "denoised": SigmaSchedule()}  # fixed for these
PREDICTIONS = {theirs: ours for ours, theirs in PREDICTION_TYPES.items()}
FLOW = "FlowMatchEulerDiscreteScheduler"
# settings that change the meaning of t in some schedulers, and the only value of each that we support
SUPPORTED = {"snr_shift_scale": 1.0, "timestep_type": "discrete", "use_flow_sigmas": False, "invert_sigmas": False}


def load_network(source: str | Path | Callable[..., Any], *, module: Module | None = None, weights: str | None = None,
                 parametrization: str | None = None, schedule: Schedule | str | None = None,
                 value_range: tuple[float, float] | None = None, shape: Shape | None = None,
                 images: ImageSet | None = None, label: Label | Sequence[Label] | None = None,
                 classes: Sequence[str] | None = None, null: int | None = None, latent: bool | None = None,
                 trust_pickle: bool = False, root: str | Path | None = None) -> Network:
    """A trained network as a denoiser.

    Args:
        source: a name of the zoo, a folder saved by diffusers (a pipeline or a model), a hub id such as
            "google/ddpm-cifar10-32", a checkpoint file (.safetensors, .pt, .pth, .ckpt, .bin, EDM's .pkl),
            "paper:cifar10" and other networks of the paper, a torch module, or any callable model(x_t, t).
        module: of a file, the network itself: a module, its class, a function that builds it, or
            "package.module:Class".
        weights: of a file, which weights to take: "ema", "model", ...; by default the averaged ones.
        parametrization: what it predicts, a name in PARAMETRIZATIONS; by default from the folder's config, or found out
            by trying.
        schedule: its noise levels, also as a text such as "cosine" or "linear:100"; by default from the folder's
            config or the file, or found out by trying.
        value_range: black and white in its data, by default (-1, 1).
        shape: images.shape of the data. A network of another shape is refused before its weights are loaded.
        images: its training images, to find out by trying what was not given.
        label: for class-conditional networks, the class to denoise: a number, a name or "null" (the default where there
            is a null class); or a list with one for each image of the batch. `network.conditional(labels)` changes it.
        classes: names of the classes, without the null class; by default those of the card, else their numbers.
        null: number of the null class, for a callable; folders and modules of diffusers tell it.
        latent: it works on latents, so that samples are not clipped to [-1, 1]; by default if an autoencoder is in its
            folder, or if the images are latents.
        trust_pickle: load pickles, which can run code.
        root: folder of the networks of the paper, by default $SCORELENS_DATA.
    """
    if parametrization is not None and parametrization not in PARAMETRIZATIONS:
        raise unknown("parametrization", parametrization, PARAMETRIZATIONS)
    noise = named_schedule(schedule) if isinstance(schedule, str) else schedule
    use = Use(parametrization, noise, value_range or DATA_RANGE, shape or (images.shape if images else None), images,
              label, classes, null, latent if latent is not None or images is None else images.autoencoder is not None)
    if not isinstance(source, (str, Path)):
        return _from_callable(source, use, {"source": "python"})
    require_diffusers()
    if isinstance(source, str) and source.startswith(PREFIX):
        return _from_paper(source, use, root)
    path = _find(source, trust_pickle)
    if path.is_file():
        return _from_file(path, source, module, weights, use, trust_pickle)
    if module is not None or weights is not None:
        raise ScorelensError(f"module and weights are options of checkpoint files; {source} is a folder of diffusers")
    folder = open_folder(path)
    parametrization, noise, record = _noise(folder, parametrization, noise)
    if folder.latent and use.shape is not None and use.shape[0] != folder.config.get("in_channels", use.shape[0]):
        raise ScorelensError(f"{source} works on latents, not on images of {' x '.join(map(str, use.shape))}; encode "
                             f"them with its autoencoder: --autoencoder {source}")
    shape, known = _fit(folder.config, str(folder.path), use.shape, classes or folder.card.get("classes"))
    number = _fit_label(str(folder.path), known, label)  # before the weights are loaded
    notes = [record["assumed"]] if "assumed" in record else []
    return Network(load_model(folder, trust_pickle), parametrization, noise, shape, number, card=folder.card,
                   origin={"source": str(source), **record}, value_range=use.value_range, notes=notes, classes=known,
                   latent=folder.latent if use.latent is None else use.latent)


@dataclass(frozen=True)
class Use:
    """How the user wants a network to be used; None: to be found out."""

    parametrization: str | None
    schedule: Schedule | None
    value_range: tuple[float, float]
    shape: Shape | None
    images: ImageSet | None
    label: Label | Sequence[Label] | None
    classes: Sequence[str] | None = None
    null: int | None = None
    latent: bool | None = None


def _from_callable(model: Callable[..., Any], use: Use, origin: Config, notes: Sequence[str] = (),
                   from_file: bool = False) -> Network:
    """A diffusers model defines its inputs in its config; for other models `shape` and `classes` are used as given."""
    shape, name, config = use.shape, type(model).__name__, getattr(model, "config", None)
    known = None if use.classes is None else Classes(tuple(use.classes), use.null)
    if name in MODELS and config is not None:
        shape, known = _fit({**config, "_class_name": name}, name, shape, use.classes)
        label = _fit_label(name, known, use.label)
    elif known is None:
        label = None if use.label is None else label_numbers(use.label)
    else:
        label = _fit_label(name, known, use.label)
    parametrization, schedule = use.parametrization, use.schedule or OWN_SCHEDULES.get(use.parametrization or "")
    calling = None
    if schedule is None and use.images is None and not from_file and parametrization is not None:
        raise ScorelensError(f"specify the noise levels of a network that predicts {parametrization}: schedule=, "
                             "e.g. scorelens.noise.beta_schedule('linear')")
    if use.images is not None or parametrization is None or schedule is None or from_file:
        reading, note = _tried(model, use, schedule, shape, label)
        parametrization, schedule, notes = reading.parametrization, reading.schedule, [*notes, note]
        calling = reading.calling
    return Network(model, parametrization, schedule, shape, label, origin=origin, value_range=use.value_range,
                   calling=calling, notes=notes, classes=known, latent=bool(use.latent))


def _tried(model: Callable[..., Any], use: Use, schedule: Schedule | None, shape: Shape | None,
           label: int | tuple[int, ...] | None) -> tuple[Reading, str]:
    """The reading with which the model denoises the images; without images, the usual one."""
    if use.images is None and use.parametrization is None:
        raise ScorelensError("specify what this network predicts: parametrization=, one of "
                             f"{', '.join(PARAMETRIZATIONS)}; or give images= (its training images) to find out")
    called = copy.deepcopy(model).eval() if isinstance(model, nn.Module) else model
    if label is not None:
        called = partial(_with_label, called, label if isinstance(label, int) else label[0])
    if use.images is None:
        return assumed_reading(called, shape, str(use.parametrization), schedule)
    return find_reading(called, use.images, use.parametrization, schedule, use.value_range)


def _with_label(model: Callable[..., Any], label: int, x: Tensor, t: Tensor) -> Any:
    return model(x, t, **{label_parameter(model): torch.full((len(x),), label, device=x.device)})


def _from_file(path: Path, source: str | Path, module: Module | None, weights: str | None, use: Use,
               trust_pickle: bool) -> Network:
    checkpoint = open_checkpoint(path, module, weights, trust_pickle)
    if use.shape is not None and checkpoint.shape is not None:
        _fit_shape(path.name, checkpoint.shape[0], checkpoint.shape[1:], 1, use.shape)
    parametrization = use.parametrization or checkpoint.parametrization
    use = replace(use, parametrization=parametrization, schedule=use.schedule or checkpoint.schedule,
                  shape=use.shape or checkpoint.shape)
    origin = {"source": str(source), **checkpoint.origin}
    if checkpoint.parametrization is not None and use.schedule is not None:  # the file says it all
        count = getattr(checkpoint.model, "classes", 0)
        known = find_classes(count, use.classes, null_beyond=False) if count else None
        label = _fit_label(path.name, known, use.label) if use.label is not None else None
        return Network(checkpoint.model, str(parametrization), use.schedule, use.shape, label, origin=origin,
                       value_range=use.value_range, notes=checkpoint.notes, classes=known, latent=bool(use.latent))
    return _from_callable(checkpoint.model, use, origin, checkpoint.notes, from_file=True)


def _from_paper(source: str, use: Use, root: str | Path | None) -> Network:
    """A network of the paper, which predicts epsilon at DDPM's noise levels."""
    paper = paper_network(source)
    if use.shape is not None:
        _fit_shape(source, paper.shape[0], paper.shape[1:], 1, use.shape)
    checkpoint = open_checkpoint(paper_file(source, root))
    config: Any = checkpoint.model.config
    if config.in_channels != paper.shape[0]:
        raise ScorelensError(f"the file of {source} has a network of {config.in_channels} channels, not "
                             f"{paper.shape[0]}")
    return Network(checkpoint.model, use.parametrization or "epsilon", use.schedule or beta_schedule(), paper.shape,
                   origin={"source": source, **checkpoint.origin}, value_range=use.value_range,
                   notes=checkpoint.notes)


def _find(source: str | Path, trust_pickle: bool) -> Path:
    """The folder or file of a network: in the zoo, on disk, or downloaded."""
    name, path = str(source), Path(source).expanduser()
    known = zoo_folder(name) if isinstance(source, str) else None
    if known is not None or path.is_dir():
        return known or path
    if path.is_file():
        return path.parent if path.name.startswith("diffusion_pytorch_model") and \
            (path.parent / "config.json").is_file() else path
    if path.suffix in SUFFIXES:
        raise ScorelensError(f"there is no file {name}")
    published = known_networks() if isinstance(source, str) and NAME.fullmatch(name) else {}
    if name in published:
        return pull(name)
    if isinstance(source, str) and HUB_ID.fullmatch(name):
        import huggingface_hub

        kinds = ["*.json", "*.safetensors", *(["*.bin"] if trust_pickle else [])]
        with one_line(f"{name} is not a folder and could not be downloaded from the hub"):
            return Path(huggingface_hub.snapshot_download(name, allow_patterns=kinds))
    if isinstance(source, Path) or "/" in name:
        raise ScorelensError(f"there is no folder {name}")
    raise ScorelensError(f"{unknown('network', name, {*zoo_names(), *published})}; "
                         "or give a folder saved by diffusers, a hub id such as google/ddpm-cifar10-32 or a file")


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


def _fit(config: Config, name: str, shape: Shape | None,
         names: Sequence[str] | None) -> tuple[Shape | None, Classes | None]:
    """The shape of the images to call the network of this config.json with, and its classes."""
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
            multiple, embeddings = full["patch_size"], full["num_embeds_ada_norm"]
        else:
            _check_unet(full, name)
            multiple, embeddings = 2 ** (len(full["block_out_channels"]) - 1), full["num_class_embeds"]
        classes = None if embeddings is None else find_classes(
            embeddings, names, null_beyond=kind == "DiTTransformer2DModel")
        return _fit_shape(name, channels, size, multiple, shape), classes


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


def _fit_label(name: str, classes: Classes | None,
               label: Label | Sequence[Label] | None) -> int | tuple[int, ...] | None:
    """The number of the class, or of each, to call the network with; None for an unconditional network."""
    if classes is None and label is not None:
        raise ScorelensError(f"{name} is not conditional on classes; omit the label {label!r}")
    if classes is None:
        return None
    if label is None and classes.null is None:
        raise ScorelensError(f"{name} is conditional on a class: give label=, one of {classes}")
    return classes.null if label is None else classes.numbers(label, name)
