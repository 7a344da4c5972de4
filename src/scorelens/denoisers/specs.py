"""Denoisers as text, e.g. `locality:threshold=0.05,softmax=batch-mean`, for lists on the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

from scorelens.data.images import ImageSet
from scorelens.denoisers import build_denoiser, denoiser_options
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import unknown


@dataclass(frozen=True)
class Spec:
    """A denoiser's name and options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{given}" if given else self.name

    @property
    def label(self) -> str:
        """Readable form: `locality, threshold 0.05, batch-mean`."""
        words = (value if isinstance(value, str) else f"{key} {value}" for key, value in self.options.items())
        return ", ".join([self.name, *words])

    def build(self, images: ImageSet) -> Denoiser:
        return build_denoiser(self.name, images, **self.options)


def parse_specs(text: str) -> list[Spec]:
    """The denoisers that a text describes; `locality:threshold=0.02/0.05` gives one candidate for each value.

    >>> [str(spec) for spec in parse_specs("locality:threshold=0.02/0.05")]
    ['locality:threshold=0.02', 'locality:threshold=0.05']
    """
    name, _, rest = text.partition(":")
    known = denoiser_options(name)
    values: dict[str, list[Any]] = {}
    for part in filter(None, rest.split(",")):
        key, equals, given = part.partition("=")
        if not equals or not given:
            raise ScorelensError(f"in {text!r}: expected option=value, got {part!r}; e.g. locality:threshold=0.05")
        if key not in known:
            raise unknown(f"option of {name}", key, known)
        values[key] = [_value(word) for word in given.split("/")]
    return [Spec(name, dict(zip(values, chosen, strict=True))) for chosen in product(*values.values())]


def _value(word: str) -> Any:
    """The word as an int, float or bool if it is one, else the word itself."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(word, word)
