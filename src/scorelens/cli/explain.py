"""`scorelens explain`: the verdict on one's own model."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scorelens.analysis.examination import Subject, build_models, examine, make_plan
from scorelens.analysis.verdict import as_records, verdict
from scorelens.cli.run_folder import run_folder
from scorelens.data import load_images
from scorelens.data.images import ImageSet
from scorelens.distributed import choose_device
from scorelens.files import write_json
from scorelens.networks.load import load_network
from scorelens.report.explain import write_explanation
from scorelens.results import noise_record
from scorelens.types import CheckFailedError, ScorelensError

MODELS = ("optimal", "wiener", "kernel", "locality")


def explain(images: ImageSet, checkpoint: str, *, holdout: str | None = None, test: ImageSet | None = None,
            models: Sequence[str] = MODELS, minutes: float = 5.0, fail_if_memorized: float | None = None, seed: int = 0,
            trust_pickle: bool = False, device: str = "auto", out: Path | None = None) -> Path:
    """Explain a trained network: does it memorize, does it generalize, what predicts it, where does it look?

    Args:
        checkpoint: the network: a folder saved by diffusers, a name of the zoo, or a hub id.
        holdout: a source of images of the same kind that it was not trained on; by default the data's test split (if
            the network has seen that too, give --split all, and a holdout).
        models: closed-form denoisers that may explain it, with their options.
        minutes: time to spend; how much is measured follows from it.
        fail_if_memorized: exit with code 1 if more than this share of the samples copies a training image.
        seed: the noise of sample k is drawn from seed + k.
        trust_pickle: read weights saved as a pickle.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/explain-...
    """
    if not minutes > 0:
        raise ScorelensError(f"minutes must be a number > 0, got {minutes:g}")
    if fail_if_memorized is not None and not 0 <= fail_if_memorized < 1:
        raise ScorelensError(f"fail_if_memorized is a share, at least 0 and below 1; got {fail_if_memorized:g}")
    clock, place = time.perf_counter(), choose_device(device)
    name = Path(checkpoint).name
    network = load_network(checkpoint, shape=images.shape, trust_pickle=trust_pickle)
    held_out = _held_out(images, holdout, test)
    with run_folder("explain", name, out, place) as run:
        subject = Subject(network, images, held_out, build_models(models, images), place, seed)
        plan = make_plan(subject, 60 * minutes - (time.perf_counter() - clock))
        print(f"{name} on {images.name}: {plan}")
        found = examine(subject, plan)
        sentences = verdict(found.numbers)
        record = {"network": {"name": name, **network.describe()}, "data": images.describe(),
                  "held_out": held_out.describe() if held_out is not None else None, "plan": asdict(plan),
                  "noise": noise_record(range(seed, seed + plan.samples), subject.noise(plan.samples)),
                  "findings": found.numbers, "verdict": as_records(sentences),
                  "repeat": _repeat(images, checkpoint, {
                      "holdout": holdout, "models": models, "minutes": minutes, "seed": seed,
                      "trust-pickle": trust_pickle})}
        run.record.update(record)
        write_json(run.folder / "verdict.json", record)
        write_explanation(record, found.suspicious, found.nearest, found.fields, run.folder, found.card)
    print("\n".join(f"- {sentence.text}" for sentence in sentences))
    print(f"page: {run.final / 'report.html'}")
    share = found.numbers["memorization"]["memorized"]["mean"]
    if fail_if_memorized is not None and share > fail_if_memorized:
        raise CheckFailedError(f"{name} memorizes: {share:.1%} of its samples copy a training image, more than "
                               f"{fail_if_memorized:.1%}")
    return run.final


def _repeat(images: ImageSet, checkpoint: str, options: Mapping[str, Any]) -> str:
    """The command that does it all again, with the flags of the data too."""
    about = {"data": images.name, "split": images.split, **images.record, **options}
    about["data-seed"] = images.record.get("seed")
    about["resolution"] = "x".join(map(str, images.record.get("resolution", ())))
    words = ["scorelens", "explain", checkpoint]
    for flag in ("data", "split", "limit", "data-seed", "classes", "resolution", "channels", "flips", "mark", "gamma",
                 *options):
        match about.get(flag):
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
    """What was given, else the test split; of images in the shape of the data."""
    if holdout is None:
        return test if images.describe()["split"] == "train" else None
    found = load_images(holdout, resolution=images.shape[1:], channels=images.shape[0])
    if found.fingerprint == images.fingerprint:
        raise ScorelensError("the held-out images are the training images themselves")
    return found
