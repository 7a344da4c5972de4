"""`scorelens train`: train a reference network on any data; interrupted training resumes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from scorelens.cli.tracking import Tracker, tracked
from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device
from scorelens.files import write_json
from scorelens.networks import training
from scorelens.networks.folders import CARD
from scorelens.results import run_record


def train(images: ImageSet, *, network: Literal["unet", "unet-attention", "dit"] = "unet",
          preset: Literal["small", "paper"] = "small", prediction: Literal["epsilon", "x0", "v"] | None = None,
          weighting: float | None = None, epochs: float | None = None, minutes: float | None = None, batch: int = 32,
          learning_rate: float | None = None, dropout: float | None = None, ema: float | None = None, seed: int = 0,
          conditional: bool = False, label_dropout: float = 0.1,
          precision: Literal["auto", "float32", "bfloat16"] = "auto", start: str | None = None, snapshots: int = 0,
          save_seconds: float = 60.0, log: Tracker = "none", device: str = "auto", out: Path | None = None) -> Path:
    """Train a reference network on the data; the same command resumes an interrupted training.

    Args:
        log: log the loss to tensorboard (in the folder) or wandb; both are extras.
        device: auto, cuda, mps or cpu.
        out: folder of the training; one with the same settings is resumed. By default runs/train-...
    """
    folder = Path(out or Path("runs") / f"train-{images.name}-{network}-{prediction or preset}-seed{seed}").expanduser()
    finished, clock, started = (folder / CARD).exists(), time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    settings: dict[str, Any] = {"network": network, "preset": preset, "prediction": prediction, "weighting": weighting,
                "epochs": epochs, "minutes": minutes, "batch": batch, "learning_rate": learning_rate,
                "dropout": dropout, "ema": ema, "seed": seed, "conditional": conditional,
                "label_dropout": label_dropout, "precision": precision, "start": start,
                "snapshots": snapshots, "save_seconds": save_seconds}
    where = choose_device(device)
    with tracked(log, folder, settings) as add:
        result = training.train(
            images, folder, **settings, device=where,
            on_resume=lambda step, steps: print(f"resuming at step {step} of {steps}"),
            on_step=lambda step, loss: add(step, {"loss": loss}))
    if not finished:
        write_json(folder / "run.json", {"command": "train", "data": images.describe(), **settings, "log": log,
                                         **run_record(started, clock, where)})
    card = result.card
    print(f"{'already ' * finished}trained {card['steps']} steps in {card['seconds'] / 60:.1f} minutes, loss "
          f"{card['loss']:.4f}; network and figures: {folder}")
    return folder
