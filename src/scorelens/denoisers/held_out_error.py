"""The error of any closed-form denoiser on training images that are held out, by which formulas can be ranked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from scorelens.data.images import ImageSet
from scorelens.denoisers.multiscale import Multiscale
from scorelens.denoisers.registry import build_denoiser
from scorelens.denoisers.selection import (
    LEAST,
    LEVELS,
    Selected,
    content_name,
    held_out,
    held_out_predictions,
    nearest_level,
)
from scorelens.denoisers.specs import parse_specs
from scorelens.types import ScorelensError

TINY = 1e-12  # least error, so that ratios exist


def held_out_error(name: str, images: ImageSet, sigma: float, **options: Any) -> float:
    """The mean squared error of x0_hat on held-out images, of the denoiser of the remaining ones; cached.

    It is measured at the noise level nearest to sigma at which options are chosen. Where options or weights are chosen
    on these images, it is the error with the chosen ones.
    """
    level, model = nearest_level(sigma), build_denoiser(name, images, **options)
    if isinstance(model, (Selected, Multiscale)):
        return model.held_out_error(level)
    builder = partial(build_denoiser, name, **options)
    predictions = held_out_predictions(images, level, {content_name(name, options): builder})
    return (predictions[0] - held_out(images).truth()).square().mean().item()


def ranked(specs: Sequence[str], images: ImageSet) -> dict[str, float]:
    """Denoisers by held-out error, best first: the geometric mean over noise levels of the error relative to Wiener's.

    No network takes part: the first is the best prediction of a network that the data alone can name. Infinite if there
    are too few images to hold any out.
    """
    def score(text: str) -> float:
        (spec, *others) = parse_specs(text)
        if others:
            raise ScorelensError(f"{text} names several denoisers; give one value for each option")
        errors = [max(held_out_error(spec.name, images, level, **spec.options), TINY) for level in LEVELS]
        return math.exp(math.fsum(math.log(a / b) for a, b in zip(errors, linear, strict=True)) / len(LEVELS))

    if len(images) < LEAST:
        return dict.fromkeys(specs, math.inf)
    linear = [max(held_out_error("wiener", images, level), TINY) for level in LEVELS]
    scores = {text: score(text) for text in specs}
    return dict(sorted(scores.items(), key=lambda item: item[1]))
