"""What a network predicts and how it is called, found out by trying: of all readings, the one that denoises.

The report card's idea: a trained network has a smaller error than a trivial filter at every noise level. Read in
another way (epsilon as v, t as t / T), the same network has a much larger one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from scorelens.data.images import ImageSet
from scorelens.networks.adapters import DATA_RANGE, PARAMETRIZATIONS, Network
from scorelens.networks.conventions import Calling, callings, first_form, model_name
from scorelens.noise import (
    DiscreteSchedule,
    FlowSchedule,
    Schedule,
    SigmaSchedule,
    beta_schedule,
    nearest_level,
    seeded_noise,
)
from scorelens.types import Images, ScorelensError, Shape

LEVELS = (0.2, 0.7, 4.0)  # noise levels to try
COUNT = 4  # images
SIDES = (32, 64, 28, 16, 8)  # to try, if the size of the images is unknown
PREDICTED = {DiscreteSchedule: ("epsilon", "x0", "v"), FlowSchedule: ("velocity",), SigmaSchedule: ("denoised",)}


@dataclass(frozen=True)
class Reading:
    """One way to use a network, and its error relative to the trivial filter's; below 1, it denoises."""

    parametrization: str
    schedule: Schedule
    calling: Calling
    error: float = math.nan

    def __str__(self) -> str:
        return f"predicts {self.parametrization} at {self.schedule.kind} noise levels, called as {self.calling}"


def find_reading(model: Callable[..., Any], images: ImageSet, parametrization: str | None, schedule: Schedule | None,
                 value_range: tuple[float, float] = DATA_RANGE) -> tuple[Reading, str]:
    """The reading with which a network denoises its training images, and what to tell the user about it."""
    x0 = images[[k * len(images) // COUNT for k in range(min(COUNT, len(images)))]]
    form, shared = first_form(model, x0), Remembering(model)
    schedules: list[Schedule] = [beta_schedule(), beta_schedule("squaredcos_cap_v2"), FlowSchedule(), SigmaSchedule()]
    tried = [_measured(reading, shared, x0, value_range)
             for reading in _readings(form, [schedule] if schedule else schedules, parametrization)]
    best = min(tried, key=lambda reading: reading.error)
    if best.error < 1:
        others = [each for each in tried if each.parametrization != best.parametrization]
        second = min(others, key=lambda reading: reading.error, default=None)
        rest = "" if second is None else f" ({second.error:.2g} if it predicted {second.parametrization})"
        return best, f"it {best}: its error is {best.error:.2g} of a trivial filter's{rest}"
    if parametrization is None:
        raise ScorelensError(f"{model_name(model)} does not denoise: at best (if it {best}) its error is "
                             f"{best.error:.2g} times a trivial filter's; is it trained on these images? Give its "
                             "value_range= if that is not (-1, 1), its schedule= and its parametrization=")
    return tried[0], (f"assumed: it {tried[0]}; but its error is {tried[0].error:.2g} times a trivial filter's: check "
                      "its schedule, parametrization and value range")


def assumed_reading(model: Callable[..., Any], shape: Shape | None, parametrization: str,
                    schedule: Schedule | None) -> tuple[Reading, str]:
    """Without images to try it on: the first form of t that the model takes, and DDPM's noise levels."""
    if shape is None:
        shape = find_shape(model)
    reading = Reading(parametrization, schedule or beta_schedule(), first_form(model, torch.zeros(2, *shape)))
    return reading, f"assumed: it {reading}"


def find_shape(model: Callable[..., Any]) -> Shape:
    """(C, H, W) of images that a module takes: the channels of its first convolution, and the first of SIDES."""
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    channels = next((p.shape[1] for p in weights if p.ndim == 4), 3)
    for side in SIDES:
        try:
            first_form(model, torch.zeros(2, channels, side, side))
            return channels, side, side
        except ScorelensError as error:
            problem = error
    raise problem


class Remembering:
    """A model that computes the same input only once: several readings share it."""

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model, self.outputs = model, dict[bytes, Any]()

    def __call__(self, x: Tensor, t: Tensor) -> Any:
        key = x.numpy().tobytes() + t.numpy().tobytes()
        if key not in self.outputs:
            self.outputs[key] = self.model(x, t)
        return self.outputs[key]


def _readings(form: Calling, schedules: Sequence[Schedule], parametrization: str | None) -> Iterator[Reading]:
    """All readings, the most usual first."""
    for schedule in schedules:
        steps = len(schedule.sigmas) if isinstance(schedule, DiscreteSchedule) else 1000
        predicted = PREDICTED.get(type(schedule), tuple(PARAMETRIZATIONS))
        ways = [Calling("sigma", 1, form.form)] if isinstance(schedule, SigmaSchedule) else list(callings(form, steps))
        if len(schedules) == 1 and parametrization is not None:
            predicted = (parametrization,)
        yield from (Reading(name, schedule, calling) for calling in ways for name in predicted
                    if parametrization in (None, name))


@torch.no_grad()
def _measured(reading: Reading, model: Callable[..., Any], x0: Images, value_range: tuple[float, float]) -> Reading:
    """The reading with its error: the geometric mean over noise levels, relative to sigma^2 v / (sigma^2 + v)."""
    network = Network(model, reading.parametrization, reading.schedule, value_range=value_range,
                      calling=reading.calling)
    noise, variance, low, high = seeded_noise(x0.shape[1:], range(len(x0))), x0.var().item(), *network.sigma_range
    logs = []
    for sigma in (nearest_level(network.schedule, level) for level in LEVELS if low <= level <= high):
        try:
            error = (network(x0 + sigma * noise, sigma) - x0).square().mean().item()
        except Exception:  # a time that this network does not know
            error = math.nan
        logs.append(math.log(max(error, 1e-12) * (1 / variance + 1 / sigma**2)))
    error = math.exp(sum(logs) / len(logs)) if logs else math.inf
    return replace(reading, error=math.inf if math.isnan(error) else error)
