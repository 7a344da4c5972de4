"""Options chosen from the data alone: at each noise level, the value with the least error on held-out images.

A seeded part of the training images is held out. The denoiser of the remaining images removes noise from it, with each
candidate value, and the errors decide. The held-out images are then put back: predictions use all images and the chosen
value. No network takes part. Held-out predictions are cached by content.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens import distributed, progress
from scorelens.data.images import ImageSet
from scorelens.denoisers.locality import Locality, at_scales, same_but_masks
from scorelens.denoisers.patch_sizes import at_nearest_level
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.posterior import Term
from scorelens.statistics import GaussianStats, fit_gaussian
from scorelens.statistics.cache import cached, find_cached
from scorelens.statistics.rotation import digest
from scorelens.types import Denoiser, ScorelensError, Shape
from scorelens.validation import per_level

LEVELS = tuple(ddim_sigmas(10).tolist())  # where values are chosen; other noise levels use the nearest of these
HELD_OUT = 512  # images at most, and at most a quarter of all
LEAST = 3  # images, below which nothing can be held out
WORK = 2.5e11  # held-out images x outputs x N x D at one noise level, counting OWN outputs in a square
SQUARE, OWN = 2, 3  # outputs are sampled in squares: their masks differ little, so that a square costs as much as OWN
FEWEST = 8  # squares
IRRELEVANT = ("memory", "plan")  # options that do not change predictions
SETTINGS = (LEVELS, HELD_OUT, WORK, SQUARE, OWN, FEWEST)

CANDIDATES: dict[str, tuple[Any, ...]] = {  # of the options that can be "auto"
    "threshold": (0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4),
    "patch_size": (3, 5, 7, 9, 11, 13, 17, 21, 25, 29, 33),
    "bandwidth": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0),
    "temperature": (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0),
}
STARTS = {"threshold": 0.05, "patch_size": 9, "bandwidth": 0.4, "temperature": 1.0}  # of options not yet chosen


def nearest_level(sigma: float) -> float:
    """The one of LEVELS that is nearest by ratio."""
    return at_nearest_level(LEVELS, LEVELS)(sigma)


class HeldOut(NamedTuple):
    """Noisy training images, the outputs to predict for them, and the images that remain."""

    rest: ImageSet
    x0: Float[Tensor, "n c h w"]
    noise: Float[Tensor, "n c h w"]
    outputs: Int[Tensor, "q"]

    def truth(self) -> Float[Tensor, "n q"]:
        return self.x0.flatten(1)[:, self.outputs]

    def predict(self, denoiser: Denoiser, sigma: float) -> Float[Tensor, "n q"]:
        """x0_hat at the outputs, of a denoiser of the remaining images."""
        with torch.no_grad():
            return outputs_of(denoiser, self.x0 + sigma * self.noise, sigma, self.outputs)

    def predict_all(self, denoisers: Sequence[Denoiser], sigma: float) -> Float[Tensor, "k n q"]:
        """The same of several denoisers; locality models that differ in their masks alone take one pass."""
        scales = [denoiser for denoiser in denoisers if isinstance(denoiser, Locality)]
        together = scales if len(scales) > 1 and same_but_masks(scales) else []
        with torch.no_grad():
            nested = iter(at_scales(together, self.x0 + sigma * self.noise, sigma, self.outputs) if together else ())
        tracked = progress.track(denoisers, f"held-out error at sigma {sigma:.3g}", len(denoisers))
        return torch.stack([next(nested) if together and isinstance(denoiser, Locality)
                            else self.predict(denoiser, sigma) for denoiser in tracked])


def outputs_of(denoiser: Denoiser, z: Tensor, sigma: float, pixels: Int[Tensor, "q"]) -> Float[Tensor, "b q"]:
    """x0_hat at these coordinates: alone, if the denoiser can compute them alone."""
    some = getattr(denoiser, "at", None)
    if some is None:
        return denoiser(z, sigma).flatten(1)[:, pixels.to(z.device)]
    return some(z, sigma, pixels).flatten(1)  # all outputs come as images


@lru_cache(maxsize=4)
def held_out(images: ImageSet) -> HeldOut:
    """The held-out images and outputs; the choice depends on N and the shape only."""
    rng, pairs = np.random.default_rng(0), int(WORK / (len(images) * images.dim))
    count = max(1, min(HELD_OUT, len(images) // 4, pairs // (OWN * FEWEST)))
    order, outputs = rng.permutation(len(images)), _squares(images.shape, rng, max(FEWEST, pairs // (OWN * count)))
    return HeldOut(images.subset(np.sort(order[count:])), images[order[:count]],
                   seeded_noise(images.shape, range(count)), torch.from_numpy(outputs))


def _squares(shape: Shape, rng: np.random.Generator, most: int) -> Int[np.ndarray, "q"]:
    """All channels of the pixels in some squares, neighbours after each other; all outputs if there are so many."""
    c, h, w = shape
    corners = rng.permutation([(row, column) for row in range(0, h, SQUARE) for column in range(0, w, SQUARE)])
    if most >= len(corners):
        return np.arange(c * h * w)
    places = [(row + r) * w + column + k for row, column in corners[:most] for r in range(SQUARE) for k in range(SQUARE)
              if row + r < h and column + k < w]
    return (np.array(places)[:, None] + h * w * np.arange(c)).ravel()


def held_out_predictions(images: ImageSet, sigma: float, builders: Mapping[str, Callable[[ImageSet], Denoiser]],
                         ) -> Float[Tensor, "k n q"]:
    """x0_hat of each denoiser of the remaining images at the held-out outputs. The names identify them in the cache."""
    part, keys = held_out(images), {name: [images.fingerprint, name, sigma, SETTINGS] for name in builders}
    known = {name: stored for name, key in keys.items() if (stored := find_cached("held-out", key)) is not None}
    missing = [name for name in builders if name not in known]
    if missing:
        predictions = part.predict_all([builders[name](part.rest) for name in missing], sigma)
        for name, x0_hat in zip(missing, predictions, strict=True):
            known[name] = cached("held-out", keys[name], partial(dict, x0_hat=x0_hat.clone()))
    return distributed.world().broadcast(torch.stack([known[name]["x0_hat"] for name in builders]))


class Choice(NamedTuple):
    """The value of an option, and the held-out error of each candidate."""

    option: str
    value: Any
    errors: dict[Any, float]


@dataclass(frozen=True, eq=False)
class Selected:
    """A denoiser with options that have the values of least held-out error at each noise level."""

    images: ImageSet
    choices: Callable[[float], tuple[Choice, ...]]  # at one of LEVELS, in the order in which they were made
    build: Callable[..., Denoiser]  # with a value for each option
    example: Denoiser  # with some values

    @property
    def converges_to_mean(self) -> bool:
        return getattr(self.example, "converges_to_mean", False)

    def values(self, sigma: float) -> dict[str, Any]:
        """The chosen value of each option at a noise level."""
        return {choice.option: choice.value for choice in self.choices(nearest_level(sigma))}

    def held_out_error(self, sigma: float) -> float:
        """The error with the chosen values, on the images on which they were chosen; NaN if there are too few."""
        last = self.choices(nearest_level(sigma))[-1]
        return last.errors.get(last.value, math.nan)

    def at_level(self, sigma: float) -> Denoiser:
        """The denoiser with the values of a noise level."""
        return self.build(**self.values(sigma))

    @per_level
    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        return self.at_level(sigma)(z, sigma)

    @per_level
    def at(self, z: Tensor, sigma: float, pixels: Int[Tensor, "q"]) -> Tensor:
        """x0_hat at these coordinates only, [B, q]."""
        return outputs_of(self.at_level(sigma), z, sigma, pixels)

    @property
    def terms(self) -> Callable[[Tensor, float], Iterator[Term]] | None:
        """The posterior means that a call consists of, if the method has any."""
        if getattr(self.example, "terms", None) is None:
            return None
        return lambda z, sigma: self.at_level(sigma).terms(z, sigma)  # type: ignore[attr-defined]

    def over(self, images: ImageSet) -> Selected:
        """The same values, and whatever else is fitted, over other images."""
        def build(**values: Any) -> Denoiser:
            other: Denoiser = self.build(**values).over(images)  # type: ignore[attr-defined]
            return other

        return replace(self, images=images, build=lru_cache(build), example=self.example.over(images))  # type: ignore[attr-defined]

    def chosen(self, sigmas: Sequence[float]) -> list[dict[str, Any]]:
        """The values at each noise level, and the held-out errors that decided."""
        return [{"sigma": sigma, **self.values(sigma),
                 "errors": {choice.option: {str(value): error for value, error in choice.errors.items()}
                            for choice in self.choices(nearest_level(sigma))}} for sigma in sigmas]

    @property
    def choice(self) -> Callable[[Tensor, float], Any] | None:
        """A function for the plan of a call and its expected cost, if the method has plans."""
        if not hasattr(self.example, "choice"):
            return None
        return lambda z, sigma: self.at_level(sigma).choice(z, sigma)  # type: ignore[attr-defined]


def selected(images: ImageSet, name: str, builder: Callable[..., Denoiser], options: Mapping[str, Any]) -> Selected:
    """The denoiser builder(images, **options), with the options that are "auto" chosen at each noise level.

    Several are chosen one after the other, in the order of CANDIDATES; those that follow have their value of STARTS.
    """
    side, automatic = max(images.shape[1:]), selected_options(options)
    fixed = {key: value for key, value in options.items() if key not in automatic}
    defaults = {key: parameter.default for key, parameter in inspect.signature(builder).parameters.items()}
    relevant = {key: value for key, value in fixed.items() if not _same(value, defaults.get(key))}
    content_name(name, relevant)  # raises now, before anything is computed
    def candidates(option: str) -> tuple[Any, ...]:
        return tuple(value for value in CANDIDATES[option] if option != "patch_size" or value <= side + 1)

    def name_of(values: Mapping[str, Any], last: str) -> str:
        """Identifies a candidate in the cache; the option that varies comes last."""
        others = {**relevant, **{key: value for key, value in values.items() if key != last}}
        return f"{content_name(name, others)}, {last} {values[last]}"

    @lru_cache(maxsize=2)
    def shared(source: ImageSet) -> dict[str, Any]:
        fits = "stats" in defaults and options.get("components") is None and fixed.get("stats") is None
        return {**fixed, "stats": fit_gaussian(source)} if fits else fixed

    def build_on(source: ImageSet, **values: Any) -> Denoiser:
        return builder(source, **{**shared(source), **values})

    def choose(level: float, option: str, values: Mapping[str, Any]) -> Choice:
        if len(images) < LEAST:
            return Choice(option, values[option], {})
        tried = {value: {**values, option: value} for value in candidates(option)}
        builders = {name_of(each, option): partial(build_on, **each) for each in tried.values()}
        predictions = held_out_predictions(images, level, builders)
        errors = (predictions - held_out(images).truth()).square().mean(dim=(1, 2))
        return Choice(option, list(tried)[int(errors.argmin())], dict(zip(tried, errors.tolist(), strict=True)))

    @lru_cache
    def choices(level: float) -> tuple[Choice, ...]:
        values, made = {option: STARTS[option] for option in automatic}, []
        for option in automatic:
            made.append(choose(level, option, values))
            values[option] = made[-1].value
        return tuple(made)

    build = lru_cache(partial(build_on, images))
    return Selected(images, choices, build, build(**{option: candidates(option)[0] for option in automatic}))


def selected_options(options: Mapping[str, Any]) -> list[str]:
    """The options that are to be chosen from the data, in the order of the choice."""
    return [option for option in CANDIDATES if isinstance(options.get(option), str) and options[option] == "auto"]


def _same(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, str | int | float) and value == default)


def content_name(name: str, options: Mapping[str, Any]) -> str:
    """A denoiser and its options as text that identifies them in the cache."""
    texts = (f"{key} {_content(key, value)}" for key, value in sorted(options.items()) if key not in IRRELEVANT)
    return ", ".join([name, *texts])


def _content(name: str, value: Any) -> str:
    """The value as text that identifies its content in the cache."""
    if isinstance(value, GaussianStats):
        return digest(value)
    if isinstance(value, str) and Path(value).expanduser().is_file():
        return hashlib.sha256(Path(value).expanduser().read_bytes()).hexdigest()
    if isinstance(value, (str, int, float, tuple, list, type(None))):
        return repr(value)
    raise ScorelensError(f"with an option chosen automatically, {name} must be a number, a text or statistics, "
                         f"got {type(value).__name__}")
