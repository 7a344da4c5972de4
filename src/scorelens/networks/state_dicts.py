"""State dicts inside checkpoint files: finding them in their wrappers, and fitting them to a module."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from scorelens.types import ScorelensError
from scorelens.validation import unknown

OPTIMIZER = "param_groups"  # in the state dict of every optimizer of torch
AVERAGED = re.compile(r"ema|averag|shadow|swa|polyak", re.IGNORECASE)
COMPILED = "_orig_mod."  # torch.compile puts it anywhere
DEPTH = 5


@dataclass(frozen=True)
class Found:
    """Tensors by name, or in the order of the parameters, and where in the file they are."""

    path: str
    tensors: Mapping[str, Tensor] | Sequence[Tensor]


@dataclass(frozen=True)
class Fit:
    """How the tensors below a prefix fit the keys of a module."""

    label: str  # where they are: "model", "ema.shadow", ...; "" if the file itself is the state dict
    state: dict[str, Tensor]  # by the module's keys, where key and shape agree
    missing: list[str] = field(default_factory=list)
    reshaped: dict[str, Tensor] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not (self.missing or self.reshaped or self.unexpected)

    @property
    def averaged(self) -> bool:
        return bool(AVERAGED.search(self.label)) and "online" not in self.label


def find_tensors(content: Any, path: str = "", depth: int = DEPTH) -> Iterator[Found]:
    """All groups of tensors in a file, except those of optimizers."""
    if isinstance(content, nn.Module):
        content = content.state_dict()
    if isinstance(content, Mapping) and OPTIMIZER not in content:
        tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
        if tensors:
            yield Found(path, {name.replace(COMPILED, ""): value for name, value in tensors.items()})
        for key, value in content.items():
            if depth:
                yield from find_tensors(value, f"{path}.{key}".strip("."), depth - 1)
    elif isinstance(content, (list, tuple)) and content and all(isinstance(each, Tensor) for each in content):
        yield Found(path, list(content))


def find_modules(content: Any, path: str = "", depth: int = DEPTH) -> Iterator[tuple[str, nn.Module]]:
    """All whole modules in a trusted file."""
    if isinstance(content, nn.Module):
        yield path, content
    elif isinstance(content, Mapping) and depth:
        for key, value in content.items():
            yield from find_modules(value, f"{path}.{key}".strip("."), depth - 1)


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def choose_fit(found: Sequence[Found], module: nn.Module, weights: str | None, name: str) -> tuple[Fit, list[str]]:
    """The weights for a module: those asked for, else the averaged ones; and the labels of all that fit."""
    fits = [fit for each in found for fit in _fits(each, module)]
    plain = next((fit for fit in fits if fit.complete), None)
    buffers = {key for key, _ in module.named_buffers()}
    fits = [_filled(fit, plain, buffers) for fit in fits]
    whole = sorted((fit for fit in fits if fit.complete), key=lambda fit: not fit.averaged)
    labels = list(dict.fromkeys(fit.label for fit in whole))
    chosen = [fit for fit in whole if weights is None or weights.lower() in fit.label.lower()]
    if chosen:
        return chosen[0], labels
    if whole and weights is not None:
        raise unknown(f"weights in {name}:", weights, labels)
    raise _misfit(max(fits, key=lambda fit: len(fit.state), default=None), found, module, name)


def _fits(found: Found, module: nn.Module) -> Iterator[Fit]:
    """One fit for each prefix under which keys of the module occur."""
    expected = module.state_dict()
    if not isinstance(found.tensors, Mapping):
        parameters = dict(module.named_parameters())
        names = [name for name, parameter in parameters.items() if parameter.requires_grad] or list(parameters)
        if len(names) == len(found.tensors):
            yield _fit(found.path, dict(zip(names, found.tensors, strict=True)), expected)
        return
    for prefix in _prefixes(found.tensors, expected):
        yield _fit(f"{found.path}.{prefix}".strip("."), below(found.tensors, prefix), expected)
    first = next(iter(expected), "").replace(".", "")
    for name in found.tensors:  # latent diffusion's averages: names without their dots
        if first and name.endswith(first) and "." not in name[len(name) - len(first):]:
            prefix = name[:len(name) - len(first)]
            inside = {key: found.tensors[prefix + key.replace(".", "")] for key in expected
                      if prefix + key.replace(".", "") in found.tensors}
            yield _fit(f"{found.path}.{prefix}".strip("."), inside, expected)


def _prefixes(names: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """What stands before the module's keys in the file, the most frequent first."""
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")
        counts.update(".".join([*parts[:k], ""]) for k in range(len(parts)) if ".".join(parts[k:]) in expected)
    return [prefix for prefix, _ in counts.most_common(8)]


def _fit(label: str, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Fit:
    arrays = {name: value for name, value in tensors.items() if value.ndim == 1}
    lengths = {len(value) for name, value in arrays.items() if re.search(r"(beta|alpha)\w*$", name)}
    extra = [name for name, value in tensors.items() if name not in expected and value.ndim > 0
             and not (name in arrays and len(value) in lengths)]  # numbers, and arrays as long as a schedule
    same = {key: value for key, value in tensors.items() if key in expected and value.shape == expected[key].shape}
    return Fit(label, same, [key for key in expected if key not in tensors],
               {key: tensors[key] for key in expected if key in tensors and key not in same}, extra)


def _filled(fit: Fit, plain: Fit | None, buffers: set[str]) -> Fit:
    """Averages of the parameters alone, with the buffers of the plain weights."""
    if plain is None or not fit.missing or not set(fit.missing) <= buffers or fit.reshaped or fit.unexpected:
        return fit
    return Fit(fit.label, {**plain.state, **fit.state})


def _misfit(best: Fit | None, found: Sequence[Found], module: nn.Module, name: str) -> ScorelensError:
    kind, expected = type(module).__name__, module.state_dict()
    named = [key for each in found if isinstance(each.tensors, Mapping) for key in each.tensors]
    if not found:
        return ScorelensError(f"{name} contains no weights")
    if best is None or not best.state:
        return ScorelensError(f"{name} has none of the {len(expected)} weights of {kind} ({next(iter(expected), '')}, "
                              f"...); it has {', '.join(named[:2])}, ...: is it the file of another network?")
    problems = []
    if best.missing:
        near = difflib.get_close_matches(best.missing[0], best.unexpected or named, n=1, cutoff=0)
        problems.append(f"{len(best.missing)} of {len(expected)} weights are missing, e.g. {best.missing[0]}"
                        + (f" (nearest in the file: {near[0]})" if near else ""))
    if best.reshaped:
        key, value = next(iter(best.reshaped.items()))
        problems.append(f"{len(best.reshaped)} have another shape, e.g. {key}: {list(value.shape)} in the file, "
                        f"{list(expected[key].shape)} in the module")
    if best.unexpected and not best.missing:
        near = difflib.get_close_matches(best.unexpected[0], list(expected), n=1, cutoff=0)
        problems.append(f"the file has {len(best.unexpected)} more, e.g. {best.unexpected[0]} (nearest in the module: "
                        f"{near[0]})")
    return ScorelensError(f"{name} does not fit {kind}: {'; '.join(problems)}")
