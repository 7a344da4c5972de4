"""Folders saved by diffusers: finding their parts and loading the weights."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from scorelens.networks.configs import one_line
from scorelens.types import ScorelensError

MODEL_FOLDERS = ("unet", "transformer", ".")
SCHEDULER_FOLDERS = (".", "scheduler", "../scheduler")  # relative to the model's folder
AUTOENCODERS = ("vae", "vqvae", "vqgan", "movq")
PICKLES = (".bin", ".ckpt", ".pt", ".pth", ".pkl")
WHOLE = re.compile(r"diffusion_pytorch_model(\.(?P<variant>\w+))?\.(?P<kind>safetensors|bin)")  # variant: fp16, ema
SHARDED = re.compile(r"diffusion_pytorch_model\.(?P<kind>safetensors|bin)\.index(\.(?P<variant>\w+))?\.json")


@dataclass(frozen=True)
class Folder:
    """A saved network: the folder of its weights, its configs, and its card if it has one."""

    path: Path
    model: Path
    config: dict[str, Any]
    scheduler: dict[str, Any] | None
    card: dict[str, Any]


@dataclass(frozen=True)
class Weights:
    """The format and the variant (such as fp16) of a weights file."""

    safetensors: bool
    variant: str | None


def open_folder(path: Path) -> Folder:
    """The parts of a pipeline's or a model's folder; does not load the weights."""
    index = _first_json(path / "model_index.json") or {}
    for part in AUTOENCODERS:
        if any(index.get(part) or []):
            raise ScorelensError(f"{path} is a pipeline with a {part}: it works on latents, Scorelens on pixels")
    model = next((path / name for name in MODEL_FOLDERS if (path / name / "config.json").is_file()), None)
    if model is None:
        raise ScorelensError(f"{path} is not a network saved by diffusers: it has neither unet/config.json nor "
                             "transformer/config.json nor config.json")
    scheduler = _first_json(*(model / name / "scheduler_config.json" for name in SCHEDULER_FOLDERS))
    return Folder(path, model, read_json(model / "config.json"), scheduler, _first_json(path / "card.json") or {})


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScorelensError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ScorelensError(f"{path} contains a JSON {type(content).__name__}, not an object")
    return content


def _first_json(*paths: Path) -> dict[str, Any] | None:
    return next((read_json(path) for path in paths if path.is_file()), None)


def find_weights(folder: Path, trust_pickle: bool) -> Weights:
    """The weights to load: safetensors before pickles, and the plain file before a variant."""
    names = sorted(file.name for file in folder.iterdir())
    matches = [match for name in names if (match := WHOLE.fullmatch(name) or SHARDED.fullmatch(name))]
    candidates = [Weights(match["kind"] == "safetensors", match["variant"]) for match in matches]
    best = min(candidates, key=lambda w: (not w.safetensors, w.variant or ""), default=None)
    if best is not None and (best.safetensors or trust_pickle):
        _check_shards(folder, trust_pickle)
        return best
    pickle = next((name for name in names if Path(name).suffix in PICKLES), None)
    if pickle is None or trust_pickle:
        raise ScorelensError(f"{folder} contains no weights: diffusers names them diffusion_pytorch_model.safetensors")
    raise ScorelensError(f"{folder} has its weights as a pickle ({pickle}), which can run code when it is loaded: save "
                         "them as safetensors, or give trust_pickle=True if you trust its author")


def _check_shards(folder: Path, trust_pickle: bool) -> None:
    """Refuse an index of safetensors that names pickles."""
    for index in folder.glob("*.safetensors.index*.json"):
        shards = {str(shard) for shard in read_json(index).get("weight_map", {}).values()}
        if not trust_pickle and any(not shard.endswith(".safetensors") for shard in shards):
            raise ScorelensError(f"{index} names files that are not safetensors; if you trust it: trust_pickle=True")


def load_model(folder: Folder, trust_pickle: bool) -> nn.Module:
    """The network with its weights, in float32. Missing and unexpected weights are errors."""
    import diffusers

    kind, weights = folder.config["_class_name"], find_weights(folder.model, trust_pickle)
    problem = f"the weights in {folder.model} are damaged, incomplete or not of the {kind} in its config.json"
    with quiet(), one_line(problem):
        model, info = getattr(diffusers, kind).from_pretrained(
            str(folder.model), use_safetensors=weights.safetensors, variant=weights.variant, local_files_only=True,
            low_cpu_mem_usage=False, output_loading_info=True)
    for which in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(which):
            keys = sorted(map(str, info[which]))
            raise ScorelensError(f"{problem}: {len(keys)} {which.replace('_', ' ')}, e.g. {keys[0]}")
    return model.float()


@contextmanager
def quiet() -> Iterator[None]:
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
