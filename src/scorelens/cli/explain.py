"""`scorelens explain`: the verdict on a trained network."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scorelens.analysis import examination
from scorelens.cli.run_folder import output_folder
from scorelens.data import load_images
from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device
from scorelens.networks.load import load_network
from scorelens.types import CheckFailedError, ScorelensError


def explain(images: ImageSet, checkpoint: str, *, holdout: str | None = None, test: ImageSet | None = None,
            formulas: Sequence[str] = examination.FORMULAS, minutes: float = 5.0,
            fail_if_memorized: float | None = None, seed: int = 0, trust_pickle: bool = False, device: str = "auto",
            out: Path | None = None) -> Path:
    """Explain a trained network: does it memorize, does it generalize, which formula predicts it, which pixels it uses.

    Args:
        checkpoint: the network: a folder saved by diffusers, a zoo name, or a hub id.
        holdout: a source of images of the same kind that it was not trained on; by default the data's test split (if
            the network was trained on that too, give --split all and a holdout).
        fail_if_memorized: exit with code 1 if more than this share of the samples copies a training image.
        trust_pickle: read weights saved as a pickle.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/explain-...
    """
    if fail_if_memorized is not None and not 0 <= fail_if_memorized < 1:
        raise ScorelensError(f"fail_if_memorized is a share, at least 0 and below 1; got {fail_if_memorized:g}")
    name, torch_device = Path(checkpoint).name, choose_device(device)
    network = load_network(checkpoint, shape=images.shape, trust_pickle=trust_pickle)
    heldout = _held_out(images, holdout, test)
    folder = output_folder("explain", name, out)
    options = {"holdout": holdout, "formulas": formulas, "minutes": minutes, "seed": seed, "trust-pickle": trust_pickle}
    result = examination.explain(network, images, heldout, formulas=formulas, minutes=minutes, seed=seed,
                                 device=torch_device, name=name, repeat=_repeat(images, checkpoint, options),
                                 on_plan=lambda plan: print(f"{name} on {images.name}: {plan}"))
    result.save(folder)
    print(f"{result.table()}\npage: {folder / 'report.html'}")
    if fail_if_memorized is not None and result.memorized > fail_if_memorized:
        raise CheckFailedError(f"{name} memorizes: {result.memorized:.1%} of its samples copy a training image, more "
                               f"than {fail_if_memorized:.1%}")
    return folder


def _repeat(images: ImageSet, checkpoint: str, options: Mapping[str, Any]) -> str:
    """The command that repeats this run, with the flags of the data."""
    values = {"data": images.name, "split": images.split, **images.record, **options}
    values["data-seed"] = images.record.get("seed")
    values["resolution"] = "x".join(map(str, images.record.get("resolution", ())))
    words = ["scorelens", "explain", checkpoint]
    for flag in ("data", "split", "limit", "data-seed", "classes", "resolution", "channels", "flips", "mark", "gamma",
                 *options):
        match values.get(flag):
            case None | False | "":
                pass
            case True:
                words.append(f"--{flag}")
            case list() | tuple() as several:
                words += [f"--{flag}", *map(str, several)]
            case value:
                words += [f"--{flag}", f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _held_out(images: ImageSet, holdout: str | None, test: ImageSet | None) -> ImageSet | None:
    """The images of `holdout` in the shape of the data, by default the test split of data that are a train split."""
    if holdout is None:
        return test if images.describe()["split"] == "train" else None
    heldout = load_images(holdout, resolution=images.shape[1:], channels=images.shape[0])
    if heldout.fingerprint == images.fingerprint:
        raise ScorelensError("the held-out images are the training images themselves")
    return heldout
