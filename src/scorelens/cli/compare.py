"""`scorelens compare`: how well each closed-form denoiser predicts what a trained network does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scorelens import distributed
from scorelens.analysis.comparison import Sampled, agreement, originality, sampled, single_steps
from scorelens.analysis.models import build_spec
from scorelens.cli.run_folder import Run, run_folder
from scorelens.data.images import ImageSet
from scorelens.denoisers import DENOISERS
from scorelens.denoisers.specs import Spec, parse_specs
from scorelens.distributed import choose_device
from scorelens.metrics import novelty
from scorelens.networks.adapters import Network
from scorelens.networks.load import load_network
from scorelens.networks.zoo import another_seed
from scorelens.noise import own_sigmas, seeded_noise
from scorelens.report.comparison import comparison_page, comparison_table, single_step_curves
from scorelens.report.figures import Row, labelled_rows
from scorelens.report.html import write_page
from scorelens.results import noise_record
from scorelens.types import Denoiser, ScorelensError

SHOWN = 12  # columns of the picture
SMALL = 256  # coordinates of an image, up to which every method is quick
QUICK = ("optimal", "nearest", "wiener", "kernel", "locality")


@dataclass(frozen=True)
class Setting:
    """What all methods of a comparison share."""

    images: ImageSet
    reference: Network
    name: str  # of the reference
    sigmas: list[float]
    seeds: range  # of the noise that is reported
    tuning_seeds: range  # of the noise that candidates are chosen on
    device: torch.device
    with_single_steps: bool

    def __post_init__(self) -> None:
        if not len(self.seeds):
            raise ScorelensError("num must be at least 1, got 0")

    def noise(self, seeds: range) -> Tensor:
        return seeded_noise(self.images.shape, seeds, device=self.device)

    def sample(self, denoiser: Denoiser, label: str, seeds: range | None = None) -> Sampled:
        return sampled(denoiser, self.noise(self.seeds if seeds is None else seeds), self.sigmas, label)


@dataclass(frozen=True)
class Method:
    """A row of the comparison: what was run, what came out."""

    name: str
    found: Sampled
    row: dict[str, Any] = field(default_factory=dict)


def compare(images: ImageSet, reference: str, *, denoisers: Sequence[str] = (),
            networks: Sequence[str] = (), num: int = 128, steps: int = 10, seed: int = 128, tuning_seed: int = 0,
            label: str | None = None, trust_pickle: bool = False, skip_single_steps: bool = False,
            device: str = "auto", out: Path | None = None) -> Path:
    """Compare denoisers with a trained network, from the same noise; returns the folder of the results.

    Args:
        reference: the network: a zoo name, a folder saved by diffusers, or a hub id.
        denoisers: names, with options after a colon (locality:threshold=0.05,softmax=batch-mean); of several values
            (threshold=0.02/0.05) the one with the best r2 on other noise is reported. By default all there are, for
            images of up to 16 x 16; for larger ones those that take seconds an image.
        networks: other networks to compare with the reference; another seed of a zoo network comes by itself.
        num: number of images per method.
        steps: number of noise levels, on the paper's grid (of the reference's own schedule).
        seed: the noise of image k is drawn from seed + k.
        tuning_seed: the same for the images that options are chosen on; the two must not overlap.
        label: class of a class-conditional reference, a number or null.
        trust_pickle: read weights saved as a pickle.
        skip_single_steps: only whole samples; spares half of the time.
        device: auto, cuda, mps or cpu.
        out: folder for the results; it must not exist. By default runs/compare-...
    """
    network = load_network(reference, shape=images.shape, label=_label(label), trust_pickle=trust_pickle)
    setting = Setting(images, network, Path(reference).name, own_sigmas(network.schedule, steps).tolist(),
                      range(seed, seed + num), range(tuning_seed, tuning_seed + num), choose_device(device),
                      not skip_single_steps)
    chosen = denoisers or (tuple(DENOISERS) if images.dim <= SMALL else QUICK)
    return carry_out("compare", f"{images.name}-{setting.name}", setting, networks, chosen, out)


def carry_out(command: str, folder: str, setting: Setting, networks: Sequence[str], denoisers: Sequence[str],
              out: Path | None, title: str = "") -> Path:
    """Run all methods, write what came out, and print the table."""
    specs = checked_specs(setting, denoisers)
    others = {name: load_network(name, shape=setting.images.shape) for name in _others(setting.name, networks)}
    for note in notes(setting):
        print(f"note: {note}")
    with run_folder(command, folder, out, setting.device) as run:
        methods = run_methods(setting, others, specs)
        if distributed.world().is_main:
            write_comparison(run, setting, methods, title)
    print(f"{comparison_table([m.row for m in methods])}\n\npage: {run.final / 'report.html'}")
    return run.final


def checked_specs(setting: Setting, denoisers: Sequence[str]) -> list[list[Spec]]:
    """The candidates of each method; options are never chosen on the noise that is reported."""
    specs, seeds, tuning = [parse_specs(text) for text in denoisers], setting.seeds, setting.tuning_seeds
    if any(len(candidates) > 1 for candidates in specs) and set(seeds) & set(tuning):
        raise ScorelensError(f"the noise seeds {seeds[0]}-{seeds[-1]} that are reported overlap those that options are "
                             f"chosen on, {tuning[0]}-{tuning[-1]}; choose another --seed or --tuning-seed")
    return specs


def run_methods(setting: Setting, others: dict[str, Network], specs: Sequence[Sequence[Spec]]) -> list[Method]:
    """The reference first, then other networks, then the denoisers in the order given."""
    walked = setting.sample(setting.reference, setting.name)
    methods = [Method(setting.name, walked, {"method": setting.name, "role": "reference", **_own(setting, walked)})]
    for name, network in others.items():
        role = "another seed" if name == another_seed(setting.name) else "network"
        methods.append(_measured(setting, name, network, walked, {"role": role}))
    tuned_on: list[Sampled] = []  # the reference on the other noise, if anything is to be chosen
    for candidates in specs:
        spec, choice = candidates[0], None
        if len(candidates) > 1:
            tuned_on = tuned_on or [setting.sample(setting.reference, setting.name, setting.tuning_seeds)]
            spec, choice = choose(setting, candidates, tuned_on[0])
        row = {"role": "denoiser", "denoiser": spec.name, "options": spec.options, "chosen": choice}
        methods.append(_measured(setting, spec.label, build_spec(spec, setting.images, setting.reference), walked, row))
    return methods


def choose(setting: Setting, candidates: Sequence[Spec], reference: Sampled) -> tuple[Spec, dict[str, Any]]:
    """The candidate with the best r2 on the tuning noise, and the record of the choice."""
    tried = [setting.sample(build_spec(spec, setting.images, setting.reference), f"choosing: {spec.label}",
                            setting.tuning_seeds) for spec in candidates]
    seeds = setting.tuning_seeds
    mine = torch.tensor([agreement(found, reference)["r2"]["mean"] for found in tried], dtype=torch.float64)
    scores = distributed.world().broadcast(mine).tolist()
    record = {"seeds": [seeds.start, seeds.stop - 1], "r2": dict(zip(map(str, candidates), scores, strict=True))}
    return candidates[max(range(len(scores)), key=scores.__getitem__)], record


def _measured(setting: Setting, name: str, denoiser: Denoiser, walked: Sampled, row: dict[str, Any]) -> Method:
    """One method against the reference, which has walked its own path already."""
    found = setting.sample(denoiser, name)
    row = {"method": name, **row, **agreement(found, walked), **_own(setting, found)}
    if setting.with_single_steps:
        row["single_steps"] = {
            "reference_path": single_steps(denoiser, setting.reference, walked, "reference", f"{name}, single steps"),
            "own_path": single_steps(denoiser, setting.reference, found, "denoiser", f"{name}, single steps")}
    return Method(name, found, row)


def _own(setting: Setting, found: Sampled) -> dict[str, Any]:
    return {**originality(found, setting.images), "seconds_per_image": sum(found.seconds) / len(found.images)}


def write_comparison(run: Run, setting: Setting, methods: Sequence[Method], title: str = "") -> None:
    """rows.jsonl, table.md, the pictures, and a page of all of it."""
    noise = setting.noise(setting.seeds)
    run.record.update(data=setting.images.describe(), reference={"name": setting.name, **setting.reference.describe()},
                      sigmas=setting.sigmas, noise=noise_record(setting.seeds, noise), notes=list(notes(setting)))
    rows = [m.row for m in methods]
    shared = {"reference": setting.name, "data": setting.images.describe(), "noise": run.record["noise"],
              "num": len(noise), "steps": len(setting.sigmas)}
    (run.folder / "rows.jsonl").write_text("".join(json.dumps({**row, **shared}) + "\n" for row in rows))
    (run.folder / "table.md").write_text(comparison_table(rows) + "\n")
    labelled_rows(list(pictures(setting, methods)), run.folder / "samples.png",
                  title=f"Samples from the same noise: {setting.name} and what predicts it",
                  columns=[f"seed {seed}" for seed in setting.seeds[:SHOWN]])
    if setting.with_single_steps:
        single_step_curves(rows, run.folder / "single_steps.png", reference=setting.name)
    write_page(comparison_page(rows, run.folder, run.record, title=title), run.folder / "report.html")


def pictures(setting: Setting, methods: Sequence[Method]) -> Iterator[Row]:
    """Columns are noise seeds; below the reference, the training image nearest to each of its samples."""
    for k, method in enumerate(methods):
        yield Row(method.name.replace(", ", "\n"), method.found.images[:SHOWN].cpu())
        if k == 0:
            nearest = novelty(method.found.images[:SHOWN], setting.images).index
            yield Row("nearest training image", setting.images[nearest], attached=True)


def notes(setting: Setting) -> Iterator[str]:
    """What a reader of the numbers should know."""
    described = setting.reference.describe()
    if "assumed" in described:
        yield f"{setting.name}: {described['assumed']}"
    trained = setting.reference.card.get("data", {})
    if trained and trained.get("fingerprint") != setting.images.fingerprint:
        yield (f"{setting.name} was trained on other images than these: {trained['name']}, {trained['split']} split, "
               f"{trained['count']} images")


def _others(reference: str, networks: Sequence[str]) -> list[str]:
    """Another seed of the reference, where the zoo has one, and the networks asked for; each once."""
    sibling = another_seed(reference)
    return list(dict.fromkeys([*([sibling] if sibling else []), *networks]))


def _label(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text
