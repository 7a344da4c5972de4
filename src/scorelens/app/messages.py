"""What a computation tells the page, one line of JSON each: numbers finite or null, arrays as base64."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Stage:
    """A model is at work; `done` of its steps (perhaps a fraction) are behind it."""

    model: str
    done: float
    steps: int
    doing: Literal["preparing", "walking", "looking"] = "walking"


@dataclass(frozen=True, eq=False)
class Moment:
    """One model at one noise level: what it was given, what it predicts, and how close that is to the reference."""

    model: str
    step: int
    sigma: float
    z: Tensor
    x0_hat: Tensor
    r2: float | None  # none where the reference failed, or is constant
    mse: float | None
    picture_mse: float | None  # to the clean picture, where there is one


@dataclass(frozen=True, eq=False)
class Nearest:
    """The training images nearest to a model's prediction at each step."""

    model: str
    indices: list[list[int]]
    rms: list[list[float]]
    images: Mapping[int, np.ndarray]  # uint8 [C, H, W], each once
    classes: Mapping[int, str]


@dataclass(frozen=True, eq=False)
class Field:
    """The sensitivity field of a model, summed over the input channels; of none: the row of the Wiener matrix."""

    model: str | None
    values: Tensor  # [H, W]
    cosine: float  # with the Wiener row, over all channels
    radius: float


@dataclass(frozen=True)
class Failure:
    """Why there is nothing from this model; without one, why there is nothing more at all."""

    error: str
    model: str | None = None


Message = Stage | Moment | Nearest | Field | Failure


def encode(message: Message) -> bytes:
    """One line."""
    content = {field.name: _plain(getattr(message, field.name)) for field in fields(message)}
    return json.dumps({"kind": type(message).__name__.lower(), **content}, allow_nan=False).encode() + b"\n"


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _plain(value: Any) -> Any:
    """Tensors as little-endian float32, arrays of pixels as bytes; what is not finite as null."""
    if isinstance(value, Tensor):
        return base64_text(value.detach().cpu().float().numpy().astype("<f4").tobytes())
    if isinstance(value, np.ndarray):
        return base64_text(value.tobytes())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
