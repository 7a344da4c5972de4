"""How well one denoiser predicts another: whole samples from the same noise, and single steps from the same z."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scorelens import progress
from scorelens.data.images import ImageSet
from scorelens.metrics import MEMORIZED_RATIO, mse, novelty, pearson, r2, summary
from scorelens.sampling import Step, finished, trajectory
from scorelens.types import Denoiser


@dataclass(frozen=True)
class Sampled:
    """The trajectory of a denoiser from given noise, and the time each step took."""

    steps: list[Step]
    seconds: list[float]

    @property
    def prediction(self) -> Tensor:
        """The raw last x0_hat: what published r2 is scored on."""
        return self.steps[-1].x0_hat

    @property
    def images(self) -> Tensor:
        """The final, clipped images."""
        return finished(self.steps[-1])


@torch.no_grad()
def sampled(denoiser: Denoiser, noise: Tensor, sigmas: Sequence[float], label: str = "sampling",
            method: str = "ddim") -> Sampled:
    """Sample, with a progress bar called `label`."""
    clock, taken, seconds = time.perf_counter(), [], []
    for step in progress.steps(trajectory(denoiser, noise, sigmas, method=method), label, len(sigmas)):
        taken.append(step)
        seconds.append(time.perf_counter() - clock)
        clock = time.perf_counter()
    return Sampled(taken, seconds)


def agreement(found: Sampled, reference: Sampled) -> dict[str, dict[str, float]]:
    """r2, Pearson correlation and MSE of the last predictions, each with mean, std, median and 95 % interval."""
    pair = found.prediction, reference.prediction
    return {name: summary(metric(*pair)) for name, metric in (("r2", r2), ("pearson", pearson), ("mse", mse))}


def originality(found: Sampled, images: ImageSet) -> dict[str, Any]:
    """How far the final images are from the training images."""
    nearest = novelty(found.images, images)
    return {"novelty_mse": summary(nearest.mse), "novelty_rms": summary(nearest.rms),
            "memorized": summary((nearest.ratio < MEMORIZED_RATIO).double())}


@torch.no_grad()
def single_steps(denoiser: Denoiser, reference: Denoiser, path: Sampled, owner: str,
                 label: str = "single steps") -> list[dict[str, Any]]:
    """r2 between both predictions from the same z, at each point of a trajectory that `owner` made.

    Whoever walked the path has predicted already; only the other is asked again.
    """
    asked = reference if owner == "denoiser" else denoiser
    asking = ((step, asked(step.z, step.sigma)) for step in path.steps)
    rows = []
    for step, other in progress.steps(asking, label, len(path.steps)):
        pair = (step.x0_hat, other) if owner == "denoiser" else (other, step.x0_hat)
        rows.append({"sigma": step.sigma, "r2": summary(r2(*pair)), "mse": summary(mse(*pair))})
    return rows
