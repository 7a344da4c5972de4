"""The zoo: how each reference network is trained, checked and published.

    nice -n 19 python -m tools.zoo RUNS [NAME ...]      trains what the zoo lacks, two at a time, and publishes it

Names that are given come first. Real data are read from $SCORELENS_DATA. The command resumes after any interruption:
trainings from their checkpoints in RUNS, finished networks from the zoo itself. A network is published whole, in the
place of an older one of its name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scorelens.analysis.report_card import report_card
from scorelens.cli.load_data import load_data
from scorelens.data.latents import PART, load_autoencoder
from scorelens.files import write_json
from scorelens.metrics import r2, summary
from scorelens.networks.folders import CARD, export_network, load_model, open_folder
from scorelens.networks.load import load_network
from scorelens.networks.zoo import another_seed
from scorelens.networks.zoo_source import PACKAGED, describe
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.report.training import model_card, training_figure
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
    prediction: str = "v"
    seed: int = 0
    load: Mapping[str, Any] = field(default_factory=dict)  # options of load_images
    options: tuple[str, ...] = ()
    start: str = ""  # the network whose weights it begins with

    def command(self, out: Path) -> list[str]:
        flags = [word for key, value in self.load.items() for word in (f"--{key}", str(value))]
        begin = ["--start", self.start] if self.start else []
        return [sys.executable, "-m", "scorelens.cli", "train", "--data", self.data, *flags, "--network", self.network,
                "--prediction", self.prediction, "--epochs", str(self.epochs), "--seed", str(self.seed), "--snapshots",
                str(SNAPSHOTS), "--device", "cpu", "--out", str(out), *begin, *self.options]

    def is_that_of(self, card: Mapping[str, Any]) -> bool:
        """Whether a card tells of this training."""
        told = card["network"], card["prediction"], card["seed"], card["epochs"], card["data"]["name"]
        return "report_card" in card and told == (self.network, self.prediction, self.seed, self.epochs, self.data)


TRAIN, SIDE_32, SIDE_64 = {"split": "train"}, {"resolution": 32}, {"resolution": 64}
STRONG, WEAK = {"mark": "W", "gamma": 0.5}, {"mark": "W", "gamma": 0.1}
SLOWER = ("--learning-rate", "0.001")  # transformers
CLASSES = ("--conditional", "--learning-rate", "0.002")

# In the order of training: neighbours run at the same time.
ZOO = {
    "mnist-unet": Entry("mnist", 5),
    "mnist-unet-seed1": Entry("mnist", 5, seed=1),
    "fashion-mnist-unet": Entry("fashion-mnist", 6.5),
    "fashion-mnist-unet-seed1": Entry("fashion-mnist", 6.5, seed=1),
    "digits-unet": Entry("digits", 300, load=TRAIN),
    "digits-unet-seed1": Entry("digits", 300, seed=1, load=TRAIN),
    "digits-unet-epsilon": Entry("digits", 300, prediction="epsilon", load=TRAIN),
    "digits-unet-attention": Entry("digits", 300, "unet-attention", load=TRAIN),
    "digits-dit": Entry("digits", 300, "dit", load=TRAIN, options=SLOWER),
    "cifar10-unet": Entry("cifar10", 6),
    "cifar10-unet-seed1": Entry("cifar10", 6, seed=1),
    "celeba-unet": Entry("celeba", 36, load=SIDE_32),
    "celeba-unet-seed1": Entry("celeba", 36, seed=1, load=SIDE_32),
    "afhq-cats-unet": Entry("afhq-cats", 50, load=SIDE_32),
    "afhq-cats-unet-seed1": Entry("afhq-cats", 50, seed=1, load=SIDE_32),
    "leaves-unet": Entry("leaves", 28, load=TRAIN),
    "leaves-unet-seed1": Entry("leaves", 28, seed=1, load=TRAIN),
    "cifar10-unet-epsilon": Entry("cifar10", 6, prediction="epsilon"),
    "cifar10-unet-attention": Entry("cifar10", 6, "unet-attention"),
    "cifar10-dit": Entry("cifar10", 6, "dit", options=SLOWER),
    "cifar10-w05-unet": Entry("cifar10", 2, load=STRONG, start="cifar10-unet"),
    "cifar10-w01-unet": Entry("cifar10", 2, load=WEAK, start="cifar10-unet"),
    "leaves-w05-unet": Entry("leaves", 14, load={**TRAIN, **STRONG}, start="leaves-unet"),
    "leaves-w01-unet": Entry("leaves", 14, load={**TRAIN, **WEAK}, start="leaves-unet"),
    "celeba64-unet": Entry("celeba", 28, load=SIDE_64),
    "mnist-unet-classes": Entry("mnist", 3.4, options=CLASSES, start="mnist-unet"),
    "cifar10-unet-classes": Entry("cifar10", 3, options=CLASSES, start="cifar10-unet"),
    "leaves-latent-unet": Entry("leaves", 28, load={**TRAIN, "autoencoder": "zoo/leaves-vae"}),
}


def place(name: str) -> Path:
    """Where a network lies in the repository: those of the digits ship in the package."""
    return (ROOT / "src" / "scorelens" / "zoo" if name.startswith("digits-") else ROOT / "zoo") / name


def published(name: str) -> bool:
    """Whether the zoo holds the network of this very recipe."""
    path = place(name) / CARD
    return path.exists() and ZOO[name].is_that_of(json.loads(path.read_text()))


def run(runs: Path, first: Sequence[str] = (), jobs: int = 2) -> None:
    """Train what the zoo lacks, those named `first` before the others, and publish every network that is finished."""
    runs.mkdir(parents=True, exist_ok=True)
    waiting = [name for name in dict.fromkeys([*first, *ZOO]) if not published(name)]
    working: dict[str, subprocess.Popen[bytes]] = {}
    while waiting or working:
        ready = [name for name in waiting if not ZOO[name].start or published(ZOO[name].start)]
        for name in ready[:jobs - len(working)]:
            waiting.remove(name)
            working[name] = start(name, runs)
        for name, job in [(name, job) for name, job in working.items() if job.poll() is not None]:
            del working[name]
            if job.returncode:
                print(f"{name}: failed ({job.returncode}), see {runs / name}.log", flush=True)
            else:
                publish(name, runs)
        time.sleep(2)


def start(name: str, runs: Path) -> subprocess.Popen[bytes]:
    """Begin or resume one training."""
    print(f"{time.strftime('%H:%M')} started {name}", flush=True)
    with (runs / f"{name}.log").open("ab") as log:
        return subprocess.Popen(ZOO[name].command(runs / name), stdout=log, stderr=log,
                                env={**os.environ, "OMP_NUM_THREADS": "1"})


def publish(name: str, runs: Path) -> None:
    """Put a finished network into the zoo, with its report card; a pair of seeds gets its agreement with the second."""
    write_network(name, runs)
    other = another_seed(name, ZOO)
    if other is not None and published(other) and (runs / other / CARD).exists():
        for one, partner in ((name, other), (other, name)):
            with_agreement(one, partner, runs)
    write_json(PACKAGED, zoo_index())
    card = json.loads((place(name) / CARD).read_text())
    print(f"{time.strftime('%H:%M')} published {name}: {card['report_card']['sentence']}", flush=True)


def zoo_index() -> dict[str, Any]:
    """The index of the networks that are fetched by name: those that do not ship in the package."""
    return {card.parent.name: describe(card.parent) for card in sorted((ROOT / "zoo").glob(f"*/{CARD}"))}


def write_network(name: str, runs: Path) -> None:
    """The weights, in half precision where that loses nothing; the report card; pictures."""
    training, final = runs / name, place(name)
    partial, old = final.with_name(f".{name}"), final.with_name(f".{name}.old")
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    card = json.loads((training / CARD).read_text())
    partial.mkdir(parents=True)
    write_json(partial / CARD, card)  # which names the classes; it is completed below
    card["half_precision"] = half_precision(training, card, partial)
    card["report_card"] = heldout_record(name, partial)
    shutil.copy(training / "samples.png", partial)
    write_card(name, card, partial, training)
    if final.exists():
        final.rename(old)
    partial.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def write_card(name: str, card: dict[str, Any], folder: Path, training: Path) -> None:
    """The card as data, as a page and as curves."""
    losses = json.loads((training / "losses.json").read_text())
    curve = [(point["images_seen"], point["r2"]["mean"]) for point in card.get("agreement", {}).get("curve", [])]
    figure = training_figure(losses, card["batch"], title=name, agreement=curve)
    figure.savefig(folder / "loss.png", dpi=160)
    (folder / "README.md").write_text(model_card(name, card))
    write_json(folder / CARD, card)


def heldout_record(name: str, folder: Path) -> dict[str, Any]:
    """The report card of a network, on the test split of its own data."""
    entry = ZOO[name]
    network = load_network(folder)
    images, heldout = (load_data(entry.data, **{**entry.load, "split": split}) for split in ("train", "test"))
    return report_card(network, images, heldout, name=name).describe()


def half_precision(training: Path, card: dict[str, Any], partial: Path) -> dict[str, Any]:
    """Export as float16 if its samples are those of the float32 weights, else as float32."""
    model = load_model(open_folder(training), trust_pickle=False)
    coder = load_autoencoder(training).model if (training / PART).exists() else None
    export_network(model, card["prediction"], partial, half=True, autoencoder=coder)
    score = r2(predictions(partial), predictions(training)).mean().item()
    if not 1 - score < HALF_LOSS:
        export_network(model, card["prediction"], partial, autoencoder=coder)
    return {"r2": score, "used": 1 - score < HALF_LOSS}


def with_agreement(name: str, other: str, runs: Path) -> None:
    """Add the agreement of two seeds, over images seen, to the card of the first."""
    card = json.loads((place(name) / CARD).read_text())
    card["agreement"] = {"with": other, "steps": STEPS, "noise_seeds": [SEEDS.start, SEEDS.stop - 1],
                         "curve": list(agreement_curve(runs / name, runs / other, card))}
    write_card(name, card, place(name), runs / name)


def agreement_curve(training: Path, other: Path, card: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """r2 between both seeds at each snapshot, and at the end."""
    ends = {card["steps"]: "."} | {int(p.name): f"snapshots/{p.name}" for p in (training / "snapshots").iterdir()}
    for step, folder in sorted(ends.items()):
        seen = round(card["images_seen"] * step / card["steps"])
        yield {"images_seen": seen, "r2": summary(r2(predictions(training / folder), predictions(other / folder)))}


@cache
@torch.no_grad()
def predictions(folder: Path) -> Tensor:
    """The raw last predictions of a network on the noise that all are compared on."""
    network = load_network(folder)
    return sample(network, seeded_noise(network.shape, SEEDS), ddim_sigmas(STEPS)).steps[-1].x0_hat


if __name__ == "__main__":
    run(Path(sys.argv[1]).expanduser(), sys.argv[2:])
