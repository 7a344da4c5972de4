"""Linear maps of the images as a source: distances in any basis are the posterior of whole images once more."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens.data.images import ImageSet, to_floats
from scorelens.posterior.engine import posterior_mean
from scorelens.posterior.slots import Chosen, Posterior, WholeImage
from scorelens.types import Flat
from scorelens.validation import wide_dtype

COPIES = 3  # of a chunk: as it is read, as it is projected, and the engine's own
ROUNDING = 2e-4  # nats: what rows rounded to float32 may cost
LOOK = 64  # rows that tell how long rows are


@dataclass(frozen=True, eq=False)
class Projected:
    """Source: rows (x_i - origin)[seen] P, and behind them (x_i - origin)[kept] as it is; a few images at a time.

    They are computed in the precision of P, on its device.
    """

    images: ImageSet
    origin: Float[Tensor, "d"]
    seen: Int[Tensor, "m"]  # coordinates of the images
    matrix: Float[Tensor, "m r"]  # P
    kept: Int[Tensor, "v"]  # coordinates of the images

    def __len__(self) -> int:
        return len(self.images)

    @property
    def dim(self) -> int:
        return self.matrix.shape[1] + len(self.kept)

    @property
    def centre(self) -> np.ndarray:
        return np.full(self.dim, 127.5)

    def raw(self, start: int, stop: int) -> Float[Tensor, "n k"]:
        raw = self.images.raw(start, stop).flatten(1)  # [n, d]
        return torch.cat([self._centred(raw, self.seen) @ self.matrix, self._centred(raw, self.kept)], dim=1)

    def _centred(self, raw: Tensor, pixels: Int[Tensor, "p"]) -> Float[Tensor, "n p"]:
        some = raw[:, pixels]
        return to_floats(some, self.matrix.new_empty(some.shape)).sub_(self.origin[pixels].to(self.matrix.dtype))


@dataclass(frozen=True, eq=False)
class Scaled:
    """Source: the rows of a table, each coordinate times a number."""

    rows: np.ndarray  # float32 [N, k], perhaps a memmap
    scale: Float[Tensor, "k"]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dim(self) -> int:
        return self.rows.shape[1]

    @property
    def centre(self) -> np.ndarray:
        return np.full(self.dim, 127.5)

    def raw(self, start: int, stop: int) -> Float[Tensor, "n k"]:
        return torch.from_numpy(self.rows[start:stop]) * self.scale


def row_dtype(source: Projected, compared: int, sigma: float, z: Tensor) -> torch.dtype:
    """That of z, or float64 (where the device has it) if rows rounded to z's would move the logits: of r coordinates
    each is off by eps l / sqrt(r), l the row's length, and differs by l / sqrt(r) or sigma from a noisy image's."""
    length = source.raw(0, LOOK)[:, :compared].norm(dim=1).max().item()
    error = torch.finfo(z.dtype).eps / 2 * length * (2 * length / math.sqrt(compared) + sigma) / sigma**2
    return z.dtype if error < ROUNDING else wide_dtype(z)


def mean_behind(z: Flat, query: Float[Tensor, "b r"], source: Projected, sigma: float, temperature: float,
                memory: int) -> Float[Tensor, "b v"]:
    """The posterior mean of the coordinates behind the r that are compared with the query; as exact as z asks for."""
    (b, r), d, dtype = query.shape, source.dim, row_dtype(source, query.shape[1], sigma, z)
    rows = replace(source, matrix=source.matrix.to(dtype))
    posterior = Posterior(WholeImage(r), Chosen(torch.arange(r, d, device=query.device)), rows)
    padded = torch.cat([query, query.new_zeros(b, d - r)], dim=1).to(dtype)
    return posterior_mean(posterior, padded, sigma, temperature=temperature, memory=memory // COPIES)
