"""How well denoisers predict a network: whole samples from the same noise, and single steps from the same z."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scorelens import distributed, progress
from scorelens.analysis.models import build_spec
from scorelens.data.images import ImageSet
from scorelens.denoisers import DENOISERS, denoiser_names
from scorelens.denoisers.specs import Spec, parse_specs
from scorelens.files import fresh_folder, write_json
from scorelens.metrics import MEMORIZED_RATIO, mse, novelty, pearson, r2, summary
from scorelens.networks.adapters import Network
from scorelens.networks.load import load_network
from scorelens.networks.zoo import another_seed
from scorelens.noise import own_sigmas, seeded_noise
from scorelens.results import Row, noise_record, run_record, write_rows
from scorelens.sampling import Samples, sample
from scorelens.types import Denoiser, ScorelensError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 12  # columns of the picture
SMALL = 256  # coordinates of an image, up to which every method is quick
QUICK = ("optimal", "nearest", "wiener", "kernel", "locality")


def agreement(found: Samples, reference: Samples) -> dict[str, dict[str, float]]:
    """r2, Pearson correlation and MSE of the last predictions, each with mean, std, median and 95 % interval."""
    pair = found.prediction, reference.prediction
    return {name: summary(metric(*pair)) for name, metric in (("r2", r2), ("pearson", pearson), ("mse", mse))}


def originality(found: Samples, images: ImageSet) -> dict[str, Any]:
    """How far the final images are from the training images."""
    nearest = novelty(found.images, images)
    return {"novelty_mse": summary(nearest.mse), "novelty_rms": summary(nearest.rms),
            "memorized": summary((nearest.ratio < MEMORIZED_RATIO).double())}


@torch.no_grad()
def single_steps(denoiser: Denoiser, reference: Denoiser, path: Samples, owner: str,
                 label: str = "single steps") -> list[dict[str, Any]]:
    """r2 between both predictions from the same z, at each point of a trajectory that `owner` made.

    Whoever walked the path has predicted already; only the other is asked again.
    """
    asked = reference if owner == "denoiser" else denoiser
    asking = ((step, asked(step.z, step.sigma)) for step in path.steps)
    rows = []
    for step, other in progress.steps(asking, label, len(path.steps)):
        pair = (step.x0_hat, other) if owner == "denoiser" else (other, step.x0_hat)
        rows.append({"sigma": step.sigma, "r2": summary(r2(*pair)), "mse": summary(mse(*pair))})
    return rows


@dataclass(frozen=True, eq=False)
class Compared:
    """One method of a comparison: its row, and the trajectory that was scored."""

    row: Row
    samples: Samples


@dataclass(frozen=True, eq=False)
class Comparison:
    """A network, and how well each method predicts it; the first method is the network itself."""

    images: ImageSet
    sigmas: list[float]
    methods: list[Compared]
    record: Mapping[str, Any]
    title: str = ""

    @property
    def rows(self) -> list[Row]:
        return [method.row for method in self.methods]

    @property
    def name(self) -> str:
        return self.methods[0].row.denoiser

    def table(self) -> str:
        """One line per method, as Markdown."""
        from scorelens.report.comparison import comparison_table

        return comparison_table(self.rows)

    def figure(self) -> Figure:
        """What single predictions leave unexplained, by noise level."""
        from scorelens.report.comparison import single_step_figure

        return single_step_figure(self.rows, self.name)

    def save(self, folder: str | Path) -> Path:
        """Write rows, run.json, table, pictures and report.html into a new folder (under torchrun, rank 0 does)."""
        from scorelens.report.comparison import write_comparison

        if distributed.world().is_main:
            with fresh_folder(Path(folder)) as partial:
                write_rows(partial / "rows.jsonl", self.rows)
                write_json(partial / "run.json", self.record)
                write_comparison(self.rows, list(self._pictures()), self.record, partial, self.title)
        return Path(folder)

    def _pictures(self) -> Iterator[tuple[str, Tensor]]:
        """Rows of samples by noise seed; below the network's, the training image nearest to each of them."""
        for k, method in enumerate(self.methods):
            images = method.samples.images[:SHOWN]
            yield method.row.label.replace(", ", "\n"), images.cpu()
            if k == 0:
                yield "", self.images[novelty(images, self.images).index]


@dataclass(frozen=True)
class _Setting:
    """What all methods of a comparison share."""

    images: ImageSet
    reference: Network
    name: str  # of the reference
    sigmas: list[float]
    seeds: range  # of the noise that is reported
    tuning_seeds: range  # of the noise that options are chosen on
    device: torch.device | str
    single_steps: bool
    noise: Mapping[str, Any] = field(default_factory=dict)

    def sample(self, denoiser: Denoiser, label: str, seeds: range | None = None) -> Samples:
        noise = seeded_noise(self.images.shape, self.seeds if seeds is None else seeds, device=self.device)
        with torch.no_grad():
            return sample(denoiser, noise, self.sigmas, label=label)

    def row(self, denoiser: str, options: Mapping[str, Any], role: str, metrics: Mapping[str, Any],
            chosen: Mapping[str, Any] | None = None) -> Row:
        settings = {"role": role, "reference": self.name, "num": len(self.seeds), "steps": len(self.sigmas),
                    **({"chosen": chosen} if chosen else {})}
        return Row(f"{role}: {denoiser}", denoiser, options, settings, metrics, self.images.describe(),
                   noise=self.noise)


def compare(reference: str | Network, images: ImageSet, models: Sequence[str] = (), *, num: int = 128,
            steps: int = 10, seed: int = 128, tuning_seed: int = 0, with_single_steps: bool = True,
            device: torch.device | str = "cpu", name: str | None = None, title: str = "") -> Comparison:
    """Compare closed-form denoisers and other networks with a network, from the same noise.

    Args:
        reference: the network to predict: a zoo name, a folder, a hub id, or what load_network returns.
        images: its training images.
        models: denoisers, with options after a colon, and other networks. Of several values (threshold=0.02/0.05) the
            one with the best r2 on other noise is reported. By default all denoisers, or for images larger than 16 x 16
            those that take seconds. Another seed of a zoo network is added by itself.
        num: number of samples per method.
        steps: number of noise levels, on the paper's grid (of the network's own schedule).
        seed: the noise of sample k is drawn from seed + k.
        tuning_seed: the same for the noise that options are chosen on; the two must not overlap.
        with_single_steps: also compare single predictions along the trajectories.
        name: what to call the reference; by default its zoo name or folder.
        title: of the page.
    """
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    if num < 1:
        raise ScorelensError(f"num must be at least 1, got {num}")
    network = load_network(reference, shape=images.shape) if isinstance(reference, str) else reference
    called = name or (Path(reference).name if isinstance(reference, str) else "network")
    seeds = range(seed, seed + num)
    setting = _Setting(images, network, called, own_sigmas(network.schedule, steps).tolist(), seeds,
                       range(tuning_seed, tuning_seed + num), device, with_single_steps,
                       noise_record(seeds, seeded_noise(images.shape, seeds)))
    known = denoiser_names()
    denoisers = [model for model in models if model.partition(":")[0] in known]
    networks = [model for model in models if model not in denoisers]
    specs = _checked_specs(setting, denoisers or (tuple(DENOISERS) if images.dim <= SMALL else QUICK))
    others = {other: load_network(other, shape=images.shape) for other in _others(called, networks)}
    methods = list(_methods(setting, others, specs))
    record = {"command": "compare", "data": images.describe(), "reference": {"name": called, **network.describe()},
              "sigmas": setting.sigmas, "noise": setting.noise, "notes": list(_notes(setting)),
              **run_record(started, clock, device)}
    return Comparison(images, setting.sigmas, methods, record, title)


def _checked_specs(setting: _Setting, denoisers: Sequence[str]) -> list[list[Spec]]:
    """The candidates of each method; options are never chosen on the noise that is reported."""
    specs, seeds, tuning = [parse_specs(text) for text in denoisers], setting.seeds, setting.tuning_seeds
    if any(len(candidates) > 1 for candidates in specs) and set(seeds) & set(tuning):
        raise ScorelensError(f"the noise seeds {seeds[0]}-{seeds[-1]} that are reported overlap those that options are "
                             f"chosen on, {tuning[0]}-{tuning[-1]}; choose another --seed or --tuning-seed")
    return specs


def _methods(setting: _Setting, others: Mapping[str, Network], specs: Sequence[Sequence[Spec]]) -> Iterator[Compared]:
    """The reference first, then other networks, then the denoisers in the order given."""
    reference = setting.sample(setting.reference, setting.name)
    yield Compared(setting.row(setting.name, {}, "reference", _own_metrics(setting, reference)), reference)
    for name, network in others.items():
        role = "another seed" if name == another_seed(setting.name) else "network"
        yield _compared(setting, Spec(name), network, reference, role)
    tuning: list[Samples] = []  # the reference on the other noise, if anything is to be chosen
    for candidates in specs:
        spec, choice = candidates[0], None
        if len(candidates) > 1:
            tuning = tuning or [setting.sample(setting.reference, setting.name, setting.tuning_seeds)]
            spec, choice = _choose(setting, candidates, tuning[0])
        model = build_spec(spec, setting.images, setting.reference)
        yield _compared(setting, spec, model, reference, "denoiser", choice)


def _choose(setting: _Setting, candidates: Sequence[Spec], reference: Samples) -> tuple[Spec, dict[str, Any]]:
    """The candidate with the best r2 on the tuning noise, and the record of the choice."""
    tried = [setting.sample(build_spec(spec, setting.images, setting.reference), f"choosing: {spec.label}",
                            setting.tuning_seeds) for spec in candidates]
    seeds = setting.tuning_seeds
    mine = torch.tensor([agreement(samples, reference)["r2"]["mean"] for samples in tried], dtype=torch.float64)
    scores = distributed.world().broadcast(mine).tolist()
    record = {"seeds": [seeds.start, seeds.stop - 1], "r2": dict(zip(map(str, candidates), scores, strict=True))}
    return candidates[max(range(len(scores)), key=scores.__getitem__)], record


def _compared(setting: _Setting, spec: Spec, denoiser: Denoiser, reference: Samples, role: str,
              chosen: Mapping[str, Any] | None = None) -> Compared:
    """One method against the reference, whose trajectory is given."""
    samples = setting.sample(denoiser, spec.label)
    metrics = {**agreement(samples, reference), **_own_metrics(setting, samples)}
    if setting.single_steps:
        label = f"{spec.label}, single steps"
        metrics["single_steps"] = {
            "reference_path": single_steps(denoiser, setting.reference, reference, "reference", label),
            "own_path": single_steps(denoiser, setting.reference, samples, "denoiser", label)}
    return Compared(setting.row(spec.name, spec.options, role, metrics, chosen), samples)


def _own_metrics(setting: _Setting, samples: Samples) -> dict[str, Any]:
    return {**originality(samples, setting.images), "seconds_per_image": sum(samples.seconds) / len(samples.images)}


def _notes(setting: _Setting) -> Iterator[str]:
    """What a reader of the numbers should know."""
    described = setting.reference.describe()
    if "assumed" in described:
        yield f"{setting.name}: {described['assumed']}"
    trained = setting.reference.card.get("data", {})
    if trained and trained.get("fingerprint") != setting.images.fingerprint:
        yield (f"{setting.name} was trained on other images than these: {trained['name']}, {trained['split']} split, "
               f"{trained['count']} images")


def _others(reference: str, networks: Sequence[str]) -> list[str]:
    """Another seed of the reference, where the zoo has one, and the networks given; each once."""
    sibling = another_seed(reference)
    return list(dict.fromkeys([*([sibling] if sibling else []), *networks]))
