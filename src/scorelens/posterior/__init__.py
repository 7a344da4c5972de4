"""Posterior means of every kind: a declaration of three slots, one softmax, and the plans that execute it."""

from scorelens.posterior.costs import Choice, choose_plan
from scorelens.posterior.engine import logit_scale, posterior_mean
from scorelens.posterior.slots import EveryPixel, Masks, OwnPixel, Posterior, SomePixels, WholeImage

__all__ = [
    "Choice",
    "EveryPixel",
    "Masks",
    "OwnPixel",
    "Posterior",
    "SomePixels",
    "WholeImage",
    "choose_plan",
    "logit_scale",
    "posterior_mean",
]
