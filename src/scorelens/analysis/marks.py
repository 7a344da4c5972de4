"""How visible a mark of the data is in the fields of a network, and how much of it the network passes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scorelens import progress
from scorelens.analysis.probes import gain_along
from scorelens.files import fresh_folder, write_json
from scorelens.jacobian import Pixel, mean_fields
from scorelens.networks.adapters import Network
from scorelens.sampling import Step, sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAR = 6 / 32  # of the shorter side of the image
MARK_LEVELS = (0.0, 2.1)  # noise levels where marks are looked for: gamma 0.1 has a signal-to-noise ratio > 0.1 there
MARK_VISIBLE = 0.2  # mean visibility over those levels; the Wiener filter of leaves has 0.01, marked 0.23 and 0.53
COLOUR_VARIANCE = 1 / 3  # of Uniform[-1, 1]
MARKED_SNR = 0.1  # of the mark: noise levels above it get a frame, as in the paper
PIXELS = 8  # of the mark, whose fields are measured


@dataclass(frozen=True)
class MarkedFields:
    """One network: its fields at pixels of the mark, same channel in and out, and the numbers read off them."""

    name: str
    gamma: float
    maps: np.ndarray  # [levels, pixels, H, W], mean over channels and samples
    rows: list[dict[str, Any]]


def measure_mark(name: str, network: Network, mask: np.ndarray, noise: Tensor,
                 sigmas: Sequence[float]) -> MarkedFields:
    """Fields and gains of one network along its own trajectory."""
    gamma = float(network.card.get("data", {}).get("gamma", 0.0))
    with torch.no_grad():
        steps = sample(network, noise, sigmas, label=f"{name}, trajectory").steps
    pixels, channels = mark_pixels(mask), range(noise.shape[1])
    tracked = progress.track(channels, f"{name}, fields", len(channels), unit="channel")
    fields = [mean_fields(network, steps, pixels, channel=c).values[:, :, c] for c in tracked]
    maps = torch.stack(fields).mean(dim=0).cpu().double().numpy()  # [S, P, H, W]
    return MarkedFields(name, gamma, maps, list(rows_of(name, gamma, network, steps, maps, mask)))


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
    positions = np.argwhere(mask)
    chosen = np.linspace(0, len(positions) - 1, min(PIXELS, len(positions))).round().astype(int)
    return [(int(row), int(column)) for row, column in positions[chosen]]


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


@dataclass(frozen=True, eq=False)
class MarkExperiment:
    """The W experiment: a mark in the fields of networks trained on marked data, and not in those of others."""

    networks: list[MarkedFields]
    mask: Bool[np.ndarray, "h w"]
    sigmas: list[float]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for network in self.networks for row in network.rows]

    def table(self) -> str:
        """The visibility of the mark in each network's fields, as Markdown."""
        from scorelens.report.fields import visibility_table

        return visibility_table({one.name: one.gamma for one in self.networks}, visible_by_network(self.rows),
                                MARK_VISIBLE)

    def figure(self) -> Figure:
        """The gain along the mark, measured and predicted, and its visibility, by noise level."""
        from scorelens.report.fields import gain_figure

        return gain_figure(self.rows)

    def save(self, folder: str | Path, record: Mapping[str, Any] | None = None) -> Path:
        """Write rows.jsonl, run.json, table.md, fields.png and gain.png into a new folder."""
        from scorelens.report.fields import Strip, field_figure

        pixels = mark_pixels(self.mask)
        middle = len(pixels) // 2
        strips = [Strip(one.name, one.maps[:, middle], pixels[middle],
                        f"γ = {one.gamma:g}" if one.gamma else "plain data",
                        [mark_snr(self.mask, one.gamma, sigma) > MARKED_SNR for sigma in self.sigmas])
                  for one in self.networks]
        with fresh_folder(Path(folder)) as partial:
            (partial / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))
            (partial / "table.md").write_text(self.table() + "\n")
            write_json(partial / "run.json", {**(record or {}), "mark_pixels": int(self.mask.sum()),
                                              "visible": visible_by_network(self.rows), "rows": self.rows})
            field_figure(strips, self.sigmas, partial / "fields.png", root=True, title="Fields of a pixel of the mark "
                         f"(framed: signal-to-noise ratio of the mark > {MARKED_SNR:g})")
            self.figure().savefig(partial / "gain.png", dpi=160)
        return Path(folder)


def mark_experiment(networks: Mapping[str, Network], mask: Bool[np.ndarray, "h w"], noise: Tensor,
                    sigmas: Sequence[float]) -> MarkExperiment:
    """Look for a mark in the fields of networks, along trajectories from this noise."""
    found = [measure_mark(name, network, mask, noise, sigmas) for name, network in networks.items()]
    return MarkExperiment(found, mask, list(sigmas))
