"""Posterior means of every kind: a declaration of three slots, one softmax, and the plans that execute it."""

from scorelens.posterior.costs import Choice, choose_plan
from scorelens.posterior.engine import logit_scale, posterior_mean
from scorelens.posterior.slots import (
    Chosen,
    EveryPixel,
    MaskMeans,
    Masks,
    OwnPixel,
    OwnPlace,
    Posterior,
    Precisions,
    SomePixels,
    Source,
    WholeImage,
    WholePatch,
    Windows,
)

__all__ = [
    "Choice",
    "Chosen",
    "EveryPixel",
    "MaskMeans",
    "Masks",
    "OwnPixel",
    "OwnPlace",
    "Posterior",
    "Precisions",
    "SomePixels",
    "Source",
    "WholeImage",
    "WholePatch",
    "Windows",
    "choose_plan",
    "logit_scale",
    "posterior_mean",
]
