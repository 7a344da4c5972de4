"""The models that the page can show, and the values that it can choose for their options."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

from scorelens.data.images import ImageSet
from scorelens.denoisers import denoiser_options
from scorelens.denoisers.specs import Spec, parse_specs
from scorelens.types import ScorelensError, Shape

Value = float | int | str
THRESHOLDS = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7)
BANDWIDTHS: tuple[Value, ...] = ("auto", *(round(0.05 * k, 2) for k in range(21)))
CONTROLS: dict[str, Callable[[Shape], Sequence[Value]]] = {
    "threshold": lambda shape: THRESHOLDS, "bandwidth": lambda shape: BANDWIDTHS,
    "patch_size": lambda shape: [*range(1, max(shape[1:]) + 1, 2), 2 * max(shape[1:]) - 1],  # the last one covers all
    "softmax": lambda shape: ("exact", "batch-mean")}


@dataclass(frozen=True)
class Control:
    """An option that the page can change: its possible values and the initial one."""

    name: str
    values: list[Value]
    value: Value


@dataclass(frozen=True, eq=False)
class Model:
    """A network (spec None) or a denoiser with its spec; compared by identity."""

    id: str
    label: str
    spec: Spec | None = None
    controls: list[Control] = field(default_factory=list)


@dataclass(frozen=True)
class Choice:
    """A model with a value for each of its controls."""

    model: Model
    options: tuple[tuple[str, Value], ...] = ()

    @property
    def spec(self) -> Spec | None:
        spec = self.model.spec
        return None if spec is None else Spec(spec.name, {**spec.options, **dict(self.options)})


def list_models(images: ImageSet, denoisers: Iterable[str], networks: Iterable[str]) -> dict[str, Model]:
    """The networks, then the denoisers, by unique name."""
    models: dict[str, Model] = {}
    for network in networks:
        name = _unique(Path(network).name, models)
        models[name] = Model(name, name)
    for text in denoisers:
        spec, *others = parse_specs(text)
        if others:
            raise ScorelensError(f"{text} names several denoisers; give one value for each option")
        name, controls = _unique(spec.name, models), _controls(spec, images.shape)
        variable = {control.name for control in controls}
        fixed = {option: value for option, value in spec.options.items() if option not in variable}
        models[name] = Model(name, Spec(spec.name, fixed).label, spec, controls)
    if not models:
        raise ScorelensError("no model to show: give at least one --model or --reference")
    return models


def _controls(spec: Spec, shape: Shape) -> list[Control]:
    known = denoiser_options(spec.name)
    initial = {name: spec.options.get(name, known[name].default) for name in CONTROLS if name in known}
    distinct = {name: dict.fromkeys([*CONTROLS[name](shape), value]) for name, value in initial.items()}
    return [Control(name, sorted(distinct[name], key=_rank), value) for name, value in initial.items()]


def _rank(value: Value) -> float:
    """Sorts strings first, in their order, then numbers."""
    return -math.inf if isinstance(value, str) else value


def _unique(name: str, taken: Mapping[str, object]) -> str:
    """The name, with a number appended if it is taken."""
    names = chain([name], (f"{name}-{k}" for k in count(2)))
    return next(free for free in names if free not in taken)
