"""Agreement of denoisers with a network: whole samples from the same noise, and single steps from the same z."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scorelens import distributed, progress
from scorelens.analysis.guidance import Guidance, choose_guidance
from scorelens.analysis.models import build_spec, load_for, named_network
from scorelens.data.images import ImageSet
from scorelens.denoisers import DENOISERS, denoiser_names
from scorelens.denoisers.specs import Spec, parse_specs
from scorelens.files import fresh_folder, write_json
from scorelens.metrics import MEMORIZED_RATIO, mse, novelty, pearson, r2, summary
from scorelens.networks.adapters import Network
from scorelens.networks.zoo import another_seed
from scorelens.noise import own_sigmas, seeded_noise
from scorelens.report.comparison import comparison_table, single_step_figure, write_comparison
from scorelens.report.figures import Figure
from scorelens.report.figures import Row as ImageRow
from scorelens.results import Row, noise_record, run_record, write_rows
from scorelens.sampling import Samples, sample
from scorelens.types import Denoiser, ScorelensError

SHOWN = 12  # samples in the picture
SMALL = 256  # images with at most this many coordinates are compared with all denoisers by default
QUICK = ("optimal", "nearest", "wiener", "kernel", "locality")


def agreement(samples: Samples, reference: Samples) -> dict[str, dict[str, float]]:
    """r2, Pearson correlation and MSE of the last predictions, each with mean, std, median and 95 % interval."""
    pair = samples.prediction, reference.prediction
    return {name: summary(metric(*pair)) for name, metric in (("r2", r2), ("pearson", pearson), ("mse", mse))}


def originality(samples: Samples, images: ImageSet) -> dict[str, Any]:
    """Distances of the final images to the nearest training images, and the memorized share."""
    nearest = novelty(samples.images, images)
    return {"novelty_mse": summary(nearest.mse), "novelty_rms": summary(nearest.rms),
            "memorized": summary((nearest.ratio < MEMORIZED_RATIO).double())}


@torch.no_grad()
def single_steps(model: Denoiser, path: Samples, label: str, *, path_is_reference: bool = True) -> list[dict[str, Any]]:
    """r2 and MSE between a model's predictions and those of a trajectory, from the same z, at each step."""
    predictions = ((step, model(step.z, step.sigma)) for step in path.steps)
    rows = []
    for step, x0_hat in progress.steps(predictions, label, len(path.steps)):
        pair = (x0_hat, step.x0_hat) if path_is_reference else (step.x0_hat, x0_hat)
        rows.append({"sigma": step.sigma, "r2": summary(r2(*pair)), "mse": summary(mse(*pair))})
    return rows


@dataclass(frozen=True, eq=False)
class Comparison:
    """How well each method predicts a network; the first row is the network itself."""

    images: ImageSet
    sigmas: list[float]
    rows: list[Row]
    samples: list[Samples]  # of each row
    record: Mapping[str, Any]
    title: str = ""

    def table(self) -> str:
        """One line per method, as Markdown."""
        return comparison_table(self.rows)

    def figure(self) -> Figure:
        """The unexplained share of single predictions, by noise level."""
        return single_step_figure(self.rows, self.rows[0].denoiser)

    def save(self, folder: str | Path) -> Path:
        """Write rows, run.json, table, pictures and report.html into a new folder (under torchrun, rank 0 does)."""
        if distributed.world().is_main:
            with fresh_folder(Path(folder)) as partial:
                write_rows(partial / "rows.jsonl", self.rows)
                write_json(partial / "run.json", self.record)
                write_comparison(self.rows, self._pictures(), self.record, partial, self.title)
        return Path(folder).expanduser()

    def _pictures(self) -> list[ImageRow]:
        """The first samples of each method; below the network's, the training image nearest to each of them."""
        rows = [ImageRow(row.label.replace(", ", "\n"), self.images.pictures(samples.images[:SHOWN].cpu()))
                for row, samples in zip(self.rows, self.samples, strict=True)]
        nearest = self.images[novelty(self.samples[0].images[:SHOWN], self.images).index]
        return [rows[0], ImageRow("nearest training image", self.images.pictures(nearest), attached=True), *rows[1:]]


def compare(reference: str | Network, images: ImageSet, models: Sequence[str] = (), *,
            networks: Mapping[str, Network] | None = None, num: int = 128, steps: int = 10, seed: int = 128,
            tuning_seed: int = 0, labels: Sequence[int | str] = (), guidance: float | None = None,
            with_single_steps: bool = True, device: torch.device | str = "cpu", name: str | None = None,
            title: str = "") -> Comparison:
    """Compare closed-form denoisers and other networks with a network, from the same noise.

    Args:
        reference: the network to predict: a zoo name, a folder, a hub id, or a result of load_network.
        images: its training images.
        models: denoisers, with options after a colon, and other networks. Of several values (threshold=0.02/0.05) the
            one with the best r2 on other noise is reported. By default all denoisers, or for images larger than 16 x 16
            those that take seconds. Another seed of a zoo network is always included.
        networks: other networks that are already loaded, by name.
        num: number of samples per method.
        steps: number of noise levels, on the paper's grid (of the network's own schedule).
        seed: the noise of sample k is drawn from seed + k.
        tuning_seed: the same for the noise that options are chosen on; the two must not overlap.
        labels: classes of the samples, by number or name, repeated as often as needed: network and formulas are
            conditional on them.
        guidance: weight of classifier-free guidance towards these classes, for all: 0 ignores them, 1 (the default) is
            the conditional denoiser.
        with_single_steps: also compare single predictions along the trajectories.
        name: name of the reference; by default its zoo name or folder.
        title: title of the page.
    """
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    if num < 1:
        raise ScorelensError(f"num must be at least 1, got {num}")
    network, name = named_network(reference, images, name)
    towards = choose_guidance(images, labels, guidance, num)
    denoiser = network if towards is None else towards.network(network)
    denoisers = [model for model in models if model.partition(":")[0] in denoiser_names()]
    specs = [parse_specs(text) for text in denoisers or (DENOISERS if images.dim <= SMALL else QUICK)]
    seeds, tuning = range(seed, seed + num), range(tuning_seed, tuning_seed + num)
    if any(len(candidates) > 1 for candidates in specs) and set(seeds) & set(tuning):
        raise ScorelensError(f"the noise seeds {seeds[0]}-{seeds[-1]} of the reported samples overlap those for "
                             f"choosing options, {tuning[0]}-{tuning[-1]}; choose another --seed or --tuning-seed")
    others = [another_seed(name), *(model for model in models if model not in denoisers)]
    found = {other: load_for(other, images) for other in dict.fromkeys(others) if other} | dict(networks or {})
    setting = _Setting(images, denoiser, name, towards, own_sigmas(network.schedule, steps).tolist(), seeds, tuning,
                       device, with_single_steps, noise_record(seeds, seeded_noise(images.shape, seeds)))
    guided = {other: each if towards is None else towards.network(each) for other, each in found.items()}
    rows, samples = zip(*setting.measure_all(guided, specs), strict=True)
    record = {"command": "compare", "data": images.describe(), "reference": {"name": name, **network.describe()},
              "sigmas": setting.sigmas, "noise": setting.noise, "notes": list(_notes(network, name, images)),
              **({"guidance": towards.describe()} if towards else {}), **run_record(started, clock, device)}
    return Comparison(images, setting.sigmas, list(rows), list(samples), record, title)


@dataclass(frozen=True)
class _Setting:
    """The settings that all methods of a comparison share."""

    images: ImageSet
    reference: Denoiser
    name: str  # of the reference
    guidance: Guidance | None
    sigmas: list[float]
    seeds: range  # of the reported samples
    tuning_seeds: range  # of the samples that options are chosen on
    device: torch.device | str
    with_single_steps: bool
    noise: Mapping[str, Any]

    def measure_all(self, networks: Mapping[str, Denoiser],
                    specs: Sequence[Sequence[Spec]]) -> Iterator[tuple[Row, Samples]]:
        """The reference first, then other networks, then the denoisers in the order given."""
        row, reference = self._measure(Spec(self.name), self.reference, "reference")
        yield row, reference
        for name, network in networks.items():
            role = "another seed" if name == another_seed(self.name) else "network"
            yield self._measure(Spec(name), network, role, reference)
        tuning = None  # the reference's samples for choosing options, if any are to be chosen
        for candidates in specs:
            spec, choice = candidates[0], None
            if len(candidates) > 1:
                tuning = tuning or self._sample(self.reference, self.name, self.tuning_seeds)
                spec, choice = self._choose(candidates, tuning)
            yield self._measure(spec, self._build(spec), "denoiser", reference, choice)

    def _build(self, spec: Spec) -> Denoiser:
        return build_spec(spec, self.images, self.reference, self.guidance)

    def _sample(self, denoiser: Denoiser, label: str, seeds: range) -> Samples:
        noise = seeded_noise(self.images.shape, seeds, device=self.device)
        with torch.no_grad():
            return sample(denoiser, noise, self.sigmas, label=label)

    def _choose(self, candidates: Sequence[Spec], reference: Samples) -> tuple[Spec, dict[str, Any]]:
        """The candidate with the best r2 on the tuning noise, and the record of the choice."""
        samples = [self._sample(self._build(spec), f"choosing: {spec.label}", self.tuning_seeds) for spec in candidates]
        means = torch.tensor([agreement(each, reference)["r2"]["mean"] for each in samples], dtype=torch.float64)
        scores = distributed.world().broadcast(means).tolist()
        record = {"seeds": [self.tuning_seeds[0], self.tuning_seeds[-1]],
                  "r2": dict(zip(map(str, candidates), scores, strict=True))}
        return candidates[max(range(len(scores)), key=scores.__getitem__)], record

    def _measure(self, spec: Spec, denoiser: Denoiser, role: str, reference: Samples | None = None,
                 chosen: Mapping[str, Any] | None = None) -> tuple[Row, Samples]:
        """The row and samples of one method; without a reference, those of the reference itself."""
        samples = self._sample(denoiser, spec.label, self.seeds)
        metrics = {**(agreement(samples, reference) if reference else {}), **originality(samples, self.images),
                   "seconds_per_image": sum(samples.seconds) / len(samples.images)}
        if reference and self.with_single_steps:
            label = f"{spec.label}, single steps"
            metrics["single_steps"] = {
                "reference_path": single_steps(denoiser, reference, label),
                "own_path": single_steps(self.reference, samples, label, path_is_reference=False)}
        settings = {"role": role, "reference": self.name, "num": len(self.seeds), "steps": len(self.sigmas),
                    **({"chosen": chosen} if chosen else {}),
                    **({"guidance": self.guidance.describe()} if self.guidance else {})}
        row = Row(f"{role}: {spec.name}", spec.name, spec.options, settings, metrics, self.images.describe(),
                  noise=self.noise)
        return row, samples


def _notes(network: Network, name: str, images: ImageSet) -> Iterator[str]:
    """Warnings for readers of the numbers."""
    yield from (f"{name}: {note}" for note in network.notes)
    trained = network.card.get("data", {})
    if trained and trained.get("fingerprint") != images.fingerprint:
        yield (f"{name} was trained on other images than these: {trained['name']}, {trained['split']} split, "
               f"{trained['count']} images")
