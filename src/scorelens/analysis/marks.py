"""How visible a mark of the data is in the fields of a network, and how much of it the network passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scorelens import progress
from scorelens.analysis.probes import gain_along
from scorelens.jacobian import Pixel, mean_fields
from scorelens.networks.adapters import Network
from scorelens.sampling import Step, sample

FAR = 6 / 32  # of the shorter side of the image
MARK_LEVELS = (0.0, 2.1)  # noise levels where marks are looked for: gamma 0.1 has a signal-to-noise ratio > 0.1 there
MARK_VISIBLE = 0.2  # mean visibility over those levels; the Wiener filter of leaves has 0.01, marked 0.23 and 0.53
COLOUR_VARIANCE = 1 / 3  # of Uniform[-1, 1]
PIXELS = 8  # of the mark, whose fields are measured


@dataclass(frozen=True)
class Measured:
    """One network: its fields at pixels of the mark, same channel in and out, and what they say."""

    name: str
    gamma: float
    maps: np.ndarray  # [levels, pixels, H, W], mean over channels and samples
    rows: list[dict[str, Any]]


def measure(name: str, network: Network, mask: np.ndarray, noise: torch.Tensor, sigmas: Sequence[float]) -> Measured:
    """Fields and gains of one network along its own trajectory."""
    gamma = float(network.card.get("data", {}).get("gamma", 0.0))
    with torch.no_grad():
        steps = sample(network, noise, sigmas, label=f"{name}, trajectory").steps
    pixels, channels = mark_pixels(mask), range(noise.shape[1])
    tracked = progress.track(channels, f"{name}, fields", len(channels), unit="channel")
    fields = [mean_fields(network, steps, pixels, channel=c).values[:, :, c] for c in tracked]
    maps = torch.stack(fields).mean(dim=0).cpu().double().numpy()  # [S, P, H, W]
    return Measured(name, gamma, maps, list(rows_of(name, gamma, network, steps, maps, mask)))


def rows_of(name: str, gamma: float, network: Network, steps: Sequence[Step], maps: np.ndarray,
            mask: np.ndarray) -> Iterator[dict[str, Any]]:
    """The gain along the mark beside the prediction, and how visible the mark is, by noise level."""
    pattern = torch.zeros(steps[0].z.shape[1:])
    pattern[0] = torch.from_numpy(mask)
    for step, fields in zip(steps, maps, strict=True):
        seen = [mark_visibility(torch.from_numpy(f), p, mask) for f, p in zip(fields, mark_pixels(mask), strict=True)]
        yield {"network": name, "gamma": gamma, "sigma": step.sigma, "visibility": float(np.mean(seen)),
               "gain": gain_along(network, step.z, step.sigma, pattern).mean().item(),
               "predicted": float(predicted_sensitivity(mask, gamma, step.sigma)),
               "snr": mark_snr(mask, gamma, step.sigma)}


def mark_pixels(mask: np.ndarray) -> list[Pixel]:
    """Pixels spread over the mark."""
    places = np.argwhere(mask)
    chosen = np.linspace(0, len(places) - 1, min(PIXELS, len(places))).round().astype(int)
    return [(int(row), int(column)) for row, column in places[chosen]]


def mark_variance(mask: Bool[np.ndarray, "h w"], gamma: float) -> float:
    """g = gamma^2 ||s||^2 / 3: the variance that the mark adds along itself, in each channel."""
    return float(gamma**2 * mask.sum() * COLOUR_VARIANCE)


def mark_snr(mask: Bool[np.ndarray, "h w"], gamma: float, sigma: float) -> float:
    """g / sigma^2"""
    return mark_variance(mask, gamma) / sigma**2


def predicted_sensitivity(mask: Bool[np.ndarray, "h w"], gamma: float, sigma: float, variance: float = 0.0) -> float:
    """The Wiener filter's gain along the mark: (v + g) / (v + g + sigma^2), g = gamma^2 ||s||^2 / 3.

    `variance` is that of the unedited data along the mark, where the mark is an eigenvector of theirs.
    """
    total = variance + mark_variance(mask, gamma)
    return total / (total + sigma**2)


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
