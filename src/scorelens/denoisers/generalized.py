"""The generalized masked optimal denoiser of the appendix: each output compares any linear map of the input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.denoisers.common import widened
from scorelens.posterior import MEMORY, Term, Writers
from scorelens.posterior.engine import COPIES, mean_behind, posterior_behind
from scorelens.posterior.sources import Projected
from scorelens.statistics import GaussianStats, fit_gaussian
from scorelens.types import Flat, ScorelensError
from scorelens.validation import at_least_float32, per_level

Basis = Float[Tensor, "r d"]  # orthonormal rows
Operators = Tensor | Sequence[Tensor]  # one matrix [r, D] for all outputs, or one for each


@dataclass(frozen=True)
class Generalized:
    """x0_hat_q = sum_i softmax_i(-||P_q (z - x_i)||^2 / 2 sigma^2) x_i,q   # eq:generalized-opt, without translations

    P_q is the orthogonal projector on the row space of a linear operator A_q.
    """

    converges_to_mean: ClassVar[bool] = True
    images: ImageSet
    bases: Callable[[float], Basis | Callable[[int], Basis]]  # at sigma: one for all outputs, or one for each
    temperature: float = 1.0
    memory: int = MEMORY

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        return self.at(z, sigma, torch.arange(self.images.dim)).view(z.shape)

    @per_level
    def at(self, z: Tensor, sigma: float, pixels: Int[Tensor, "q"]) -> Tensor:
        """x0_hat at these coordinates only, [B, q]."""
        flat, pixels, bases = at_least_float32(z).flatten(1), pixels.cpu(), self.bases(sigma)
        if isinstance(bases, Tensor):
            return self._outputs(flat, sigma, bases, pixels).to(z.dtype)
        return torch.cat([self._outputs(flat, sigma, bases(int(q)), q[None]) for q in pixels], dim=1).to(z.dtype)

    def terms(self, z: Tensor, sigma: float) -> Iterator[Term]:
        flat, every, bases = at_least_float32(z).flatten(1), torch.arange(self.images.dim), self.bases(sigma)
        for outputs in [every] if isinstance(bases, Tensor) else every[:, None]:
            basis = bases if isinstance(bases, Tensor) else bases(int(outputs))
            _, query, source = self._compared(flat, basis, outputs)
            posterior, padded = posterior_behind(flat, query, source, sigma)
            yield Term(posterior, padded, sigma, torch.arange(len(z)), Writers(outputs, torch.zeros_like(outputs)),
                       temperature=self.temperature, memory=self.memory // COPIES)

    def over(self, images: ImageSet) -> Generalized:
        """The same operators over other images."""
        return replace(self, images=images)

    def _outputs(self, z: Flat, sigma: float, basis: Basis, outputs: Int[Tensor, "v"]) -> Float[Tensor, "b v"]:
        origin, query, source = self._compared(z, basis, outputs)
        return origin[outputs] + mean_behind(z, query, source, sigma, self.temperature, self.memory)

    def _compared(self, z: Flat, basis: Basis, outputs: Int[Tensor, "v"],
                  ) -> tuple[Float[Tensor, "d"], Float[Tensor, "b r"], Projected]:
        """The origin; z in the basis; and rows with the coordinates of x_i in the basis, followed by the outputs."""
        centre = torch.from_numpy(self.images.centre().reshape(-1) / 127.5 - 1)  # any origin; this one rounds least
        projection, origin = widened(z, basis.T, centre)
        query = (z.to(origin.dtype) - origin) @ projection  # [B, r]
        return origin, query, Projected(self.images, origin, torch.arange(self.images.dim), projection, outputs)


def row_space(a: Float[Tensor, "m d"]) -> Basis:
    """An orthonormal basis of the row space; for a zero matrix one row of zeros, which compares nothing."""
    _, sizes, rows = torch.linalg.svd(a.detach().cpu().double(), full_matrices=False)
    kept = sizes > sizes[:1] * max(a.shape) * torch.finfo(torch.float64).eps
    return rows[kept] if kept.any() else rows.new_zeros(1, a.shape[1])


def generalized(images: ImageSet, *, operators: Operators | Callable[[float], Operators] | None = None,
                snr: float = 1.0, temperature: float = 1.0, stats: GaussianStats | None = None,
                memory: int = MEMORY) -> Generalized:
    """The generalized masked optimal denoiser of these images.

    Args:
        images: the training images.
        operators: A, [r, D], for all outputs; a sequence with one for each; or a function of sigma that returns either.
            By default the principal components above the noise.
        snr: least lambda^2 / sigma^2 of these components.
        temperature: divides the logits.
        stats: moments that give the default components, instead of those of `images`.
        memory: workspace in bytes.
    """
    if snr < 0:
        raise ScorelensError(f"snr must be at least 0, got {snr:g}")
    if operators is None:
        basis = partial(_visible, stats or fit_gaussian(images), snr)
        return Generalized(images, basis, temperature, memory)
    at = operators if callable(operators) else lambda sigma: operators
    return Generalized(images, lambda sigma: _bases(at(sigma), images.dim), temperature, memory)


def _visible(stats: GaussianStats, snr: float, sigma: float) -> Basis:
    kept = stats.eigenvectors[:, stats.eigenvalues >= snr * sigma**2].T
    return kept if len(kept) else torch.zeros(1, len(stats.mean), dtype=torch.float64)


def _bases(operators: Operators, d: int) -> Basis | Callable[[int], Basis]:
    if isinstance(operators, Tensor) and operators.ndim == 2:
        return row_space(_checked(operators, d))
    if len(operators) != d:
        raise ScorelensError(f"operators must be one matrix, or one for each of the {d} outputs, got {len(operators)}")
    return lambda q: row_space(_checked(operators[q], d))


def _checked(a: Tensor, d: int) -> Float[Tensor, "m d"]:
    if a.ndim != 2 or a.shape[1] != d:
        raise ScorelensError(f"an operator must be a matrix [r, {d}], got {list(a.shape)}")
    return a
