"""`scorelens calibrate`: fit the patch sizes of local score models to a network; interrupted fits resume."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from scorelens.analysis import patch_sizes
from scorelens.analysis.models import Loading
from scorelens.analysis.patch_sizes import Fit
from scorelens.cli.load_networks import load_named
from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device
from scorelens.files import atomic_file, damaged, resumable_folder


def calibrate(images: ImageSet, reference: str, denoiser: str = "ls", options: Mapping[str, Any] | None = None, *,
              sizes: Sequence[int] | None = None, metric: Literal["r2", "cosine"] = "r2", num: int = 16,
              steps: int = 10, seed: int = 0, loading: Loading | None = None, device: str = "auto",
              out: Path | None = None) -> Path:
    """Fit the patch size of each step to a network; the same command resumes an interrupted fit.

    Args:
        reference: the network: a zoo name, a folder saved by diffusers, a hub id or a checkpoint file.
        device: auto, cuda, mps or cpu.
        out: folder of the fit; one with the same settings is resumed. By default runs/calibrate-...
    """
    network = load_named(reference, images, loading)
    fit = patch_sizes.prepare_fit(network, images, denoiser, options=options, sizes=sizes, metric=metric, num=num,
                                  steps=steps, seed=seed, device=choose_device(device), name=Path(reference).name)
    folder = Path(out or Path("runs") / f"calibrate-{denoiser}-{Path(reference).name}").expanduser()
    with resumable_folder(folder, fit.record, "fit"):
        finished = _read(folder / "rows.jsonl")
        for step in fit.run(list(finished)):
            finished.append(step)
            with atomic_file(folder / "rows.jsonl") as temporary:
                temporary.write_text("".join(json.dumps(asdict(each)) + "\n" for each in finished), encoding="utf-8")
        result = fit.result(finished)
        result.write(folder)
    print(f"{result.table()}\n\nuse: --denoiser {denoiser} --denoiser.patch-size {folder / 'calibration.json'}")
    return folder / "calibration.json"


def _read(path: Path) -> list[Fit]:
    """The steps that an interrupted fit finished."""
    with damaged(path, ValueError, KeyError, TypeError, AttributeError):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        return [Fit(float(row["sigma"]), int(row["size"]),
                    {int(size): float(score) for size, score in row["scores"].items()}) for row in rows]
