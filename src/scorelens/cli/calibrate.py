"""`scorelens calibrate`: patch sizes for the local score models, fitted to a network; resumable."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from scorelens.analysis.patch_sizes import Fit, candidate_sizes
from scorelens.analysis.patch_sizes import calibrate as fit_steps
from scorelens.data.images import ImageSet
from scorelens.denoisers import build_denoiser
from scorelens.denoisers.patch_sizes import patch_sizes
from scorelens.distributed import choose_device
from scorelens.files import atomic_file, resumable_folder, write_json
from scorelens.networks.load import load_network
from scorelens.noise import own_sigmas, seeded_noise
from scorelens.report.calibration import calibration_curves
from scorelens.report.tables import markdown
from scorelens.results import noise_record
from scorelens.sampling import sample
from scorelens.types import ScorelensError

MODELS = ("ls", "els", "bbels")


def calibrate(images: ImageSet, reference: str, denoiser: str = "ls", options: Mapping[str, Any] | None = None, *,
              sizes: Sequence[int] | None = None, metric: Literal["r2", "cosine"] = "r2", num: int = 16,
              steps: int = 10, seed: int = 0, device: str = "auto", out: Path | None = None) -> Path:
    """Fit the patch size of each step to a network; the same command goes on with an interrupted fit.

    Args:
        reference: the network: a zoo name, a folder saved by diffusers, or a hub id.
        denoiser: ls, els or bbels.
        sizes: candidates, by default odd numbers up to the whole image.
        metric: of a sample's score against the network's; the median over samples counts.
        num: number of samples.
        steps: number of noise levels, on the paper's grid (of the reference's own schedule).
        seed: the noise of image k is drawn from seed + k.
        device: auto, cuda, mps or cpu.
        out: folder of the fit; one with the same settings is resumed. By default runs/calibrate-...
    """
    given = dict(options or {})
    if denoiser not in MODELS or "patch_size" in given:
        raise ScorelensError(f"calibrate fits the patch_size of {', '.join(MODELS)}; got --denoiser {denoiser}"
                             + (" with a patch size" if "patch_size" in given else ""))
    place, network = choose_device(device), load_network(reference, shape=images.shape)
    candidates = list(sizes or candidate_sizes(max(images.shape[1:])))
    for size in candidates:
        patch_sizes(size, images.shape)  # refuses those that no window has
    sigmas, seeds = own_sigmas(network.schedule, steps).tolist(), range(seed, seed + num)
    noise = seeded_noise(images.shape, seeds, device=place)
    folder = Path(out or Path("runs") / f"calibrate-{denoiser}-{Path(reference).name}").expanduser()
    config = {"data": images.describe(), "reference": Path(reference).name, "network": network.describe(),
              "denoiser": denoiser, "options": given, "candidates": candidates, "metric": metric, "grid": sigmas,
              "noise": noise_record(seeds, noise)}
    with resumable_folder(folder, config, "fit"):
        rows = folder / "rows.jsonl"
        done = [_fit(json.loads(line)) for line in rows.read_text().splitlines()] if rows.exists() else []
        if len(done) < len(sigmas):
            path = sample(network, noise, sigmas, label=reference)
            for fit in fit_steps(lambda size: build_denoiser(denoiser, images, patch_size=size, **given), path,
                                 candidates, metric, first=len(done)):
                done.append(fit)
                _write_rows(rows, done)
        write_json(folder / "calibration.json", {"sigmas": [fit.sigma for fit in done],
                                                 "sizes": [fit.size for fit in done], **config})
        calibration_curves([asdict(fit) for fit in done], folder / "calibration.png", max(images.shape[1:]),
                           title=f"{denoiser} fitted to {Path(reference).name}", metric=metric)
    print(f"{_table(done)}\n\nuse: --denoiser {denoiser} --denoiser.patch-size {folder / 'calibration.json'}")
    return folder / "calibration.json"


def _fit(row: Mapping[str, Any]) -> Fit:
    return Fit(row["sigma"], row["size"], {int(size): score for size, score in row["scores"].items()})


def _write_rows(path: Path, fits: Sequence[Fit]) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text("".join(json.dumps(asdict(fit)) + "\n" for fit in fits))


def _table(fits: Sequence[Fit]) -> str:
    """The score of every size at every noise level; the best one is in brackets."""
    sizes = list(fits[0].scores)
    rows = [[f"{fit.sigma:.3g}", str(fit.size), *(f"[{score:.3f}]" if size == fit.size else f"{score:.3f} "
                                                  for size, score in fit.scores.items())] for fit in fits]
    return markdown(["σ", "best", *(f"{size} " for size in sizes)], rows)
