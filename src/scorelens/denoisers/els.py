"""Kamb & Ganguli's equivariant local score model: a patch is compared with patches at all positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from scorelens.data.edits import check_draw, limited
from scorelens.data.images import ImageSet
from scorelens.denoisers.common import term
from scorelens.denoisers.patch_sizes import PatchSize, Size, patch_sizes, patch_window
from scorelens.posterior import (
    MEMORY,
    AllChannels,
    Posterior,
    Term,
    WholeOutput,
    WholePatch,
    WholeTranslation,
    Windows,
    Writers,
    posterior_mean,
)
from scorelens.posterior.patches import Clusters, Patches, cut_patches, fit_clusters, wrapped
from scorelens.posterior.plans.fused import available
from scorelens.posterior.sources import Translations
from scorelens.types import Images, ScorelensError
from scorelens.validation import at_least_float32, merge_groups, per_level, unknown

BANKS = ("circular", "inside")
Bank = Patches | Clusters
BOXES_FROM = 320  # coordinates of a patch from which window sums over translated images beat products of patches


@dataclass(frozen=True)
class ELS:
    """x0_hat_q = sum_ip softmax_ip(-||patch_q(z) - patch_p(x_i)||^2 / 2 sigma^2) x_ip; z wraps around its border.

    With the circular bank, large patches, and all in the compiled kernel, are windows of translated images.
    """

    converges_to_mean: ClassVar[bool] = False  # but to the mean over all pixels
    images: ImageSet
    size: Callable[[float], Size]
    choose: Callable[[ImageSet, Size], Bank]  # the patches of images to compare with, by size
    temperature: float
    memory: int

    def bank(self, size: Size) -> Bank:
        return self.choose(self.images, size)

    @per_level
    def __call__(self, z: Tensor, sigma: float) -> Tensor:
        whole = self._by_translations(z, sigma)
        if whole is not None:
            return self._mean(whole, z, sigma)
        bank = self.bank(self.size(sigma))
        return torch.cat([self._by_patches(some, sigma, bank) for some in z.split(self._batch(bank))])

    def terms(self, z: Tensor, sigma: float) -> Iterator[Term]:
        whole, bank = self._by_translations(z, sigma), self.bank(self.size(sigma))
        if whole is not None:
            yield term(whole, z, sigma, temperature=self.temperature, memory=self.memory)
            return
        rows = torch.arange(len(z)).split(self._batch(bank) if isinstance(bank, Patches) else 1)
        for noisy, some in zip(rows, at_least_float32(z).split([len(each) for each in rows]), strict=True):
            posteriors = [*self._patch_posteriors(some, bank)]
            for chosen, posterior, patches in posteriors:
                found = patch_term(posterior, patches, sigma, len(some), self.temperature, self.memory, chosen)
                yield replace(found, noisy=noisy)

    def over(self, images: ImageSet) -> ELS:
        """The same sizes over other images."""
        return replace(self, images=images)

    def _batch(self, bank: Bank) -> int:
        """How many noisy images are cut into patches at a time."""
        _, h, w = self.images.shape
        return max(1, self.memory // (4 * h * w * bank_patches(bank).dim))

    def _by_translations(self, z: Tensor, sigma: float) -> Posterior | None:
        """The posterior over translated images, where it is faster than that over patches."""
        size, (c, h, w) = self.size(sigma), self.images.shape
        bank = self.bank(size)
        if not (isinstance(bank, Patches) and bank.wrap and bank.indices is None):
            return None
        if size is None:
            return Posterior(WholeTranslation(self.images.shape), WholeOutput(), Translations(self.images))
        compiled = available(z) and not (torch.is_grad_enabled() and z.requires_grad)
        if (compiled or bank.dim >= BOXES_FROM) and size <= min(h, w):
            return Posterior(Windows(self.images.shape, size, "wrap"), AllChannels(c), Translations(self.images))
        return None

    def _by_patches(self, z: Images, sigma: float, bank: Bank) -> Images:
        """x0_hat of each pixel from the patch around it."""
        c, h, w = self.images.shape
        means = merge_groups(((chosen, self._mean(posterior, patches, sigma))
                              for chosen, posterior, patches in self._patch_posteriors(z, bank)), dim=0)
        return means.view(len(z), h, w, c).permute(0, 3, 1, 2)

    def _patch_posteriors(self, z: Images, bank: Bank) -> Iterator[tuple[Int[Tensor, "m"], Posterior, Tensor]]:
        """The patches of z, and what they are compared with: all of the bank, or the clusters that are near."""
        window = bank_patches(bank).window
        patches = cut_patches(wrapped(z, window), window).flatten(0, 1)  # [B * H * W, k]
        centre = WholeOutput(window.centre(self.images.shape[0]).to(z.device))
        groups = bank.groups(patches) if isinstance(bank, Clusters) else [
            (torch.arange(len(patches), device=z.device), bank)]
        return ((chosen, Posterior(WholePatch(), centre, source), patches[chosen]) for chosen, source in groups)

    def _mean(self, posterior: Posterior, z: Tensor, sigma: float) -> Tensor:
        return posterior_mean(posterior, z, sigma, temperature=self.temperature, memory=self.memory)


def patch_term(posterior: Posterior, patches: Tensor, sigma: float, noisy: int, temperature: float, memory: int,
               pixels: Int[Tensor, "m"] | None = None) -> Term:
    """The posterior of the centre of each patch: of `pixels`, by default of those that the source's patches have."""
    source = posterior.source
    assert isinstance(source, Patches)
    _, h, w = source.images.shape
    own = (torch.tensor(source.rows)[:, None] * w + torch.tensor(source.columns)).flatten()
    each = len(patches) // noisy
    centres = own if pixels is None else pixels.cpu()[:each] % (h * w)
    outputs = (torch.arange(source.images.shape[0])[:, None] * h * w + centres).flatten()
    writers = Writers(outputs, torch.arange(each).repeat(source.images.shape[0]))
    return Term(posterior, patches, sigma, torch.arange(noisy), writers, each, temperature, memory=memory,
                centres=centres)


def bank_patches(bank: Bank) -> Patches:
    """All the patches that a bank is drawn from."""
    return bank if isinstance(bank, Patches) else bank.patches


def els(images: ImageSet, *, patch_size: PatchSize = "cifar10", bank: Literal["circular", "inside"] = "circular",
        temperature: float = 1.0, images_limit: int | None = None, patch_limit: int | None = None,
        clusters: int | None = None, searched: int = 8, seed: int = 0, memory: int = MEMORY) -> ELS:
    """The equivariant local score model of these images.

    Args:
        images: the training images.
        patch_size: side of the patches: a number, a number for each step, a preset or a calibration file.
        bank: patches of all circular translations of the images, as in the paper's equation, or only patches inside
            the images, as in the published code.
        temperature: divides the logits.
        images_limit: use only this many images, drawn at random; an approximation.
        patch_limit: use only this many patches, drawn at random; an approximation.
        clusters: group the patches into this many clusters and compare only the nearest ones; an approximation.
        searched: number of clusters to compare.
        seed: seed of the draws and the clusters.
        memory: workspace in bytes.
    """
    if bank not in BANKS:
        raise unknown("bank", bank, BANKS)
    if clusters is not None and not 1 <= searched <= clusters:
        raise ScorelensError(f"searched must be between 1 and the {clusters} clusters, got {searched}")
    if clusters is not None and patch_limit is not None:
        raise ScorelensError("clusters and patch_limit exclude each other; give one of them")
    check_draw(patch_limit, seed)

    @lru_cache(maxsize=16)
    def choose(source: ImageSet, size: Size) -> Bank:
        _, h, w = images.shape
        window = patch_window(size, images.shape)
        inside = range(window.up, h - window.down), range(window.left, w - window.right)
        rows, columns = (range(h), range(w)) if bank == "circular" else inside  # of the patches' centres
        patches = Patches(source, window, rows, columns, wrap=bank == "circular")
        if clusters is not None:
            return fit_clusters(patches, clusters, searched, seed)
        if patch_limit is not None and patch_limit < len(patches):
            chosen = np.random.default_rng(seed).choice(len(patches), patch_limit, replace=False)
            return replace(patches, indices=np.sort(chosen))
        return patches

    return ELS(limited(images, images_limit, seed), patch_sizes(patch_size, images.shape), choose, temperature, memory)
