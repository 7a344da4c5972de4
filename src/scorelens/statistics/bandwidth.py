"""Bandwidth of the kernel denoisers, selected by leave-one-out denoising error."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scorelens import distributed
from scorelens.data.images import ImageSet, to_floats
from scorelens.statistics.cache import cached
from scorelens.statistics.moments import GaussianStats
from scorelens.statistics.rotation import digest
from scorelens.types import ScorelensError
from scorelens.validation import unknown

GRID = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]  # candidates of h
HELD_OUT = 256  # images to denoise, each without its own kernel
CENTRES = 4096  # images with kernels; more would give a slightly smaller h
MASKS, HELD_OUT_PER_MASK = 16, 64  # outputs sampled with masks, and images for each
SETTINGS = [GRID, HELD_OUT, CENTRES, MASKS, HELD_OUT_PER_MASK]


def bandwidth_rule(bandwidth: float | str | Callable[[float], float],
                   auto: Callable[[float], float]) -> Callable[[float], float]:
    """h as a function of sigma, from a number, a function, or "auto"."""
    if isinstance(bandwidth, str):
        if bandwidth != "auto":
            raise unknown("bandwidth", bandwidth, ["auto"])
        return cache(auto)
    if callable(bandwidth):
        return lambda sigma: _checked(bandwidth(sigma))
    h = _checked(bandwidth)
    return lambda sigma: h


def _checked(h: float) -> float:
    if not 0 <= h <= 1:
        raise ScorelensError(f"bandwidth must be between 0 (optimal) and 1 (Wiener), got {h:g}")
    return float(h)


def held_out_bandwidth(images: ImageSet, stats: GaussianStats, sigma: float,
                       masks: Bool[Tensor, "d d"] | None = None) -> float:
    """The h of GRID with the least leave-one-out squared error on noisy training images, drawn with a fixed seed.

    It depends on the data and the noise level, not on a network. `stats` are the moments of the images or a superset.
    With masks, output q is denoised from the pixels that row q keeps, and a sample of outputs estimates the error.
    """
    if min(len(images), stats.count) < 3:
        return GRID[-1]  # too few images to leave one out and estimate a covariance

    @torch.inference_mode(False)  # _left_out needs gradients, whatever the caller's mode
    def fit() -> dict[str, Tensor]:
        errors = torch.zeros(len(GRID), dtype=torch.float64)
        for problem in _problems(images, stats, masks):
            errors += _errors(*problem, sigma, stats.count)
        best = distributed.world().broadcast(errors).argmin()
        return {"h": torch.tensor(GRID, dtype=torch.float64)[best]}

    mask_hash = None if masks is None else hashlib.sha256(masks.numpy().tobytes()).hexdigest()
    return cached("bandwidth", [images.fingerprint, digest(stats), sigma, mask_hash, SETTINGS], fit)["h"].item()


Problem = tuple[Float[Tensor, "n k"], Float[Tensor, "k"], Float[Tensor, "r k"], Float[Tensor, "j k"]]


def _problems(images: ImageSet, stats: GaussianStats, masks: Bool[Tensor, "d d"] | None) -> Iterator[Problem]:
    """Images, variances, outputs and noise in the basis of principal components: of all pixels, or of each mask's."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(images), generator=generator)[:CENTRES].numpy()
    pixels = torch.from_numpy(images.pixels[chosen]).flatten(1)
    x = to_floats(pixels, torch.empty(pixels.shape, dtype=torch.float64)) - stats.mean  # [n, D]
    eps = torch.randn(min(HELD_OUT, len(x)), x.shape[1], generator=generator, dtype=torch.float64)
    if masks is None:
        yield x @ stats.eigenvectors, stats.eigenvalues, stats.eigenvectors, eps @ stats.eigenvectors
        return
    candidates = masks.diagonal().nonzero()[:, 0]  # an output outside its own mask is nearly constant
    for q in candidates[torch.randperm(len(candidates), generator=generator)[:MASKS]]:
        seen = masks[q]
        variances, v = torch.linalg.eigh(stats.covariance(seen))
        yield x[:, seen] @ v, variances.clamp(min=0), v[seen[:q].sum()][None], eps[:HELD_OUT_PER_MASK, seen] @ v


def _errors(y: Float[Tensor, "n k"], variance: Float[Tensor, "k"], outputs: Float[Tensor, "r k"],
            eps: Float[Tensor, "j k"], sigma: float, count: int) -> Float[Tensor, "h"]:
    """Squared error of each h in GRID."""
    x0 = y[:len(eps)]
    z = x0 + sigma * eps
    predictions = (_left_out(h, z.clone(), x0, y, variance, sigma, count) for h in GRID)
    return torch.stack([((x0_hat - x0) @ outputs.T).square().sum() for x0_hat in predictions])


def _left_out(h: float, z: Float[Tensor, "j k"], x0: Float[Tensor, "j k"], y: Float[Tensor, "n k"],
              variance: Float[Tensor, "k"], sigma: float, n: int) -> Float[Tensor, "j k"]:
    """x0_hat = z + sigma^2 grad log p(z), where p is the density of noisy kernels at all images except y_j.

    z_j is y_j plus noise. Without y_j the mean is -y_j / (n - 1) and the covariance a Sigma - b y_j y_j^T, with
    a = (n - 1) / (n - 2), b = n / ((n - 1) (n - 2)). With K = a h^2 Sigma + sigma^2 I and c = b h^2,
    (K - c y_j y_j^T)^-1 = K^-1 + c K^-1 y_j y_j^T K^-1 / (1 - c y_j^T K^-1 y_j).
    """
    s, c = math.sqrt(1 - h**2), h**2 * n / ((n - 1) * (n - 2))
    k = h**2 * (n - 1) / (n - 2) * variance + sigma**2
    removed = x0 * (variance > 0) / k  # K^-1 y_j, [j, k]
    v = z.requires_grad_() + (1 - s) / (n - 1) * x0  # z - (1 - s) mean: distances are those between v and s y_i
    distance = (v.square() / k).sum(dim=1, keepdim=True) - 2 * s * (v / k) @ y.T + s**2 * (y.square() / k).sum(dim=1)
    along = (v * removed).sum(dim=1, keepdim=True) - s * removed @ y.T  # [j, n]
    logits = -(distance + c * along.square() / (1 - c * (x0 * removed).sum(dim=1, keepdim=True))) / 2
    same = torch.eye(*logits.shape, dtype=torch.bool)
    (score,) = torch.autograd.grad(logits.masked_fill(same, -math.inf).logsumexp(dim=1).sum(), z)
    return (z + sigma**2 * score).detach()
