"""The recipe of the zoo, found by measurement: variants of the training at equal compute, judged by their report cards.

    nice -n 19 python -m tools.recipe [NAME ...]      measures the variants that are missing, two at a time

A variant is trained for a fixed amount of processor time with one thread, on CIFAR-10 or MNIST from $SCORELENS_DATA.
Its row holds the ratio of its held-out error to that of the linear filter at ten noise levels; docs/zoo.md shows them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from perf.rows import RESULTS, results

from scorelens.analysis.report_card import report_card
from scorelens.data import load_images
from scorelens.data.images import ImageSet
from scorelens.networks.architectures import preset
from scorelens.networks.load import load_network
from scorelens.networks.training import native_precision
from scorelens.networks.training_loop import Recipe, initial_state, training_steps
from scorelens.noise import beta_schedule
from scorelens.results import Row, append_row, environment

MINUTES = {"cifar10": 6.0, "mnist": 5.0}  # of processor time
PACED = 12  # steps that tell how many fit


@dataclass(frozen=True)
class Variant:
    """What differs from the recipe, on one dataset."""

    data: str
    changes: dict[str, Any] = field(default_factory=dict)  # of the Recipe
    sizes: dict[str, Any] = field(default_factory=dict)  # of its Preset


PLAIN = {"weighting": 0.0}
VARIANTS = {
    f"{data}: {name}": Variant(data, changes, sizes) for data in ("cifar10", "mnist")
    for name, (changes, sizes) in {
        "the recipe": ({}, {}),
        "predict epsilon": ({"prediction": "epsilon", **PLAIN}, {}),
        "predict x0": ({"prediction": "x0", **PLAIN}, {}),
        "plain weights of v": (PLAIN, {}),
        "epsilon's weights of v": ({"weighting": 1.0}, {}),
        "half the learning rate": ({"learning_rate": 1.5e-3}, {}),
        "twice the learning rate": ({"learning_rate": 6e-3}, {}),
        "constant learning rate": ({}, {"decay": False}),
        "batches of 16": ({"batch": 16}, {}),
        "batches of 64": ({"batch": 64}, {}),
        "no average of weights": ({"ema": 0.0}, {}),
        "wider coarse levels": ({}, {"widths": (32, 64, 96, 128)}),
        "twice as deep": ({}, {"widths": (32, 64, 64, 64), "blocks": 2}),
    }.items() if data == "cifar10" or not sizes}


def train(variant: Variant, images: ImageSet) -> tuple[Recipe, torch.nn.Module, int]:
    """As many steps as fit into the processor time; the pace is taken from a trial that is discarded."""
    sizes = replace(preset("small", images.shape), **variant.sizes)
    recipe = replace(Recipe("unet", sizes, sizes.prediction, 32, sizes.learning_rate, sizes.dropout, sizes.ema, 0,
                            native_precision("auto", torch.device("cpu")), sizes.weighting), **variant.changes)
    trial = training_steps(images, recipe, initial_state(images, recipe), PACED + 2)
    next(trial), next(trial)
    clock = time.process_time()
    for _ in trial:
        pass
    steps = round(60 * MINUTES[variant.data] * PACED / (time.process_time() - clock))
    state = initial_state(images, recipe)
    for _ in training_steps(images, recipe, state, steps):
        pass
    return recipe, state.averaged, steps


def measure(name: str) -> Row:
    """Train one variant and take its report card."""
    variant = VARIANTS[name]
    images, heldout = (load_images(variant.data, split=split) for split in ("train", "test"))
    recipe, model, steps = train(variant, images)
    network = load_network(model, parametrization=recipe.prediction, schedule=beta_schedule(), shape=images.shape)
    card = report_card(network, images, heldout, formulas=["wiener"])
    return Row(name, "unet", {**variant.changes, **variant.sizes},
               {"minutes": MINUTES[variant.data], "steps": steps, "images_seen": steps * recipe.batch},
               {"mean_ratio": card.mean_ratio, "ratios": [level.to_linear.mean for level in card.levels],
                "parameters": sum(p.numel() for p in model.parameters())},
               images.describe(), environment=environment())


def measure_and_keep(name: str) -> None:
    """Append the row of one variant to the committed ones."""
    append_row(RESULTS / "recipe.jsonl", measure(name))


def run(names: list[str]) -> None:
    """Measure what is missing, two variants at a time, each in a process of one thread."""
    working: list[subprocess.Popen[bytes]] = []
    done = {row.name for row in results("recipe")}
    for name in [name for name in names or VARIANTS if name not in done]:
        while len(working) == 2:
            working = [job for job in working if job.poll() is None]
            time.sleep(1)
        code = ("import sys, torch; torch.set_num_threads(1); from tools import recipe; "
                "recipe.measure_and_keep(sys.argv[1])")
        working.append(subprocess.Popen([sys.executable, "-c", code, name]))
    for job in working:
        job.wait()


if __name__ == "__main__":
    run(sys.argv[1:])
