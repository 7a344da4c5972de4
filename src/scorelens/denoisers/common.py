"""Code that the methods share: denoisers from a function or a declaration, moments on the device of z, mask groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.posterior import MEMORY, Candidate, Posterior, Term, logit_scale, plan_for, posterior_mean
from scorelens.posterior.sources import shard_of
from scorelens.statistics import GaussianStats
from scorelens.types import ScorelensError
from scorelens.validation import at_least_float32, merge_groups, per_level, unknown, wide_dtype


@dataclass(frozen=True)
class Formula:
    """A denoiser from a function predict(z, sigma), which receives checked images and one noise level."""

    images: ImageSet
    predict: Callable[[Tensor, float], Tensor]
    converges_to_mean: bool = False
    terms: Callable[[Tensor, float], Iterator[Term]] | None = None  # the posterior means it consists of, if it does
    rebuild: Callable[[ImageSet], Formula] | None = None  # for other images, with everything fitted kept

    @per_level
    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        return self.predict(z, sigma)

    def over(self, images: ImageSet) -> Formula:
        """The same formula of other images, with everything fitted kept."""
        assert self.rebuild is not None, "a formula without rebuild"
        return self.rebuild(images)


@dataclass(frozen=True)
class PosteriorMean:
    """The posterior mean, with queries, responses and source declared for each noise level."""

    images: ImageSet
    posterior: Callable[[float], Posterior]  # at sigma
    temperature: float = 1.0
    memory: int = MEMORY
    converges_to_mean: bool = False

    @per_level
    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        return posterior_mean(self.posterior(sigma), z, sigma, temperature=self.temperature, memory=self.memory)

    def choice(self, z: Tensor, sigma: float) -> Candidate:
        """The plan of a call, and its expected cost."""
        return choice(self.posterior(sigma), z, sigma, self.temperature)

    def terms(self, z: Tensor, sigma: float) -> Iterator[Term]:
        yield term(self.posterior(sigma), z, sigma, temperature=self.temperature, memory=self.memory)

    def over(self, images: ImageSet) -> PosteriorMean:
        """The same formula of other images, with everything fitted kept."""
        return replace(self, images=images, posterior=lambda sigma: replace(self.posterior(sigma), source=images))


def term(posterior: Posterior, z: Tensor, sigma: float, **options: Any) -> Term:
    """A posterior whose responses write all noisy images."""
    writers = posterior.responses.writers(posterior.source.dim)
    return Term(posterior, at_least_float32(z).flatten(1), sigma, torch.arange(len(z)), writers, **options)


def for_rows(terms: Iterator[Term], rows: Int[Tensor, "b"]) -> Iterator[Term]:
    """The terms of some noisy images of a batch."""
    return (replace(each, noisy=rows[each.noisy]) for each in terms)


def each_image(images: ImageSet, models: Callable[[Tensor, float], Iterator[Any]],
               rebuild: Callable[[ImageSet], Any]) -> Formula:
    """A denoiser from models(z, sigma): one for each noisy image, which average their own part of the images."""
    def predict(z: Tensor, sigma: float) -> Tensor:
        return torch.cat([model(z[k:k + 1], sigma) for k, model in enumerate(models(z.detach(), sigma))])

    def terms(z: Tensor, sigma: float) -> Iterator[Term]:
        for k, model in enumerate(models(z, sigma)):
            yield from for_rows(model.terms(z[k:k + 1], sigma), torch.tensor([k]))

    return Formula(images, predict, terms=terms, rebuild=rebuild)


def choice(posterior: Posterior, z: Tensor, sigma: float, temperature: float, plan: str = "auto") -> Candidate:
    """The plan of posterior_mean with these arguments, and its expected cost."""
    chosen = plan_for(posterior, at_least_float32(z).flatten(1), logit_scale(sigma, temperature), plan)
    return replace(chosen, rows=len(shard_of(posterior.source).rows))


def widened(z: Tensor, *tensors: Tensor) -> list[Tensor]:
    """The tensors on the device of z, in float64, or in float32 if the device lacks it."""
    return [tensor.to(wide_dtype(z)).to(z.device) for tensor in tensors]  # dtype first: mps cannot hold float64


class Components(NamedTuple):
    """mu, U and lambda^2 on the device of z, in float64 if the device has it."""

    mean: Float[Tensor, "d"]
    vectors: Float[Tensor, "d k"]
    variances: Float[Tensor, "k"]

    def rotate(self, x: Tensor) -> Float[Tensor, "b k"]:
        """U^T (x - mu) for a batch of images."""
        return (x.flatten(1).to(self.mean.dtype) - self.mean) @ self.vectors

    def restore(self, y: Float[Tensor, "b k"], z: Tensor) -> Tensor:
        """mu + U y, in the shape and dtype of z."""
        return (self.mean + y @ self.vectors.T).to(z.dtype).view(z.shape)


def principal_components(stats: GaussianStats, z: Tensor, rank: int | None = None) -> Components:
    """The first `rank` principal components, by default all, ready for computation with z."""
    return Components(*widened(z, stats.mean, stats.eigenvectors[:, :rank], stats.eigenvalues[:rank]))


def bandwidth_rule(bandwidth: float | str | Callable[[float], float]) -> Callable[[float], float]:
    """h as a function of sigma, from a number or a function."""
    def checked(h: float) -> float:
        if not 0 <= h <= 1:
            raise ScorelensError(f"bandwidth must be between 0 (optimal) and 1 (Wiener), got {h:g}")
        return float(h)

    if isinstance(bandwidth, str):
        raise unknown("bandwidth", bandwidth, ["auto"])
    if callable(bandwidth):
        return lambda sigma: checked(bandwidth(sigma))
    h = checked(bandwidth)
    return lambda sigma: h


def by_mask(masks: Bool[Tensor, "q d"], outputs: Int[Tensor, "q"],
            predict: Callable[[Int[Tensor, "m"], Int[Tensor, "r"]], Float[Tensor, "b r"]]) -> Float[Tensor, "b q"]:
    """The outputs, by one call predict(pixels of the mask, outputs) for each distinct mask; row q is for outputs[q]."""
    return merge_groups(((rows, predict(seen, outputs[rows]))
                         for seen, rows in mask_groups(masks, torch.arange(len(outputs)))), dim=1)


def mask_groups(masks: Bool[Tensor, "q d"],
                outputs: Int[Tensor, "q"]) -> Iterator[tuple[Int[Tensor, "m"], Int[Tensor, "r"]]]:
    """The pixels of each distinct mask, and the outputs that have it."""
    distinct, group = torch.unique(masks, dim=0, return_inverse=True)
    return ((mask.nonzero()[:, 0], outputs[group == k]) for k, mask in enumerate(distinct))


def mask_regression(covariance: Float[Tensor, "m d"], pixels: Int[Tensor, "m"], outputs: Int[Tensor, "r"],
                    sigma: float) -> tuple[Float[Tensor, "m m"], Float[Tensor, "r m"]]:
    """L and R = Sigma[q,M] K^-1, K = Sigma[M,M] + sigma^2 I = L L^T, for outputs q and pixels M; given Sigma[M,:]."""
    noise = sigma**2 * torch.eye(len(pixels), dtype=covariance.dtype)
    cholesky = torch.linalg.cholesky(covariance[:, pixels] + noise)
    return cholesky, torch.cholesky_solve(covariance[:, outputs], cholesky).T
