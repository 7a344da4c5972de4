"""`scorelens explain`: the verdict on a trained network."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scorelens.analysis import examination
from scorelens.analysis.models import Loading
from scorelens.analysis.verdict import THRESHOLDS, above, enough_samples
from scorelens.cli.load_networks import load_named
from scorelens.cli.run_folder import output_folder
from scorelens.data import load_images
from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device
from scorelens.types import CheckFailedError, ScorelensError

SMALLEST = 0.0001  # share of copies that can be asked about: 38,000 samples
UNDECIDED = 3  # exit code


def explain(images: ImageSet, checkpoint: str, *, holdout: str | None = None, test: ImageSet | None = None,
            formulas: Sequence[str] = examination.FORMULAS, minutes: float = 5.0, samples: int | None = None,
            fail_if_memorized: float | None = None, seed: int = 0, loading: Loading | None = None,
            device: str = "auto", out: Path | None = None) -> Path:
    """Explain a trained network: does it memorize, does it generalize, which formula predicts it, which pixels it uses.

    Args:
        checkpoint: the network: a checkpoint file, a folder saved by diffusers, a zoo name, a hub id or paper:NAME.
        holdout: a source of images of the same kind that it was not trained on; by default the data's test split (if
            the network was trained on that too, give --split all and a holdout).
        fail_if_memorized: exit with code 1 if more than this share of the samples copies a training image, and with 3
            if that cannot be told from them; enough are drawn to show that none does.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/explain-...
    """
    if fail_if_memorized is not None and not SMALLEST <= fail_if_memorized < 1:
        raise ScorelensError(f"fail_if_memorized is a share, at least {SMALLEST} (no number of samples shows that none "
                             f"is a copy) and below 1; got {fail_if_memorized:g}")
    if fail_if_memorized is not None and samples is None and fail_if_memorized < THRESHOLDS["memorized"][0]:
        samples = enough_samples(0.0, fail_if_memorized)
    name, torch_device = Path(checkpoint).name, choose_device(device)
    network = load_named(checkpoint, images, loading)
    heldout = _held_out(images, holdout, test)
    folder = output_folder("explain", name, out)
    options = {"holdout": holdout, "formulas": formulas, "minutes": minutes, "samples": samples, "seed": seed,
               **vars(loading or Loading())}
    result = examination.explain(network, images, heldout, formulas=formulas, minutes=minutes, samples=samples,
                                 seed=seed, device=torch_device, name=name, repeat=_repeat(images, checkpoint, options),
                                 on_plan=lambda plan: print(f"{name} on {images.name}: {plan}"))
    result.save(folder)
    print(f"{result.table()}\npage: {folder / 'report.html'}")
    if fail_if_memorized is not None:
        _check_memorized(name, result, fail_if_memorized)
    return folder


def _check_memorized(name: str, result: examination.Verdict, limit: float) -> None:
    """Raise if more than this share of the samples are copies, or if that cannot be told."""
    numbers = result.findings.numbers["memorization"]
    share, count = numbers["memorized"], numbers["samples"]
    found = f"{share['mean']:.1%} of {count} samples copy a training image (95 % interval {share['low']:.1%} to " \
            f"{share['high']:.1%})"
    match above(share, limit):
        case True:
            raise CheckFailedError(f"{name} memorizes: {found}, more than {limit:.1%}")
        case None:
            needed = enough_samples(share["mean"], limit)
            advice = f"--samples {needed} would tell" if needed else "the share is too near the limit"
            raise CheckFailedError(f"it cannot be told whether {name} memorizes: {found}, and the limit is "
                                   f"{limit:.1%}; {advice}", code=UNDECIDED)


def _repeat(images: ImageSet, checkpoint: str, options: Mapping[str, Any]) -> str:
    """The command that repeats this run, with the flags of the data."""
    values = {"data": images.name, "split": images.split, **images.record, **options}
    values["data-seed"] = images.record.get("seed")
    values["autoencoder"] = images.record.get("autoencoder", {}).get("name")
    values["resolution"] = "x".join(map(str, images.record.get("resolution", ())))
    words = ["scorelens", "explain", checkpoint]
    for flag in ("data", "split", "limit", "data-seed", "classes", "resolution", "channels", "flips", "mark", "gamma",
                 "autoencoder", *options):
        flag, value = flag.replace("_", "-"), values.get(flag)
        match value:
            case None | False | "":
                pass
            case True:
                words.append(f"--{flag}")
            case list() | tuple() as several:
                words += [f"--{flag}", *map(str, several)]
            case _:
                words += [f"--{flag}", f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _held_out(images: ImageSet, holdout: str | None, test: ImageSet | None) -> ImageSet | None:
    """The images of `holdout` in the shape of the data, by default the test split of data that are a train split."""
    if holdout is None:
        return test if images.describe()["split"] == "train" else None
    channels, *size = images.record.get("image_shape", images.shape)
    heldout = load_images(holdout, resolution=size, channels=channels, autoencoder=images.autoencoder)
    if heldout.fingerprint == images.fingerprint:
        raise ScorelensError("the held-out images are the training images themselves")
    return heldout
