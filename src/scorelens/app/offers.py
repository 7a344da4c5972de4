"""What the page offers: models by name, and of their options those that it may change, each one of a list of values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scorelens.data.images import ImageSet
from scorelens.denoisers import denoiser_options
from scorelens.denoisers.specs import Spec, parse_specs
from scorelens.types import ScorelensError, Shape
from scorelens.validation import unknown

Value = float | int | str
THRESHOLDS = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7)
BANDWIDTHS: tuple[Value, ...] = ("auto", *(round(0.05 * k, 2) for k in range(21)))


def patch_sides(shape: Shape) -> list[int]:
    """All odd sides up to that of the images, and one that covers them from every place."""
    side = max(shape[1:])
    return [*range(1, side + 1, 2), 2 * side - 1]


CONTROLS: dict[str, Callable[[Shape], Sequence[Value]]] = {
    "threshold": lambda shape: THRESHOLDS,
    "bandwidth": lambda shape: BANDWIDTHS,
    "patch_size": patch_sides,
    "softmax": lambda shape: ("exact", "batch-mean"),
}


@dataclass(frozen=True)
class Control:
    """An option that the page may change, the values it may take, and the one it begins with."""

    name: str
    values: list[Value]
    value: Value


@dataclass(frozen=True, eq=False)
class Model:
    """A network by its name, or a denoiser by its spec. One is offered once: it equals itself alone."""

    id: str
    label: str
    spec: Spec | None = None
    controls: list[Control] = field(default_factory=list)


@dataclass(frozen=True)
class Chosen:
    """A model with every one of its controls set."""

    model: Model
    options: tuple[tuple[str, Value], ...] = ()

    @property
    def spec(self) -> Spec | None:
        given = self.model.spec
        return None if given is None else Spec(given.name, {**given.options, **dict(self.options)})


def offered(images: ImageSet, denoisers: Iterable[str], networks: Iterable[str]) -> dict[str, Model]:
    """The networks, then the denoisers, by names that differ."""
    models: dict[str, Model] = {}
    for name in networks:
        free = _free(Path(name).name, models)
        models[free] = Model(free, free)
    for text in denoisers:
        (spec, *others) = parse_specs(text)
        if others:
            raise ScorelensError(f"{text} names several denoisers; give one value for each option")
        free, found = _free(spec.name, models), controls(spec, images.shape)
        fixed = {key: value for key, value in spec.options.items() if key not in {c.name for c in found}}
        models[free] = Model(free, Spec(spec.name, fixed).label, spec, found)
    if not models:
        raise ScorelensError("there is nothing to show: give at least one --model or --reference")
    return models


def controls(spec: Spec, shape: Shape) -> list[Control]:
    """The controls of a denoiser: words first, then numbers in order, what was given among them."""
    known = denoiser_options(spec.name)
    values = {name: spec.options.get(name, known[name].default) for name in CONTROLS if name in known}
    return [Control(name, _sorted([*CONTROLS[name](shape), value]), value) for name, value in values.items()]


def chosen(models: Mapping[str, Model], name: str, options: Mapping[str, Value]) -> Chosen:
    """The model `name`, its controls as told or as they begin; only values on offer are taken."""
    if name not in models:
        raise unknown("model", name, models)
    model = models[name]
    offers = {control.name: control for control in model.controls}
    for option, value in options.items():
        if option not in offers:
            raise unknown(f"option of {name}", option, offers)
        if value not in offers[option].values:
            raise ScorelensError(f"{name}: {option} cannot be {value!r} here; it is one of "
                                 f"{', '.join(map(str, offers[option].values))}")
    return Chosen(model, tuple((key, options.get(key, control.value)) for key, control in offers.items()))


def _sorted(values: Iterable[Value]) -> list[Value]:
    each = dict.fromkeys(values)
    return [*(value for value in each if isinstance(value, str)),
            *sorted(value for value in each if not isinstance(value, str))]


def _free(name: str, taken: Mapping[str, object]) -> str:
    """The name itself, or with a number where it is taken."""
    return next(free for free in (name, *(f"{name}-{k}" for k in range(2, 10_000))) if free not in taken)
