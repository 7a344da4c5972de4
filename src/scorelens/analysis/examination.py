"""`explain`: the verdict on one network.

Is it trained? Does it memorize? Does it generalize? Which formula explains it? Which input pixels does it use?
Each part is timed on a few images first; the time given then decides how much is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scorelens.analysis.comparison import agreement, single_steps
from scorelens.analysis.fields import Trajectories, compare_fields, field_rows, nine_pixels
from scorelens.analysis.models import build_model, named_network
from scorelens.analysis.probes import PROBES
from scorelens.analysis.report_card import COUNT, ReportCard, heldout_errors, report_card
from scorelens.analysis.verdict import Sentence, verdict
from scorelens.data.images import ImageSet
from scorelens.files import fresh_folder, write_json
from scorelens.metrics import MEMORIZED_RATIO, novelty, share_interval, summary
from scorelens.networks.adapters import Network
from scorelens.noise import own_sigmas, seeded_noise
from scorelens.report.explain import write_explanation
from scorelens.report.figures import Figure
from scorelens.report.tables import grouped
from scorelens.results import noise_record, run_record
from scorelens.sampling import Samples, sample
from scorelens.types import Denoiser, ScorelensError

STEPS = 10
NAME = "network"
FORMULAS = ("optimal", "wiener", "kernel", "locality")
SHARES = {"memorization": 0.25, "generalization": 0.15, "explanation": 0.4, "locality": 0.2}  # of the time
BACKWARD = 3  # cost of a vector-Jacobian product, in forward calls
LEAST = 4  # samples of a formula
SUSPICIOUS = 6  # samples in the picture


@dataclass(frozen=True)
class Plan:
    """How much will be measured, and the expected time."""

    samples: int
    held_out: int  # images of each split
    models: Mapping[str, int]  # samples of each formula
    left_out: Mapping[str, float]  # formulas that are too slow, and their seconds for LEAST samples
    fields: int  # trajectories
    seconds: Mapping[str, float]  # of each part

    def __str__(self) -> str:
        models = ", ".join(f"{name} ({count})" for name, count in self.models.items()) or "none"
        slow = "".join(f"\n  left out, too slow for the time: {name} (about {seconds:.0f} s)"
                       for name, seconds in self.left_out.items())
        return (f"about {sum(self.seconds.values()):.0f} seconds:\n  memorization: {self.samples} samples\n"
                f"  generalization: {self.held_out} images of each split, at {STEPS} noise levels\n"
                f"  explanation: samples of {models}{slow}\n"
                f"  locality: fields of nine pixels along {self.fields} trajectories")


@dataclass(frozen=True)
class Subject:
    """The network, its training images, and images of the same kind that it was not trained on."""

    network: Network
    images: ImageSet
    held_out: ImageSet | None
    models: Mapping[str, Denoiser]
    device: torch.device
    seed: int = 0

    @property
    def sigmas(self) -> list[float]:
        return own_sigmas(self.network.schedule, STEPS).tolist()

    def noise(self, count: int) -> Tensor:
        return seeded_noise(self.images.shape, range(self.seed, self.seed + count), device=self.device)

    @torch.no_grad()
    def sample(self, denoiser: Denoiser, count: int, label: str) -> Samples:
        return sample(denoiser, self.noise(count), self.sigmas, label=label)


@dataclass(frozen=True)
class Findings:
    """All results: numbers for the record, images and fields for the pictures."""

    numbers: dict[str, Any]
    suspicious: Tensor  # [K, C, H, W], the samples nearest to training images, by ratio
    nearest: Tensor  # those training images
    fields: Mapping[str, Tensor]  # of the centre pixel: [levels, H, W]
    card: ReportCard | None  # None without held-out images


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a network learned, in sentences with a number and a threshold each, and the results behind them."""

    sentences: list[Sentence]
    findings: Findings
    record: Mapping[str, Any]

    @property
    def memorized(self) -> float:
        """The share of samples that copy a training image."""
        return float(self.findings.numbers["memorization"]["memorized"]["mean"])

    def table(self) -> str:
        """The sentences, as a list."""
        return "\n".join(f"- {sentence.text}" for sentence in self.sentences)

    def figure(self) -> Figure:
        """The report card's figure: held-out error by noise level."""
        if self.findings.card is None:
            raise ScorelensError("there are no held-out images, so there is no report card to draw; give heldout=")
        return self.findings.card.figure()

    def save(self, folder: str | Path) -> Path:
        """Write verdict.json, run.json, report.html and its pictures into a new folder."""
        results = self.findings
        with fresh_folder(Path(folder)) as partial:
            for name in ("verdict.json", "run.json"):
                write_json(partial / name, self.record)
            write_explanation(self.record, results.suspicious, results.nearest, results.fields, partial, results.card)
        return Path(folder).expanduser()


def explain(network: str | Network, images: ImageSet, heldout: ImageSet | None = None, *,
            formulas: Sequence[str] = FORMULAS, minutes: float = 5.0, seed: int = 0,
            device: torch.device | str = "cpu", name: str | None = None, repeat: str = "",
            on_plan: Callable[[Plan], None] = lambda plan: None) -> Verdict:
    """Explain a trained network: is it trained, does it memorize, does it generalize, which formula predicts it, which
    input pixels does it use?

    Args:
        network: a zoo name, a folder, a hub id, or a result of load_network.
        images: its training images.
        heldout: images of the same kind that it was not trained on.
        formulas: closed-form denoisers that may explain it, with their options.
        minutes: time to spend; it decides how much is measured.
        seed: the noise of sample k is drawn from seed + k.
        name: name of the network; by default its zoo name or folder.
        repeat: the command that repeats this, for the page.
        on_plan: called with the plan before anything is measured.
    """
    if not minutes > 0:
        raise ScorelensError(f"minutes must be a number > 0, got {minutes:g}")
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    loaded, name = named_network(network, images, name)
    subject = Subject(loaded, images, heldout, build_models(formulas, images), torch.device(device), seed)
    plan = make_plan(subject, 60 * minutes - (time.perf_counter() - clock))
    on_plan(plan)
    findings = examine(subject, plan)
    sentences = verdict(findings.numbers)
    record = {"command": "explain", "network": {"name": name, **loaded.describe()}, "data": images.describe(),
              "held_out": heldout.describe() if heldout is not None else None, "plan": asdict(plan),
              "noise": noise_record(range(seed, seed + plan.samples), subject.noise(plan.samples)),
              "findings": findings.numbers, "verdict": [asdict(sentence) for sentence in sentences], "repeat": repeat,
              **run_record(started, clock, device)}
    return Verdict(sentences, findings, record)


def build_models(names: Sequence[str], images: ImageSet) -> dict[str, Denoiser]:
    return {name: build_model(name, images) for name in names}


def make_plan(subject: Subject, seconds: float) -> Plan:
    """Time each part on a few images, and divide the time among the parts."""
    network = _seconds_per_image(subject.network, subject, 8)
    models = {name: _seconds_per_image(model, subject, 2) for name, model in subject.models.items()}
    samples = _fitting(SHARES["memorization"] * seconds, STEPS * network, 8, 256)
    available = len(subject.held_out) if subject.held_out is not None else 0
    per_image = 2 * STEPS * (network + models.get("optimal", 0.0))
    held_out = min(available, _fitting(SHARES["generalization"] * seconds, per_image, 8, 256))
    share = SHARES["explanation"] * seconds / max(1, len(models))
    counts = {name: int(share / (2 * STEPS * each)) for name, each in models.items()}
    quickest = min(models, key=lambda name: models[name], default=None)  # is always measured
    chosen = {name: min(max(count, LEAST), 128) for name, count in counts.items() if count >= LEAST or name == quickest}
    per_field = STEPS * BACKWARD * network * (9 + PROBES)
    fields = _fitting(SHARES["locality"] * seconds, per_field, 2, 16)
    return Plan(samples, held_out, chosen,
                {name: LEAST * 2 * STEPS * models[name] for name in models if name not in chosen}, fields,
                {"memorization": samples * STEPS * network, "generalization": held_out * per_image,
                 "explanation": sum(2 * STEPS * models[name] * count for name, count in chosen.items()),
                 "locality": fields * per_field})


def examine(subject: Subject, plan: Plan) -> Findings:
    """Carry out the plan."""
    samples = subject.sample(subject.network, max(plan.samples, *plan.models.values(), 1), NAME)
    copies, suspicious, nearest = memorization(subject, samples)
    levels, fields = locality(subject, plan.fields)
    card = None if subject.held_out is None else report_card(
        subject.network, subject.images, subject.held_out, sigmas=subject.sigmas, count=min(plan.held_out, COUNT),
        seed=subject.seed, device=subject.device, name=NAME)
    numbers = {"report_card": card and card.describe(), "memorization": copies,
               "generalization": generalization(subject, plan.held_out),
               "explanation": explanation(subject, plan, samples), "locality": levels}
    return Findings(numbers, suspicious, nearest, fields, card)


def memorization(subject: Subject, samples: Samples) -> tuple[dict[str, Any], Tensor, Tensor]:
    """Distances of samples, and of held-out images, to the training images; and the most suspicious samples."""
    distances = novelty(samples.images, subject.images)
    ratio, order = distances.ratio, distances.ratio.argsort()[:SUSPICIOUS]
    copied = share_interval(int((ratio < MEMORIZED_RATIO).sum()), len(ratio))
    numbers: dict[str, Any] = {"samples": len(ratio), "memorized": vars(copied), "novelty": summary(distances.rms),
                               "ratios": sorted(ratio.tolist())}
    if subject.held_out is not None:
        numbers["novelty_of_held_out"] = summary(novelty(subject.held_out[:256], subject.images).rms)
    return numbers, samples.images[order].cpu(), subject.images[distances.index[order].cpu()]


def generalization(subject: Subject, count: int) -> dict[str, Any] | None:
    """Single-step errors on training and held-out images, of the network and of the optimal denoiser."""
    if subject.held_out is None or count < 1:
        return None
    noise, levels = subject.noise(count), []
    spread = [k * len(subject.images) // count for k in range(count)]
    splits = [x0.to(subject.device) for x0 in (subject.images[spread], subject.held_out[:count])]
    for name, model in {NAME: subject.network, "optimal": subject.models.get("optimal")}.items():
        if model is not None:
            errors = [heldout_errors(model, x0, noise, subject.sigmas, name) for x0 in splits]
            for sigma, training, held_out in zip(subject.sigmas, *errors, strict=True):
                seen = training.mean().item()
                levels.append({"model": name, "sigma": sigma, "training": summary(training),
                               "held_out": summary(held_out),
                               "ratio": held_out.mean().item() / seen if seen > 0 else None})
    return {"images": count, "levels": levels}


def explanation(subject: Subject, plan: Plan, samples: Samples) -> list[dict[str, Any]]:
    """How well each formula predicts the network: whole samples, and single steps along the network's trajectory."""
    rows = []
    for name, count in plan.models.items():
        model, path = subject.models[name], samples.first(count)
        rows.append({"model": name, "samples": count, **agreement(subject.sample(model, count, name), path),
                     "steps": single_steps(model, path, f"{name}, single steps")})
    return rows


def locality(subject: Subject, count: int) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """The network's fields beside the Wiener filter's: numbers by noise level, and the fields of the centre pixel."""
    pixels, points = nine_pixels(subject.images), Trajectories(subject.noise(max(2, count)), subject.sigmas, STEPS)
    result = compare_fields({NAME: subject.network}, subject.images, pixels, points, linear=True)
    own, wiener = (grouped(rows, "sigma") for rows in (result.rows, field_rows("", result.wiener, result.wiener)))
    levels = []
    for probe in result.linearity:
        sigma = probe["sigma"]
        levels.append({"sigma": sigma, "trajectories": len(points.noise),
                       **{key: summary(torch.tensor([row[key] for row in own[sigma]], dtype=torch.float64))
                          for key in ("cosine", "radius", "anisotropy")},
                       "equivariance": own[sigma][0]["equivariance"],
                       "wiener_equivariance": wiener[sigma][0]["equivariance"],
                       "nonlinearity": probe["nonlinearity"], "asymmetry": probe["asymmetry"]})
    return levels, {name: fields.values[:, len(pixels) // 2].sum(dim=1).cpu()
                    for name, fields in {**result.fields, "wiener": result.wiener}.items()}


@torch.no_grad()
def _seconds_per_image(model: Denoiser, subject: Subject, count: int) -> float:
    """The mean over three noise levels, after a first call that fills caches."""
    count = min(count, len(subject.images))
    z, levels = subject.noise(count), [subject.sigmas[k] for k in (1, STEPS // 2, STEPS - 2)]
    model(z * levels[0], levels[0])
    clock = time.perf_counter()
    for sigma in levels:
        model(subject.images[:count].to(z) + sigma * z, sigma)
    return (time.perf_counter() - clock) / (len(levels) * count)


def _fitting(seconds: float, each: float, least: int, most: int) -> int:
    return max(least, min(most, int(seconds / max(each, 1e-9))))
