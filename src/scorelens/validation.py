"""Input checks, suggestions for misspelt names, and the dtype to compute in."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from scorelens.types import ScorelensError, Shape


def nearest_name(name: str, known: Iterable[str]) -> str:
    """"The suggestion ", did you mean 'x'?" for a misspelt name, or an empty string if no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> ScorelensError:
    """The error for a name that is not registered."""
    known = sorted(known)
    return ScorelensError(f"unknown {kind} {name!r}{nearest_name(name, known) or ';'} known: {', '.join(known)}")


def check_sigma(sigma: float | Tensor) -> float:
    """The noise level as a float; it must be one finite positive number."""
    if isinstance(sigma, Tensor) and sigma.numel() != 1:
        raise ScorelensError(f"sigma must be one number for the whole batch, got shape {tuple(sigma.shape)}")
    value = float(sigma)
    if not (value > 0 and math.isfinite(value)):
        raise ScorelensError(f"sigma must be a finite number > 0, got {value:g}; the grid of ddim_sigmas ends above 0")
    return value


def check_noisy(z: Tensor, shape: Shape | None = None) -> Tensor:
    """z, after checking that it is a finite floating-point batch [B, *shape]; without `shape`, any [B, C, H, W]."""
    if not isinstance(z, Tensor) or not z.is_floating_point():
        dtype = getattr(z, "dtype", type(z).__name__)
        raise ScorelensError(f"z must be a floating-point tensor [B, C, H, W], got {dtype}")
    if z.ndim != 4 or (shape is not None and tuple(z.shape[1:]) != tuple(shape)):
        expected = "" if shape is None else f" with (C, H, W) = {tuple(shape)}"
        raise ScorelensError(f"z has shape {tuple(z.shape)}, but this denoiser takes images [B, C, H, W]{expected}")
    if not torch.isfinite(z).all():
        raise ScorelensError("z contains NaN or infinite values")
    return z


def at_least_float32(z: Tensor) -> Tensor:
    """z in the precision to compute in: half precision becomes float32, anything else stays."""
    return z.float() if z.dtype in (torch.float16, torch.bfloat16) else z


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """float64, or float32 on devices without float64."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64
