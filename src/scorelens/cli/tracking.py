"""Curves of a run in TensorBoard or Weights & Biases, if asked for; both are extras."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from scorelens import distributed
from scorelens.types import ScorelensError

Tracker = Literal["none", "tensorboard", "wandb"]
Log = Callable[[int, Mapping[str, float]], None]  # the step, and numbers by name
PROJECT = "scorelens"


@contextmanager
def tracked(tracker: Tracker, folder: Path, config: Mapping[str, Any]) -> Iterator[Log]:
    """A function that logs numbers to the tracker; a resumed run continues its curves."""
    if tracker == "none" or not distributed.world().is_main:
        yield lambda step, numbers: None
        return
    try:
        import_module(tracker)
    except ImportError as error:
        raise ScorelensError(f"--log {tracker} needs an extra package: pip install 'scorelens[{tracker}]'") from error
    opened: list[tuple[Log, Callable[[], object]]] = []

    def add(step: int, numbers: Mapping[str, float]) -> None:
        if not opened:  # not earlier: the run checks first that the folder is its own
            opened.append(OPEN[tracker](folder, config))
        opened[0][0](step, numbers)

    try:
        yield add
    finally:
        for _, close in opened:
            close()


def _tensorboard(folder: Path, config: Mapping[str, Any]) -> tuple[Log, Callable[[], object]]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def add(step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    return add, writer.close


def _wandb(folder: Path, config: Mapping[str, Any]) -> tuple[Log, Callable[[], object]]:
    import wandb

    identity = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
    run = wandb.init(project=PROJECT, name=folder.name, id=identity, resume="allow", dir=str(folder),
                     config=dict(config))
    return lambda step, numbers: run.log(dict(numbers), step=step), run.finish


OPEN = {"tensorboard": _tensorboard, "wandb": _wandb}
