"""The leading principal components of images too large for a covariance matrix, by randomized subspace iteration.

Halko, Martinsson & Tropp (2011), Algorithm 4.4: repeated multiplication by the covariance turns a random subspace
towards the leading components. Products X^T (X Y) are summed over chunks; the covariance matrix is never formed.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens import distributed, progress
from scorelens.data.images import ImageSet

SPARE = 20  # oversampling: extra directions that make the last requested ones accurate
ITERATIONS = 4  # passes over the data, followed by a final one
CHUNK = 1024


def leading_components(images: ImageSet, components: int) -> tuple[
        Float[Tensor, "d"], Float[Tensor, "k"], Float[Tensor, "d k"], Float[Tensor, ""]]:
    """Mean, variances and directions of the leading components, and the share of the variance they miss."""
    n = len(images)
    mean, total_variance = _mean_and_variance(images)
    width = min(components + SPARE, images.dim, n - 1)
    basis = torch.randn(images.dim, width, generator=torch.Generator().manual_seed(0))
    for _ in progress.track(range(ITERATIONS), "leading components", unit="pass"):
        basis = distributed.world().broadcast(torch.linalg.qr(_covariance_times(images, mean, basis)).Q)
    small = basis.double().T @ _covariance_times(images, mean, basis).double()  # [width, width]
    values, vectors = torch.linalg.eigh((small + small.T) / 2)
    values, vectors = values.flip(0)[:components].clamp(min=0), vectors.flip(1)[:, :components]
    missing = max(0.0, 1 - values.sum().item() / max(total_variance, 1e-300))
    return mean, values, basis.double() @ vectors, mean.new_tensor(missing)


def _mean_and_variance(images: ImageSet) -> tuple[Float[Tensor, "d"], float]:
    total, squares = torch.zeros(images.dim, dtype=torch.float64), torch.zeros(images.dim, dtype=torch.float64)
    for x in images.shard().chunks(CHUNK, reuse=True):
        total += x.flatten(1).sum(dim=0, dtype=torch.float64)
        squares += x.flatten(1).double().square().sum(dim=0)
    n, group = len(images), distributed.group(len(images))
    total, squares = group.sum(total), group.sum(squares)
    return total / n, ((squares - total.square() / n) / (n - 1)).sum().item()


def _covariance_times(images: ImageSet, mean: Float[Tensor, "d"], basis: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
    """Sigma @ basis, without forming Sigma."""
    product, centre = torch.zeros_like(basis), mean.float()
    for x in images.shard().chunks(CHUNK, reuse=True):
        centred = x.flatten(1).sub_(centre)  # [n, D]
        product += centred.T @ (centred @ basis)
    return distributed.group(len(images)).sum(product) / (len(images) - 1)
