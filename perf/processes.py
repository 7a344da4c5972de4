"""One step of the locality model, shared by the processes that torchrun started; perf.performance starts it.

    torchrun --nproc-per-node 2 -m perf.processes FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import scorelens
from perf.performance import MIDDLE, SEEDS, load, timed
from scorelens.results import peak_memory

ROUNDS = 3


def main(folder: Path) -> None:
    with scorelens.distributed.joined() as world:
        images = load("cifar10")
        model = scorelens.build_denoiser("locality", images, threshold=0.05)
        sigma = scorelens.ddim_sigmas(10)[MIDDLE].item()
        z = scorelens.seeded_noise(images.shape, SEEDS) * sigma
        x0_hat = model(z, sigma)  # makes the masks, chooses the plan
        found = {"seconds": min(timed(lambda: model(z, sigma))[0] for _ in range(ROUNDS)), "peak_bytes": peak_memory()}
        (folder / f"{world.rank}.json").write_text(json.dumps(found))
        if world.rank == 0:
            torch.save(x0_hat, folder / "x0_hat.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
