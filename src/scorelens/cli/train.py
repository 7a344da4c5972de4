"""`scorelens train`: a reference network for any data; interrupted trainings resume."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device
from scorelens.networks import training
from scorelens.networks.export import CARD


def train(images: ImageSet, *, network: Literal["unet", "unet-attention", "dit"] = "unet",
          preset: Literal["small", "paper"] = "small", prediction: Literal["epsilon", "x0", "v"] | None = None,
          weighting: float | None = None, epochs: float | None = None, minutes: float | None = None, batch: int = 32,
          learning_rate: float | None = None, dropout: float | None = None, ema: float | None = None, seed: int = 0,
          precision: Literal["auto", "float32", "bfloat16"] = "auto", start: str | None = None, snapshots: int = 0,
          save_seconds: float = 60.0, device: str = "auto", out: Path | None = None) -> Path:
    """Train a reference network on the data; the same command goes on with an interrupted training.

    Args:
        network: unet (no self-attention at all), unet-attention or dit.
        preset: small (at most 1.5 M parameters, for CPUs) or paper (the paper's sizes and 200 epochs, for GPUs).
        prediction: what the network is trained to predict, by default the preset's.
        weighting: multiply the loss at each noise level by alpha^weighting; 0 is plain, and the default is the preset's
            for v. It moves the weights of v towards those of epsilon, which it reaches at 1.
        epochs: passes over the data, by default the preset's.
        minutes: train as many steps as fit in this time, in place of epochs.
        batch: images per step.
        learning_rate: of Adam, by default the preset's.
        dropout: by default the preset's.
        ema: decay of the averaged weights, by default the preset's.
        seed: of the initialization, the order of the images and the noise.
        precision: auto is bfloat16 where the device computes in it, else float32.
        start: begin with the weights of this network, a name of the zoo or a folder saved by diffusers.
        snapshots: keep the network also at 1/2, 1/4, ... of the training, so many times.
        save_seconds: time between checkpoints.
        device: auto, cuda, mps or cpu.
        out: folder of the training; one with the same settings is resumed. By default runs/train-...
    """
    folder = Path(out or Path("runs") / f"train-{images.name}-{network}-{prediction or preset}-seed{seed}").expanduser()
    finished = (folder / CARD).exists()
    result = training.train(
        images, folder, network=network, preset=preset, prediction=prediction, weighting=weighting, epochs=epochs,
        minutes=minutes, batch=batch, learning_rate=learning_rate, dropout=dropout, ema=ema, seed=seed,
        precision=precision, start=start, snapshots=snapshots, save_seconds=save_seconds, device=choose_device(device),
        on_resume=lambda step, steps: print(f"resuming at step {step} of {steps}"))
    card = result.card
    print(f"{'already ' * finished}trained {card['steps']} steps in {card['seconds'] / 60:.1f} minutes, loss "
          f"{card['loss']:.4f}; network and pictures: {folder}")
    return folder
