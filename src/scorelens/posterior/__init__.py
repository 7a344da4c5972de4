"""Posterior means of every kind: a declaration of three slots, one softmax, and the plans that execute it."""

from scorelens.posterior.costs import Choice
from scorelens.posterior.engine import MEMORY, Posterior, logit_scale, plan_for, posterior_mean
from scorelens.posterior.queries import Masks, Precisions, Queries, WholeImage, WholePatch, Windows
from scorelens.posterior.responses import (
    AllChannels,
    ListedOutputs,
    MaskMeans,
    OwnOutput,
    PartOfOutput,
    Responses,
    WholeOutput,
    WindowMeans,
)
from scorelens.posterior.sources import Source

__all__ = [
    "MEMORY",
    "AllChannels",
    "Choice",
    "ListedOutputs",
    "MaskMeans",
    "Masks",
    "OwnOutput",
    "PartOfOutput",
    "Posterior",
    "Precisions",
    "Queries",
    "Responses",
    "Source",
    "WholeImage",
    "WholeOutput",
    "WholePatch",
    "WindowMeans",
    "Windows",
    "logit_scale",
    "plan_for",
    "posterior_mean",
]
