"""Held-out images, noised at every level and denoised in a single step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from scorelens import progress
from scorelens.metrics import mse, summary
from scorelens.types import Denoiser

Pictured = dict[str, list[Tensor]]  # by model: its predictions of one image, by noise level


@torch.no_grad()
def denoised(models: Mapping[str, Denoiser], x0: Tensor, noise: Tensor, sigmas: Sequence[float], shown: int,
             pictured: Pictured) -> Iterator[dict[str, Any]]:
    """The error of each model at each level; `pictured` gets its predictions of one image."""
    for name, model in models.items():
        asking = ((sigma, model(x0 + sigma * noise, sigma)) for sigma in sigmas)
        for sigma, x0_hat in progress.steps(asking, name, len(sigmas)):
            pictured.setdefault(name, []).append(x0_hat[shown].cpu())
            yield {"model": name, "sigma": sigma, "mse": summary(mse(x0_hat, x0))}
