"""Runs the commands that draw the figures of docs/sensitivity.md, and keeps their rows.

    python -m tools.figures [NAME ...]       draws the named figures, or by default the missing ones

Real data are read from $SCORELENS_DATA, networks from the zoo.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from perf.rows import DOCS, RESULTS

from scorelens.cli.parser import main as scorelens
from scorelens.files import atomic_file

SMALL = "--resolution 32"
SOURCES = "leaves mnist fashion-mnist cifar10 celeba afhq-cats"


@dataclass(frozen=True)
class Figure:
    """A command, the picture of it that is shown, and a caption."""

    command: str
    picture: str
    about: str


MARKED = "manipulation --data leaves --model leaves-unet leaves-w05-unet leaves-w01-unet leaves-w00-unet --num 8"
FIGURES = {
    "architectures": Figure(
        "sensitivity --data cifar10 --preset architectures --num 16", "fields.png",
        "Fields of the centre pixel on CIFAR-10: a U-Net, a transformer, and the Wiener filter (the paper's Fig. 2)"),
    "faces": Figure(
        f"sensitivity --data celeba {SMALL} --preset faces --num 16", "fields.png",
        "On faces, the field of a pixel near one eye includes the other eye; that of the centre does not (Fig. 3)"),
    "manipulation": Figure(
        MARKED, "fields.png",
        "A W added to the data appears in the fields of the networks trained on them (Fig. 4)"),
    "gain": Figure(
        MARKED, "gain.png",
        "Gain of the networks along the W, beside the predicted curve"),
    "parametrization": Figure(
        "sensitivity --data cifar10 --preset parametrization --num 16", "fields.png",
        "Two fields of one network: at high noise that of epsilon is a point, that of x0 is not (appendix)"),
    "joint": Figure(
        "sensitivity --data cifar10 --preset architectures --num 16", "fields-joint.png",
        "The first figure, normalized jointly over the noise levels (appendix)"),
    "training": Figure(
        "sensitivity --data cifar10 --preset training --num 16", "fields.png",
        "Networks trained on epsilon have noisy fields at high noise (appendix)"),
    "optimal": Figure(
        "sensitivity --data cifar10 --limit 5000 --preset optimal --num 4", "fields-joint.png",
        "The optimal denoiser's field is large while several images share the weight, then vanishes (appendix)"),
    "spectra": Figure(f"data spectra --sources {SOURCES} {SMALL}", "spectra.png",
                      "Eigenvalues of the covariance of all datasets, at 32 x 32 (appendix)"),
    "held-out": Figure(
        f"report-card celeba-unet --data celeba {SMALL}", "report_card.png",
        "Error of one step on held-out faces, relative to that of the linear filter (Fig. 1)"),
    "one-step": Figure(  # on data that may be shown
        "report-card digits-unet --data digits", "one_step.png",
        "One step on a held-out digit: the optimal denoiser returns a training image instead (Fig. 1)"),
}


def make(names: list[str]) -> None:
    """Run each command once, and keep the named figures."""
    folder = DOCS / "figures"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for number, command in enumerate(dict.fromkeys(FIGURES[name].command for name in names)):
            out = Path(scratch) / str(number)
            if scorelens([*command.split(), "--out", str(out)]) != 0:
                print(f"failed: {command}", flush=True)
                continue
            for name in names:
                if FIGURES[name].command == command:
                    shutil.copy(out / FIGURES[name].picture, folder / f"{name}.png")
            if command.startswith("manipulation"):
                shutil.copy(out / "rows.jsonl", RESULTS / "manipulation.jsonl")


MEMORY = """
import json, torch, scorelens
from scorelens.results import peak_memory
images = scorelens.load_images("cifar10")
model = scorelens.build_denoiser("locality", images, threshold=0.05)
z = images[:1] + 1.2388 * scorelens.seeded_noise(images.shape, [0])
model.masks(1.2388)
before = peak_memory()
field = scorelens.sensitivity(model, z, 1.2388, (16, 16))
assert torch.isfinite(field).all()
print(json.dumps({"cell": "locality field", "images": len(images), "sigma": 1.2388, "pixel": [16, 16],
                  "before_bytes": before, "peak_bytes": peak_memory(), "budget_bytes": model.memory}))
"""


def memory() -> None:
    """Peak memory of the field of one pixel of CIFAR-10's locality model, on all images, in a fresh process."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    with atomic_file(RESULTS / "field_memory.jsonl") as temporary:
        temporary.write_text(json.dumps(json.loads(done.stdout)) + "\n")


if __name__ == "__main__":
    wanted = sys.argv[1:] or [name for name in FIGURES if not (DOCS / "figures" / f"{name}.png").exists()]
    if "memory" in wanted or not (RESULTS / "field_memory.jsonl").exists():
        memory()
    make([name for name in wanted if name != "memory"])
