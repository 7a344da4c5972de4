"""Posterior means of every kind: a declaration of three slots, one softmax, and the plans that execute it."""

from scorelens.posterior.engine import posterior_mean
from scorelens.posterior.slots import EveryPixel, Masks, OwnPixel, Posterior, WholeImage

__all__ = ["EveryPixel", "Masks", "OwnPixel", "Posterior", "WholeImage", "posterior_mean"]
