"""The classes of a class-conditional network: their names and numbers, and the null class that stands for none."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from scorelens.types import ScorelensError

Label = int | str  # the number or name of a class, or "null"
NULL = "null"
PARAMETERS = ("class_labels", "labels", "label", "y", "classes")  # for classes, in the models of others


@dataclass(frozen=True)
class Classes:
    """Names of the classes 0, 1, ..., and the number of the null class if the network was trained with one."""

    names: tuple[str, ...]
    null: int | None = None

    def number(self, label: Label, network: str = "the network") -> int:
        """The number of a class; errors name the network."""
        if str(label) in self.names:
            return self.names.index(str(label))
        if self.null is not None and str(label) in (NULL, str(self.null)):
            return self.null
        if str(label).isdecimal() and int(label) < len(self.names) and not any(name.isdecimal() for name in self.names):
            return int(label)
        raise ScorelensError(f"{network} has no class {label!r}; its labels are {self}")

    def numbers(self, labels: Label | Sequence[Label], network: str = "the network") -> int | tuple[int, ...]:
        """The number of one class, or of several."""
        if isinstance(labels, (int, str)):
            return self.number(labels, network)
        return tuple(self.number(label, network) for label in labels)

    def __str__(self) -> str:
        numbered = self.names == tuple(map(str, range(len(self.names))))
        shown = f"0 ... {len(self.names) - 1}" if numbered else ", ".join(self.names)
        return shown if self.null is None else f"{shown} or {NULL}"


def label_numbers(labels: Label | Sequence[Label]) -> int | tuple[int, ...]:
    """Numbers of classes of a network whose classes are not known."""
    for label in [labels] if isinstance(labels, (int, str)) else labels:
        if not isinstance(label, int):
            raise ScorelensError(f"the label must be a class number, got {label!r}; or name the classes: classes=")
    return labels if isinstance(labels, int) else tuple(map(int, labels))


def label_parameter(model: Callable[..., Any]) -> str:
    """The name of a model's parameter for classes."""
    known = inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters
    return next((name for name in PARAMETERS if name in known), PARAMETERS[0])


def find_classes(embeddings: int, names: Sequence[str] | None, *, null_beyond: bool) -> Classes:
    """The classes of a network with so many embeddings; their names are numbers if they are not given.

    Args:
        embeddings: number of class embeddings in its config.
        names: names of the classes without the null class. If they are one less than the embeddings, the last is null.
        null_beyond: a null class follows the embeddings, as in a DiT.
    """
    given = tuple(map(str, range(embeddings))) if names is None else tuple(names)
    if len(given) == embeddings:
        return Classes(given, embeddings if null_beyond else None)
    if len(given) == embeddings - 1 and not null_beyond:
        return Classes(given, embeddings - 1)
    raise ScorelensError(f"the network has {embeddings} class embeddings, but {len(given)} classes were given")
