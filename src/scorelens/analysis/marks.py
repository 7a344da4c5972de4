"""How visible a mark of the data is in the fields of a network, and how much of it the network passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool

from scorelens import progress
from scorelens.analysis.fields import mark_visibility
from scorelens.analysis.probes import gain_along
from scorelens.jacobian import Pixel, mean_fields
from scorelens.networks.adapters import Network
from scorelens.sampling import Step, trajectory

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
        walk = list(progress.steps(trajectory(network, noise, sigmas), f"{name}, walking", len(sigmas)))
    pixels, channels = mark_pixels(mask), range(noise.shape[1])
    tracked = progress.track(channels, f"{name}, fields", len(channels), unit="channel")
    fields = [mean_fields(network, walk, pixels, channel=c).values[:, :, c] for c in tracked]
    maps = torch.stack(fields).mean(dim=0).cpu().double().numpy()  # [S, P, H, W]
    return Measured(name, gamma, maps, list(rows_of(name, gamma, network, walk, maps, mask)))


def rows_of(name: str, gamma: float, network: Network, walk: Sequence[Step], maps: np.ndarray,
            mask: np.ndarray) -> Iterator[dict[str, Any]]:
    """The gain along the mark beside the prediction, and how visible the mark is, by noise level."""
    pattern = torch.zeros(walk[0].z.shape[1:])
    pattern[0] = torch.from_numpy(mask)
    for step, fields in zip(walk, maps, strict=True):
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
