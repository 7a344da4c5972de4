"""How visible a mark of the data is in the fields of a network, and how much of it the network passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from scorelens import progress
from scorelens.benchmark.fields import mark_visibility
from scorelens.benchmark.probes import gain_along
from scorelens.data.edits import mark_snr, predicted_sensitivity
from scorelens.networks.adapters import Network
from scorelens.sampling import Step, trajectory
from scorelens.sensitivity import Pixel, mean_fields

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
