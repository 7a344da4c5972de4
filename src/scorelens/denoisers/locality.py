"""The paper's model, and variants of it with other masks or another source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens.data.images import ImageSet
from scorelens.denoisers.common import choice, term
from scorelens.posterior import (
    MEMORY,
    AllChannels,
    Candidate,
    Masks,
    OwnOutput,
    Posterior,
    Source,
    Term,
    posterior_mean,
)
from scorelens.posterior.sources import Translations
from scorelens.statistics import GaussianStats, fit_gaussian, locality_masks, wiener_matrix
from scorelens.timings import phase
from scorelens.types import ScorelensError
from scorelens.validation import check_memory, per_level, unknown

MASK_MEMORY = 2 * 2**30  # bytes of masks to cache, over noise levels
SOFTMAXES = ("exact", "batch-mean")


@dataclass(frozen=True)
class Locality:
    """x0_hat_q = sum_i softmax_i(-||M_q (z - x_i)||^2 / 2 sigma^2) x_i,q   # eq:optimal_denoiserbinary_ours"""

    images: ImageSet
    masks: Callable[[float], Masks]  # at sigma: one for each coordinate, or for each pixel
    softmax_batch: int | None = None
    temperature: float = 1.0
    plan: str = "auto"
    memory: int = MEMORY
    source: Source | None = None  # averaged instead of the images

    @property
    def converges_to_mean(self) -> bool:
        """False for batch-mean, which weights unequal batches equally, and for other sources."""
        return self.softmax_batch is None and self.source is None

    @per_level
    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        return posterior_mean(self.posterior(sigma), z, sigma, temperature=self.temperature,
                              softmax_batch=self.softmax_batch, plan=self.plan, memory=self.memory)

    @per_level
    def at(self, z: Tensor, sigma: float, pixels: Int[Tensor, "q"]) -> Tensor:
        """x0_hat at these coordinates only, [B, q]; costs only their masks."""
        queries = self.masks(sigma)
        some = replace(self.posterior(sigma), queries=queries.subset(pixels % len(queries)),
                       responses=OwnOutput(pixels.to(z.device)))
        return posterior_mean(some, z, sigma, temperature=self.temperature, softmax_batch=self.softmax_batch,
                              memory=self.memory)

    def posterior(self, sigma: float) -> Posterior:
        with phase("masks"):
            queries = self.masks(sigma)
        responses = OwnOutput() if len(queries) == self.images.dim else AllChannels(self.images.shape[0])
        return Posterior(queries, responses, self.images if self.source is None else self.source)

    def terms(self, z: Tensor, sigma: float) -> Iterator[Term]:
        yield term(self.posterior(sigma), z, sigma, temperature=self.temperature, softmax_batch=self.softmax_batch,
                   memory=self.memory)

    def over(self, images: ImageSet) -> Locality:
        """The same masks over other images."""
        return replace(self, images=images, source=None if self.source is None else Translations(images))

    def choice(self, z: Tensor, sigma: float) -> Candidate:
        """The plan of a call, and its expected cost."""
        return choice(self.posterior(sigma), z, sigma, self.temperature, self.plan)


def locality(images: ImageSet, *, threshold: float = 0.02, rank: int | None = None, energy: float = 0.0,
             components: int | None = None, softmax: Literal["exact", "batch-mean"] = "exact", softmax_batch: int = 512,
             mask_rule: Literal["paper", "published"] = "paper", temperature: float = 1.0,
             stats: GaussianStats | None = None,
             plan: Literal["auto", "dense", "sparse", "differences", "fused"] = "auto",
             memory: int = MEMORY) -> Locality:
    """The paper's model: each output pixel has its own posterior over the training images, given only the input pixels
    that the Wiener filter uses for it.

    Args:
        images: the training images.
        threshold: tau, relative to the largest entry of the Wiener matrix's row.
        rank: use only this many principal components for the masks.
        energy: cut the smallest components that together hold at most this share of sum lambda^4.
        components: fit only this many leading components, by a randomized method, if the images are too large for all.
        softmax: exact, or batch-mean as in the published code: normalized within batches, then averaged over them.
        softmax_batch: size of the batches of batch-mean.
        mask_rule: the paper's equation, or the published code's normalization of the Wiener matrix.
        temperature: divides the logits.
        stats: moments that give the masks, instead of those of `images`.
        plan: how to compute the distances; all are exact, auto chooses the fastest.
        memory: workspace in bytes.
    """
    if softmax not in SOFTMAXES:
        raise unknown("softmax", softmax, SOFTMAXES)
    if softmax_batch < 1:
        raise ScorelensError(f"softmax_batch must be at least 1, got {softmax_batch}")
    check_masks(images)
    moments = (stats or fit_gaussian(images, components=components)).truncated(rank, energy)

    @lru_cache(maxsize=max(1, MASK_MEMORY // images.dim**2))
    def masks(sigma: float) -> Masks:
        return Masks(locality_masks(moments, sigma, threshold, mask_rule), images.shape)

    return Locality(images, masks, softmax_batch if softmax == "batch-mean" else None, temperature, plan, memory)


def same_but_masks(models: Sequence[Locality]) -> bool:
    """Whether these models differ in their masks alone, and average their images by the exact softmax."""
    first = models[0]
    return all(model.images is first.images and model.temperature == first.temperature and model.plan == first.plan
               and (model.source, model.softmax_batch) == (None, None) for model in models)


def at_scales(models: Sequence[Locality], z: Tensor, sigma: float, pixels: Int[Tensor, "q"]) -> Float[Tensor, "k b q"]:
    """x0_hat of models that are the same but for their masks, at these coordinates, in one pass over the images.

    Masks of rising thresholds are nested: each is compared by what it adds to the one before it.
    """
    keep = torch.cat([model.masks(sigma).keep[pixels] for model in reversed(models)])  # small masks first
    queries = Masks(keep, (len(models), 1, len(pixels)))
    posterior = Posterior(queries, OwnOutput(pixels.repeat(len(models)).to(z.device)), models[0].images)
    means = posterior_mean(posterior, z, sigma, temperature=models[0].temperature, plan=models[0].plan,
                           memory=models[0].memory)
    return means.flatten(1).unflatten(1, (len(models), -1)).transpose(0, 1).flip(0)


def check_masks(images: ImageSet) -> None:
    """Raise before anything is computed if one mask for each of the D outputs does not fit into memory."""
    try:
        check_memory(images.dim**2, f"a mask for each of the {images.dim:,} outputs")
    except ScorelensError as error:
        raise ScorelensError(f"{images.name}: {error}; choose a smaller resolution, or a method without masks, such as "
                             "wiener with components") from error


def soft_locality(images: ImageSet, *, temperature: float = 1.0, stats: GaussianStats | None = None,
                  memory: int = MEMORY) -> Locality:
    """The locality model with soft masks: pixels are weighted by their Wiener coefficients instead of kept or dropped.

    x0_hat_q = sum_i softmax_i(-sum_k p_qk (z - x_i)_k^2 / 2 sigma^2) x_i,q with p_qk = |W_qk| / max_k |W_qk|.

    Args:
        images: the training images.
        temperature: divides the logits.
        stats: moments that give the weights, instead of those of `images`.
        memory: workspace in bytes.
    """
    moments = stats or fit_gaussian(images)

    @lru_cache(maxsize=max(1, MASK_MEMORY // (8 * images.dim**2)))
    def precisions(sigma: float) -> Masks:
        w = wiener_matrix(moments, sigma).abs()
        largest = w.amax(dim=1, keepdim=True)
        constant = largest <= len(w) * torch.finfo(w.dtype).eps * largest.max()  # any weights return the constant
        return Masks(torch.where(constant, 1.0, w / largest.clamp(min=torch.finfo(w.dtype).tiny)))

    return Locality(images, precisions, temperature=temperature, memory=memory)


def locality_equivariant(images: ImageSet, *, threshold: float = 0.02, temperature: float = 1.0,
                         stats: GaussianStats | None = None, memory: int = MEMORY) -> Locality:
    """The locality model over all translations of the images: an ablation of the paper, where they do not help.

    x0_hat_q = sum_it softmax_it(-||M_q (z - T_t x_i)||^2 / 2 sigma^2) (T_t x_i)_q, T_t all circular translations. The
    cost grows by H x W: for small images.

    Args:
        images: the training images.
        threshold: tau, relative to the largest entry of the Wiener matrix's row.
        temperature: divides the logits.
        stats: moments that give the masks, instead of those of `images`.
        memory: workspace in bytes.
    """
    plain = locality(images, threshold=threshold, temperature=temperature, stats=stats, memory=memory)
    return replace(plain, source=Translations(images))
