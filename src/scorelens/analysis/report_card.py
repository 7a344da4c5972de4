"""The report card of a denoiser: its error on held-out images at each noise level, beside the closed forms' errors.

A denoiser is trained to lower E ||f(x + sigma eps) - x||^2. The linear filter and the posterior means reach a certain
error without training; a network with a higher error at some noise level has not learned that level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens import progress
from scorelens.data.images import ImageSet
from scorelens.denoisers.specs import parse_specs
from scorelens.files import fresh_folder, write_json
from scorelens.metrics import Interval, bootstrap_ratio, novelty
from scorelens.noise import ddim_sigmas, own_sigmas, seeded_noise
from scorelens.report.figures import Figure, labelled_rows
from scorelens.report.figures import Row as ImageRow
from scorelens.report.report_card import report_card_figure, report_card_table
from scorelens.types import Denoiser, ScorelensError

LINEAR = "wiener"
CLOSED_FORMS = ("optimal", LINEAR, "locality:threshold=0.05")
COUNT = 128  # held-out images
BATCH = 32  # noisy images at a time
# A formula that can compute single pixels is slow. On large data it is measured on fewer images and coordinates. Their
# number depends on the data alone, so that a report card is the same on any machine.
WORK = 1.2e11  # images x coordinates x training images x compared coordinates
FEWEST = 16  # images
WORSE = 1.02  # times the best closed form: above that, a noise level is not learned
FAR = 1.2  # times the linear filter: above that, samples show it


@dataclass(frozen=True, eq=False)
class Measured:
    """Squared errors of a closed form, and those of the denoiser on the same images, noise and coordinates."""

    errors: Float[Tensor, "levels n"]
    denoiser: Float[Tensor, "levels n"]
    coordinates: int  # of each image


@dataclass(frozen=True)
class Level:
    """One noise level: mean squared errors, and ratios with paired bootstrap intervals over the held-out images."""

    sigma: float
    error: Interval
    formulas: Mapping[str, float]  # errors; those measured on some pixels are scaled to whole images
    ratios: Mapping[str, Interval]  # error of the denoiser / error of each closed form
    best: str  # the closed form with the lowest error
    to_linear: Interval  # ratio to the linear filter
    to_best: Interval  # ratio to the best closed form


@dataclass(frozen=True, eq=False)
class ReportCard:
    """Held-out errors of a denoiser at several noise levels, beside the closed forms of its training images."""

    name: str
    data: Mapping[str, Any]
    heldout: Mapping[str, Any]
    sigmas: tuple[float, ...]
    errors: Float[Tensor, "levels n"]  # of the denoiser, one for each image
    formulas: Mapping[str, Measured]
    seed: int = 0
    picture: Sequence[ImageRow] = ()  # one held-out image at each noise level: noisy, and denoised by each model

    @cached_property
    def levels(self) -> list[Level]:
        return [self._level(k) for k in range(len(self.sigmas))]

    def _level(self, k: int) -> Level:
        error, ratios, formulas = self.errors[k], {}, {}
        for name, measured in self.formulas.items():
            ratios[name] = bootstrap_ratio(measured.denoiser[k], measured.errors[k])
            whole = (error.mean() / measured.denoiser[k].mean()).item() if measured.denoiser[k].any() else 1.0
            formulas[name] = measured.errors[k].mean().item() * whole
        best = max(ratios, key=lambda name: ratios[name].mean)
        return Level(self.sigmas[k], bootstrap_ratio(error, torch.ones_like(error)), formulas, ratios, best,
                     ratios[LINEAR], ratios[best])

    @property
    def passes(self) -> bool:
        """Whether the error is at most 1.02 times that of the best closed form at every noise level."""
        return all(level.to_best.mean <= WORSE for level in self.levels)

    @property
    def mean_ratio(self) -> float:
        """The ratio to the linear filter, geometric mean over the noise levels: one number to rank denoisers by."""
        return math.exp(sum(math.log(level.to_linear.mean) for level in self.levels) / len(self.levels))

    @property
    def sentence(self) -> str:
        """The result in one line."""
        better = sum(level.to_linear.high < 1 for level in self.levels)
        worst = max(self.levels, key=lambda level: level.to_linear.mean)
        text, ratio = f"it beats the linear filter at {better} of {len(self.levels)} noise levels", worst.to_linear
        if ratio.low <= 1:
            level = max(self.levels, key=lambda level: level.to_best.mean)
            behind = f"up to {level.to_best.mean:.3g} times that of {level.best}, at sigma {level.sigma:.3g}"
            return f"{text} and is nowhere worse" + ("" if self.passes else f"; its error is {behind}")
        return (f"{text}; its error is up to {_times(ratio.mean)} at sigma {worst.sigma:.3g}"
                f"{_advice(worst.sigma) if ratio.mean > FAR else ''}")

    def table(self) -> str:
        """The errors and ratios as a Markdown table."""
        return report_card_table(self.rows())

    def figure(self) -> Figure:
        """Errors relative to the linear filter, by noise level."""
        return report_card_figure(self.rows(), self.name)

    def rows(self) -> list[dict[str, Any]]:
        """The numbers of each noise level as plain data."""
        return [asdict(level) for level in self.levels]

    def describe(self) -> dict[str, Any]:
        """Everything but the errors of single images, for a run's record."""
        formulas = {name: {"images": measured.errors.shape[1], "coordinates": measured.coordinates}
                    for name, measured in self.formulas.items()}
        return {"name": self.name, "data": dict(self.data), "heldout": dict(self.heldout), "seed": self.seed,
                "images": self.errors.shape[1], "formulas": formulas, "sentence": self.sentence, "passes": self.passes,
                "levels": self.rows()}

    def save(self, folder: str | Path) -> Path:
        """Write report_card.json, .md and .png into a new folder, and one_step.png if there is a picture."""
        with fresh_folder(Path(folder)) as partial:
            write_json(partial / "report_card.json", self.describe())
            text = f"{self.name}: {self.sentence}.\n\n{self.table()}\n"
            (partial / "report_card.md").write_text(text, encoding="utf-8")
            self.figure().savefig(partial / "report_card.png", dpi=160)
            if self.picture:
                labelled_rows(self.picture, partial / "one_step.png", title="Denoised in one step",
                              columns=[f"σ = {sigma:.3g}" for sigma in self.sigmas])
        return Path(folder).expanduser()


@torch.no_grad()
def report_card(denoiser: Denoiser, images: ImageSet, heldout: ImageSet, *, sigmas: Sequence[float] | None = None,
                formulas: Sequence[str] | Mapping[str, Denoiser] = CLOSED_FORMS, count: int = COUNT, seed: int = 0,
                device: torch.device | str = "cpu", name: str = "denoiser", shown: int | None = None) -> ReportCard:
    """Measure a denoiser's error on held-out images, beside closed forms of its training images.

    Args:
        denoiser: any callable denoiser(z, sigma) -> x0_hat.
        images: its training images, from which the closed forms are built.
        heldout: images of the same kind that it was not trained on.
        sigmas: noise levels; by default ten of the network's own, or the paper's.
        formulas: closed forms by name, with their options, or as denoisers; the linear filter is always included.
        count: maximum number of held-out images.
        seed: the noise of image k is drawn from seed + k.
        name: name of the denoiser in the table and the figure.
        shown: also keep each model's predictions for this held-out image, for a picture.
    """
    if heldout.shape != images.shape:
        raise ScorelensError(f"the held-out images are {heldout.shape}, the training images {images.shape}; "
                             "load both with the same resolution and channels")
    if sigmas is None:
        schedule = getattr(denoiser, "schedule", None)
        sigmas = (ddim_sigmas(10) if schedule is None else own_sigmas(schedule, 10)).tolist()
    levels, x0 = [float(sigma) for sigma in sigmas], heldout[:count].to(device)
    noise = seeded_noise(images.shape, range(seed, seed + len(x0)), device=device)
    squares, built = _squares(denoiser, x0, noise, levels, name), _build(formulas, images)
    measured = {key: _measure(formula, key, x0, noise, levels, squares, images) for key, formula in built.items()}
    picture = () if shown is None else _picture({name: denoiser, **built}, x0[shown], noise[shown], levels, images)
    return ReportCard(name, images.describe(), heldout.describe(), tuple(levels), squares.mean(dim=2), measured, seed,
                      picture)


def _picture(models: Mapping[str, Denoiser], x0: Tensor, noise: Tensor, sigmas: Sequence[float],
             images: ImageSet) -> list[ImageRow]:
    """One held-out image: noisy, denoised in one step by each model at each level, and its nearest training image."""
    noisy = torch.stack([(1 + sigma**2) ** -0.5 * (x0 + sigma * noise) for sigma in sigmas])  # x_t: z exceeds [-1, 1]
    repeat = len(sigmas), *x0.shape
    rows = {"held-out image": x0.expand(repeat), "noisy": noisy,
            **{name: one_step(model, x0, noise, sigmas) for name, model in models.items()},
            "nearest training image": images[novelty(x0[None].cpu(), images).index].expand(repeat)}
    return [ImageRow(name, images.pictures(shown.cpu())) for name, shown in rows.items()]


def heldout_errors(denoiser: Denoiser, x0: Tensor, noise: Tensor, sigmas: Sequence[float],
                   label: str) -> Float[Tensor, "levels n"]:
    """The single-step mean squared error on each image, at each noise level."""
    with torch.no_grad():
        return _squares(denoiser, x0, noise, sigmas, label).mean(dim=2)


@torch.no_grad()
def one_step(denoiser: Denoiser, x0: Float[Tensor, "c h w"], noise: Float[Tensor, "c h w"],
             sigmas: Sequence[float]) -> Float[Tensor, "levels c h w"]:
    """One image, noised at each level and denoised in a single step.

    As the noise vanishes, a denoiser that generalizes returns the image, the optimal one its nearest training image.
    """
    return torch.cat([denoiser((x0 + sigma * noise)[None], sigma) for sigma in sigmas])


def _build(formulas: Sequence[str] | Mapping[str, Denoiser], images: ImageSet) -> dict[str, Denoiser]:
    if isinstance(formulas, Mapping):
        return {LINEAR: parse_specs(LINEAR)[0].build(images), **formulas}
    specs = [spec for text in dict.fromkeys([*formulas, LINEAR]) for spec in parse_specs(text)]
    return {spec.label: spec.build(images) for spec in specs}


def _squares(denoiser: Denoiser, x0: Tensor, noise: Tensor, sigmas: Sequence[float],
             label: str) -> Float[Tensor, "levels n d"]:
    """(x0_hat - x0)^2 for every level, image and coordinate."""
    jobs = [(sigma, slice(start, start + BATCH)) for sigma in sigmas for start in range(0, len(x0), BATCH)]
    differences = (denoiser(x0[part] + sigma * noise[part], sigma) - x0[part] for sigma, part in jobs)
    rows = [difference.square().flatten(1).cpu() for difference in progress.steps(differences, label, len(jobs))]
    return torch.cat(rows).unflatten(0, (len(sigmas), len(x0)))


def _measure(formula: Denoiser, label: str, x0: Tensor, noise: Tensor, sigmas: Sequence[float],
             squares: Float[Tensor, "levels n d"], images: ImageSet) -> Measured:
    """A formula's errors on all coordinates, or on some if all take long and it can compute those alone."""
    n, pixels = _subset(formula, len(x0), images)
    if pixels is None:
        return Measured(_squares(formula, x0, noise, sigmas, label).mean(dim=2), squares.mean(dim=2), images.dim)
    truth, at = x0[:n].flatten(1)[:, pixels.to(x0.device)], formula.at  # type: ignore[attr-defined]
    differences = (at(x0[:n] + sigma * noise[:n], sigma, pixels) - truth for sigma in sigmas)
    errors = [difference.square().mean(dim=1).cpu() for difference in progress.steps(differences, label, len(sigmas))]
    return Measured(torch.stack(errors), squares[:, :n, pixels].mean(dim=2), len(pixels))


def _subset(formula: Denoiser, count: int, images: ImageSet) -> tuple[int, Int[Tensor, "q"] | None]:
    """The number of images and the coordinates on which to measure a formula; None: all coordinates."""
    d = images.dim
    most = int(WORK / (len(images) * d))  # images x coordinates
    if not hasattr(formula, "at") or most >= count * d:
        return count, None
    n = min(count, FEWEST)
    q = min(d - 1, max(32, most // n))
    return n, torch.from_numpy(np.sort(np.random.default_rng(0).permutation(d)[:q]))


def _times(ratio: float) -> str:
    if ratio < 1.5:
        return f"{ratio - 1:.1%} above that filter's"
    return f"{ratio:.0f} times that filter's" if ratio >= 10 else f"{ratio:.2g} times that filter's"


def _advice(sigma: float) -> str:
    if sigma > 3:
        return ": expect colour casts; predict v or x0, or train longer there"
    return ": expect grain; predict v or epsilon, or train longer there" if sigma < 0.1 else ": train longer there"
