"""How networks of other people are called, found out by trying: which time they take, and in which shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from scorelens.types import Images, ScorelensError


@dataclass(frozen=True)
class Calling:
    """The second argument of a network: net(x, t) by default."""

    quantity: Literal["t", "sigma"] = "t"
    divisor: float = 1  # T in net(x, t / T)
    form: Literal["batch", "column", "pixel", "number"] = "batch"  # [B], [B, 1], [B, 1, 1, 1] or a scalar tensor
    whole: bool = False  # the nearest timestep, as an integer

    def __str__(self) -> str:
        text = self.quantity + (f" / {self.divisor:g}" if self.divisor != 1 else "") + (".long()" if self.whole else "")
        index = {"batch": "", "column": "[:, None]", "pixel": "[:, None, None, None]", "number": "[0]"}[self.form]
        return f"net(x, {f'({text}){index}' if index and '/' in text else text + index})"

    def time(self, t: Tensor, sigma: Tensor) -> Tensor:
        """What to pass for timesteps t [B] and noise levels sigma [B]."""
        value = (t if self.quantity == "t" else sigma.to(t)) / self.divisor
        value = value.round().long() if self.whole else value
        return {"batch": value, "column": value[:, None], "pixel": value[:, None, None, None], "number": value[0]}[
            self.form]


FORMS = (Calling(), Calling(whole=True), Calling(form="column"), Calling(form="column", whole=True),
         Calling(form="pixel"), Calling(form="number"), Calling(form="number", whole=True))


def first_form(model: Callable[..., Any], x: Images) -> Calling:
    """The first form of t in FORMS with which the model returns images."""
    errors = []
    for calling in FORMS:
        t = torch.zeros(len(x), device=x.device)
        try:
            with torch.no_grad():
                prediction(model(x, calling.time(t, t)), x)
            return calling
        except Exception as error:  # the model's own code may raise anything
            errors.append(" ".join(f"{error}".split())[:160] or type(error).__name__)
    raise ScorelensError(f"{model_name(model)} cannot be called as net(x, t) with images {list(x.shape)} "
                         f"({errors[0]}); is it a diffusion network for images of this shape?")


def callings(form: Calling, steps: int) -> Iterator[Calling]:
    """The quantities that a network may take in this form: t, t / T and sigma."""
    yield form
    if not form.whole:
        yield Calling("t", steps, form.form)
        yield Calling("sigma", 1, form.form)


def prediction(output: Any, x: Images) -> Images:
    """The prediction in a model's output: a tensor, a tuple that starts with one, or an object with `.sample`.

    A learned variance in a second half of the channels is left out.
    """
    if not isinstance(output, Tensor):
        first = output[0] if isinstance(output, (tuple, list)) and output else getattr(output, "sample", None)
        if not isinstance(first, Tensor):
            raise ScorelensError(f"the network returned {type(output).__name__}, not a tensor, a tuple of them or a "
                                 ".sample")
        output = first
    if output.ndim == 4 and output.shape[1] == 2 * x.shape[1]:
        output = output[:, :x.shape[1]]
    if output.shape != x.shape:
        raise ScorelensError(f"the network maps {list(x.shape)} to {list(output.shape)}: the shapes must be equal")
    return output


def model_name(model: Callable[..., Any]) -> str:
    """The name of a function, or of the class of a module."""
    return str(getattr(model, "__name__", type(model).__name__))
