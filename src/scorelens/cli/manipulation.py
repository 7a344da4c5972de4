"""`scorelens manipulation`: the W experiment. Edit the data's correlations, and the network's fields follow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scorelens.analysis.marks import (
    MARK_LEVELS,
    MARK_VISIBLE,
    Measured,
    mark_pixels,
    mark_snr,
    measure,
    visible_by_network,
)
from scorelens.cli.run_folder import run_folder
from scorelens.data.edits import mark_mask
from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device
from scorelens.networks.load import load_network
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.report.fields import Strip, field_figure, gain_curves
from scorelens.report.tables import markdown
from scorelens.results import noise_record
from scorelens.types import ScorelensError

MARKED_SNR = 0.1  # noise levels at which the mark's signal-to-noise ratio is larger get a frame, as in the paper


def manipulation(images: ImageSet, model: Sequence[str], *, pattern: str = "W", num: int = 16, steps: int = 10,
                 seed: int = 0, device: str = "auto", out: Path | None = None) -> Path:
    """Show a mark in the fields of networks trained on marked data, and not in those of others.

    Args:
        model: networks trained on the data plain and marked (scorelens train --mark W --gamma 0.5); cards tell which.
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
    loaded = {name: load_network(name, shape=images.shape) for name in dict.fromkeys(model)}
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
