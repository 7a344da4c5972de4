"""How wide the kernels of the data should be: what denoises best an image that they were not made of."""

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
HELD_OUT = 256  # images that are denoised, each without its own kernel
CENTRES = 4096  # images that have kernels; with more of them, h would come out a little smaller
MASKS, HELD_OUT_PER_MASK = 16, 64  # outputs that stand for all
SETTINGS = [GRID, HELD_OUT, CENTRES, MASKS, HELD_OUT_PER_MASK]


def bandwidth_rule(bandwidth: float | str | Callable[[float], float],
                   auto: Callable[[float], float]) -> Callable[[float], float]:
    """h of a noise level: a number, a function, or "auto"."""
    if isinstance(bandwidth, str):
        if bandwidth != "auto":
            raise unknown("bandwidth", bandwidth, ["auto"])
        return cache(auto)
    rule = bandwidth if callable(bandwidth) else lambda sigma: bandwidth
    if not callable(bandwidth):
        _checked(bandwidth)
    return lambda sigma: _checked(rule(sigma))


def _checked(h: float) -> float:
    if not 0 <= h <= 1:
        raise ScorelensError(f"bandwidth must be between 0 (optimal) and 1 (Wiener), got {h:g}")
    return float(h)


def held_out_bandwidth(images: ImageSet, stats: GaussianStats, sigma: float,
                       masks: Bool[Tensor, "d d"] | None = None) -> float:
    """The h whose kernel denoiser has the least squared error on noisy images that it has not seen: leave-one-out, of
    seeded images and noise. It knows the data and the noise level, and no network.

    `stats` are those of the images, or of a set that holds them. With masks, output q is denoised from the pixels that
    row q keeps; a few outputs stand for all.
    """
    if min(len(images), stats.count) < 3:
        return GRID[-1]  # nothing is left to estimate a covariance from

    @torch.inference_mode(False)  # and with gradients, wherever it is called
    def fit() -> dict[str, Tensor]:
        problems, none = _problems(images, stats, masks), torch.zeros(len(GRID), dtype=torch.float64)
        errors = sum((_errors(*problem, sigma, stats.count) for problem in problems), none)
        errors = distributed.world().broadcast(errors)
        return {"h": torch.tensor(GRID, dtype=torch.float64)[errors.argmin()]}

    seen = None if masks is None else hashlib.sha256(masks.numpy().tobytes()).hexdigest()
    return cached("bandwidth", [images.fingerprint, digest(stats), sigma, seen, SETTINGS], fit)["h"].item()


Problem = tuple[Float[Tensor, "n k"], Float[Tensor, "k"], Float[Tensor, "r k"], Float[Tensor, "j k"]]


def _problems(images: ImageSet, stats: GaussianStats, masks: Bool[Tensor, "d d"] | None) -> Iterator[Problem]:
    """Images, variances, outputs and noise, all in the basis of principal components: of all pixels, or of a mask's."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(images), generator=generator)[:CENTRES].numpy()
    pixels = torch.from_numpy(images.pixels[chosen]).flatten(1)
    x = to_floats(pixels, torch.empty(pixels.shape, dtype=torch.float64)) - stats.mean  # [n, D]
    eps = torch.randn(min(HELD_OUT, len(x)), x.shape[1], generator=generator, dtype=torch.float64)
    if masks is None:
        yield x @ stats.eigenvectors, stats.eigenvalues, stats.eigenvectors, eps @ stats.eigenvectors
        return
    own = masks.diagonal().nonzero()[:, 0]  # an output that does not see itself is nearly constant
    for q in own[torch.randperm(len(own), generator=generator)[:MASKS]]:
        seen = masks[q]
        u = stats.eigenvectors[seen]
        variances, v = torch.linalg.eigh((u * stats.eigenvalues) @ u.T)
        yield x[:, seen] @ v, variances.clamp(min=0), v[seen[:q].sum()][None], eps[:HELD_OUT_PER_MASK, seen] @ v


def _errors(y: Float[Tensor, "n k"], variance: Float[Tensor, "k"], outputs: Float[Tensor, "r k"],
            eps: Float[Tensor, "j k"], sigma: float, count: int) -> Float[Tensor, "h"]:
    """Squared error of each candidate."""
    own = y[:len(eps)]
    z = own + sigma * eps
    guesses = (_left_out(h, z.clone(), own, y, variance, sigma, count) for h in GRID)
    return torch.stack([((x0_hat - own) @ outputs.T).square().sum() for x0_hat in guesses])


def _left_out(h: float, z: Float[Tensor, "j k"], own: Float[Tensor, "j k"], y: Float[Tensor, "n k"],
              variance: Float[Tensor, "k"], sigma: float, n: int) -> Float[Tensor, "j k"]:
    """x0_hat = z + sigma^2 grad log p(z), p the density of noisy kernels around all images but y_j, the first of y.

    Without y_j the mean is -y_j / (n - 1) and the covariance a Sigma - b y_j y_j^T, a = (n - 1) / (n - 2),
    b = n / ((n - 1) (n - 2)); with K = a h^2 Sigma + sigma^2 I and c = b h^2
    (K - c y_j y_j^T)^-1 = K^-1 + c K^-1 y_j y_j^T K^-1 / (1 - c y_j^T K^-1 y_j).
    """
    s, c = math.sqrt(1 - h**2), h**2 * n / ((n - 1) * (n - 2))
    k = h**2 * (n - 1) / (n - 2) * variance + sigma**2
    lost = own * (variance > 0) / k  # K^-1 y_j, [j, k]
    v = z.requires_grad_() + (1 - s) / (n - 1) * own  # z - (1 - s) mean: the distance is that of v and s y_i
    distance = (v.square() / k).sum(dim=1, keepdim=True) - 2 * s * (v / k) @ y.T + s**2 * (y.square() / k).sum(dim=1)
    along = (v * lost).sum(dim=1, keepdim=True) - s * lost @ y.T  # [j, n]
    logits = -(distance + c * along.square() / (1 - c * (own * lost).sum(dim=1, keepdim=True))) / 2
    itself = torch.eye(*logits.shape, dtype=torch.bool)
    (score,) = torch.autograd.grad(logits.masked_fill(itself, -math.inf).logsumexp(dim=1).sum(), z)
    return (z + sigma**2 * score).detach()
