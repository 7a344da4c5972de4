"""Which input pixels are compared, and with which weight, for each output: the queries of a posterior.

A kind of query is a class with one method: the exact plans that can compute its distances, with their costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scorelens.posterior.costs import Candidate, Cost
from scorelens.posterior.plans.affine import AffineRows
from scorelens.posterior.plans.base import cached_chunk
from scorelens.posterior.plans.box_sums import BoxSums
from scorelens.posterior.plans.correlations import Correlations, correlations_are_exact
from scorelens.posterior.plans.dense import DenseMasks
from scorelens.posterior.plans.differences import CHAIN_ERROR, MaskDifferences, chain_is_exact, mask_changes
from scorelens.posterior.plans.full_image import FullImage
from scorelens.posterior.plans.fused import FusedMasks, FusedWindows, Links, available, linked
from scorelens.posterior.plans.products import Products
from scorelens.posterior.plans.sparse import SparseMasks, Sums, sums_over
from scorelens.posterior.windows import WindowGrid
from scorelens.types import Flat, Shape
from scorelens.validation import wide_dtype

SMALL = 128**2  # entries of masks below which choosing a plan is not worth measuring rates


@runtime_checkable
class Queries(Protocol):
    """Which input pixels are compared for each output."""

    def plans(self, z: Flat, scale: float) -> Sequence[Candidate]:
        """The plans that compute these distances exactly at this scale, the default first."""


@dataclass(frozen=True, eq=False)
class WholeImage:
    """One query, which compares all input pixels; or only the first `compared` coordinates of the source's rows, where
    the others are there to be averaged."""

    compared: int | None = None

    def plans(self, z: Flat, scale: float) -> Sequence[Candidate]:
        return [Candidate(FullImage.name, lambda: _cost(z, products=2 * z.shape[1]), lambda: FullImage(self.compared))]


@dataclass(frozen=True, eq=False)
class WholeTranslation:
    """One query, which compares all input pixels with all circular translations of the images."""

    shape: Shape

    def plans(self, z: Flat, scale: float) -> Sequence[Candidate]:
        c, h, w = self.shape
        one_by_one = WholeImage().plans(z, scale)
        if not correlations_are_exact(z, scale):
            return one_by_one
        cost = Cost(z.device, z.dtype, values=2 * c + 10 * math.log2(h * w + 1), reads=c)  # of one translation
        return [Candidate(Correlations.name, lambda: cost, lambda: Correlations(shape=self.shape), preferred=True),
                *one_by_one]


@dataclass(frozen=True, eq=False)
class Affine:
    """One query z with the distances t_i - 2 z.y_i, for rows (y_i, t_i) of the source."""

    def plans(self, z: Flat, scale: float) -> Sequence[Candidate]:
        return [Candidate(AffineRows.name, lambda: _cost(z, products=2 * z.shape[1]), AffineRows)]


@dataclass(frozen=True, eq=False)
class WholePatch:
    """One query, which compares all pixels of a small image, for thousands of noisy ones at a time."""

    def plans(self, z: Flat, scale: float) -> Sequence[Candidate]:
        d, sigma = z.shape[1], math.sqrt(1 / (2 * scale))
        error = torch.finfo(torch.float32).eps / 2 * scale * d * (2 + sigma)  # of |z - x|^2 expanded, in float32
        dtype = z.dtype if error < CHAIN_ERROR else wide_dtype(z)
        return [Candidate(Products.name, lambda: _cost(z, products=d + 2, values=1), lambda: Products(dtype))]


@dataclass(frozen=True, eq=False)
class Masks:
    """As many queries as rows; query q compares the input pixels that row q keeps, or all pixels with the weights of
    row q (soft masks). Queries on a grid (C, H, W), such as one per output, have neighbours whose masks differ little.
    """

    keep: Bool[Tensor, "q d"] | Float[Tensor, "q d"]
    grid: Shape | None = None

    def __len__(self) -> int:
        return len(self.keep)

    def subset(self, queries: Int[Tensor, "k"]) -> Masks:
        return Masks(self.keep[queries.to(self.keep.device)])

    @property
    def soft(self) -> bool:
        return self.keep.is_floating_point()

    @cached_property
    def sums(self) -> Sums:
        """Each mask by itself."""
        return sums_over(self.keep)

    @cached_property
    def changes(self) -> Sums:
        """Each mask relative to that of the pixel before it."""
        assert self.grid is not None, "changes need a grid"
        return sums_over(mask_changes(self.keep, self.grid), self.keep)

    @cached_property
    def links(self) -> Links:
        """Each mask relative to the most similar of its neighbours before it."""
        return linked(self.keep, self.grid)

    @cached_property
    def unlinked(self) -> Links:
        """Each mask by itself, for the compiled kernel."""
        return linked(self.keep, None)

    def plans(self, z: Flat, scale: float) -> Sequence[Candidate]:
        q, d = self.keep.shape
        once = _cost(z, values=(q + d) / 2)
        chunk = replace(once, calls=1 / cached_chunk(d, z.element_size(), 2**62))
        candidates = [Candidate(DenseMasks.name, lambda: replace(once, products=q * d, calls=1 / 2048),
                                lambda: DenseMasks(self.keep.to(z)), preferred=q * d < SMALL)]
        if self.soft:
            return candidates
        candidates.append(Candidate(SparseMasks.name, lambda: replace(chunk, entries=self.sums.entries),
                                    lambda: SparseMasks(self.keep, self.sums.to(z.device))))
        chained = self.grid is not None and chain_is_exact(self.keep, self.grid, z.dtype, scale)
        if (grid := self.grid) is not None:
            candidates.append(Candidate(MaskDifferences.name, lambda: replace(chunk, entries=self.changes.entries),
                                        lambda: MaskDifferences(self.keep, self.changes.to(z.device), grid),
                                        exact=chained))
        if available(z):
            plain = candidates[-1 if chained else 1]
            candidates.append(Candidate(
                FusedMasks.name, lambda: replace(once, entries=(self.links if chained else self.unlinked).entries,
                                                 values=q, fused=True),
                lambda: FusedMasks(plain.build, self.links if chained else self.unlinked, chained), preferred=True))
        return candidates


@dataclass(frozen=True)
class Windows(WindowGrid):
    """Square windows of all channels, one for each pixel, or those wholly inside the image."""

    def plans(self, z: Flat, scale: float) -> Sequence[Candidate]:
        c, h, w = self.shape
        cost = _cost(z, values=h * w * (c + 2 * self.size.bit_length()), calls=1 / 512)
        plain = Candidate(BoxSums.name, lambda: cost, lambda: BoxSums(self))
        if not available(z) or h * w * z.shape[1] < SMALL:
            return [plain]
        fused = replace(cost, entries=h * w * (3 * c + 12), values=h * w, fused=True)
        return [plain, Candidate(FusedWindows.name, lambda: fused, lambda: FusedWindows(plain.build, self),
                                 preferred=True)]


def _cost(z: Flat, **counts: float) -> Cost:
    return Cost(z.device, z.dtype, reads=z.shape[1], **counts)  # type: ignore[arg-type]
