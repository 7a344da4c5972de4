"""Measures the sensitivity fields of the zoo's networks on their own data, as committed rows.

    python -m tools.fields [DATASET ...]       measures the datasets that perf/results/fields.jsonl lacks

Real data are read from $SCORELENS_DATA. The networks of a dataset and its Wiener filter are measured at nine output
pixels along the network's own trajectories: cosine of the two, reach, anisotropy, equivariance and linearity.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from perf import rows

from scorelens.analysis.fields import (
    Trajectories,
    field_rows,
    linearity_rows,
    measured_fields,
    nine_pixels,
    wiener_fields,
)
from scorelens.data import load_images
from scorelens.files import atomic_file
from scorelens.networks.load import load_network
from scorelens.networks.zoo import zoo_names
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.results import environment
from scorelens.statistics import fit_gaussian

RESULTS = rows.RESULTS / "fields.jsonl"
NUM, STEPS = 16, 10
DATASETS: dict[str, dict[str, Any]] = {
    "digits": {"split": "train"}, "leaves": {}, "mnist": {}, "fashion-mnist": {}, "cifar10": {},
    "celeba": {"resolution": 32}, "afhq-cats": {"resolution": 32}}


def measure(dataset: str) -> list[dict[str, Any]]:
    """The rows of one dataset: its networks and the Wiener filter."""
    images = load_images(dataset, **DATASETS[dataset])
    names = [name for name in zoo_names() if name.startswith(f"{dataset}-") and "-w0" not in name
             and (dataset == "digits" or not name.endswith("-seed1"))]
    models = {name: load_network(name, shape=images.shape) for name in names}
    pixels = nine_pixels(images)
    points = Trajectories(seeded_noise(images.shape, range(NUM)), ddim_sigmas(STEPS).tolist(), STEPS)
    linear = wiener_fields(fit_gaussian(images), images.shape, points.sigmas, pixels)
    rows = field_rows("wiener", linear, linear)
    probed: dict[tuple[str, float], dict[str, Any]] = {}
    for name in names:
        rows += field_rows(name, measured_fields(name, models, points, pixels, None, "z"), linear)
        probed |= {(name, row["sigma"]): row for row in linearity_rows(name, models, points)}
    shared = {"dataset": dataset, "fingerprint": images.fingerprint, "num": NUM, "commit": environment()["commit"]}
    return [{**row, **probed.get((row["model"], row["sigma"]), {}), **shared} for row in rows]


def main(wanted: list[str]) -> None:
    done = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    for dataset in wanted or DATASETS:
        if f"{dataset}-unet" in zoo_names() and all(row["dataset"] != dataset for row in done):
            done += measure(dataset)
            with atomic_file(RESULTS) as temporary:
                temporary.write_text("".join(json.dumps(row) + "\n" for row in done))
            print(f"measured {dataset}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
