"""`explain`: the verdict on one network.

Is it trained? Does it memorize? Does it generalize? Which formula explains it? Which input pixels does it use?
How much is measured depends on the flags, the network and the data, and not on the speed of the machine: the same call
gives the same verdict anywhere. A few images are timed first, to announce how long it will take here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scorelens.analysis.attribution import CLEAR, Attribution, attribute, has_weights
from scorelens.analysis.comparison import agreement, single_steps
from scorelens.analysis.fields import Trajectories, compare_fields, field_rows, nine_pixels, pixel_equivariance
from scorelens.analysis.models import build_model, named_network
from scorelens.analysis.probes import PROBES
from scorelens.analysis.report_card import COUNT, ReportCard, heldout_errors, report_card
from scorelens.analysis.verdict import MIDDLE, Sentence, mean_ratio, verdict
from scorelens.data.images import ImageSet
from scorelens.denoisers.held_out_error import ranked
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
FORMULAS = ("optimal", "wiener", "kernel", "locality", "multiscale")
SHARES = {"memorization": 0.25, "generalization": 0.15, "explanation": 0.4, "locality": 0.2}  # of the time
CHEAP = 4  # formulas that cost at most this many calls of the network are never left out
RESAMPLES = 1000
BACKWARD = 3  # cost of a vector-Jacobian product, in forward calls
TIMED = 8  # images of the calls that are timed before anything is measured
LEAST = {"samples": 80, "held_out": 32, "formulas": 16, "fields": 4}  # 0 copies of 80 samples are below the limit
MOST = {"samples": 256, "held_out": 256, "formulas": 128, "fields": 16}
NOMINAL = 2e10  # operations per second of the machine for which minutes are planned
SHARED_WEIGHTS = 0.3  # of a network's weights per pixel: most of a U-Net's are at its coarse levels
COSTS = {"optimal": 1, "wiener": 1, "kernel": 1, "nearest": 1, "smoothed": 1}  # of a formula: N x D; others N x D x D
SUSPICIOUS = 6  # samples in the picture
ATTRIBUTED = 2  # samples whose training images are named


@dataclass(frozen=True)
class Plan:
    """How much will be measured, and the expected time."""

    samples: int
    held_out: int  # images of each split
    models: Mapping[str, int]  # samples of each formula
    left_out: Sequence[str]  # formulas that are too slow for the minutes
    fields: int  # trajectories
    seconds: Mapping[str, float] = field(default_factory=dict)  # expected on this machine, for each part
    minutes: float = math.inf  # asked for

    def __str__(self) -> str:
        models = ", ".join(f"{name} ({count})" for name, count in self.models.items()) or "none"
        slow = f"\n  left out, too slow for these minutes: {', '.join(self.left_out)}" if self.left_out else ""
        total = sum(self.seconds.values())
        longer = f", longer on this machine than the {60 * self.minutes:.0f} of --minutes" \
            if total > 60 * self.minutes else ""
        return (f"about {total:.0f} seconds{longer}:\n  memorization: {self.samples} samples\n"
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
    attribution: Attribution | None = None  # of the most suspicious samples; None without a formula that has weights


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
            write_explanation(self.record, results.suspicious, results.nearest, results.fields, partial, results.card,
                              results.attribution)
        return Path(folder).expanduser()


def explain(network: str | Network, images: ImageSet, heldout: ImageSet | None = None, *,
            formulas: Sequence[str] = FORMULAS, minutes: float = 5.0, samples: int | None = None, seed: int = 0,
            device: torch.device | str = "cpu", name: str | None = None, repeat: str = "",
            on_plan: Callable[[Plan], None] = lambda plan: None) -> Verdict:
    """Explain a trained network: is it trained, does it memorize, does it generalize, which formula predicts it, which
    input pixels does it use?

    Args:
        network: a zoo name, a folder, a hub id, or a result of load_network.
        images: its training images.
        heldout: images of the same kind that it was not trained on.
        formulas: closed-form denoisers that may explain it, with their options.
        minutes: how long this takes on a machine of 20 Gflop/s. It decides how much is measured, but never so little
            that nothing could be decided: slow networks and machines take longer.
        samples: number of samples for memorization, instead of that of the minutes.
        seed: the noise of sample k is drawn from seed + k.
        name: name of the network; by default its zoo name or folder.
        repeat: the command that repeats this, for the page.
        on_plan: called with the plan before anything is measured.
    """
    if not 0 < minutes < math.inf:
        raise ScorelensError(f"minutes must be a finite number > 0, got {minutes:g}")
    if samples is not None and samples < 1:
        raise ScorelensError(f"samples must be at least 1, got {samples}")
    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    loaded, name = named_network(network, images, name)
    subject = Subject(loaded, images, heldout, build_models(formulas, images), torch.device(device), seed)
    plan = make_plan(subject, minutes, samples)
    on_plan(replace(plan, seconds=expected_seconds(subject, plan)))
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


def make_plan(subject: Subject, minutes: float, samples: int | None = None) -> Plan:
    """How much to measure: what a machine of NOMINAL speed does in this time, but at least LEAST."""
    seconds, network = 60 * minutes, network_cost(subject) / NOMINAL
    models = {name: formula_cost(name, subject.images) / NOMINAL for name in subject.models}
    available = len(subject.held_out) if subject.held_out is not None else 0
    share = SHARES["explanation"] * seconds / max(1, len(models))
    quickest = min(models, key=lambda name: models[name], default=None)  # is always measured
    chosen = {name: _fitting("formulas", share, 2 * STEPS * each) for name, each in models.items()
              if share >= LEAST["formulas"] * 2 * STEPS * each or each <= CHEAP * network or name == quickest}
    per_image = 2 * STEPS * (network + models.get("optimal", 0.0))
    return Plan(samples or _fitting("samples", SHARES["memorization"] * seconds, STEPS * network),
                min(available, _fitting("held_out", SHARES["generalization"] * seconds, per_image)), chosen,
                [name for name in models if name not in chosen],
                _fitting("fields", SHARES["locality"] * seconds, STEPS * BACKWARD * network * (9 + PROBES)),
                minutes=minutes)


def network_cost(subject: Subject) -> float:
    """Operations of one call for one image, from the number of weights and pixels; 1e7 for functions."""
    _, h, w = subject.images.shape
    return 2 * SHARED_WEIGHTS * h * w * (subject.network.describe()["parameters"] or 1e7 / (h * w))


def formula_cost(name: str, images: ImageSet) -> float:
    """Operations of one call for one image: N x D, or N x D x D for a posterior of its own at each pixel."""
    pairs = 2.0 * len(images) * images.dim
    return pairs * (1 if name.partition(":")[0] in COSTS else images.dim)


def expected_seconds(subject: Subject, plan: Plan) -> dict[str, float]:
    """The time of each part on this machine, from a few images."""
    network = _call_seconds(subject.network, subject)
    models = {name: _call_seconds(subject.models[name], subject) for name in plan.models}
    optimal = models.get("optimal", lambda count: 0.0)
    return {"memorization": STEPS * network(plan.samples),
            "generalization": 2 * STEPS * (network(plan.held_out) + optimal(plan.held_out)) if plan.held_out else 0.0,
            "explanation": sum(2 * STEPS * models[name](count) for name, count in plan.models.items()),
            "locality": STEPS * BACKWARD * network(plan.fields * (9 + PROBES))}


def examine(subject: Subject, plan: Plan) -> Findings:
    """Carry out the plan."""
    samples = subject.sample(subject.network, max(plan.samples, *plan.models.values(), 1), NAME)
    copies, suspicious, nearest = memorization(subject, samples.first(plan.samples))
    levels, fields = locality(subject, plan.fields)
    card = None if subject.held_out is None else report_card(
        subject.network, subject.images, subject.held_out, sigmas=subject.sigmas, count=min(plan.held_out, COUNT),
        seed=subject.seed, device=subject.device, name=NAME)
    who = suspicious_attribution(subject, plan, samples, copies["suspicious"])
    copies["attribution"] = who and who.record()
    numbers = {"report_card": card and card.describe(), "memorization": copies,
               "generalization": generalization(subject, plan.held_out),
               "explanation": explanation(subject, plan, samples), "locality": levels}
    return Findings(numbers, suspicious, nearest, fields, card, who)


def suspicious_attribution(subject: Subject, plan: Plan, samples: Samples, order: Sequence[int]) -> Attribution | None:
    """The training images behind the most suspicious samples, near the end of their trajectories, by the formula that
    predicts the network best there."""
    models = {name: subject.models[name] for name in plan.models if has_weights(subject.models[name])}
    if not models:
        return None
    step = min(samples.steps, key=lambda step: abs(math.log(step.sigma / CLEAR)))
    rows = torch.tensor(list(order[:ATTRIBUTED]), device=step.z.device)
    return attribute(subject.network, step.z[rows], step.sigma, images=subject.images, formulas=models)


def memorization(subject: Subject, samples: Samples) -> tuple[dict[str, Any], Tensor, Tensor]:
    """Distances of samples, and of held-out images, to the training images; and the most suspicious samples."""
    distances = novelty(samples.images, subject.images)
    ratio, order = distances.ratio, distances.ratio.argsort()[:SUSPICIOUS]
    copied = share_interval(int((ratio < MEMORIZED_RATIO).sum()), len(ratio))
    numbers: dict[str, Any] = {"samples": len(ratio), "memorized": vars(copied), "novelty": summary(distances.rms),
                               "ratios": sorted(ratio.tolist()), "suspicious": order.tolist()}
    if subject.held_out is not None:
        numbers["novelty_of_held_out"] = summary(novelty(subject.held_out[:256], subject.images).rms)
    pictures = subject.images.pictures
    return numbers, pictures(samples.images[order].cpu()), pictures(subject.images[distances.index[order].cpu()])


def generalization(subject: Subject, count: int) -> dict[str, Any] | None:
    """Single-step errors on training and held-out images, of the network and of the optimal denoiser."""
    if subject.held_out is None or count < 1:
        return None
    noise, levels, ratios = subject.noise(count), [], {}
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
            ratios[name] = _ratio_interval(errors[0], errors[1], mean_ratio(levels, name), subject.sigmas)
    return {"images": count, "levels": levels, "ratios": ratios}


def _ratio_interval(training: Tensor, held_out: Tensor, mean: float | None, sigmas: Sequence[float],
                    ) -> dict[str, float] | None:
    """The ratio of mean errors [levels, n], geometric mean over the middle levels, with its bootstrap interval."""
    middle = torch.tensor([MIDDLE[0] <= sigma <= MIDDLE[1] for sigma in sigmas])
    seen, unseen = (errors[middle.to(errors.device)].double().cpu() for errors in (training, held_out))
    if mean is None or not (seen > 0).any(dim=1).all():
        return None if mean is None else {"mean": mean, "low": mean, "high": mean}
    draw = torch.Generator().manual_seed(0)
    picks = [torch.randint(seen.shape[1], (RESAMPLES, seen.shape[1]), generator=draw) for _ in range(2)]
    tiny = torch.finfo(torch.float64).tiny
    logs = [errors[:, pick].mean(dim=2).clamp(min=tiny).log().mean(dim=0)
            for errors, pick in zip((unseen, seen), picks, strict=True)]
    low, high = (logs[0] - logs[1]).exp().quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return {"mean": mean, "low": low, "high": high}


def explanation(subject: Subject, plan: Plan, samples: Samples) -> list[dict[str, Any]]:
    """How well each formula predicts the network: whole samples, and single steps along the network's trajectory; and
    how well it denoises held-out training images, relative to the linear filter, which involves no network."""
    rows, errors = [], ranked(list(plan.models), subject.images)
    for name, count in plan.models.items():
        model, path = subject.models[name], samples.first(count)
        rows.append({"model": name, "samples": count, **agreement(subject.sample(model, count, name), path),
                     "held_out_error": errors[name] if math.isfinite(errors[name]) else None,
                     "steps": single_steps(model, path, f"{name}, single steps")})
    return rows


def locality(subject: Subject, count: int) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """The network's fields beside the Wiener filter's: numbers by noise level, and the fields of the centre pixel."""
    pixels, points = nine_pixels(subject.images), Trajectories(subject.noise(max(2, count)), subject.sigmas, STEPS)
    result = compare_fields({NAME: subject.network}, subject.images, pixels, points, linear=True)
    own, wiener = (grouped(rows, "sigma") for rows in (result.rows, field_rows("", result.wiener, result.wiener)))
    levels = []
    for probe, fields in zip(result.linearity, result.fields[NAME].values.cpu(), strict=True):
        sigma = probe["sigma"]
        levels.append({"sigma": sigma, "trajectories": len(points.noise),
                       **{key: summary(torch.tensor([row[key] for row in own[sigma]], dtype=torch.float64))
                          for key in ("cosine", "radius", "anisotropy")},
                       "equivariance": own[sigma][0]["equivariance"],
                       "equivariance_interval": summary(torch.tensor(pixel_equivariance(fields, pixels))),
                       "wiener_equivariance": wiener[sigma][0]["equivariance"],
                       "nonlinearity": probe["nonlinearity"], "asymmetry": probe["asymmetry"]})
    return levels, {name: fields.values[:, len(pixels) // 2].sum(dim=1).cpu()
                    for name, fields in {**result.fields, "wiener": result.wiener}.items()}


@torch.no_grad()
def _call_seconds(model: Denoiser, subject: Subject) -> Callable[[int], float]:
    """The expected seconds of one call for `count` images: a fixed part, and one for each image. From calls with few
    images, the mean over three noise levels, after a first call at each, which fills caches."""
    few, levels = min(TIMED, len(subject.images)), [subject.sigmas[k] for k in (1, STEPS // 2, STEPS - 2)]

    def seconds(count: int) -> float:
        z = subject.noise(count)
        clock = time.perf_counter()
        for sigma in levels:
            model(subject.images[:count].to(z) + sigma * z, sigma)
        return (time.perf_counter() - clock) / len(levels)

    seconds(1)
    one, several = seconds(1), seconds(few)
    each = max(0.0, several - one) / max(1, few - 1)
    return lambda count: one + each * (count - 1)


def _fitting(part: str, seconds: float, each: float) -> int:
    return max(LEAST[part], min(MOST[part], int(seconds / max(each, 1e-12))))
