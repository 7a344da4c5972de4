"""Patch sizes fitted to a network: at each step of its own trajectory the size whose score is closest to its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from scorelens import progress
from scorelens.metrics import r2
from scorelens.sampling import Samples
from scorelens.types import Denoiser

METRICS = {"r2": r2, "cosine": lambda p, r: cosine_similarity(p.flatten(1), r.flatten(1))}
TIE = 0.001  # scores that are as close as this are alike
FITTED = (3, 5, 7, 9, 13, 17, 23, 29, 33, 45)  # about those that the paper's fits chose among


@dataclass(frozen=True)
class Fit:
    """The size chosen at one step, and the median score of every size."""

    sigma: float
    size: int
    scores: dict[int, float]


def candidate_sizes(side: int) -> list[int]:
    """All odd sizes of small images, some of larger ones; and the window that covers everything."""
    return [*([k for k in FITTED if k < side] if side > 16 else range(1, side, 2)), 2 * side - 1]


@torch.no_grad()
def calibrate(build: Callable[[int], Denoiser], path: Samples, sizes: Sequence[int], metric: str = "r2",
              first: int = 0) -> Iterator[Fit]:
    """Fit each step of the path that a network has walked, from step `first` on.

    Scores, (x0_hat - z) / sigma^2, are compared, not predictions: a sample's value is the metric over its pixels, a
    size's the median over samples. Where the noise is so strong that all sizes fit, the largest is taken.
    """
    models = {size: build(size) for size in sizes}
    for step in progress.steps(iter(path.steps[first:]), "calibrating", len(path.steps) - first):
        reference = _score(step.x0_hat, step.z, step.sigma)
        found = {size: _score(model(step.z, step.sigma), step.z, step.sigma) for size, model in models.items()}
        medians = {size: METRICS[metric](score, reference).median().item() for size, score in found.items()}
        best = max(medians.values())
        yield Fit(step.sigma, max(size for size, score in medians.items() if score >= best - TIE), medians)


def _score(x0_hat: Tensor, z: Tensor, sigma: float) -> Tensor:
    return (x0_hat - z) / sigma**2
