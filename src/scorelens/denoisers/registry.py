"""The registry: every closed-form denoiser by name.

Other packages add denoisers through the entry-point group "scorelens.denoisers": name = "package.module:builder".
"""

from __future__ import annotations

import inspect
import math
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from scorelens.data.edits import only_classes
from scorelens.data.images import ImageSet
from scorelens.denoisers.bbels import bbels
from scorelens.denoisers.conditional import Label, by_class
from scorelens.denoisers.els import els
from scorelens.denoisers.generalized import generalized
from scorelens.denoisers.golden import golden
from scorelens.denoisers.kernel import kernel
from scorelens.denoisers.kernel_locality import kernel_locality
from scorelens.denoisers.local_wiener import local_wiener
from scorelens.denoisers.locality import locality, locality_equivariant, soft_locality
from scorelens.denoisers.ls import ls
from scorelens.denoisers.measured import measured
from scorelens.denoisers.multiscale import multiscale
from scorelens.denoisers.optimal import nearest, optimal
from scorelens.denoisers.pspc import pspc_flex, pspc_square
from scorelens.denoisers.selection import CANDIDATES, selected, selected_options
from scorelens.denoisers.smoothed import smoothed
from scorelens.denoisers.wiener import wiener
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import unknown

UNIONS = (Union, types.UnionType)
PLAIN: dict[Any, tuple[str, Callable[[Any], bool]]] = {  # the types of options, in words, and whether a value is one
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    float: ("a finite number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)
            and math.isfinite(value)),
    str: ("text", lambda value: isinstance(value, str)),
}
GROUP = "scorelens.denoisers"  # of entry points

DENOISERS: dict[str, Callable[..., Denoiser]] = {
    "optimal": optimal,
    "wiener": wiener,
    "locality": locality,
    "multiscale": multiscale,
    "nearest": nearest,
    "smoothed": smoothed,
    "kernel": kernel,
    "kernel-locality": kernel_locality,
    "local-wiener": local_wiener,
    "generalized": generalized,
    "soft-locality": soft_locality,
    "locality-equivariant": locality_equivariant,
    "golden": golden,
    "ls": ls,
    "els": els,
    "bbels": bbels,
    "measured": measured,
    "pspc-square": pspc_square,
    "pspc-flex": pspc_flex,
}


def find_builder(name: str) -> Callable[..., Denoiser]:
    """The builder of a denoiser, from the registry or an installed package."""
    if name in DENOISERS:
        return DENOISERS[name]
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            builder: Callable[..., Denoiser] = entry.load()
            return builder
    raise unknown("denoiser", name, denoiser_names())


def denoiser_names() -> list[str]:
    """Names of all denoisers: those of the registry, then those of installed packages."""
    return [*DENOISERS, *sorted({entry.name for entry in entry_points(group=GROUP)} - set(DENOISERS))]


def denoiser_options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a denoiser: the parameters of its builder except the images."""
    return dict(list(inspect.signature(find_builder(name)).parameters.items())[1:])


def check_options(name: str, builder: Callable[..., Denoiser], options: Mapping[str, Any]) -> None:
    """Raise if a number, text or flag is not of the type of its option; other objects are left to the builder."""
    hints = get_type_hints(builder if inspect.isfunction(builder) else builder.__init__)
    for option, value in options.items():
        members = get_args(hints.get(option)) if get_origin(hints.get(option)) in UNIONS else (hints.get(option),)
        if members == (None,) or not isinstance(value, bool | int | float | str):
            continue
        if option in CANDIDATES and value == "auto":
            continue
        choices = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
        if choices and value not in choices and not {str, type(value)} & set(members):
            raise unknown(f"{option} of {name}", str(value), map(str, choices))
        plain = [member for member in members if member in PLAIN]
        if not choices and not any(PLAIN[member][1](value) for member in plain):
            expected = " or ".join(PLAIN[member][0] for member in plain) or "an object, from Python"
            raise ScorelensError(f"{name}: {option} must be {expected}, got {value!r}")
        if int in plain and isinstance(value, int) and abs(value) >= 2**63:
            raise ScorelensError(f"{name}: {option} must fit in 64 bits, got {value}")
        if option == "seed" and isinstance(value, int) and value < 0:
            raise ScorelensError(f"{name}: seed must be at least 0, got {value}")


def build_denoiser(name: str, images: ImageSet, *, classes: Sequence[Label] | None = None,
                   labels: Sequence[Label] | None = None, **options: Any) -> Denoiser:
    """Build a closed-form denoiser of these images. Unknown options raise.

    Args:
        name: a name in DENOISERS, or one that an installed package adds.
        images: the training images.
        classes: use only the images of these classes, by label or name.
        labels: the class of each noisy image in the batch; it is denoised with the images of that class only.
        options: options of the denoiser's builder. threshold, patch_size, bandwidth and temperature can be "auto": at
            each noise level, the value with the least error on held-out training images.
    """
    known = denoiser_options(name)
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)
    builder = find_builder(name)
    check_options(name, builder, options)
    build: Callable[[ImageSet], Denoiser] = partial(builder, **options)
    automatic = dict.fromkeys(selected_options({key: known[key].default for key in known}), "auto")
    if selected_options({**automatic, **options}):
        build = partial(selected, name=name, builder=builder, options={**automatic, **options})

    def build_from(source: ImageSet) -> Denoiser:
        source = source if classes is None else only_classes(source, classes)
        return build(source) if labels is None else by_class(source, labels, build)

    return Recipe(name, images.renumbered, build_from).build(images.renumbered)


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a denoiser was built, and from which images."""

    name: str
    images: ImageSet
    make: Callable[[ImageSet], Denoiser]

    def build(self, images: ImageSet) -> Denoiser:
        """The denoiser of these images, whose recipe is remembered while it exists."""
        denoiser = self.make(images)
        with suppress(TypeError):  # an object of another package that cannot be referenced weakly
            weakref.finalize(denoiser, _recipes.pop, id(denoiser), None)
            _recipes[id(denoiser)] = replace(self, images=images)
        return denoiser


_recipes: dict[int, Recipe] = {}  # by the identity of the denoiser


def recipe_of(denoiser: Any) -> Recipe | None:
    """How build_denoiser built this one; None for others."""
    return _recipes.get(id(denoiser))

