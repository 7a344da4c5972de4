"""What several processes compute together, and one alone: the program that tests/test_distributed.py starts.

    torchrun --nproc-per-node 2 -m tests.sharing FOLDER commands
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import distributed as dist

import scorelens
from scorelens import DENOISERS, distributed
from scorelens.cli.parser import main
from scorelens.data import arrays
from scorelens.statistics.rotation import rotated

SIGMAS = (10.0, 0.3)
VARIANTS: dict[str, tuple[str, dict]] = {
    **{name: (name, {"samples": 2} if name in ("measured", "pspc-flex") else {}) for name in DENOISERS},
    **{f"locality {plan}": ("locality", {"plan": plan}) for plan in ("dense", "sparse", "differences", "fused")},
    "locality in 6 batches": ("locality", {"softmax": "batch-mean", "softmax_batch": 17}),
    "locality in 2 batches": ("locality", {"softmax": "batch-mean", "softmax_batch": 60}),  # fewer than processes
    "locality, leading components": ("locality", {"components": 12}),
    "optimal, few neighbours": ("optimal", {"neighbours": 7}),
    "els, whole translations": ("els", {"patch_size": 8}),
    "els, patches inside": ("els", {"patch_size": 3, "bank": "inside"}),
    "els, some patches": ("els", {"patch_size": 3, "patch_limit": 500}),
    "els, clusters": ("els", {"patch_size": 3, "clusters": 6, "searched": 2}),
}
ATTRIBUTED = ("optimal", "locality", "locality in 6 batches", "locality in 2 batches", "locality-equivariant",
              "multiscale", "pspc-square", "els", "els, patches inside", "kernel")
DIFFERENTIATED = ("optimal", "locality", "locality in 6 batches", "pspc-square", "els")
COMMANDS = {
    "sample": ["sample", "--data", "digits", "--limit", "301", "--num", "3", "--steps", "4", "--profile"],
    "compare": ["compare", "--data", "digits", "--split", "train", "--reference", "digits-unet", "--num", "3",
                "--steps", "3", "--model", "nearest", "locality:threshold=0.05/0.3"],
    "bench": ["bench", "run", "held-out", "--only", "digits: locality", "cifar10: locality", "--root", "nowhere"],
}
MANY = (24_001, 16, 16, 3)  # the images of the test of memory


def numbers() -> Iterator[tuple[str, torch.Tensor]]:
    """Everything that must not depend on the number of processes."""
    images = scorelens.load_images("digits", limit=101)
    z = images[:3] + 0.5 * scorelens.seeded_noise(images.shape, range(3))
    models = {name: scorelens.build_denoiser(method, images, **options) for name, (method, options) in VARIANTS.items()}
    for name, model in models.items():
        yield name, torch.stack([model(z, sigma) for sigma in SIGMAS])
    for name in DIFFERENTIATED:
        yield f"{name}, gradient", scorelens.sensitivity(models[name], z, 0.7, (4, 4))
    for name in ATTRIBUTED:
        who = scorelens.attribute(models[name], z, 0.7, top=5)
        yield f"{name}, weights", who.behind.weight
        yield f"{name}, effective number", who.behind.effective
        yield f"{name}, weights behind outputs", who.outputs.weight
        yield f"{name}, first image", who.behind.index[:, :, 0]
    yield from statistics(images)
    few = images.subset([5, 50])
    yield "two images", torch.stack([scorelens.build_denoiser("locality", few)(z, sigma) for sigma in SIGMAS])
    marked = scorelens.add_mark(scorelens.load_images("digits", limit=40, seed=3), "I", seed=3)
    yield "marked images", scorelens.build_denoiser("locality", marked, plan="differences")(z, 0.7)


def statistics(images: scorelens.ImageSet) -> Iterator[tuple[str, torch.Tensor]]:
    stats = scorelens.fit_gaussian(images, cache=False)
    again = scorelens.fit_gaussian(images)
    assert torch.equal(stats.eigenvectors, again.eigenvectors) and torch.equal(stats.mean, again.mean)
    yield "mean", stats.mean
    yield "variances", stats.eigenvalues
    yield "covariance", (stats.eigenvectors * stats.eigenvalues) @ stats.eigenvectors.T
    yield "rotated images", torch.from_numpy(np.array(rotated(images, stats))).abs()  # components have no sign
    found = scorelens.novelty(images[40:60] + 0.1, images)
    yield "nearest image", found.index
    yield "novelty", found.mse
    yield "centre", torch.from_numpy(images.centre())


def memory(path: Path) -> dict:
    """How much of a large file of images each process reads, loads and holds, having fitted and averaged them all."""
    with mock.patch.object(arrays, "_read_npz", wraps=arrays._read_npz) as load:
        images = scorelens.load_images(f"npz:{path}")
    scorelens.fit_gaussian(images, cache=False)
    z = scorelens.seeded_noise(images.shape, range(1))
    for name, options in (("optimal", {}), ("ls", {"patch_size": 3})):
        scorelens.build_denoiser(name, images, **options)(z, 1.0)
    return {"loaded": load.call_count, "own": len(images.shard()), "centre": int(images.centre().sum()),
            "held": held(images), "mapped": isinstance(images.pixels, np.memmap),
            "sliced": np.shares_memory(images.shard().pixels, images.pixels)}


def held(images: scorelens.ImageSet) -> int:
    """Bytes of the images' file that are in this process's memory."""
    maps = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    own = [one for one in maps if f"shared-{images.fingerprint}" in one.splitlines()[0]]
    return sum(int(re.search(r"^Rss: +(\d+) kB", one, re.MULTILINE)[1]) * 1024 for one in own)


def together(folder: Path) -> None:
    """Numbers of all ranks, and what each has to say about itself."""
    with distributed.joined() as world:
        found = {name: value.numpy() for name, value in numbers()}
        facts = {"size": world.size, **memory(folder / "many.npz")}
    np.savez(folder / f"numbers-{world.rank}.npz", **found)
    (folder / f"facts-{world.rank}.json").write_text(json.dumps({**facts, "destroyed": not dist.is_initialized()}))


def by_commands(folder: Path) -> list[int]:
    codes = [main([*argv, "--out", str(folder / name)]) for name, argv in COMMANDS.items()]
    return [*codes, main([*COMMANDS["bench"], "--out", str(folder / "bench")])]  # goes on: nothing is left to do


if __name__ == "__main__":
    torch.set_num_threads(1)
    together(Path(sys.argv[1]))
    if sys.argv[2:] == ["commands"]:
        assert by_commands(Path(sys.argv[1])) == [0, 0, 0, 0]
        sys.exit(main(["train", "--data", "digits", "--out", str(Path(sys.argv[1]) / "train")]))
