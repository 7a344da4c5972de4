"""The zoo: how each reference network is trained, and how it is published.

    python -m benchmarks.zoo train RUNS      trains whatever RUNS lacks, two at a time, one thread each; resumable
    python -m benchmarks.zoo publish RUNS    moves finished networks to their place in the repository

Real data are read from $SCORELENS_DATA. A network is published once, when it and its partners are final.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scorelens.files import write_json
from scorelens.metrics import r2, summary
from scorelens.networks.export import CARD, export_network
from scorelens.networks.folders import load_model, open_folder
from scorelens.networks.load import load_network
from scorelens.networks.zoo import another_seed
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.report.cards import model_card
from scorelens.report.training import training_curves
from scorelens.sampling import sample

SNAPSHOTS = 6
STEPS, SEEDS = 10, range(128)  # of the samples by which networks are compared
HALF_LOSS = 0.001  # of r2, by storing float16
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Entry:
    """One network: the data and the options of `scorelens train`."""

    data: str
    epochs: float
    network: str = "unet"
    prediction: str = "epsilon"
    seed: int = 0
    options: tuple[str, ...] = ()
    flags: tuple[str, ...] = field(default=())

    def command(self, out: Path) -> list[str]:
        return [sys.executable, "-m", "scorelens.cli", "train", "--data", self.data, *self.flags, "--network",
                self.network, "--prediction", self.prediction, "--epochs", str(self.epochs), "--seed", str(self.seed),
                "--snapshots", str(SNAPSHOTS), "--device", "cpu", "--out", str(out), *self.options]


TRAIN, SIDE_32 = ("--split", "train"), ("--resolution", "32")
FROM_MARKED = ("--start", "leaves-w05-unet")
SLOWER = ("--learning-rate", "0.001")  # transformers

# In the order of training: neighbours run at the same time.
ZOO = {
    "digits-unet": Entry("digits", 200, flags=TRAIN),
    "digits-unet-seed1": Entry("digits", 200, seed=1, flags=TRAIN),
    "digits-unet-x0": Entry("digits", 200, prediction="x0", flags=TRAIN),
    "digits-dit-x0": Entry("digits", 200, "dit", "x0", flags=TRAIN, options=SLOWER),
    "cifar10-unet": Entry("cifar10", 3),
    "cifar10-unet-seed1": Entry("cifar10", 3, seed=1),
    "celeba-unet": Entry("celeba", 15, flags=SIDE_32),
    "celeba-unet-seed1": Entry("celeba", 15, seed=1, flags=SIDE_32),
    "leaves-unet": Entry("leaves", 10),
    "leaves-unet-seed1": Entry("leaves", 10, seed=1),
    "leaves-w05-unet": Entry("leaves", 10, flags=("--mark", "W", "--gamma", "0.5")),
    # From scratch a mark this weak is not noticed within 170,000 images. These two begin with the network that knows
    # the strong mark: on data with the weak one it should keep it, at another gain; on plain data it should forget.
    "leaves-w01-unet": Entry("leaves", 3, flags=("--mark", "W", "--gamma", "0.1"), options=FROM_MARKED),
    "leaves-w00-unet": Entry("leaves", 3, options=FROM_MARKED),
    "mnist-unet": Entry("mnist", 1),
    "mnist-unet-seed1": Entry("mnist", 1, seed=1),
    "fashion-mnist-unet": Entry("fashion-mnist", 0.75),
    "fashion-mnist-unet-seed1": Entry("fashion-mnist", 0.75, seed=1),
    "afhq-cats-unet": Entry("afhq-cats", 10, flags=SIDE_32),
    "afhq-cats-unet-seed1": Entry("afhq-cats", 10, seed=1, flags=SIDE_32),
    "cifar10-unet-x0": Entry("cifar10", 0.9, prediction="x0"),
    "cifar10-dit-x0": Entry("cifar10", 0.6, "dit", "x0", options=SLOWER),
    "digits-unet-attention": Entry("digits", 200, "unet-attention", flags=TRAIN),
}


def train(runs: Path) -> None:
    """Train what is not finished, two at a time."""
    waiting = [name for name in ZOO if not (runs / name / "card.json").exists()]
    working: dict[str, subprocess.Popen[bytes]] = {}
    while waiting or working:
        while waiting and len(working) < 2:
            name = waiting.pop(0)
            runs.mkdir(parents=True, exist_ok=True)
            with (runs / f"{name}.log").open("ab") as log:
                working[name] = subprocess.Popen(ZOO[name].command(runs / name), stdout=log, stderr=log,
                                                 env={**os.environ, "OMP_NUM_THREADS": "1"})
            print(f"started {name}", flush=True)
        ended = {name: job for name, job in working.items() if job.poll() is not None}
        for name, job in ended.items():
            print(f"{name}: {'finished' if working.pop(name).returncode == 0 else f'failed ({job.returncode})'}",
                  flush=True)
        if not ended:
            time.sleep(2)


def publish(runs: Path) -> None:
    """Put every finished network whose partner is finished too into its place, once."""
    for name in ZOO:
        place = (ROOT / "src" / "scorelens" / "zoo" if name.startswith("digits-") else ROOT / "zoo") / name
        needed = [name, another_seed(name, ZOO) or name]
        if not place.exists() and all((runs / each / CARD).exists() for each in needed):
            publish_one(name, runs, place)
            print(f"published {place.relative_to(ROOT)}", flush=True)


def publish_one(name: str, runs: Path, place: Path) -> None:
    """The weights, in half precision where that loses nothing; the card, with the agreement of the seeds; pictures."""
    run, partial = runs / name, place.with_name(f".{name}")
    shutil.rmtree(partial, ignore_errors=True)
    card = json.loads((run / CARD).read_text())
    card["half_precision"] = half_precision(run, card, partial)
    other = another_seed(name, ZOO)
    if other is not None:
        card["agreement"] = {"with": other, "steps": STEPS, "noise_seeds": [SEEDS.start, SEEDS.stop - 1],
                             "curve": list(agreement_curve(run, runs / other, card))}
    write_json(partial / CARD, card)
    (partial / "README.md").write_text(model_card(name, card))
    shutil.copy(run / "samples.png", partial)
    losses = json.loads((run / "losses.json").read_text())
    training_curves(losses, card["batch"], partial / "loss.png", title=name,
                    agreement=[(p["images_seen"], p["r2"]["mean"]) for p in card.get("agreement", {}).get("curve", [])])
    partial.rename(place)


def half_precision(run: Path, card: dict[str, Any], partial: Path) -> dict[str, Any]:
    """Export as float16 if its samples are those of the float32 weights, else as float32."""
    model = load_model(open_folder(run), trust_pickle=False)
    export_network(model, card["prediction"], partial, half=True)
    score = r2(predictions(partial), predictions(run)).mean().item()
    if not 1 - score < HALF_LOSS:
        export_network(model, card["prediction"], partial)
    return {"r2": score, "used": 1 - score < HALF_LOSS}


def agreement_curve(run: Path, other: Path, card: dict[str, Any]) -> Any:
    """r2 between both seeds at each snapshot, and at the end."""
    ends = {card["steps"]: "."} | {int(path.name): f"snapshots/{path.name}" for path in (run / "snapshots").iterdir()}
    for step, folder in sorted(ends.items()):
        seen = round(card["images_seen"] * step / card["steps"])
        yield {"images_seen": seen, "r2": summary(r2(predictions(run / folder), predictions(other / folder)))}


@cache
@torch.no_grad()
def predictions(folder: Path) -> Tensor:
    """The raw last predictions of a network on the noise that all are compared on."""
    network = load_network(folder)
    return sample(network, seeded_noise(network.shape, SEEDS), ddim_sigmas(STEPS)).steps[-1].x0_hat


if __name__ == "__main__":
    {"train": train, "publish": publish}[sys.argv[1]](Path(sys.argv[2]).expanduser())
