"""The paper's reference networks: the published weights of five datasets, by the names "paper:cifar10", ..."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from scorelens.types import ScorelensError, Shape
from scorelens.validation import unknown

HUB = "ottogin/locality-diffusion-baselines"
FILE = "models/baseline_unet/{folder}/ckpt_epoch_200.pt"  # on the hub
PREFIX = "paper:"


@dataclass(frozen=True)
class PaperNetwork:
    """A published network: its folder on the hub, its images, and the dataset of our presets that it belongs to."""

    folder: str
    shape: Shape
    dataset: str


PAPER_NETWORKS = {
    "mnist": PaperNetwork("mnist", (1, 28, 28), "mnist"),
    "fashion-mnist": PaperNetwork("fashion_mnist", (1, 28, 28), "fashion-mnist"),
    "cifar10": PaperNetwork("cifar10", (3, 32, 32), "cifar10"),
    "celeba-hq": PaperNetwork("celeba_hq", (3, 64, 64), "celeba"),
    "afhq": PaperNetwork("afhq", (3, 64, 64), "afhq-cats")}


def paper_network(name: str) -> PaperNetwork:
    """The network of a name such as "paper:cifar10"."""
    short = name.removeprefix(PREFIX)
    if short not in PAPER_NETWORKS:
        raise unknown("network of the paper", short, PAPER_NETWORKS)
    return PAPER_NETWORKS[short]


def paper_file(name: str, root: str | Path | None) -> Path:
    """The checkpoint of a network of the paper: below `root` (default $SCORELENS_DATA), else downloaded."""
    remote = FILE.format(folder=paper_network(name).folder)
    below = Path(root or os.environ.get("SCORELENS_DATA") or ".").expanduser()
    parts = Path(remote).parts  # models/baseline_unet/..., or any end of it
    places = [below.joinpath(*parts[k:]) for k in range(len(parts) - 1)]
    found = next((place for place in places if place.is_file()), None)
    if found is not None:
        return found
    try:
        import huggingface_hub

        return Path(huggingface_hub.hf_hub_download(HUB, remote))
    except Exception as error:  # no package, no network, no such file
        why = (" ".join(str(error).split()) or type(error).__name__)[:120]
        raise ScorelensError(f"{name} is not at {places[0]} and could not be downloaded ({why}); where there is a "
                             f"network: hf download {HUB} --local-dir DIR, then give --root DIR here") from error
