"""How far must two trainings differ? Wiener filters and networks fitted to two halves of the data.

    nice -n 19 python -m tools.ceiling RUNS      measures what perf/results/ceiling.jsonl lacks; trainings are in RUNS

Real data are read from $SCORELENS_DATA. The networks are those of the digits, trained on two halves that share no
image, for as many steps as the network of all images.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from perf.rows import RESULTS, rows_of
from torch import Tensor

import scorelens
from scorelens.analysis.ceiling import expected_agreement, halves
from scorelens.data import load_images
from scorelens.metrics import r2, summary
from scorelens.networks.load import load_network
from scorelens.networks.zoo import another_seed
from scorelens.results import environment
from scorelens.statistics import fit_gaussian
from scorelens.types import Denoiser
from tools.fields import DATASETS
from tools.tables import Columns, paragraph, table
from tools.zoo import SEEDS, STEPS, ZOO

NETWORKS = "digits"
SIGMAS = scorelens.ddim_sigmas(STEPS).tolist()
FILTERS: Columns = {
    "data": "{r[dataset]}", "images in a half": "{r[count]:,}",
    **{f"σ = {sigma:.3g}": f"{{r[levels][{k}][measured]:.3f}} ({{r[levels][{k}][expected]:.3f}})"
       for k, sigma in enumerate(SIGMAS)}}


def filters(dataset: str) -> dict[str, Any]:
    """r2 between two filters of different images, and what theory expects of filters of as many."""
    images = load_images(dataset, **{**DATASETS[dataset], "split": "train"})
    measured, variances = halves(images, SIGMAS), fit_gaussian(images).eigenvalues
    count = (len(images) - 256) // 2
    levels = [{"sigma": sigma, "measured": found.r2, "expected": expected_agreement(variances, sigma, count).r2}
              for sigma, found in zip(SIGMAS, measured, strict=True)]
    return {"dataset": dataset, "count": count, "levels": levels}


def networks(runs: Path) -> dict[str, Any]:
    """r2 between the samples of two networks of different images, and of each with the network of all."""
    name, images = f"{NETWORKS}-unet", load_images(NETWORKS, split="train")
    parts = [np.sort(rows) for rows in np.array_split(np.random.default_rng(0).permutation(len(images)), 2)]
    trained = [scorelens.train(images.subset(rows), runs / f"half-{k}", epochs=2 * ZOO[name].epochs).network
               for k, rows in enumerate(parts)]
    whole, other = load_network(name), load_network(another_seed(name) or "")
    first, second, all_images, another = map(last_prediction, (*trained, whole, other))
    return {"dataset": NETWORKS, "counts": [len(rows) for rows in parts], "all": len(images),
            "same": summary(r2(another, all_images)), "halves": summary(r2(second, first)),
            "half": summary(r2(torch.cat([first, second]), torch.cat([all_images, all_images])))}


@torch.no_grad()
def last_prediction(network: Denoiser) -> Tensor:
    noise = scorelens.seeded_noise(load_images(NETWORKS).shape, SEEDS)
    return scorelens.sample(network, noise, scorelens.ddim_sigmas(STEPS)).steps[-1].x0_hat


def ceiling_region(rows: list[dict[str, Any]]) -> str:
    """What is measured, as a paragraph and a table."""
    text = """Agreement (r2) of two networks of the digits on the same noise: trained on the same {all:,} images from
        different seeds {0}; on halves of {counts[0]:,} images that share none {1}; one on a half and one on all images
        {2} (mean, 95 % interval)."""
    parts = [paragraph(text.format(*(_interval(row[key]) for key in ("same", "halves", "half")), **row))
             for row in rows if row["cell"] == "networks"]
    found = [row for row in rows if row["cell"].startswith("filters")]
    return "\n".join([*parts, *([table(found, FILTERS)] if found else [])]) or "Not measured yet."


def _interval(value: dict[str, float]) -> str:
    return "{mean:.3f} ({low:.3f} … {high:.3f})".format(**value)


def main(runs: Path) -> None:
    done = {row["cell"] for row in rows_of("ceiling")}
    cells: dict[str, Callable[[], dict[str, Any]]] = {
        **{f"filters {dataset}": partial(filters, dataset) for dataset in DATASETS},
        "networks": partial(networks, runs)}
    for cell, measure in cells.items():
        if cell not in done:
            row = {"cell": cell, **measure(), "environment": environment()}
            with (RESULTS / "ceiling.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(cell, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).expanduser())
