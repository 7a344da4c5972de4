"""`scorelens manipulation`: the W experiment. Edit the data's correlations, and the network's fields follow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scorelens import progress
from scorelens.benchmark.fields import MARK_LEVELS, MARK_VISIBLE, mark_visibility, visible_by_network
from scorelens.benchmark.probes import gain_along
from scorelens.commands.run_folder import choose_device, noise_record, run_folder
from scorelens.data.edits import mark_mask, mark_snr, predicted_sensitivity
from scorelens.data.images import ImageSet
from scorelens.networks.adapters import Network
from scorelens.networks.load import load_network
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.report.fields import Strip, field_figure, gain_curves
from scorelens.report.tables import markdown
from scorelens.sampling import Step, trajectory
from scorelens.sensitivity import Pixel, mean_fields
from scorelens.types import ScorelensError

PIXELS = 8  # of the mark, whose fields are measured
MARKED_SNR = 0.1  # noise levels at which the mark's signal-to-noise ratio is larger get a frame, as in the paper


@dataclass(frozen=True)
class Measured:
    """One network: its fields at pixels of the mark, same channel in and out, and what they say."""

    name: str
    gamma: float
    maps: np.ndarray  # [levels, pixels, H, W], mean over channels and samples
    rows: list[dict[str, Any]]


def manipulation(images: ImageSet, networks: Sequence[str], *, pattern: str = "W", num: int = 16, steps: int = 10,
                 seed: int = 0, device: str = "auto", out: Path | None = None) -> Path:
    """Show a mark in the fields of networks trained on marked data, and not in those of others.

    Args:
        networks: trained on the data plain and marked (scorelens train --mark W --gamma 0.5); cards tell which.
        pattern: the mark that is looked for, a letter or an image file.
        num: number of trajectories that fields are averaged over.
        steps: noise levels, on the paper's grid.
        seed: the noise of trajectory k is drawn from seed + k.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/manipulation-...
    """
    if num < 1:
        raise ScorelensError(f"num must be at least 1, got {num}")
    mask, place = mark_mask(pattern, images.shape[1:]), choose_device(device)
    loaded = {name: load_network(name, shape=images.shape) for name in dict.fromkeys(networks)}
    sigmas, seeds = ddim_sigmas(steps).tolist(), range(seed, seed + num)
    noise = seeded_noise(images.shape, seeds, device=place)
    with run_folder("manipulation", images.name, out, place) as run:
        found = [measure(name, network, mask, noise, sigmas) for name, network in loaded.items()]
        rows = [row for one in found for row in one.rows]
        run.record.update(data=images.describe(), networks=list(loaded), pattern=pattern, mark_pixels=int(mask.sum()),
                          sigmas=sigmas, noise=noise_record(seeds, noise), visible=visible_by_network(rows), rows=rows)
        (run.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run.folder / "table.md").write_text(mark_table(found) + "\n")
        draw(found, mask, sigmas, run.folder / "fields.png")
        gain_curves(rows, run.folder / "gain.png")
    print(f"{mark_table(found)}\n\nvisibility: correlation of field and mark away from the pixel, mean over the noise "
          f"levels {MARK_LEVELS[0]:g} to {MARK_LEVELS[1]:g}; visible above {MARK_VISIBLE:g}\npictures: "
          f"{run.final / 'fields.png'}, {run.final / 'gain.png'}")
    return run.final


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


def mark_table(found: Sequence[Measured]) -> str:
    """One line per network."""
    scores = visible_by_network(row for one in found for row in one.rows)
    cells = [[one.name, f"{one.gamma:g}", f"{scores[one.name]:.3f}",
              "yes" if scores[one.name] > MARK_VISIBLE else "no"] for one in found]
    return markdown(["network", "gamma", "visibility", "visible"], cells)


def draw(found: Sequence[Measured], mask: np.ndarray, sigmas: Sequence[float], path: Path) -> None:
    """One row per network: the field of one pixel of the mark, levels where it should show framed."""
    pixels = mark_pixels(mask)
    middle = len(pixels) // 2
    strips = [Strip(one.name, one.maps[:, middle], pixels[middle], f"γ = {one.gamma:g}" if one.gamma else "plain data",
                    [mark_snr(mask, one.gamma, sigma) > MARKED_SNR for sigma in sigmas]) for one in found]
    field_figure(strips, sigmas, path, root=True,
                 title=f"Fields of a pixel of the mark (framed: signal-to-noise ratio of the mark > {MARKED_SNR:g})")
