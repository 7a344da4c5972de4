"""A trained network as a folder that diffusers itself reads, with a card that says where it came from."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorelens.files import write_json
from scorelens.noise import TRAIN_STEPS

if TYPE_CHECKING:
    from torch import nn

CARD = "card.json"
PREDICTION_TYPES = {"epsilon": "epsilon", "x0": "sample", "v": "v_prediction"}  # our names, diffusers' names


def export_network(model: nn.Module, prediction: str, folder: Path, *, half: bool = False) -> None:
    """A diffusers pipeline in `folder`: unet/ or transformer/, scheduler/, and model_index.json last of all."""
    from diffusers import DDIMScheduler

    part = "unet" if type(model).__name__ == "UNet2DModel" else "transformer"
    scheduler = DDIMScheduler(num_train_timesteps=TRAIN_STEPS, prediction_type=PREDICTION_TYPES[prediction])
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Any] = {part: copy.deepcopy(model).half() if half else model, "scheduler": scheduler}
    for name, saved in parts.items():
        partial = Path(tempfile.mkdtemp(dir=folder, prefix=f".{name}."))
        saved.save_pretrained(partial)
        _forget_origin(partial)
        partial.chmod(0o755)
        shutil.rmtree(folder / name, ignore_errors=True)  # of an export that was interrupted
        partial.rename(folder / name)
    write_json(folder / "model_index.json", {
        "_class_name": "DDIMPipeline", part: ["diffusers", type(model).__name__],
        "scheduler": ["diffusers", "DDIMScheduler"]})


def _forget_origin(folder: Path) -> None:
    """diffusers writes down where a model was loaded from: a path of this machine, of no use on another."""
    for path in folder.glob("*.json"):
        write_json(path, {key: value for key, value in json.loads(path.read_text()).items() if key != "_name_or_path"})
