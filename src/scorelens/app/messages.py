"""Messages from a computation to the page, one JSON line each: numbers are finite or null, arrays are base64."""

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
    """Progress of a model: the number of complete steps, plus the fraction of the current one."""

    model: str
    done: float
    steps: int
    activity: Literal["preparing", "trajectory", "field"] = "trajectory"


@dataclass(frozen=True, eq=False)
class Prediction:
    """One step of one model: its input, its prediction, and the prediction's distance to the reference."""

    model: str
    step: int
    sigma: float
    z: Tensor
    x0_hat: Tensor
    r2: float | None  # None where the reference failed or is constant
    mse: float | None
    picture_mse: float | None  # to the clean picture, if there is one


@dataclass(frozen=True, eq=False)
class Nearest:
    """The training images nearest to a model's prediction at each step."""

    model: str
    indices: list[list[int]]
    rms: list[list[float]]
    images: Mapping[int, np.ndarray]  # uint8 [C, H, W], by index
    classes: Mapping[int, str]


@dataclass(frozen=True, eq=False)
class Behind:
    """The training images with the most weight behind an output pixel, and the input pixels they are compared in."""

    indices: list[int]
    weights: list[float]
    effective: float  # number of images
    images: Mapping[int, np.ndarray]  # uint8 [C, H, W], by index
    classes: Mapping[int, str]
    mask: Tensor | None  # [H, W], share of the channels; None if all pixels are compared, or a patch


@dataclass(frozen=True, eq=False)
class Field:
    """A model's sensitivity field, summed over the input channels; model None: the row of the Wiener matrix."""

    model: str | None
    values: Tensor  # [H, W]
    cosine: float  # with the Wiener row, over all channels
    radius: float
    behind: Behind | None = None  # None for what has no posterior weights


@dataclass(frozen=True)
class Failure:
    """Why a model has no results; model None: why the whole computation stopped."""

    error: str
    model: str | None = None


Message = Stage | Prediction | Nearest | Field | Failure


def encode(message: Message) -> bytes:
    """The message as one line of JSON."""
    content = {field.name: _plain(getattr(message, field.name)) for field in fields(message)}
    return json.dumps({"kind": type(message).__name__.lower(), **content}, allow_nan=False).encode() + b"\n"


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def internal_error(error: Exception) -> str:
    return f"internal error ({type(error).__name__}); see the terminal that runs `scorelens app`"


def _plain(value: Any) -> Any:
    """JSON values: tensors as little-endian float32, arrays as bytes, NaN and infinity as null."""
    if isinstance(value, Tensor):
        return base64_text(value.detach().cpu().float().numpy().astype("<f4").tobytes())
    if isinstance(value, np.ndarray):
        return base64_text(value.tobytes())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Behind):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return None if isinstance(value, float) and not math.isfinite(value) else value
