"""Posterior means of linear maps of the images: distances in any basis are those of whole rows."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.posterior.engine import Posterior, posterior_mean
from scorelens.posterior.queries import WholeImage
from scorelens.posterior.responses import WholeOutput
from scorelens.posterior.sources import Projected
from scorelens.types import Flat
from scorelens.validation import wide_dtype

COPIES = 3  # of a chunk: as it is read, as it is projected, and the engine's own
ROUNDING = 2e-4  # nats: what rows rounded to float32 may cost
SAMPLE = 64  # rows from which the length of rows is estimated


def row_dtype(source: Projected, compared: int, sigma: float, z: Tensor) -> torch.dtype:
    """The dtype of z, or float64 (where the device has it) if rounding rows to z's dtype would change the logits.

    Each of r coordinates of a row of length l rounds by eps l / sqrt(r), and differs from that of a noisy image by
    l / sqrt(r) or sigma.
    """
    length = source.raw(0, SAMPLE)[:, :compared].norm(dim=1).max().item()
    error = torch.finfo(z.dtype).eps / 2 * length * (2 * length / math.sqrt(compared) + sigma) / sigma**2
    return z.dtype if error < ROUNDING else wide_dtype(z)


def mean_behind(z: Flat, query: Float[Tensor, "b r"], source: Projected, sigma: float, temperature: float,
                memory: int) -> Float[Tensor, "b v"]:
    """The posterior mean of the coordinates that follow the r which are compared with the query."""
    (b, r), d, dtype = query.shape, source.dim, row_dtype(source, query.shape[1], sigma, z)
    rows = replace(source, matrix=source.matrix.to(dtype))
    posterior = Posterior(WholeImage(r), WholeOutput(torch.arange(r, d, device=query.device)), rows)
    padded = torch.cat([query, query.new_zeros(b, d - r)], dim=1).to(dtype)
    return posterior_mean(posterior, padded, sigma, temperature=temperature, memory=memory // COPIES)
