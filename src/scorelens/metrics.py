"""Distances between predictions and references, and between generated and training images; intervals of means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.statistics.nearest import expanded_distances, nearest_images, refine_
from scorelens.types import ScorelensError
from scorelens.validation import at_least_float32, wide_dtype

MEMORIZED_RATIO = 1 / 3  # of the distances to the nearest and second-nearest training image


def r2(prediction: Tensor, reference: Tensor) -> Float[Tensor, "b"]:
    """1 - sum (pred - ref)^2 / sum (ref - mean(ref))^2, the mean over all channels and pixels of an image.

    The paper's score, with the network as reference. NaN where the reference is constant.
    """
    p, r = _pair(prediction, reference)
    spread = (r - r.mean(dim=1, keepdim=True)).square().sum(dim=1)
    score = 1 - (p - r).square().sum(dim=1) / spread
    return torch.where(spread > 0, score, torch.nan)


def pearson(prediction: Tensor, reference: Tensor) -> Float[Tensor, "b"]:
    """Pearson correlation over the pixels of an image (Kamb & Ganguli report its median as r2)."""
    p, r = (x - x.mean(dim=1, keepdim=True) for x in _pair(prediction, reference))
    return (p * r).sum(dim=1) / (p.square().sum(dim=1) * r.square().sum(dim=1)).sqrt()


def mse(prediction: Tensor, reference: Tensor) -> Float[Tensor, "b"]:
    """Mean squared difference on [-1, 1]."""
    p, r = _pair(prediction, reference)
    return (p - r).square().mean(dim=1)


@dataclass(frozen=True)
class Novelty:
    """Distance of each image to the nearest training image."""

    index: Int[Tensor, "b"]  # of the nearest training image
    mse: Float[Tensor, "b"]  # mean squared difference per coordinate: the paper's "L2"
    rms: Float[Tensor, "b"]  # its square root
    ratio: Float[Tensor, "b"]  # distance to the nearest / to the second nearest


def novelty(images: Tensor, training: ImageSet) -> Novelty:
    """The nearest training image of each image and its distance, by exact search."""
    if tuple(images.shape[1:]) != training.shape:
        raise ScorelensError(f"images have shape {tuple(images.shape[1:])}, the training images {training.shape}")
    nearest = nearest_images(at_least_float32(images), training, k=min(2, len(training)))
    mean_squares = nearest.squared_distances / training.dim
    first, second = mean_squares[:, 0], mean_squares[:, -1]
    ratio = torch.where(second > 0, (first / second).sqrt(), 1.0)  # duplicated training images: both distances are 0
    return Novelty(nearest.indices[:, 0], first, first.sqrt(), ratio)


def memorized(images: Tensor, training: ImageSet, threshold: float = MEMORIZED_RATIO) -> float:
    """Share of images whose distance ratio, nearest to second-nearest training image, is below the threshold."""
    return (novelty(images, training).ratio < threshold).double().mean().item()


@dataclass(frozen=True)
class PrecisionRecall:
    """Share of generated images that look real, and share of real images that the generator covers."""

    precision: float
    recall: float


def precision_recall(generated: Tensor, real: Tensor, k: int = 3, *, chunk: int = 1024) -> PrecisionRecall:
    """Improved precision and recall (Kynkäänniemi et al. 2019), computed exactly, on pixels instead of VGG features.

    Precision is the share of generated images inside the ball around some real image, whose radius is the distance
    to its k-th nearest other real image (the boundary counts). Recall swaps the roles.
    """
    if generated.shape[1:] != real.shape[1:]:
        raise ScorelensError(f"generated images have shape {tuple(generated.shape[1:])}, the real ones "
                             f"{tuple(real.shape[1:])}")
    if not 1 <= k < min(len(generated), len(real)):
        raise ScorelensError(f"k must be at least 1 and less than the number of images, got k = {k} with "
                             f"{len(generated)} generated and {len(real)} real images")
    g, r = (x.detach().flatten(1).to(wide_dtype(x)) for x in (generated, real))
    if not (g.isfinite().all() and r.isfinite().all()):
        raise ScorelensError("images contain NaN or infinite values")
    return PrecisionRecall(_share_covered(g, r, k, chunk), _share_covered(r, g, k, chunk))


def _share_covered(points: Float[Tensor, "n d"], centres: Float[Tensor, "m d"], k: int, chunk: int) -> float:
    """Share of the points within the k-nearest-neighbour ball of at least one centre."""
    covered = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    for start in range(0, len(centres), chunk):
        block = centres[start:start + chunk]
        distances, scale = expanded_distances(block, centres)  # [b, m]
        distances.diagonal(start).fill_(torch.inf)  # not its own neighbour
        refine_(distances, block, centres, scale, distances.kthvalue(k, dim=1, keepdim=True).values)
        radii = distances.kthvalue(k, dim=1, keepdim=True).values  # [b, 1], squared
        distances, scale = expanded_distances(block, points)  # [b, n]
        refine_(distances, block, points, scale + radii, radii)  # + radii: an outlier's large norm has rounding errors
        covered |= (distances <= radii).any(dim=0)
    return int(covered.sum()) / len(points)


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float
    confidence: float = 0.95


def bootstrap(values: Tensor, confidence: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """Percentile bootstrap interval of the mean over images."""
    return bootstrap_ratio(values, torch.ones_like(values), confidence, resamples, seed)


def bootstrap_ratio(values: Tensor, others: Tensor, confidence: float = 0.95, resamples: int = 2000,
                    seed: int = 0) -> Interval:
    """mean(values) / mean(others) with a percentile bootstrap interval; NaN where mean(others) is 0.

    Images are resampled, so the two values of an image stay paired.
    """
    a, b = (x.detach().cpu().double().numpy() for x in (values, others))
    if a.ndim != 1 or len(a) == 0 or a.shape != b.shape:
        raise ScorelensError(f"bootstrap needs one value per image, got shape {tuple(values.shape)}")
    draws = np.random.default_rng(seed).integers(len(a), size=(resamples, len(a)))
    tail = (1 - confidence) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.quantile(a[draws].mean(axis=1) / b[draws].mean(axis=1), [tail, 1 - tail])
        return Interval(float(a.mean() / b.mean()), float(low), float(high), confidence)


def share_interval(count: int, total: int, confidence: float = 0.95) -> Interval:
    """A share and its Wilson score interval, which unlike a bootstrap has positive width at shares 0 and 1."""
    if not 0 <= count <= total or total < 1:
        raise ScorelensError(f"{count} of {total} is not a share; give 0 <= count <= total and total >= 1")
    z, p = NormalDist().inv_cdf((1 + confidence) / 2), count / total
    middle, half = p + z * z / (2 * total), z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return Interval(p, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale), confidence)


def summary(values: Tensor) -> dict[str, float]:
    """Mean, std (n - 1), median and 95 % interval of the mean of one value per image, for a row of results."""
    interval, data = bootstrap(values), values.detach().double()
    std = data.std().item() if len(data) > 1 else 0.0
    return {"mean": interval.mean, "std": std, "median": data.quantile(0.5).item(), "low": interval.low,
            "high": interval.high}


def _pair(prediction: Tensor, reference: Tensor) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d"]]:
    """Both, flattened per image, in float64 where the device supports it."""
    if prediction.shape != reference.shape:
        raise ScorelensError(f"prediction and reference differ in shape: {tuple(prediction.shape)} and "
                             f"{tuple(reference.shape)}")
    dtype = wide_dtype(prediction)
    return prediction.flatten(1).to(dtype), reference.flatten(1).to(dtype)
