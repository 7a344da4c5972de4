"""Input checks, noise levels per image, suggestions for misspelt names, and the dtype to compute in."""

from __future__ import annotations

import difflib
import hashlib
import math
import os
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from scorelens.types import Denoiser, ScorelensError, Shape

Self = TypeVar("Self")
Options = ParamSpec("Options")


def nearest_name(name: str, known: Iterable[str]) -> str:
    """"The suggestion ", did you mean 'x'?" for a misspelt name, or an empty string if no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> ScorelensError:
    """The error for a name that is not registered."""
    known = sorted(known)
    return ScorelensError(f"unknown {kind} {name!r}{nearest_name(name, known) or ';'} known: {', '.join(known)}")


def printable(text: str) -> str:
    """The text in one line, with control characters and escape codes shown as \\x1b and the like."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def check_memory(size: float, what: str) -> None:
    """Raise if `what` needs more bytes than this machine's memory: better than being killed for it."""
    try:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        return
    if size > available:
        raise ScorelensError(f"{what} would need {size / 1e9:,.0f} GB, but this machine has {available / 1e9:,.0f} GB "
                             "of memory")


def check_sigma(sigma: float | Tensor) -> float:
    """The noise level as a float; it must be one finite positive number."""
    return check_levels(sigma, 1).item()


def check_levels(sigma: float | Tensor, count: int, name: str = "sigma") -> Float[Tensor, "b"]:
    """The noise level of each of `count` images, given one number or a tensor [B]; float64, on the CPU."""
    levels = torch.as_tensor(sigma, dtype=torch.float64, device="cpu")
    if levels.numel() != 1 and levels.shape != (count,):
        raise ScorelensError(f"{name} must be one number, or a tensor [B] with one for each of the {count} images, "
                             f"got shape {tuple(levels.shape)}")
    for value in levels.flatten().tolist():
        if not (value > 0 and math.isfinite(value)):
            raise ScorelensError(f"sigma must be a finite number > 0, got {value:g}; "
                                 "the grid of ddim_sigmas ends above 0")
    return levels.flatten().expand(count)


def check_noisy(z: Tensor, shape: Shape | None = None) -> Tensor:
    """z, after checking that it is a finite floating-point batch [B, *shape]; without `shape`, any [B, C, H, W]."""
    if not isinstance(z, Tensor) or not z.is_floating_point():
        dtype = getattr(z, "dtype", type(z).__name__)
        raise ScorelensError(f"z must be a floating-point tensor [B, C, H, W], got {dtype}")
    if z.ndim != 4 or (shape is not None and tuple(z.shape[1:]) != tuple(shape)):
        expected = "" if shape is None else f" with (C, H, W) = {tuple(shape)}"
        raise ScorelensError(f"z has shape {tuple(z.shape)}, but this denoiser takes images [B, C, H, W]{expected}")
    if len(z) == 0:
        raise ScorelensError("z holds no images: a batch has at least one")
    if not torch.isfinite(z).all():
        raise ScorelensError("z contains NaN or infinite values")
    return z


def shape_of(denoiser: Any) -> Shape | None:
    """(C, H, W) of the images that a denoiser takes: its `shape`, or that of its `images`; None if it has neither."""
    images = getattr(denoiser, "images", None)
    return getattr(denoiser, "shape", None) if images is None else images.shape


def is_latent(denoiser: Any) -> bool:
    """Whether a denoiser works on latents: it says so, or its images are latents."""
    images = getattr(denoiser, "images", None)
    return bool(getattr(denoiser, "latent", False) if images is None else images.autoencoder is not None)


def outputs_at(denoiser: Denoiser, z: Tensor, sigma: float, coordinates: Int[Tensor, "k"]) -> Float[Tensor, "b k"]:
    """x0_hat at these coordinates; a denoiser with a method `at` computes only those."""
    if hasattr(denoiser, "at"):
        at: Tensor = denoiser.at(z, sigma, coordinates)
        return at
    return denoiser(z, sigma).flatten(1)[:, coordinates]


def by_level(call: Callable[[Tensor, float], Tensor], z: Tensor, sigma: float | Tensor, name: str = "sigma") -> Tensor:
    """call(z, sigma). For a tensor [B], one call for each distinct level, with the results in the order of z."""
    if not isinstance(sigma, Tensor) or sigma.numel() == 1:
        return call(z, check_sigma(sigma))
    levels = check_levels(sigma, len(z), name)
    groups = {level: (levels == level).nonzero()[:, 0] for level in levels.unique().tolist()}
    return merge_groups(((rows, call(z[rows.to(z.device)], level)) for level, rows in groups.items()), dim=0)


def per_level(method: Callable[Concatenate[Self, Tensor, float, Options], Tensor],
              ) -> Callable[Concatenate[Self, Tensor, float | Tensor, Options], Tensor]:
    """Decorator of a denoiser's `__call__(z, sigma)` or `at(z, sigma, pixels)`, which then take a sigma [B] as well.

    It checks z and sigma, and calls the method with a float once for each distinct noise level.
    """
    @wraps(method)
    def checked(self: Self, z: Tensor, sigma: float | Tensor, *args: Options.args, **options: Options.kwargs) -> Tensor:
        check_noisy(z, shape_of(self))
        return by_level(lambda some, level: method(self, some, level, *args, **options), z, sigma)

    return checked


def merge_groups(groups: Iterable[tuple[Int[Tensor, "m"], Tensor]], dim: int) -> Tensor:
    """Concatenate the values of groups of indices along `dim`, sorted by index."""
    indices, values = zip(*groups, strict=True)
    together = torch.cat(values, dim)
    return together.index_select(dim, torch.cat(indices).argsort().to(together.device))


def weights_hash(module: nn.Module) -> str:
    """sha256 over the names, shapes and values of the weights."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def at_least_float32(z: Tensor) -> Tensor:
    """z in the precision to compute in: half precision becomes float32, anything else stays."""
    return z.float() if z.dtype in (torch.float16, torch.bfloat16) else z


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """float64, or float32 on devices without float64."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64
