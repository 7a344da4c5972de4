"""The locality model over masks of several sizes and the Wiener filter, with weights fitted on held-out images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.denoisers.common import term
from scorelens.denoisers.locality import Locality, at_scales, locality
from scorelens.denoisers.selection import held_out, held_out_predictions, nearest_level
from scorelens.denoisers.wiener import Wiener
from scorelens.posterior import MEMORY, Masks, OwnOutput, Posterior, Term, Writers, posterior_mean
from scorelens.statistics import fit_gaussian
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import at_least_float32, per_level

STRICT = 1e4  # weight of the sum in least squares, relative to the largest error
THRESHOLDS = (0.0025, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
LINEAR = "wiener"
NAMES = (*map(str, THRESHOLDS), LINEAR)  # of the weights


@dataclass(frozen=True, eq=False)
class Multiscale:
    """x0_hat = sum_k w_k x0_hat_k, where x0_hat_k is the locality model with threshold tau_k; the last is Wiener's."""

    converges_to_mean: ClassVar[bool] = True
    images: ImageSet
    scales: tuple[Locality, ...]
    linear: Wiener
    weights: Callable[[float], Float[Tensor, "k"]]  # at sigma, in the order of NAMES
    stacked: Callable[[float], Posterior]  # at sigma: of all thresholds that have a weight, one after another
    errors: Callable[[float], float]  # held-out, at one of selection.LEVELS
    temperature: float = 1.0
    memory: int = MEMORY

    @per_level
    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        *local, linear = self.weights(sigma).tolist()
        wide, used = at_least_float32(z), [weight for weight in local if weight > 0]
        x0_hat = linear * self.linear(wide, sigma).flatten(1)
        if used:
            means = posterior_mean(self.stacked(sigma), wide, sigma, temperature=self.temperature,
                                   memory=self.memory).flatten(1).unflatten(1, (-1, self.images.dim))  # [B, k, D]
            x0_hat = x0_hat + torch.einsum("k, bkd -> bd", means.new_tensor(used), means)
        return x0_hat.to(z.dtype).view(z.shape)

    @per_level
    def at(self, z: Tensor, sigma: float, pixels: Int[Tensor, "q"]) -> Tensor:
        """x0_hat at these coordinates only, [B, q]; costs only their masks."""
        *local, linear = self.weights(sigma).tolist()
        wide, used = at_least_float32(z), [pair for pair in zip(self.scales, local, strict=True) if pair[1] > 0]
        x0_hat = linear * self.linear(wide, sigma).flatten(1)[:, pixels.to(z.device)]
        if used:
            means = at_scales([scale for scale, _ in used], wide, sigma, pixels)  # [k, B, q]
            x0_hat = x0_hat + torch.einsum("k, kbq -> bq", means.new_tensor([weight for _, weight in used]), means)
        return x0_hat.to(z.dtype)

    def held_out_error(self, sigma: float) -> float:
        """The error with the fitted weights, on the images on which they were fitted."""
        return self.errors(nearest_level(sigma))

    def terms(self, z: Tensor, sigma: float) -> Iterator[Term]:
        """The weights of an output are the mixture of those of its masks; the Wiener filter has none."""
        local, d = self.weights(sigma)[:-1].double(), self.images.dim
        if not local.any():
            raise ScorelensError(f"at sigma {sigma:g} multiscale is the Wiener filter alone, a linear filter without "
                                 "posterior weights; choose a smaller sigma, or locality")
        used = local[local > 0] / local.sum()
        entries = torch.stack([torch.arange(d).repeat(len(used)), torch.arange(len(used) * d)])  # (output, query)
        mix = torch.sparse_coo_tensor(entries, used.repeat_interleave(d), (d, len(used) * d),
                                      check_invariants=True).coalesce()
        whole = term(self.stacked(sigma), z, sigma, temperature=self.temperature, memory=self.memory)
        yield replace(whole, writers=Writers(torch.arange(d), torch.arange(d), mix))

    def over(self, images: ImageSet) -> Multiscale:
        """The same masks and weights of them over other images."""
        return replace(self, images=images, scales=tuple(scale.over(images) for scale in self.scales),
                       linear=self.linear.over(images),
                       stacked=lambda sigma: replace(self.stacked(sigma), source=images))

    def chosen(self, sigmas: Sequence[float]) -> list[dict[str, Any]]:
        """The weight of each threshold and of the Wiener filter, at each noise level."""
        return [{"sigma": sigma, "weights": dict(zip(NAMES, self.weights(sigma).tolist(), strict=True))}
                for sigma in sigmas]


def multiscale(images: ImageSet, *, temperature: float = 1.0, memory: int = MEMORY) -> Multiscale:
    """The locality model over masks of several sizes, and the Wiener filter: small masks generalize, large ones know
    the rest of the image, and the linear filter needs the least data.

    x0_hat = sum_k w_k x0_hat_k. The weights are non-negative, sum to 1, and have the least squared error on held-out
    training images, at each noise level. Weights of free sign fit the held-out images better and new images worse.

    Args:
        images: the training images.
        temperature: divides the logits.
        memory: workspace in bytes.
    """
    @lru_cache(maxsize=2)
    def members(source: ImageSet) -> tuple[tuple[Locality, ...], Wiener]:
        stats = fit_gaussian(source)
        return tuple(locality(source, threshold=threshold, temperature=temperature, stats=stats, memory=memory)
                     for threshold in THRESHOLDS), Wiener(source, stats)

    def member(source: ImageSet, k: int) -> Denoiser:
        scales, linear = members(source)
        return scales[k] if k < len(scales) else linear

    def predictions(level: float) -> Float[Tensor, "k n q"]:
        name = "locality" if temperature == 1 else f"locality, temperature {temperature!r}"  # as with threshold="auto"
        names = [*(f"{name}, threshold {threshold}" for threshold in THRESHOLDS), LINEAR]
        return held_out_predictions(images, level, {name: partial(member, k=k) for k, name in enumerate(names)})

    @lru_cache
    def weights(level: float) -> Float[Tensor, "k"]:
        return convex_weights(predictions(level), held_out(images).truth())

    def error(level: float) -> float:
        mean = torch.einsum("k, knq -> nq", weights(level).float(), predictions(level).float())
        return (mean - held_out(images).truth()).square().mean().item()

    @lru_cache(maxsize=1)
    def stacked(sigma: float) -> Posterior:
        """Masks of rising thresholds are nested: each mask differs little from that of the threshold before it."""
        (c, h, w), used = images.shape, weights(nearest_level(sigma))[:-1].nonzero()[:, 0].tolist()
        keep = torch.cat([members(images)[0][k].masks(sigma).keep for k in used])
        outputs = torch.arange(images.dim).repeat(len(used))
        return Posterior(Masks(keep, (len(used) * c, h, w)), OwnOutput(outputs), images)

    return Multiscale(images, *members(images), lambda sigma: weights(nearest_level(sigma)), stacked, error,
                      temperature, memory)


def convex_weights(predictions: Float[Tensor, "k n q"], truth: Float[Tensor, "n q"]) -> Float[Tensor, "k"]:
    """w >= 0 that sum to 1, with the least squared error of sum_k w_k predictions_k."""
    from scipy.optimize import nnls

    errors = (predictions - truth).flatten(1).T.double().numpy()  # sum_k w_k errors_k is the error of the mixture
    row = np.full((1, errors.shape[1]), STRICT * max(np.abs(errors).max(), 1e-12))
    solution, _ = nnls(np.concatenate([errors, row]), np.append(np.zeros(len(errors)), row[0, 0]))
    return torch.from_numpy(solution / solution.sum())
