"""Guidance by classes for formulas and networks alike, and its linear theory.

For Gaussian data, guidance moves a prediction along c - u = (I - A)(mu_c - mu) + (A_c - A)(z - mu_c), where
A = Sigma (Sigma + sigma^2 I)^-1 and A_c is that of the class: a shift of the mean, and contrastive components, in which
the variance of the class differs from that of all images (Li, Wang & Qu 2025, arXiv 2505.19210).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.data.edits import find_classes
from scorelens.data.images import ImageSet
from scorelens.networks.adapters import Network
from scorelens.sampling import guided
from scorelens.statistics import GaussianStats, shrinkage
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import wide_dtype


@dataclass(frozen=True)
class Guidance:
    """The class of each image of a batch (if there is only one, that of all images), and the weight of guidance."""

    labels: tuple[int, ...]
    weight: float = 1.0

    def network(self, network: Network) -> Denoiser:
        """The guided network."""
        conditional = network.conditional(self.labels[0] if len(self.labels) == 1 else self.labels)
        return conditional if self.weight == 1 else guided(conditional, network.unconditional(), self.weight)

    def formula(self, build: Callable[..., Denoiser]) -> Denoiser:
        """The guided formula, from a function that builds it for given `classes` or `labels`, or for all images."""
        chosen: dict[str, Any] = {"classes" if len(self.labels) == 1 else "labels": self.labels}
        conditional = build(**chosen) if self.weight else build()
        return conditional if self.weight in (0, 1) else guided(conditional, build(), self.weight)

    def describe(self) -> dict[str, Any]:
        """For the record of a run."""
        return {"labels": list(self.labels), "weight": self.weight}

    def __str__(self) -> str:
        classes = f"class {self.labels[0]}" if len(self.labels) == 1 else f"{len(set(self.labels))} classes"
        return f"{classes}, guidance {self.weight:g}"


def choose_guidance(images: ImageSet, labels: Sequence[int | str], weight: float | None, count: int) -> Guidance | None:
    """The guidance of `count` images whose classes are `labels`, repeated as often as needed; None if none is given."""
    if not labels:
        if weight is not None:
            raise ScorelensError("guidance needs classes: give --labels, e.g. those to sample, by name or number")
        return None
    numbers = find_classes(images, labels)
    if len(numbers) > count:
        raise ScorelensError(f"{len(numbers)} labels were given for {count} images; give at most one for each")
    each = numbers if len(numbers) == 1 else [numbers[k % len(numbers)] for k in range(count)]
    return Guidance(tuple(each), 1.0 if weight is None else weight)


@dataclass(frozen=True)
class LinearGuidance:
    """The two parts of c - u for Gaussian data, at noisy images z."""

    mean_shift: Float[Tensor, "b c h w"]  # (I - A)(mu_c - mu), the same for all z
    contrast: Float[Tensor, "b c h w"]  # (A_c - A)(z - mu_c)

    @property
    def direction(self) -> Float[Tensor, "b c h w"]:
        """c - u."""
        return self.mean_shift + self.contrast


def linear_guidance(conditional: GaussianStats, unconditional: GaussianStats, z: Tensor,
                    sigma: float) -> LinearGuidance:
    """The direction of guidance between the Wiener filters of a class and of all images, in its two parts."""
    def filtered(stats: GaussianStats, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        u = stats.eigenvectors.to(x)
        return (x @ u * shrinkage(stats, sigma).to(x)) @ u.T  # A x

    x = z.flatten(1).to(wide_dtype(z))
    mean_c, mean = conditional.mean.to(x), unconditional.mean.to(x)
    shift = mean_c - mean
    contrast = filtered(conditional, x - mean_c) - filtered(unconditional, x - mean_c)
    mean_shift = (shift - filtered(unconditional, shift[None])[0]).expand_as(x)
    return LinearGuidance(mean_shift.to(z.dtype).view(z.shape), contrast.to(z.dtype).view(z.shape))


def contrastive_components(conditional: GaussianStats, unconditional: GaussianStats,
                           sigma: float) -> tuple[Float[Tensor, "d"], Float[Tensor, "d d"]]:
    """Eigenvalues of A_c - A, largest first, and its eigenvectors as columns.

    Guidance strengthens the components of positive eigenvalues, in which the class varies more than all images do, and
    weakens those of negative ones.
    """
    filters = [(stats.eigenvectors * shrinkage(stats, sigma)) @ stats.eigenvectors.T
               for stats in (conditional, unconditional)]
    values, vectors = torch.linalg.eigh(filters[0] - filters[1])
    return values.flip(0), vectors.flip(1)
