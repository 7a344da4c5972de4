"""The report card of a denoiser: its error on held-out images at each noise level, beside those of the closed forms.

A denoiser is trained to lower E ||f(x + sigma eps) - x||^2. The linear filter and the posterior means reach a certain
error without any training; a network that does worse than they do at some noise level has not learned that level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from scorelens.types import Denoiser, ScorelensError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINEAR = "wiener"
CLOSED_FORMS = ("optimal", LINEAR, "locality:threshold=0.05")
COUNT = 128  # held-out images
BATCH = 32  # noisy images at a time
# A formula that can be asked for single pixels is slow. On large data it is measured on fewer images and coordinates,
# by these numbers alone: a report card is the same on any machine.
WORK = 1.2e11  # images x coordinates x training images x coordinates that are compared
FEWEST = 16  # images
WORSE = 1.02  # times the best closed form: beyond that, a noise level is not learned
FAR = 1.2  # times the linear filter: beyond that, samples show it


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
    formulas: Mapping[str, float]  # errors; of one measured on some pixels, scaled to those of whole images
    ratios: Mapping[str, Interval]  # error of the denoiser / error of each closed form
    best: str  # the closed form with the lowest error

    @property
    def to_linear(self) -> Interval:
        return self.ratios[LINEAR]

    @property
    def to_best(self) -> Interval:
        return self.ratios[self.best]


@dataclass(frozen=True, eq=False)
class Picture:
    """One held-out image, its noise, the nearest training image, and what each model makes of it in one step."""

    x0: Float[Tensor, "c h w"]
    noise: Float[Tensor, "c h w"]
    nearest: Float[Tensor, "c h w"]
    predictions: Mapping[str, Float[Tensor, "levels c h w"]]


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
    picture: Picture | None = None

    @cached_property
    def levels(self) -> list[Level]:
        return [self._level(k) for k in range(len(self.sigmas))]

    def _level(self, k: int) -> Level:
        ratios = {name: bootstrap_ratio(found.denoiser[k], found.errors[k]) for name, found in self.formulas.items()}
        return Level(self.sigmas[k], bootstrap_ratio(self.errors[k], torch.ones_like(self.errors[k])),
                     {name: found.errors[k].mean().item() * self._whole(found, k)
                      for name, found in self.formulas.items()}, ratios,
                     max(ratios, key=lambda name: ratios[name].mean))

    def _whole(self, found: Measured, k: int) -> float:
        """The denoiser's error on whole images over that on the pixels that a formula was measured on."""
        return (self.errors[k].mean() / found.denoiser[k].mean()).item() if found.denoiser[k].any() else 1.0

    @property
    def passes(self) -> bool:
        """Whether the denoiser is at most 1.02 times as wrong as the best closed form at every noise level."""
        return all(level.to_best.mean <= WORSE for level in self.levels)

    @property
    def mean_ratio(self) -> float:
        """The ratio to the linear filter, geometric mean over the noise levels: one number to rank denoisers by."""
        return math.exp(sum(math.log(level.to_linear.mean) for level in self.levels) / len(self.levels))

    @property
    def sentence(self) -> str:
        """The finding in one line."""
        better = sum(level.to_linear.high < 1 for level in self.levels)
        worst = max(self.levels, key=lambda level: level.to_linear.mean)
        told = f"it beats the linear filter at {better} of {len(self.levels)} noise levels"
        if worst.to_linear.low <= 1:
            return f"{told} and is nowhere worse"
        return (f"{told}; its error is up to {_times(worst.to_linear.mean)} at sigma {worst.sigma:.3g}"
                f"{_advice(worst) if worst.to_linear.mean > FAR else ''}")

    def table(self) -> str:
        """The errors and ratios as a Markdown table."""
        from scorelens.report.report_card import report_card_table

        return report_card_table(self.rows())

    def figure(self) -> Figure:
        """Errors relative to the linear filter, against the noise level."""
        from scorelens.report.report_card import report_card_figure

        return report_card_figure(self.rows(), self.name)

    def rows(self) -> list[dict[str, Any]]:
        """The numbers of each noise level as plain data."""
        return [{**asdict(level), "to_linear": asdict(level.to_linear), "to_best": asdict(level.to_best)}
                for level in self.levels]

    def describe(self) -> dict[str, Any]:
        """Everything but the errors of single images, for a run's record."""
        measured = {name: {"images": found.errors.shape[1], "coordinates": found.coordinates}
                    for name, found in self.formulas.items()}
        return {"name": self.name, "data": dict(self.data), "heldout": dict(self.heldout), "seed": self.seed,
                "images": self.errors.shape[1], "formulas": measured, "sentence": self.sentence, "passes": self.passes,
                "levels": self.rows()}

    def save(self, folder: str | Path) -> Path:
        """Write report_card.json, .md and .png into a new folder, and one_step.png where an image was to be shown."""
        from scorelens.report.report_card import one_step_picture

        with fresh_folder(Path(folder)) as partial:
            write_json(partial / "report_card.json", self.describe())
            (partial / "report_card.md").write_text(f"{self.name}: {self.sentence}.\n\n{self.table()}\n")
            self.figure().savefig(partial / "report_card.png", dpi=160)
            if self.picture is not None:
                one_step_picture(sigmas=self.sigmas, path=partial / "one_step.png", **vars(self.picture))
        return Path(folder)


@torch.no_grad()
def report_card(denoiser: Denoiser, images: ImageSet, heldout: ImageSet, *, sigmas: Sequence[float] | None = None,
                formulas: Sequence[str] | Mapping[str, Denoiser] = CLOSED_FORMS, count: int = COUNT, seed: int = 0,
                device: torch.device | str = "cpu", name: str = "denoiser", shown: int | None = None) -> ReportCard:
    """Measure a denoiser's error on held-out images, beside closed forms of its training images.

    Args:
        denoiser: any callable denoiser(z, sigma) -> x0_hat.
        images: its training images, of which the closed forms are built.
        heldout: images of the same kind that it has not seen.
        sigmas: noise levels; by default ten of the network's own, or the paper's.
        formulas: closed forms by name, with their options, or as denoisers; the linear filter is always among them.
        count: how many held-out images to use at most.
        seed: of the noise; that of image k is drawn from seed + k.
        name: what to call the denoiser in the table and the figure.
        shown: also keep what each model makes of this held-out image, for a picture.
    """
    if heldout.shape != images.shape:
        raise ScorelensError(f"the held-out images are {heldout.shape}, the training images {images.shape}; "
                             "load both with the same resolution and channels")
    levels = _levels(denoiser) if sigmas is None else [float(sigma) for sigma in sigmas]
    x0 = heldout[:count].to(device)
    noise = seeded_noise(images.shape, range(seed, seed + len(x0)), device=device)
    squares = _squares(denoiser, x0, noise, levels, name)
    built = _build(formulas, images)
    found = {key: _measure(formula, key, x0, noise, levels, squares, images) for key, formula in built.items()}
    picture = None if shown is None else _picture({name: denoiser, **built}, x0[shown], noise[shown], levels, images)
    return ReportCard(name, images.describe(), heldout.describe(), tuple(levels), squares.mean(dim=2), found, seed,
                      picture)


def _picture(models: Mapping[str, Denoiser], x0: Tensor, noise: Tensor, sigmas: Sequence[float],
             images: ImageSet) -> Picture:
    predictions = {name: one_step(model, x0, noise, sigmas).cpu() for name, model in models.items()}
    nearest = images[novelty(x0[None].cpu(), images).index][0]
    return Picture(x0.cpu(), noise.cpu(), nearest, predictions)


def heldout_errors(denoiser: Denoiser, x0: Tensor, noise: Tensor, sigmas: Sequence[float],
                   label: str) -> Float[Tensor, "levels n"]:
    """The mean squared error of one step on each image, at each noise level."""
    with torch.no_grad():
        return _squares(denoiser, x0, noise, sigmas, label).mean(dim=2)


@torch.no_grad()
def one_step(denoiser: Denoiser, x0: Float[Tensor, "c h w"], noise: Float[Tensor, "c h w"],
             sigmas: Sequence[float]) -> Float[Tensor, "levels c h w"]:
    """One image, noised at each level and denoised in a single step. As the noise vanishes, a denoiser that generalizes
    returns it; the optimal one returns the nearest training image."""
    return torch.cat([denoiser((x0 + sigma * noise)[None], sigma) for sigma in sigmas])


def _levels(denoiser: Denoiser) -> list[float]:
    """A network's own grid, or the paper's."""
    schedule = getattr(denoiser, "schedule", None)
    return (ddim_sigmas(10) if schedule is None else own_sigmas(schedule, 10)).tolist()


def _build(formulas: Sequence[str] | Mapping[str, Denoiser], images: ImageSet) -> dict[str, Denoiser]:
    if isinstance(formulas, Mapping):
        return {LINEAR: parse_specs(LINEAR)[0].build(images), **formulas}
    specs = [spec for text in dict.fromkeys([*formulas, LINEAR]) for spec in parse_specs(text)]
    return {spec.label: spec.build(images) for spec in specs}


def _squares(denoiser: Denoiser, x0: Tensor, noise: Tensor, sigmas: Sequence[float],
             label: str) -> Float[Tensor, "levels n d"]:
    """(x0_hat - x0)^2 for every level, image and coordinate."""
    jobs = [(sigma, slice(start, start + BATCH)) for sigma in sigmas for start in range(0, len(x0), BATCH)]
    asking = (denoiser(x0[part] + sigma * noise[part], sigma) - x0[part] for sigma, part in jobs)
    rows = [difference.square().flatten(1).cpu() for difference in progress.steps(asking, label, len(jobs))]
    return torch.cat(rows).unflatten(0, (len(sigmas), len(x0)))


def _measure(formula: Denoiser, label: str, x0: Tensor, noise: Tensor, sigmas: Sequence[float],
             squares: Float[Tensor, "levels n d"], images: ImageSet) -> Measured:
    """A formula's errors: on all coordinates, or on some where it can compute those alone and all would take long."""
    n, pixels = _sample(formula, len(x0), images)
    if pixels is None:
        return Measured(_squares(formula, x0, noise, sigmas, label).mean(dim=2), squares.mean(dim=2), images.dim)
    truth = x0[:n].flatten(1)[:, pixels.to(x0.device)]
    some: Any = formula.at  # type: ignore[attr-defined]
    asking = (some(x0[:n] + sigma * noise[:n], sigma, pixels) - truth for sigma in sigmas)
    errors = [difference.square().mean(dim=1).cpu() for difference in progress.steps(asking, label, len(sigmas))]
    return Measured(torch.stack(errors), squares[:, :n, pixels].mean(dim=2), len(pixels))


def _sample(formula: Denoiser, count: int, images: ImageSet) -> tuple[int, Int[Tensor, "q"] | None]:
    """How many images, and which coordinates of them, a formula is measured on; None: all."""
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


def _advice(level: Level) -> str:
    if level.sigma > 3:
        return ": expect colour casts; predict v or x0, or train longer there"
    if level.sigma < 0.1:
        return ": expect grain; predict v or epsilon, or train longer there"
    return ": train longer there"
