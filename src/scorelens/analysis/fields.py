"""What a sensitivity field looks like, as numbers: how alike two are, how far one reaches, how equivariant they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scorelens.jacobian import Fields, Pixel
from scorelens.statistics import GaussianStats, shrinkage
from scorelens.types import Shape

FAR = 6 / 32  # of the shorter side of the image
MARK_LEVELS = (0.0, 2.1)  # noise levels where marks are looked for: gamma 0.1 has a signal-to-noise ratio > 0.1 there
MARK_VISIBLE = 0.2  # mean visibility over those levels; the Wiener filter of leaves has 0.01, marked 0.23 and 0.53
Field = Float[Tensor, "c h w"]


def wiener_fields(stats: GaussianStats, shape: Shape, sigmas: Sequence[float], pixels: Sequence[Pixel],
                  channel: int | None = None) -> Fields:
    """The Wiener filter's fields, in closed form: rows of W, summed over the output channels unless one is given."""
    c, h, w = shape
    u = stats.eigenvectors  # [D, K]
    rows = u.view(c, h, w, -1)[:, [p[0] for p in pixels], [p[1] for p in pixels]]  # [C, P, K]
    rows = rows.sum(dim=0) if channel is None else rows[channel]
    values = [((rows * shrinkage(stats, sigma)) @ u.T).view(len(pixels), *shape) for sigma in sigmas]
    return Fields(list(sigmas), list(pixels), torch.stack(values), samples=1)


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine similarity of two fields over all channels and pixels; 0 if either vanishes."""
    a, b = a.double().flatten(), b.double().flatten()
    norm = a.norm() * b.norm()
    return (a @ b / norm).item() if norm > 0 else 0.0


def radius(field: Field, pixel: Pixel) -> float:
    """The rms distance from the output pixel at which the field's absolute values lie, in pixels."""
    moments = _second_moments(field, pixel)
    return math.sqrt(max(0.0, moments.trace().item()))


def anisotropy(field: Field, pixel: Pixel) -> float:
    """1 - narrow / wide: 0 for a round field, towards 1 for a line."""
    narrow, wide = torch.linalg.eigvalsh(_second_moments(field, pixel)).clamp(min=0).sqrt().tolist()
    return 1 - narrow / wide if wide > 0 else 0.0


def _second_moments(field: Field, pixel: Pixel) -> Float[Tensor, "2 2"]:
    """Second moments of position about the pixel, weighted by the absolute values."""
    mass = field.double().abs().sum(dim=0)  # [H, W]
    rows, columns = torch.meshgrid(*(torch.arange(side, dtype=torch.float64, device=mass.device) - centre
                                     for side, centre in zip(mass.shape, pixel, strict=True)), indexing="ij")
    place = torch.stack([rows.flatten(), columns.flatten()])  # [2, H*W]
    total = mass.sum()
    return (place * mass.flatten()) @ place.T / total if total > 0 else torch.zeros(2, 2, dtype=torch.float64)


def mark_visibility(field: Float[Tensor, "h w"], pixel: Pixel, mask: Bool[np.ndarray, "h w"]) -> float:
    """Does a mark show in the field of one of its pixels? The correlation of field and mark, far from the pixel.

    Near it every field is large, mark or no mark; so only input pixels farther than FAR count.
    """
    rows, columns = np.indices(mask.shape)
    far = np.hypot(rows - pixel[0], columns - pixel[1]) > FAR * min(mask.shape)
    values, marked = field.double().cpu().numpy()[far], mask[far].astype(float)
    return float(np.corrcoef(values, marked)[0, 1]) if values.std() > 0 and marked.std() > 0 else 0.0


def visible_by_network(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The mean visibility of a mark in the fields of each network, over the noise levels that are looked at."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if MARK_LEVELS[0] <= row["sigma"] <= MARK_LEVELS[1]:
            found.setdefault(row["network"], []).append(row["visibility"])
    return {name: float(np.mean(values)) for name, values in found.items()}


def equivariance(fields: Float[Tensor, "p c h w"], pixels: Sequence[Pixel]) -> float:
    """Mean cosine of the fields of different pixels, moved on top of each other, where both are defined.

    1 if the field is the same everywhere, as a convolution's is.
    """
    pairs = list(combinations(range(len(pixels)), 2))
    scores = [cosine(*_overlap(fields[i], pixels[i], fields[j], pixels[j])) for i, j in pairs]
    return sum(scores) / len(scores) if scores else 1.0


def _overlap(a: Field, at: Pixel, b: Field, bt: Pixel) -> tuple[Tensor, Tensor]:
    """The parts of both fields that lie on the image when the two pixels are moved on top of each other."""
    h, w = a.shape[1:]
    up, left = min(at[0], bt[0]), min(at[1], bt[1])
    down, right = min(h - at[0], h - bt[0]), min(w - at[1], w - bt[1])
    cut = [field[:, row - up:row + down, column - left:column + right] for field, (row, column) in ((a, at), (b, bt))]
    return cut[0], cut[1]
