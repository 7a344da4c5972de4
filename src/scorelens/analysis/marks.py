"""A mark added to the data: its visibility in a network's fields, and the network's gain along it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scorelens import progress
from scorelens.analysis.probes import gain_along
from scorelens.files import fresh_folder, write_json
from scorelens.jacobian import Pixel, mean_fields
from scorelens.networks.adapters import Network
from scorelens.report.fields import Strip, field_figure, gain_figure
from scorelens.report.figures import Figure
from scorelens.report.tables import grouped, markdown
from scorelens.sampling import sample

FAR = 6 / 32  # distance from the output pixel, in shorter sides of the image
MARK_LEVELS = (0.0, 2.1)  # noise levels of the mean visibility: gamma 0.1 has a signal-to-noise ratio > 0.1 there
MARK_VISIBLE = 0.2  # mean visibility of a visible mark; the Wiener filter of leaves has 0.01, of marked ones 0.23, 0.53
COLOUR_VARIANCE = 1 / 3  # of Uniform[-1, 1]
MARKED_SNR = 0.1  # noise levels at which the mark has a higher signal-to-noise ratio get a frame, as in the paper
PIXELS = 8  # of the mark, whose fields are measured


@dataclass(frozen=True)
class MarkedFields:
    """One network: its fields at pixels of the mark, same channel in and out, and their numbers by noise level."""

    name: str
    gamma: float
    maps: np.ndarray  # [levels, pixels, H, W], mean over channels and samples
    rows: list[dict[str, Any]]


def measure_mark(name: str, network: Network, mask: np.ndarray, noise: Tensor,
                 sigmas: Sequence[float]) -> MarkedFields:
    """The fields of one network along its own trajectory, its gain along the mark and the mark's visibility."""
    gamma = float(network.card.get("data", {}).get("gamma", 0.0))
    with torch.no_grad():
        steps = sample(network, noise, sigmas, label=f"{name}, trajectory").steps
    pixels, channels = mark_pixels(mask), range(noise.shape[1])
    tracked = progress.track(channels, f"{name}, fields", len(channels), unit="channel")
    by_channel = [mean_fields(network, steps, pixels, channel=c).values[:, :, c] for c in tracked]
    maps = torch.stack(by_channel).mean(dim=0).cpu().double()  # [S, P, H, W]
    pattern = torch.zeros(noise.shape[1:])
    pattern[0] = torch.from_numpy(mask)
    rows = []
    for step, fields in zip(steps, maps, strict=True):
        visibility = [mark_visibility(field, pixel, mask) for field, pixel in zip(fields, pixels, strict=True)]
        rows.append({"network": name, "gamma": gamma, "sigma": step.sigma, "visibility": float(np.mean(visibility)),
                     "gain": gain_along(network, step.z, step.sigma, pattern).mean().item(),
                     "predicted": predicted_sensitivity(mask, gamma, step.sigma),
                     "snr": mark_variance(mask, gamma) / step.sigma**2})
    return MarkedFields(name, gamma, maps.numpy(), rows)


def mark_pixels(mask: np.ndarray) -> list[Pixel]:
    """Up to eight pixels spread over the mark."""
    positions = np.argwhere(mask)
    chosen = np.linspace(0, len(positions) - 1, min(PIXELS, len(positions))).round().astype(int)
    return [(int(row), int(column)) for row, column in positions[chosen]]


def mark_variance(mask: Bool[np.ndarray, "h w"], gamma: float) -> float:
    """g = gamma^2 ||s||^2 / 3: the variance that the mark adds along itself, in each channel."""
    return float(gamma**2 * mask.sum() * COLOUR_VARIANCE)


def predicted_sensitivity(mask: Bool[np.ndarray, "h w"], gamma: float, sigma: float, variance: float = 0.0) -> float:
    """The Wiener filter's gain along the mark: (v + g) / (v + g + sigma^2), g = gamma^2 ||s||^2 / 3.

    `variance` is that of the unedited data along the mark, if the mark is an eigenvector of their covariance.
    """
    total = variance + mark_variance(mask, gamma)
    return total / (total + sigma**2)


def mark_visibility(field: Float[Tensor, "h w"], pixel: Pixel, mask: Bool[np.ndarray, "h w"]) -> float:
    """The correlation of field and mark over the input pixels far from the output pixel.

    Near the output pixel every field is large, with or without a mark.
    """
    rows, columns = np.indices(mask.shape)
    far = np.hypot(rows - pixel[0], columns - pixel[1]) > FAR * min(mask.shape)
    values, marked = field.double().cpu().numpy()[far], mask[far].astype(float)
    return float(np.corrcoef(values, marked)[0, 1]) if values.std() > 0 and marked.std() > 0 else 0.0


def visible_by_network(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The mark's mean visibility in the fields of each network, over the noise levels MARK_LEVELS."""
    low, high = MARK_LEVELS
    return {name: float(np.mean([row["visibility"] for row in own]))
            for name, own in grouped((row for row in rows if low <= row["sigma"] <= high), "network").items()}


@dataclass(frozen=True, eq=False)
class MarkExperiment:
    """The W experiment: a mark shows in the fields of networks trained on marked data, and not in others."""

    networks: list[MarkedFields]
    mask: Bool[np.ndarray, "h w"]
    sigmas: list[float]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for network in self.networks for row in network.rows]

    def table(self) -> str:
        """The mark's visibility in each network's fields, as Markdown."""
        visible = visible_by_network(self.rows)
        return markdown(["network", "gamma", "visibility", "visible"],
                        [[one.name, f"{one.gamma:g}", f"{visible[one.name]:.3f}",
                          "yes" if visible[one.name] > MARK_VISIBLE else "no"] for one in self.networks])

    def figure(self) -> Figure:
        """The gain along the mark, measured and predicted, and the mark's visibility, by noise level."""
        return gain_figure(self.rows)

    def save(self, folder: str | Path, record: Mapping[str, Any] | None = None) -> Path:
        """Write rows.jsonl, run.json, table.md, fields.png and gain.png into a new folder."""
        pixels = mark_pixels(self.mask)
        middle = len(pixels) // 2
        strips = [Strip(one.name, one.maps[:, middle], pixels[middle],
                        f"γ = {one.gamma:g}" if one.gamma else "plain data",
                        [row["snr"] > MARKED_SNR for row in one.rows]) for one in self.networks]
        with fresh_folder(Path(folder)) as partial:
            (partial / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")
            (partial / "table.md").write_text(self.table() + "\n", encoding="utf-8")
            write_json(partial / "run.json", {**(record or {}), "mark_pixels": int(self.mask.sum()),
                                              "visible": visible_by_network(self.rows), "rows": self.rows})
            field_figure(strips, self.sigmas, partial / "fields.png", root=True, title="Fields of a pixel of the mark "
                         f"(framed: signal-to-noise ratio of the mark > {MARKED_SNR:g})")
            self.figure().savefig(partial / "gain.png", dpi=160)
        return Path(folder).expanduser()


def mark_experiment(networks: Mapping[str, Network], mask: Bool[np.ndarray, "h w"], noise: Tensor,
                    sigmas: Sequence[float]) -> MarkExperiment:
    """Measure a mark in the fields of networks, along their trajectories from this noise."""
    measured = [measure_mark(name, network, mask, noise, sigmas) for name, network in networks.items()]
    return MarkExperiment(measured, mask, list(sigmas))
