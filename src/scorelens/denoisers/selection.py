"""Options chosen from the data alone: at each noise level, the value with the least error on held-out images.

A seeded part of the training images is held out. The denoiser of the remaining images removes noise from it, with each
candidate value, and the errors decide. The held-out images are then put back: predictions use all images and the chosen
value. No network takes part. Held-out predictions are cached by content.
"""

from __future__ import annotations

import hashlib
import inspect
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
from scorelens.denoisers.patch_sizes import at_nearest_level
from scorelens.noise import ddim_sigmas, seeded_noise
from scorelens.posterior import Term
from scorelens.statistics import GaussianStats, fit_gaussian
from scorelens.statistics.cache import cached
from scorelens.statistics.rotation import digest
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import per_level

LEVELS = tuple(ddim_sigmas(10).tolist())  # where values are chosen; other noise levels use the nearest of these
HELD_OUT = 512  # images at most, and at most a quarter of all
WORK = 2.5e11  # held-out images x outputs x N x D, for one candidate at one noise level
FEWEST = 24  # outputs
SETTINGS = (LEVELS, HELD_OUT, WORK, FEWEST)

CANDIDATES: dict[str, tuple[Any, ...]] = {  # of the options that can be "auto"
    "threshold": (0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4),
    "temperature": (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0),
    "patch_size": (3, 5, 7, 9, 11, 13, 17, 21, 25, 29, 33),
}


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


def outputs_of(denoiser: Denoiser, z: Tensor, sigma: float, pixels: Int[Tensor, "q"]) -> Float[Tensor, "b q"]:
    """x0_hat at these coordinates: alone, if the denoiser can compute them alone."""
    some = getattr(denoiser, "at", None)
    if some is None:
        return denoiser(z, sigma).flatten(1)[:, pixels.to(z.device)]
    return some(z, sigma, pixels).flatten(1)  # all outputs come as images


@lru_cache(maxsize=4)
def held_out(images: ImageSet) -> HeldOut:
    """The held-out images and outputs; the choice depends on N and D only."""
    rng, pairs = np.random.default_rng(0), int(WORK / (len(images) * images.dim))
    count = max(1, min(HELD_OUT, len(images) // 4, pairs // FEWEST))
    order, outputs = rng.permutation(len(images)), rng.permutation(images.dim)[:max(FEWEST, pairs // count)]
    return HeldOut(images.subset(np.sort(order[count:])), images[order[:count]],
                   seeded_noise(images.shape, range(count)), torch.from_numpy(np.sort(outputs)))


def held_out_predictions(images: ImageSet, sigma: float, builders: Mapping[str, Callable[[ImageSet], Denoiser]],
                         ) -> Float[Tensor, "k n q"]:
    """x0_hat of each denoiser of the remaining images at the held-out outputs. The names identify them in the cache."""
    def predict(name: str) -> Tensor:
        key = [images.fingerprint, name, sigma, SETTINGS]
        return cached("held-out", key, lambda: {"x0_hat": part.predict(builders[name](part.rest), sigma)})["x0_hat"]

    part = held_out(images)
    tracked = progress.track(builders, f"held-out error at sigma {sigma:.3g}", len(builders))
    return distributed.world().broadcast(torch.stack([predict(name) for name in tracked]))


@dataclass(frozen=True, eq=False)
class Selected:
    """A denoiser with an option that has the value of least held-out error at each noise level."""

    images: ImageSet
    option: str
    values: tuple[Any, ...]
    errors: Callable[[float], Float[Tensor, "k"]]  # held-out error of each value, at one of LEVELS
    build: Callable[[Any], Denoiser]  # with a value of the option

    @property
    def converges_to_mean(self) -> bool:
        return getattr(self.build(self.values[0]), "converges_to_mean", False)

    def value(self, sigma: float) -> Any:
        """The chosen value at a noise level."""
        return self.values[int(self.errors(nearest_level(sigma)).argmin())]

    @per_level
    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        return self.build(self.value(sigma))(z, sigma)

    @per_level
    def at(self, z: Tensor, sigma: float, pixels: Int[Tensor, "q"]) -> Tensor:
        """x0_hat at these coordinates only, [B, q]."""
        return outputs_of(self.build(self.value(sigma)), z, sigma, pixels)

    @property
    def terms(self) -> Callable[[Tensor, float], Iterator[Term]] | None:
        """The posterior means that a call consists of, if the method has any."""
        if getattr(self.build(self.values[0]), "terms", None) is None:
            return None
        return lambda z, sigma: self.build(self.value(sigma)).terms(z, sigma)  # type: ignore[attr-defined]

    def over(self, images: ImageSet) -> Selected:
        """The same values, and whatever else is fitted, over other images."""
        build = self.build
        return replace(self, images=images, build=lru_cache(lambda value: build(value).over(images)))  # type: ignore[attr-defined]

    def chosen(self, sigmas: Sequence[float]) -> list[dict[str, Any]]:
        """The value at each noise level, and the held-out errors that decided."""
        return [{"sigma": sigma, self.option: self.value(sigma),
                 "errors": dict(zip(map(str, self.values), self.errors(nearest_level(sigma)).tolist(), strict=True))}
                for sigma in sigmas]

    @property
    def choice(self) -> Callable[[Tensor, float], Any] | None:
        """A function for the plan of a call and its expected cost, if the method has plans."""
        if not hasattr(self.build(self.values[0]), "choice"):
            return None
        return lambda z, sigma: self.build(self.value(sigma)).choice(z, sigma)  # type: ignore[attr-defined]


def selected(images: ImageSet, name: str, builder: Callable[..., Denoiser], options: Mapping[str, Any]) -> Selected:
    """The denoiser builder(images, **options), with the option that is "auto" chosen at each noise level."""
    option, *more = selected_options(options)
    if more:
        raise ScorelensError(f"{name}: {option} and {more[0]} are both auto; choose one of them yourself")
    side, others = max(images.shape[1:]), {key: value for key, value in options.items() if key != option}
    values = tuple(value for value in CANDIDATES[option] if option != "patch_size" or value <= side + 1)
    key = ", ".join([name, *(f"{key} {_content(key, value)}" for key, value in sorted(others.items()))])

    @lru_cache(maxsize=2)
    def shared(source: ImageSet) -> dict[str, Any]:
        fits = "stats" in inspect.signature(builder).parameters and "components" not in options
        return {"stats": fit_gaussian(source), **others} if fits else others

    @lru_cache
    def errors(level: float) -> Float[Tensor, "k"]:
        builders = {f"{key}, {option} {value}": partial(build_on, value=value) for value in values}
        return (held_out_predictions(images, level, builders) - held_out(images).truth()).square().mean(dim=(1, 2))

    def build_on(source: ImageSet, value: Any) -> Denoiser:
        return builder(source, **{**shared(source), option: value})

    return Selected(images, option, values, errors, lru_cache(partial(build_on, images)))


def selected_options(options: Mapping[str, Any]) -> list[str]:
    """The options that are to be chosen from the data."""
    return [option for option in CANDIDATES if options.get(option) == "auto"]


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
