"""The Wiener filter of the training images nearest to the prediction, suggested in the appendix (analysis of SNR)."""

from __future__ import annotations

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.denoisers.common import Formula, principal_components
from scorelens.denoisers.wiener import Wiener
from scorelens.statistics import GaussianStats, fit_gaussian
from scorelens.statistics.nearest import nearest_images
from scorelens.types import ScorelensError
from scorelens.validation import at_least_float32


def local_wiener(images: ImageSet, *, neighbours: int = 500, shrinkage: float = 0.1,
                 stats: GaussianStats | None = None) -> Formula:
    """x0_hat = mu_loc + Sigma_loc (Sigma_loc + sigma^2 I)^-1 (z - mu_loc),   Sigma_loc = (1 - rho) S + rho Sigma

    mu_loc and S (divided by k - 1) are the moments of the k training images nearest to the Wiener filter's x0_hat.
    The gradient treats the choice of neighbours as constant: it is a linear filter's, and jumps where they change.

    Args:
        images: the training images.
        neighbours: k, the number of nearest images; all if there are fewer.
        shrinkage: rho, the weight of the covariance of all images against that of the nearest.
        stats: moments of all images to use instead of those of `images`.
    """
    if neighbours < 1:
        raise ScorelensError(f"neighbours must be at least 1, got {neighbours}")
    if not 0 <= shrinkage <= 1:
        raise ScorelensError(f"shrinkage must be between 0 and 1, got {shrinkage:g}")
    moments, count = stats or fit_gaussian(images), min(neighbours, len(images))

    def predict(z: Tensor, sigma: float) -> Tensor:
        with torch.no_grad():
            estimate = Wiener(images, moments)(at_least_float32(z), sigma)
        near = nearest_images(estimate, images, count).indices.cpu().numpy()
        basis = principal_components(moments, z)
        chosen = (images.subset(rows).chunks(count, dtype=basis.mean.dtype, device=z.device) for rows in near)
        pairs = zip(basis.rotate(z), (basis.rotate(next(x)) for x in chosen), strict=True)
        filtered = [_filter(zeta, y, basis.variances, sigma, shrinkage) for zeta, y in pairs]
        return basis.restore(torch.stack(filtered), z)

    rebuild = partial(local_wiener, neighbours=neighbours, shrinkage=shrinkage, stats=moments)
    return Formula(images, predict, converges_to_mean=count == len(images), rebuild=rebuild)


def _filter(zeta: Float[Tensor, "k"], y: Float[Tensor, "n k"], variance: Float[Tensor, "k"], sigma: float,
            shrinkage: float) -> Float[Tensor, "k"]:
    """x0_hat of one image in the basis of Sigma, relative to mu.

    There Sigma_loc + sigma^2 I = A + B^T B with A diagonal and B the neighbours, so that
    (A + B^T B)^-1 = A^-1 - A^-1 B^T (I + B A^-1 B^T)^-1 B A^-1 (Woodbury): a system of min(k, D) equations.
    """
    mean, share = y.mean(dim=0), (1 - shrinkage) / max(1, len(y) - 1)
    b = torch.linalg.qr(math.sqrt(share) * (y - mean), mode="r").R  # B^T B = (1 - rho) S, with at most D rows
    a = shrinkage * variance + sigma**2
    v = (zeta - mean) / a
    inner = torch.eye(len(b), dtype=b.dtype, device=b.device) + (b / a) @ b.T
    w = v - (b.T @ torch.linalg.solve(inner, b @ v)) / a  # (Sigma_loc + sigma^2 I)^-1 (zeta - mean)
    return mean + shrinkage * variance * w + b.T @ (b @ w)
