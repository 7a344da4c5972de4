"""The network of a checkpoint file: its module with the weights found in the file, or one that needs no module."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scorelens.networks.checkpoint_files import Module, build_module, read_checkpoint
from scorelens.networks.foreign_unets import build_foreign_unet, is_foreign_unet
from scorelens.networks.state_dicts import AVERAGED, Found, below, choose_fit, find_modules, find_tensors
from scorelens.noise import Schedule, SigmaSchedule, saved_schedule
from scorelens.types import ScorelensError, Shape
from scorelens.validation import unknown


@dataclass(frozen=True)
class Checkpoint:
    """A network from a file, and what the file says about it."""

    model: nn.Module
    notes: list[str]
    parametrization: str | None = None
    schedule: Schedule | None = None
    shape: Shape | None = None
    origin: dict[str, Any] = field(default_factory=dict)


def open_checkpoint(path: Path, module: Module | None = None, weights: str | None = None,
                    trust_pickle: bool = False) -> Checkpoint:
    """Load a checkpoint file.

    Without `module`, the file must contain a whole module (a trusted pickle, such as EDM's), or the weights of a U-Net
    that we know (foreign_unets.py).
    """
    content = read_checkpoint(path, trust_pickle)
    found, modules = list(find_tensors(content)), list(find_modules(content))
    if module is not None:
        return _with_module(found, copy.deepcopy(build_module(module)), weights, path.name)
    if modules:
        label, model = _preferred(modules, weights, path.name)
        checkpoint = _saved_module(model, found)
    else:
        label, tensors = _preferred(list(_foreign(found, path.name)), weights, path.name)
        checkpoint = _with_schedule(build_foreign_unet(tensors), found)
    return _noted(checkpoint, label, [each for each, _ in modules])


def _with_module(found: Sequence[Found], model: nn.Module, weights: str | None, name: str) -> Checkpoint:
    fit, labels = choose_fit(found, model, weights, name)
    model.load_state_dict(fit.state)
    return _noted(_with_schedule(model, found), fit.label, labels)


def _noted(checkpoint: Checkpoint, label: str, labels: Sequence[str]) -> Checkpoint:
    """The checkpoint with a note on which of its weights were taken."""
    averaged = ", the averaged ones" if AVERAGED.search(label) else ""
    others = [each or "the plain ones" for each in labels if each != label]
    if label:
        rest = f" (not {', '.join(others)})" if others else ""
        checkpoint.notes.insert(0, f"its weights are {label}{averaged}{rest}")
        checkpoint.origin["weights_of"] = label
    return checkpoint


def _with_schedule(model: nn.Module, found: Sequence[Found]) -> Checkpoint:
    """The model with the noise levels among the tensors of the file or the buffers of the module."""
    tensors = [item for each in found if isinstance(each.tensors, Mapping) for item in each.tensors.items()]
    saved = saved_schedule([*model.named_buffers(), *tensors])
    if saved is None:
        return Checkpoint(model, [])
    name, schedule = saved
    return Checkpoint(model, [f"its noise levels are its {name}, {len(schedule.sigmas)} steps"], schedule=schedule)


def _preferred(choices: Sequence[tuple[str, Any]], weights: str | None, name: str) -> tuple[str, Any]:
    """The one asked for by its label, else the averaged one, else the first."""
    chosen = [choice for choice in choices if weights is None or weights.lower() in choice[0].lower()]
    if not chosen:
        raise unknown(f"weights in {name}:", str(weights), [label for label, _ in choices])
    return min(chosen, key=lambda choice: not AVERAGED.search(choice[0]))


def _foreign(found: Sequence[Found], name: str) -> list[tuple[str, Mapping[str, Tensor]]]:
    """The weights of U-Nets that we know, without a prefix."""
    choices: list[tuple[str, Mapping[str, Tensor]]] = []
    for each in found:
        if isinstance(each.tensors, Mapping):
            for prefix in ("", "module.", "model.", "network.", "unet.", "ema_model.", "module.module."):
                inside = below(each.tensors, prefix)
                if is_foreign_unet(inside):
                    choices.append((f"{each.path}.{prefix}".strip("."), inside))
    if not choices:
        named = [key for each in found if isinstance(each.tensors, Mapping) for key in each.tensors]
        if not named:
            raise ScorelensError(f"{name} contains no weights")
        raise ScorelensError(f"{name} contains {len(named)} tensors ({', '.join(named[:2])}, ...), but not the code of "
                             "their network: give module=YourNet (--module package.module:YourNet)")
    return choices


def _saved_module(model: nn.Module, found: Sequence[Found]) -> Checkpoint:
    """A whole module; EDM's and EDM2's know their images, and are denoisers of sigma."""
    if hasattr(model, "img_resolution") and hasattr(model, "img_channels"):
        channels, side = (int(getattr(model, key)) for key in ("img_channels", "img_resolution"))
        shape = (channels, side, side)
        return Checkpoint(Edm(model), [], "denoised", SigmaSchedule(), shape)
    return _with_schedule(model, found)


class Edm(nn.Module):
    """D(z, sigma) of EDM and EDM2, which compute in float32 and take classes as one-hot vectors."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.classes = net, int(getattr(net, "label_dim", 0) or 0)

    def forward(self, z: Tensor, sigma: Tensor, class_labels: Tensor | None = None) -> Tensor:
        net: Any = self.net.float()
        options = {}
        if class_labels is not None:
            options["class_labels"] = torch.nn.functional.one_hot(class_labels, self.classes).float()
        return net(z.float(), sigma.float(), **options).to(z.dtype)
