"""Posterior means of every kind: a declaration of three slots, one softmax, and the plans that execute it."""

from scorelens.posterior.costs import Candidate
from scorelens.posterior.engine import MEMORY, Posterior, logit_scale, plan_for, posterior_mean
from scorelens.posterior.queries import Affine, Masks, Queries, WholeImage, WholePatch, WholeTranslation, Windows
from scorelens.posterior.responses import (
    AllChannels,
    MaskMeans,
    OwnOutput,
    Responses,
    WholeOutput,
    WindowMeans,
    Writers,
)
from scorelens.posterior.sources import Source
from scorelens.posterior.weights import Term, TopWeights, image_weights, top_weights

__all__ = ["MEMORY", "Affine", "AllChannels", "Candidate", "MaskMeans", "Masks", "OwnOutput", "Posterior", "Queries",
           "Responses", "Source", "Term", "TopWeights", "WholeImage", "WholeOutput", "WholePatch",
           "WholeTranslation", "WindowMeans", "Windows", "Writers", "image_weights", "logit_scale", "plan_for",
           "posterior_mean", "top_weights"]
