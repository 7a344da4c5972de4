"""Without this image: denoisers of the remaining data, and how a prediction changes when training images are removed.

Statistics kept, removal renormalizes the posterior: x0_hat_q^(-i) = (x0_hat_q - w_i^q x_i,q) / (1 - w_i^q), exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens.analysis.attribution import attribute, terms_of, training_images
from scorelens.data.images import ImageSet
from scorelens.denoisers import recipe_of
from scorelens.posterior.weights import Term, removed_means
from scorelens.sampling import Guided, guided
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import check_sigma, unknown, wide_dtype

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATISTICS = ("kept", "refitted")
LARGEST = 1 - 1e-3  # of the removed weight; beyond, renormalizing loses digits, and the rest is averaged again


def without(denoiser: Any, indices: Sequence[int] | np.ndarray | Tensor,
            statistics: str = "kept") -> Any:
    """The denoiser of the training images that remain when these are removed.

    Args:
        denoiser: a closed-form denoiser.
        indices: of the images to remove, in the set that the denoiser was built from. Indices of the result's
            attributions refer to that set too.
        statistics: "kept" keeps everything fitted to all images (moments, masks, bandwidths, chosen options); only the
            images that are averaged change. "refitted" builds the denoiser anew from the remaining images.
    """
    if statistics not in STATISTICS:
        raise unknown("statistics", statistics, STATISTICS)
    removed = np.asarray(torch.as_tensor(indices).cpu() if isinstance(indices, Tensor) else indices, dtype=np.int64)
    if isinstance(denoiser, Guided):
        return guided(without(denoiser.conditional, removed, statistics),
                      without(denoiser.unconditional, removed, statistics), denoiser.weight)
    if statistics == "refitted":
        recipe = recipe_of(denoiser)
        if recipe is None:
            raise ScorelensError("only what build_denoiser built can be refitted; statistics='kept' needs no recipe")
        return recipe.build(_remaining(recipe.images, removed))
    if not hasattr(denoiser, "over"):
        raise ScorelensError(f"{type(denoiser).__name__} is not a closed-form denoiser; a network has to be trained "
                             "again without these images")
    return denoiser.over(_remaining(denoiser.images, removed))


def _remaining(images: ImageSet, removed: np.ndarray) -> ImageSet:
    numbers = images.numbers
    if removed.ndim != 1 or (len(removed) and not 0 <= removed.min() <= removed.max() <= numbers.max()):
        raise ScorelensError(f"{images.name}: indices of images to remove must be between 0 and {numbers.max()}")
    if np.isin(numbers, removed).all():
        raise ScorelensError(f"{images.name}: all {len(images)} images would be removed; at least one must remain")
    return images.without(removed)


@dataclass(frozen=True, eq=False)
class Removal:
    """How x0_hat changes without single training images, statistics kept; those that change it most come first."""

    images: ImageSet
    sigma: float
    x0_hat: Tensor  # [B, C, H, W], with all images
    index: Int[Tensor, "b k"]
    weight: Float[Tensor, "b k"]  # of the image, mean over the outputs
    without: Float[Tensor, "b k c h w"]  # x0_hat without it
    change: Float[Tensor, "b k"]  # rms of the difference

    def table(self) -> str:
        """The images whose removal changes the prediction most, as Markdown."""
        from scorelens.report.attribution import removal_table

        return removal_table(self)

    def figure(self, which: int = 0) -> Figure:
        """The removed images, and what the prediction becomes without each."""
        from scorelens.report.attribution import removal_figure

        return removal_figure(self, which)

    def save(self, folder: str | Path) -> Path:
        """Write removal.json and a figure for each noisy image into a new folder."""
        from scorelens.report.attribution import write_removal

        return write_removal(self, Path(folder))


def removal_effects(denoiser: Denoiser, z: Tensor, sigma: float, *, top: int = 10) -> Removal:
    """How the prediction changes without each of the `top` training images with the most weight, statistics kept.

    Exact, and without a pass over the data for each image where outputs are plain posterior means; mixtures of several,
    and what one image dominates, are computed again from the remaining images.
    """
    sigma = check_sigma(sigma)
    who = attribute(denoiser, z, sigma, top=top, outputs=False)
    index, weight = who.behind.index[:, 0], who.behind.weight[:, 0]
    with torch.no_grad():
        changed = torch.stack([_without_each(denoiser, z[k:k + 1], sigma, index[k].cpu().numpy(), who.x0_hat[k:k + 1])
                               for k in range(len(z))])
    change = (changed - who.x0_hat[:, None]).flatten(2).square().mean(dim=2).sqrt()
    order = change.argsort(dim=1, descending=True)
    rows = torch.arange(len(z), device=z.device)[:, None]
    return Removal(training_images(denoiser), sigma, who.x0_hat, index.gather(1, order), weight.gather(1, order),
                   changed[rows, order], change.gather(1, order))


def _without_each(denoiser: Any, z: Tensor, sigma: float, numbers: Int[np.ndarray, "m"],
                  x0_hat: Tensor) -> Float[Tensor, "m c h w"]:
    """x0_hat of one noisy image without each of these training images."""
    changed, again = _renormalized(list(terms_of(denoiser, z, sigma)), numbers, x0_hat)
    result = changed.view(len(numbers), *z.shape[1:]).to(z.dtype)
    for k in again:
        result[k] = without(denoiser, numbers[k:k + 1])(z, sigma)[0]
    return result


def _renormalized(terms: list[Term], numbers: np.ndarray, x0_hat: Tensor) -> tuple[Tensor, list[int]]:
    """x0_hat without each image, and which must be computed again."""
    mean = x0_hat.flatten(1).to(wide_dtype(x0_hat))
    changed, removed = mean.expand(len(numbers), -1).clone(), mean.new_zeros(len(numbers))
    if any(not _is_plain(term) for term in terms):
        return changed, list(range(len(numbers)))
    for term in terms:
        weight, part = (tensor[0].to(mean) for tensor in removed_means(term, numbers))  # [m, out]
        outputs = term.writers.outputs
        changed[:, outputs] = (mean[:, outputs] - part) / (1 - weight).clamp(min=1 - LARGEST)
        removed = torch.maximum(removed, weight.amax(dim=1))
    return changed, (removed > LARGEST).nonzero()[:, 0].tolist()


def _is_plain(term: Term) -> bool:
    """Whether outputs are posterior means of pixels, each of one query over all its images."""
    source = term.posterior.source
    return (term.writers.mix is None and term.share == 1 and term.softmax_batch is None
            and type(source).__name__ in ("ImageSet", "Translations", "Patches"))
