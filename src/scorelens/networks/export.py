"""Export of a trained network as a folder that diffusers can load."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorelens.files import write_json
from scorelens.networks.configs import PREDICTIONS
from scorelens.noise import TRAIN_STEPS

if TYPE_CHECKING:
    from torch import nn

CARD = "card.json"
PREDICTION_TYPES = {ours: theirs for theirs, ours in PREDICTIONS.items()}


def export_network(model: nn.Module, prediction: str, folder: Path, *, half: bool = False) -> None:
    """Write a diffusers pipeline to `folder`: unet/ or transformer/, scheduler/, and last model_index.json."""
    from diffusers import DDIMScheduler

    part = "unet" if type(model).__name__ == "UNet2DModel" else "transformer"
    scheduler = DDIMScheduler(num_train_timesteps=TRAIN_STEPS, prediction_type=PREDICTION_TYPES[prediction])
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Any] = {part: copy.deepcopy(model).half() if half else model, "scheduler": scheduler}
    for name, saved in parts.items():
        partial = Path(tempfile.mkdtemp(dir=folder, prefix=f".{name}."))
        saved.save_pretrained(partial)
        _remove_local_paths(partial)
        partial.chmod(0o755)
        shutil.rmtree(folder / name, ignore_errors=True)  # left by an interrupted export
        partial.rename(folder / name)
    write_json(folder / "model_index.json", {
        "_class_name": "DDIMPipeline", part: ["diffusers", type(model).__name__],
        "scheduler": ["diffusers", "DDIMScheduler"]})


def _remove_local_paths(folder: Path) -> None:
    """Remove the path that diffusers records for a model loaded from disk."""
    for path in folder.glob("*.json"):
        write_json(path, {key: value for key, value in json.loads(path.read_text()).items() if key != "_name_or_path"})
