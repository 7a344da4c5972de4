"""Folders saved by diffusers: finding their parts, loading the weights, and exporting trained networks."""

from __future__ import annotations

import copy
import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scorelens.files import temporary_prefix, write_errors, write_json
from scorelens.noise import TRAIN_STEPS
from scorelens.types import ScorelensError

CARD = "card.json"
MODEL_FOLDERS = ("unet", "transformer", ".")
SCHEDULER_FOLDERS = (".", "scheduler", "../scheduler")  # relative to the model's folder
AUTOENCODER, OTHER_AUTOENCODERS = "vae", ("vqvae", "vqgan", "movq")
PICKLES = (".bin", ".ckpt", ".pt", ".pth", ".pkl")
WHOLE = re.compile(r"diffusion_pytorch_model(\.(?P<variant>\w+))?\.(?P<kind>safetensors|bin)")  # variant: fp16, ema
SHARDED = re.compile(r"diffusion_pytorch_model\.(?P<kind>safetensors|bin)\.index(\.(?P<variant>\w+))?\.json")
FLOATS = ("F16", "BF16", "F32", "F64")  # safetensors' names
PREDICTION_TYPES = {"epsilon": "epsilon", "x0": "sample", "v": "v_prediction"}  # our names: diffusers'


@dataclass(frozen=True)
class Folder:
    """A saved network: the folder of its weights, its configs, and its card if it has one."""

    path: Path
    model: Path
    config: dict[str, Any]
    scheduler: dict[str, Any] | None
    card: dict[str, Any]
    latent: bool  # the pipeline has an autoencoder


def open_folder(path: Path) -> Folder:
    """The parts of a pipeline's or a model's folder; does not load the weights."""
    index = _first_json(path / "model_index.json") or {}
    for part in OTHER_AUTOENCODERS:
        if isinstance(index.get(part), list) and any(index[part]):
            raise ScorelensError(f"{path} is a pipeline with a {part}; the autoencoders that Scorelens reads are "
                                 "AutoencoderKL and AutoencoderTiny")
    model = next((path / name for name in MODEL_FOLDERS if (path / name / "config.json").is_file()), None)
    if model is None:
        raise ScorelensError(f"{path} is not a network saved by diffusers: it has neither unet/config.json nor "
                             "transformer/config.json nor config.json")
    scheduler = _first_json(*(model / name / "scheduler_config.json" for name in SCHEDULER_FOLDERS))
    return Folder(path, model, _read_json(model / "config.json"), scheduler, _first_json(path / CARD) or {},
                  latent=any(index.get(AUTOENCODER) or []))


def load_model(folder: Folder, trust_pickle: bool) -> nn.Module:
    """The network with its weights, in float32. Missing and unexpected weights are errors."""
    import diffusers

    kind, weights = folder.config["_class_name"], _weights(folder.model, trust_pickle)
    problem = f"the weights in {folder.model} are damaged, incomplete or not of the {kind} in its config.json"
    with _quiet(), one_line(problem):
        _check_types(folder.model)
        model, info = getattr(diffusers, kind).from_pretrained(
            str(folder.model), use_safetensors=weights["kind"] == "safetensors", variant=weights["variant"],
            local_files_only=True, low_cpu_mem_usage=False, output_loading_info=True)
    for which in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(which):
            keys = sorted(map(str, info[which]))
            raise ScorelensError(f"{problem}: {len(keys)} {which.replace('_', ' ')}, e.g. {keys[0]}")
    _check_weights(model, problem)
    with _quiet(), one_line(f"{folder.model / 'config.json'} describes a {kind} that does not work"):
        _check_call(model.float())
    return model


def _check_types(folder: Path) -> None:
    """Raise if weights are stored as integers, which torch would convert without a word."""
    from safetensors import safe_open

    for path in folder.glob("diffusion_pytorch_model*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                if file.get_slice(name).get_dtype() not in FLOATS:
                    raise ScorelensError(f"{path}: {name} has the type {file.get_slice(name).get_dtype()}; weights are "
                                         f"{', '.join(FLOATS)}")


def _check_weights(model: nn.Module, problem: str) -> None:
    """Raise if a weight is not finite."""
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise ScorelensError(f"{problem}: {name} has NaN or infinite values")


def _check_call(model: Any) -> None:
    """Call the network once, on the smallest image that it takes. Its class accepts values of any type in a config."""
    config = model.config
    unet = type(model).__name__ == "UNet2DModel"
    side = 2 ** (len(config.block_out_channels) - 1) if unet else config.sample_size
    conditional = config.get("num_class_embeds" if unet else "num_embeds_ada_norm") is not None
    options = {"class_labels": torch.zeros(1, dtype=torch.long)} if conditional else {}
    with torch.no_grad():
        output = model(torch.zeros(1, config.in_channels, side, side), torch.ones(1), **options).sample
    if not torch.isfinite(output).all():
        raise ValueError("it returns NaN or infinite values")


def export_network(model: nn.Module, prediction: str, folder: Path, *, half: bool = False,
                   autoencoder: nn.Module | None = None) -> None:
    """Write a diffusers pipeline to `folder`: unet/ or transformer/, scheduler/, vae/, and last model_index.json."""
    from diffusers import DDIMScheduler

    part = "unet" if type(model).__name__ == "UNet2DModel" else "transformer"
    scheduler = DDIMScheduler(num_train_timesteps=TRAIN_STEPS, prediction_type=PREDICTION_TYPES[prediction],
                              clip_sample=autoencoder is None)
    folder.mkdir(parents=True, exist_ok=True)
    models = {part: model, **({AUTOENCODER: autoencoder} if autoencoder is not None else {})}
    parts: dict[str, Any] = {name: copy.deepcopy(each).half() if half else each for name, each in models.items()}
    parts["scheduler"] = scheduler
    for name, saved in parts.items():
        partial = Path(tempfile.mkdtemp(dir=folder, prefix=temporary_prefix(folder / name)))
        with write_errors(folder / name):
            saved.save_pretrained(partial)
        for path in partial.glob("*.json"):  # without the path that diffusers records for a model loaded from disk
            write_json(path, {key: value for key, value in _read_json(path).items() if key != "_name_or_path"})
        partial.chmod(0o755)
        shutil.rmtree(folder / name, ignore_errors=True)  # left by an interrupted export
        partial.rename(folder / name)
    write_json(folder / "model_index.json", {
        "_class_name": "DDIMPipeline", **{name: ["diffusers", type(each).__name__] for name, each in models.items()},
        "scheduler": ["diffusers", "DDIMScheduler"]})


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


def _first_json(*paths: Path) -> dict[str, Any] | None:
    return next((_read_json(path) for path in paths if path.is_file()), None)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ScorelensError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ScorelensError(f"{path} contains a JSON {type(content).__name__}, not an object")
    return content


def _weights(folder: Path, trust_pickle: bool) -> re.Match[str]:
    """The name of the weights to load: safetensors before pickles, and the plain file before a variant (fp16, ema)."""
    names = sorted(file.name for file in folder.iterdir())
    matches = [match for name in names if (match := WHOLE.fullmatch(name) or SHARDED.fullmatch(name))]
    best = min(matches, key=lambda match: (match["kind"] != "safetensors", match["variant"] or ""), default=None)
    if best is not None and (trust_pickle or best["kind"] == "safetensors"):
        if not trust_pickle:
            _check_shards(folder)
        return best
    pickle = next((name for name in names if Path(name).suffix in PICKLES), None)
    if pickle is None or trust_pickle:
        raise ScorelensError(f"{folder} contains no weights: diffusers names them diffusion_pytorch_model.safetensors")
    raise ScorelensError(f"{folder} has its weights as a pickle ({pickle}), which can run code when it is loaded: save "
                         "them as safetensors, or give trust_pickle=True if you trust its author")


def _check_shards(folder: Path) -> None:
    """Refuse an index of safetensors that names pickles."""
    for index in folder.glob("*.safetensors.index*.json"):
        if any(not str(shard).endswith(".safetensors") for shard in _read_json(index).get("weight_map", {}).values()):
            raise ScorelensError(f"{index} names files that are not safetensors; if you trust it: trust_pickle=True")


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress diffusers' logs, warnings and progress bars."""
    from diffusers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
