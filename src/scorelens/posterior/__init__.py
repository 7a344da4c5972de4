"""Posterior means of every kind: a declaration of three slots, one softmax, and the plans that execute it."""

from scorelens.posterior.costs import Candidate
from scorelens.posterior.engine import MEMORY, Posterior, logit_scale, plan_for, posterior_mean
from scorelens.posterior.queries import Affine, Masks, Queries, WholeImage, WholePatch, Windows
from scorelens.posterior.responses import AllChannels, MaskMeans, OwnOutput, Responses, WholeOutput, WindowMeans
from scorelens.posterior.sources import Source

__all__ = ["MEMORY", "Affine", "AllChannels", "Candidate", "MaskMeans", "Masks", "OwnOutput", "Posterior", "Queries",
           "Responses", "Source", "WholeImage", "WholeOutput", "WholePatch", "WindowMeans", "Windows", "logit_scale",
           "plan_for", "posterior_mean"]
