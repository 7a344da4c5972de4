"""Folders in which diffusers saves networks: where the parts lie, and how the weights are read."""

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

MODEL_PLACES = ("unet", "transformer", ".")
SCHEDULER_PLACES = (".", "scheduler", "../scheduler")  # seen from the model's folder
LATENT = ("vae", "vqvae", "vqgan", "movq")
PICKLES = (".bin", ".ckpt", ".pt", ".pth", ".pkl")
WHOLE = re.compile(r"diffusion_pytorch_model(\.(?P<variant>\w+))?\.(?P<kind>safetensors|bin)")  # variant: fp16, ema
SHARDED = re.compile(r"diffusion_pytorch_model\.(?P<kind>safetensors|bin)\.index(\.(?P<variant>\w+))?\.json")


@dataclass(frozen=True)
class Folder:
    """A saved network: the folder of its weights, its configs, and the card, where it has one."""

    path: Path
    model: Path
    config: dict[str, Any]
    scheduler: dict[str, Any] | None
    card: dict[str, Any]


@dataclass(frozen=True)
class Weights:
    """Which of the files to read: the plain one, or a variant of it."""

    safetensors: bool
    variant: str | None


def open_folder(path: Path) -> Folder:
    """The parts of a pipeline's folder, or of a single model's; no weights are read yet."""
    index = _json_if_there(path / "model_index.json") or {}
    for part in LATENT:
        if any(index.get(part) or []):
            raise ScorelensError(f"{path} is a pipeline with a {part}: it works on latents, Scorelens on pixels")
    places = [path / place / "config.json" for place in MODEL_PLACES]
    config = next((place for place in places if place.is_file()), None)
    if config is None:
        raise ScorelensError(f"{path} is no network saved by diffusers: it has neither unet/config.json nor "
                             "transformer/config.json nor config.json")
    schedulers = (_json_if_there(config.parent / place / "scheduler_config.json") for place in SCHEDULER_PLACES)
    return Folder(path, config.parent, read_json(config), next((s for s in schedulers if s is not None), None),
                  _json_if_there(path / "card.json") or {})


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScorelensError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ScorelensError(f"{path} holds a JSON {type(found).__name__}, not an object")
    return found


def _json_if_there(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.is_file() else None


def find_weights(folder: Path, trust_pickle: bool) -> Weights:
    """The weights to read: safetensors before pickles, and the plain file before a variant."""
    names = sorted(file.name for file in folder.iterdir())
    matches = [match for name in names if (match := WHOLE.fullmatch(name) or SHARDED.fullmatch(name))]
    found = [Weights(match["kind"] == "safetensors", match["variant"]) for match in matches]
    best = min(found, key=lambda w: (not w.safetensors, w.variant or ""), default=None)
    if best is not None and (best.safetensors or trust_pickle):
        _check_shards(folder, trust_pickle)
        return best
    pickle = next((name for name in names if Path(name).suffix in PICKLES), None)
    if pickle is None or trust_pickle:
        raise ScorelensError(f"{folder} holds no weights: diffusers calls them diffusion_pytorch_model.safetensors")
    raise ScorelensError(f"{folder} holds its weights as a pickle ({pickle}), which can run code when it is read: save "
                         "them as safetensors, or give trust_pickle=True if you trust its author")


def _check_shards(folder: Path, trust_pickle: bool) -> None:
    """An index may name any file: no pickle comes in by that door."""
    for index in folder.glob("*.safetensors.index*.json"):
        shards = {str(shard) for shard in read_json(index).get("weight_map", {}).values()}
        if not trust_pickle and any(not shard.endswith(".safetensors") for shard in shards):
            raise ScorelensError(f"{index} names files that are no safetensors; give trust_pickle=True if you trust it")


def load_model(folder: Folder, trust_pickle: bool) -> nn.Module:
    """The network with its weights, in float32; every weight must be there, and none may be left over."""
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
    """Keep what diffusers logs, warns and draws off the terminal."""
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
