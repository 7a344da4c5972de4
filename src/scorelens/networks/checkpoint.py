"""Training checkpoints: one safetensors file, written atomically, from which training resumes exactly."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from scorelens.files import atomic_file
from scorelens.networks.train import State
from scorelens.types import ScorelensError

MOMENTS = ("exp_avg", "exp_avg_sq")  # Adam's


def save_checkpoint(path: Path, state: State, **extra: float) -> None:
    """Save the weights, their average, Adam's moments, the losses and some `extra` numbers."""
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
    state.step, state.losses = int(metadata["step"]), tensors.pop("losses").tolist()
    state.model.load_state_dict(_part(tensors, "model."))
    state.averaged.load_state_dict(_part(tensors, "averaged."))
    moments = {moment: _part(tensors, f"{moment}.") for moment in MOMENTS}
    device = next(state.model.parameters()).device if state.optimizer.defaults["fused"] else "cpu"  # as Adam does
    for name, parameter in state.model.named_parameters():
        state.optimizer.state[parameter] = {"step": torch.tensor(float(state.step), device=device), **{
            moment: moments[moment][name].to(parameter.device) for moment in MOMENTS}}
    return json.loads(metadata["extra"])


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
