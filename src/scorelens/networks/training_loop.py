"""Training as a generator that yields its state after every step; callers save, show or stop.

All randomness of step k depends only on (seed, k), so an interrupted and resumed training gives the same weights.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from scorelens.data.edits import class_list
from scorelens.data.images import ImageSet
from scorelens.files import atomic_file, damaged
from scorelens.networks.architectures import Prediction, Preset, build_network
from scorelens.noise import TRAIN_STEPS, ddpm_alphas
from scorelens.types import ScorelensError

if TYPE_CHECKING:
    from torch import nn

WARMUP = 200  # steps, or a twentieth of the training if that is less
MAX_NORM = 1.0  # gradient clipping, as in DDPM
MOMENTS = ("exp_avg", "exp_avg_sq")  # Adam's
UNET_CLASSES, DIT_CLASSES = "class_embedding.weight", "class_embedder.embedding_table.weight"


@dataclass(frozen=True)
class Recipe:
    """All settings that determine the weights, given the images, the number of steps and the machine."""

    network: str
    sizes: Preset
    prediction: Prediction
    batch: int
    learning_rate: float
    dropout: float
    ema: float
    seed: int
    precision: Literal["float32", "bfloat16"]
    weighting: float = 0.0  # multiply the loss at noise level a by a^weighting; for v, 1 gives epsilon's loss
    label_dropout: float | None = None  # share of images trained with the null class; None: not conditional on classes

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ScorelensError(f"batch must be at least 1, got {self.batch}")
        if self.seed < 0:
            raise ScorelensError(f"seed must be at least 0, got {self.seed}")
        if not self.learning_rate > 0:
            raise ScorelensError(f"learning_rate must be a number > 0, got {self.learning_rate:g}")
        if not 0 <= self.weighting <= 1:
            raise ScorelensError(f"weighting must be between 0 and 1, got {self.weighting:g}")
        for name, value in (("dropout", self.dropout), ("ema", self.ema), ("label_dropout", self.label_dropout or 0.0)):
            if not 0 <= value < 1:
                raise ScorelensError(f"{name} must be at least 0 and below 1, got {value:g}")

    def steps_per_epoch(self, count: int) -> int:
        """The number of batches of `count` images; the last one may be smaller."""
        return math.ceil(count / self.batch)


@dataclass
class State:
    """A training after `step` steps, updated in place by the next step."""

    model: nn.Module
    averaged: nn.Module  # exponential moving average of the weights: the final network
    optimizer: torch.optim.Optimizer
    step: int = 0
    losses: list[float] = field(default_factory=list)  # one per step

    @property
    def loss(self) -> float:
        """The mean loss of the last hundred steps."""
        return float(np.mean(self.losses[-100:])) if self.losses else math.nan


class NotFiniteError(ScorelensError):
    """The loss or the weights are NaN or infinite."""


def initial_state(images: ImageSet, recipe: Recipe, device: torch.device | str = "cpu") -> State:
    """The network initialized from the seed, and a new Adam optimizer."""
    with _seeded(recipe.seed, -1, torch.device(device)):
        model = build_network(recipe.network, images.shape, sizes=recipe.sizes, dropout=recipe.dropout,
                              classes=None if recipe.label_dropout is None else len(class_list(images)))
    model = model.to(device).train()
    averaged = copy.deepcopy(model).eval().requires_grad_(False)
    fused = torch.device(device).type in ("cpu", "cuda")
    return State(model, averaged, torch.optim.Adam(model.parameters(), lr=recipe.learning_rate, fused=fused))


def copy_weights(state: State, trained: nn.Module) -> None:
    """Start from the weights of another network of the same architecture.

    A conditional network can start from one without classes: at first it predicts the same for every class.
    """
    weights = trained.state_dict()
    for name, own in state.model.state_dict().items():
        if name == UNET_CLASSES and name not in weights:  # added to the embedding of the time
            weights[name] = torch.zeros_like(own)
        elif name.endswith(DIT_CLASSES) and name in weights and len(weights[name]) == 2:
            weights[name] = weights[name][1:].expand_as(own)  # of a DiT without classes, only the null class is trained
    try:
        for model in (state.model, state.averaged):
            model.load_state_dict(weights)
    except RuntimeError as error:
        raise ScorelensError("the network given as start has another architecture; choose one of the same") from error


def training_steps(images: ImageSet, recipe: Recipe, state: State, steps: int) -> Iterator[State]:
    """Train from `state` to a total of `steps` steps, with DDPM's loss: t uniform, squared error."""
    device = next(state.model.parameters()).device
    a = ddpm_alphas().float().to(device)
    while state.step < steps:
        generator = torch.Generator().manual_seed(_step_seed(recipe.seed, state.step))
        rows = _batch(len(images), recipe, state.step)
        x0 = images[rows].to(device)
        t = torch.randint(TRAIN_STEPS, (len(x0),), generator=generator).to(device)
        eps = torch.randn(x0.shape, generator=generator).to(device)
        labels = _labels(state.model, images, rows, recipe, generator)
        with _seeded(recipe.seed, state.step, device) if recipe.dropout else nullcontext():
            loss = _loss(state.model, x0, eps, a[t].view(-1, 1, 1, 1), t, recipe, labels)
        update(state, loss, _rate(recipe, state.step, steps), recipe.ema)
        yield state


def _labels(model: nn.Module, images: ImageSet, rows: np.ndarray, recipe: Recipe,
            generator: torch.Generator) -> Int[Tensor, "b"] | None:
    """The classes to train these images with, of which some are dropped; all null for a DiT that is not conditional."""
    null = null_class(model)
    if null is None:
        return None
    labels = torch.full((len(rows),), null)
    if recipe.label_dropout is None or images.labels is None:
        return labels
    kept = torch.rand(len(rows), generator=generator) >= recipe.label_dropout
    return torch.where(kept, torch.from_numpy(images.labels[rows]), labels)


def null_class(model: nn.Module) -> int | None:
    """The class that stands for no class in a network built here: the last embedding; None if it takes no classes."""
    config: Any = model.config
    classes = config.get("num_class_embeds")
    return config.get("num_embeds_ada_norm") if classes is None else classes - 1


def _loss(model: nn.Module, x0: Tensor, eps: Tensor, a: Tensor, t: Tensor, recipe: Recipe,
          labels: Int[Tensor, "b"] | None = None) -> Tensor:
    x_t = a.sqrt() * x0 + (1 - a).sqrt() * eps
    options = {} if labels is None else {"class_labels": labels.to(x0.device)}
    with torch.autocast(x0.device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
        prediction = model(x_t, t, **options).sample
    target = {"epsilon": eps, "x0": x0, "v": a.sqrt() * eps - (1 - a).sqrt() * x0}[recipe.prediction]
    return ((prediction.float() - target).square() * a**recipe.weighting).mean()


def update(state: State, loss: Tensor, learning_rate: float, ema: float) -> None:
    """One step of Adam and of the weight average. Raises before any change if the loss is not finite."""
    if not math.isfinite(loss.item()):
        raise NotFiniteError(f"the loss is {loss.item()} at step {state.step + 1}")
    state.optimizer.param_groups[0]["lr"] = learning_rate
    state.optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(state.model.parameters(), MAX_NORM)
    state.optimizer.step()
    state.step += 1
    state.losses.append(loss.item())
    rate = 1 - min(ema, state.step / (state.step + 9))  # less inertia at first, to forget the random initialization
    torch._foreach_lerp_(list(state.averaged.parameters()), list(state.model.parameters()), rate)


def check_finite(state: State) -> None:
    """Raise if a weight is NaN or infinite, so that no checkpoint contains such weights."""
    if not all(bool(torch.isfinite(p).all()) for p in state.model.parameters()):
        raise NotFiniteError(f"the weights are not finite after step {state.step}")


def save_checkpoint(path: Path, state: State, **extra: float) -> None:
    """Save the weights, their average, Adam's moments, the losses and `extra` numbers. Raises if a weight is NaN."""
    check_finite(state)
    tensors = {"losses": torch.tensor(state.losses, dtype=torch.float64)}
    tensors |= {f"model.{name}": value for name, value in state.model.state_dict().items()}
    tensors |= {f"averaged.{name}": value for name, value in state.averaged.state_dict().items()}
    for name, parameter in state.model.named_parameters():
        tensors |= {f"{moment}.{name}": state.optimizer.state[parameter][moment] for moment in MOMENTS}
    with atomic_file(path) as temporary:
        save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, temporary,
                  metadata={"step": str(state.step), "extra": json.dumps(extra)})


def load_checkpoint(path: Path, state: State) -> dict[str, float]:
    """Restore `state` from a checkpoint; returns the extra numbers."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
    except (SafetensorError, OSError) as error:
        raise ScorelensError(f"the checkpoint {path} cannot be read ({error}); remove it to restart") from error
    with damaged(path, KeyError, TypeError, ValueError, RuntimeError, AttributeError):
        return _restore(state, tensors, metadata)


def _restore(state: State, tensors: dict[str, Tensor], metadata: dict[str, str]) -> dict[str, float]:
    """Put the parts of a checkpoint into the state; returns the extra numbers."""
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise ValueError("a weight is NaN or infinite")
    state.step, state.losses = int(metadata["step"]), tensors.pop("losses").tolist()
    state.model.load_state_dict(_part(tensors, "model."))
    state.averaged.load_state_dict(_part(tensors, "averaged."))
    moments = {moment: _part(tensors, f"{moment}.") for moment in MOMENTS}
    device = next(state.model.parameters()).device if state.optimizer.defaults["fused"] else "cpu"  # as Adam does
    for name, parameter in state.model.named_parameters():
        state.optimizer.state[parameter] = {"step": torch.tensor(float(state.step), device=device), **{
            moment: moments[moment][name].to(parameter.device) for moment in MOMENTS}}
    extra = json.loads(metadata["extra"])
    if state.step != len(state.losses):
        raise ValueError(f"step {state.step} with {len(state.losses)} losses")
    return {name: float(value) for name, value in extra.items()}


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _batch(count: int, recipe: Recipe, step: int) -> np.ndarray:
    """Indices of the images of a step; each epoch is shuffled separately."""
    epoch, k = divmod(step, recipe.steps_per_epoch(count))
    return _order(recipe.seed, epoch, count)[k * recipe.batch:(k + 1) * recipe.batch]


@lru_cache(maxsize=1)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(count)


def _rate(recipe: Recipe, step: int, steps: int) -> float:
    """Learning rate: linear warm-up, then constant or a cosine decay to zero."""
    warmup = min(1.0, (step + 1) / max(1, min(WARMUP, steps // 20)))
    decay = 0.5 * (1 + math.cos(math.pi * step / steps)) if recipe.sizes.decay else 1.0
    return recipe.learning_rate * warmup * decay


def _step_seed(seed: int, step: int) -> int:
    """A hash of (seed, step), so that neighbouring seeds share no random numbers."""
    return int(np.random.SeedSequence((seed, step + 1)).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def _seeded(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators (used by initialization and dropout) for a step, and restore them afterwards."""
    devices: list[Any] = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(_step_seed(seed, step))
        yield
