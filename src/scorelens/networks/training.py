"""`train`: train a reference network in a folder; interrupted trainings resume."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from scorelens import progress
from scorelens.data.edits import class_list
from scorelens.data.images import ImageSet
from scorelens.files import damaged, fresh_folder, read_json, resumable_folder, write_json
from scorelens.networks.adapters import Network
from scorelens.networks.architectures import Prediction
from scorelens.networks.architectures import preset as preset_for
from scorelens.networks.folders import CARD, export_network, load_model, open_folder
from scorelens.networks.load import load_network
from scorelens.networks.training_loop import (
    NotFiniteError,
    Recipe,
    State,
    copy_weights,
    initial_state,
    load_checkpoint,
    save_checkpoint,
    training_steps,
)
from scorelens.networks.zoo import zoo_folder
from scorelens.noise import beta_schedule, ddim_sigmas, seeded_noise
from scorelens.results import environment
from scorelens.sampling import sample
from scorelens.types import ScorelensError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIMED_STEPS = 20  # to convert minutes to steps
LONGEST = {"epochs": 10_000_000, "minutes": 60 * 24 * 366}
SAMPLES = 64  # in samples.png
CONFIG = "training"


@dataclass(frozen=True)
class Training:
    """A finished training in its folder, which diffusers can load."""

    folder: Path
    card: dict[str, Any]

    @property
    def network(self) -> Network:
        """The trained network as a denoiser."""
        return load_network(self.folder)

    @property
    def losses(self) -> list[float]:
        """The loss of every step."""
        losses: list[float] = json.loads((self.folder / "losses.json").read_text(encoding="utf-8"))
        return losses

    def table(self) -> str:
        """The model card, as Markdown."""
        from scorelens.report.training import model_card

        return model_card(self.folder.name, self.card)

    def figure(self) -> Figure:
        """The loss over the number of images seen."""
        from scorelens.report.training import training_figure

        return training_figure(self.losses, self.card["batch"], title=self.folder.name)

    def save(self, folder: str | Path) -> Path:
        """Copy the network, its card and pictures into a new folder."""
        with fresh_folder(Path(folder)) as partial:
            shutil.copytree(self.folder, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock"))
        return Path(folder).expanduser()


def train(images: ImageSet, folder: str | Path, *, network: Literal["unet", "unet-attention", "dit"] = "unet",
          preset: Literal["small", "paper"] = "small", prediction: Literal["epsilon", "x0", "v"] | None = None,
          weighting: float | None = None, epochs: float | None = None, minutes: float | None = None, batch: int = 32,
          learning_rate: float | None = None, dropout: float | None = None, ema: float | None = None, seed: int = 0,
          conditional: bool = False, label_dropout: float = 0.1,
          precision: Literal["auto", "float32", "bfloat16"] = "auto", start: str | None = None, snapshots: int = 0,
          save_seconds: float = 60.0, device: torch.device | str = "cpu",
          on_resume: Callable[[int, int], None] = lambda step, steps: None,
          on_step: Callable[[int, float], None] = lambda step, loss: None) -> Training:
    """Train a reference network; the same call resumes an interrupted training.

    Args:
        images: the training images.
        folder: output folder; a training with the same settings in it is resumed.
        network: unet (no self-attention at all), unet-attention or dit.
        preset: small (at most 1.5 M parameters, for CPUs) or paper (the paper's sizes and 200 epochs, for GPUs).
        prediction: what the network is trained to predict, by default the preset's.
        weighting: multiply the loss at each noise level by alpha^weighting, from 0 (unweighted) to 1 (for v: equal to
            epsilon's loss); by default the preset's for v, else 0.
        epochs: passes over the data, by default the preset's.
        minutes: train as many steps as fit in this time, instead of epochs.
        batch: images per step.
        learning_rate: Adam's, by default the preset's.
        dropout: by default the preset's.
        ema: decay of the averaged weights, by default the preset's.
        seed: of the initialization, the order of the images and the noise.
        conditional: train on the classes of the images, so that the network can be guided.
        label_dropout: share of the images that a conditional network sees without their class (as the null class).
        precision: auto is bfloat16 if the device supports it natively, else float32.
        start: initial weights: a name of the zoo or a folder saved by diffusers. A conditional network may start from
            one without classes.
        snapshots: number of intermediate networks to keep, after 1/2, 1/4, ... of the training.
        save_seconds: seconds between checkpoints.
        on_resume: called with the current step and the total when an interrupted training resumes.
        on_step: called with the number of steps done and the last loss, after every step.
    """
    device, sizes = torch.device(device), preset_for(preset, images.shape)
    target: Prediction = prediction or sizes.prediction
    recipe = Recipe(network, sizes, target, batch, _or(learning_rate, sizes.learning_rate),
                    _or(dropout, sizes.dropout), _or(ema, sizes.ema), seed, native_precision(precision, device),
                    _or(weighting, sizes.weighting if target == "v" else 0.0), label_dropout if conditional else None)
    length, folder = _length(epochs, minutes, sizes.epochs), Path(folder).expanduser()
    settings = {key: value for key, value in asdict(recipe).items() if value is not None}
    config = {"data": images.describe(), "preset": preset, **length, **settings}
    if conditional:
        config["classes"] = list(class_list(images))
    if start is not None:
        config["start"] = {"name": Path(start).name, "weights": load_network(start).describe()["weights"]}
    with resumable_folder(folder, config, CONFIG):
        if not (folder / CARD).exists():
            job = Job(folder, images, recipe, snapshots, initial_state(images, recipe, device))
            if start is not None:
                copy_weights(job.state, load_model(open_folder(zoo_folder(start) or Path(start)), trust_pickle=False))
            if job.resume():
                on_resume(job.state.step, job.steps)
            job.run(length, save_seconds, on_step)
            finish(job, config, device)
    return Training(folder, read_json(folder / CARD, "remove it to finish the training again"))


@dataclass
class Job:
    """A training in progress."""

    folder: Path
    images: ImageSet
    recipe: Recipe
    snapshots: int
    state: State
    steps: int = 0  # total; 0 until known
    seconds: float = 0.0  # training time so far, without interruptions

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def resume(self) -> bool:
        """Load the last checkpoint; returns whether training resumes."""
        if self.checkpoint.exists():
            extra = load_checkpoint(self.checkpoint, self.state)
            with damaged(self.checkpoint, KeyError, ValueError, OverflowError):
                self.steps, self.seconds = int(extra["steps"]), extra["seconds"]
        return self.state.step > 0

    def save(self) -> None:
        save_checkpoint(self.checkpoint, self.state, steps=self.steps, seconds=self.seconds)

    def run(self, length: dict[str, float | None], save_seconds: float, on_step: Callable[[int, float], None]) -> None:
        """Train to the end with regular checkpoints. Stops on NaN and keeps the last good checkpoint."""
        per_epoch = self.recipe.steps_per_epoch(len(self.images))
        self.steps = self.steps or self._total_steps(length, per_epoch)
        snapshots = {self.steps >> k for k in range(1, self.snapshots + 1)} - {0}  # 1/2, 1/4, ... of the training
        saved = time.perf_counter()
        started = saved - self.seconds
        states = training_steps(self.images, self.recipe, self.state, self.steps)
        try:
            for state in progress.track(states, "training", self.steps, unit="step", first=self.state.step,
                                        note=lambda s: f"loss {s.loss:.4f}, epoch {s.step / per_epoch:.1f}"):
                self.seconds = time.perf_counter() - started
                on_step(state.step, state.losses[-1])
                if state.step in snapshots:
                    folder = self.folder / "snapshots" / f"{state.step:07d}"
                    export_network(state.averaged, self.recipe.prediction, folder, half=True,
                                   autoencoder=_coder(self.images))
                if time.perf_counter() - saved > save_seconds:
                    self.save()
                    saved = time.perf_counter()
            self.save()
        except NotFiniteError as error:
            kept = f"an earlier checkpoint is in {self.checkpoint}" if self.checkpoint.exists() else "nothing was saved"
            raise ScorelensError(f"training stopped: {error}; {kept}; try a lower --learning-rate than "
                                 f"{self.recipe.learning_rate:g}, in another folder") from error

    def _total_steps(self, length: dict[str, float | None], per_epoch: int) -> int:
        """The steps of so many epochs, or those that fit in the minutes: estimated from a trial that is discarded."""
        if length["epochs"] is not None:
            return max(1, round(length["epochs"] * per_epoch))
        device = next(self.state.model.parameters()).device
        initial = initial_state(self.images, self.recipe, device)
        trial = training_steps(self.images, self.recipe, initial, TIMED_STEPS + 1)
        next(trial)  # the first step is slower
        started = time.perf_counter()
        for _ in trial:
            pass
        return max(1, round(60 * (length["minutes"] or 0) * TIMED_STEPS / (time.perf_counter() - started)))


def finish(job: Job, config: dict[str, Any], device: torch.device) -> None:
    """Write the network as a diffusers folder, the figures, and last the card, which marks the training as complete."""
    from scorelens.report.training import model_card, training_figure

    export_network(job.state.averaged, job.recipe.prediction, job.folder, autoencoder=_coder(job.images))
    images_seen = round(job.steps / job.recipe.steps_per_epoch(len(job.images)) * len(job.images))
    write_json(job.folder / "losses.json", [round(loss, 6) for loss in job.state.losses])
    title = f"{job.recipe.network} on {job.images.name}, {job.recipe.prediction}, seed {job.recipe.seed}"
    training_figure(job.state.losses, job.recipe.batch, title=title).savefig(job.folder / "loss.png", dpi=160)
    classes = config.get("classes")
    network = load_network(job.state.averaged, parametrization=job.recipe.prediction, schedule=beta_schedule(),
                           shape=job.images.shape, classes=classes, latent=job.images.autoencoder is not None)
    if classes:
        network = network.conditional([k % len(classes) for k in range(SAMPLES)])
    with torch.no_grad():
        samples = sample(network, seeded_noise(job.images.shape, range(SAMPLES), device=device), ddim_sigmas(10))
    samples = replace(samples, images=job.images.pictures(samples.images.cpu()))
    samples.figure(f"{job.folder.name}: samples, 10 steps").savefig(job.folder / "samples.png", dpi=160)
    card = {**config, "steps": job.steps, "images_seen": images_seen, "loss": job.state.loss,
            "seconds": round(job.seconds, 1), "parameters": sum(p.numel() for p in job.state.model.parameters()),
            "environment": environment(device)}
    (job.folder / "README.md").write_text(model_card(job.folder.name, card), encoding="utf-8")
    write_json(job.folder / CARD, card)
    job.checkpoint.unlink()


def _coder(images: ImageSet) -> nn.Module | None:
    """The autoencoder of latents, which is saved with a network that works on them."""
    return None if images.autoencoder is None else images.autoencoder.model


def _length(epochs: float | None, minutes: float | None, default: float) -> dict[str, float | None]:
    if epochs is not None and minutes is not None:
        raise ScorelensError("give --epochs or --minutes, not both")
    for name, value in (("epochs", epochs), ("minutes", minutes)):
        if value is not None and not 0 < value <= LONGEST[name]:
            raise ScorelensError(f"{name} must be a number > 0 and at most {LONGEST[name]:,}, got {value:g}")
    return {"epochs": None if minutes is not None else _or(epochs, default), "minutes": minutes}


def native_precision(name: str, device: torch.device) -> Literal["float32", "bfloat16"]:
    """For auto, bfloat16 where it is native: recent GPUs, and CPUs with AVX-512 BF16 or AMX."""
    if name == "auto":
        native = torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else \
            device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
        return "bfloat16" if native else "float32"
    return "bfloat16" if name == "bfloat16" else "float32"


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
