"""The optimal denoiser, and its limit without noise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from scorelens import distributed
from scorelens.data.images import ImageSet
from scorelens.denoisers.common import Formula, PosteriorMean, each_image
from scorelens.posterior import MEMORY, Posterior, Term, WholeImage, WholeOutput
from scorelens.statistics.nearest import nearest_images
from scorelens.validation import at_least_float32


def optimal(images: ImageSet, *, neighbours: int | None = None, temperature: float = 1.0,
            memory: int = MEMORY) -> PosteriorMean | Formula:
    """The optimal denoiser: the posterior mean under the empirical distribution. It can only reproduce training images.

    x0_hat = sum_i softmax_i(-||z - x_i||^2 / 2 sigma^2) x_i   # eq:optimal_denoiser

    Args:
        images: the training images.
        neighbours: average only this many nearest images (published code: 200), an approximation; None for all.
        temperature: divides the logits.
        memory: workspace in bytes.
    """
    def mean_over(source: ImageSet) -> PosteriorMean:
        posterior = Posterior(WholeImage(), WholeOutput(), source)
        return PosteriorMean(source, lambda sigma: posterior, temperature, memory, converges_to_mean=True)

    if neighbours is None:
        return mean_over(images)

    def models(z: Tensor, sigma: float) -> Iterator[PosteriorMean]:
        near = nearest_images(at_least_float32(z), images, neighbours).indices
        return (mean_over(images.subset(rows)) for rows in distributed.world().broadcast(near).cpu().numpy())

    return each_image(images, models, partial(optimal, neighbours=neighbours, temperature=temperature, memory=memory))


def nearest(images: ImageSet) -> Formula:
    """The nearest training image: the limit of the optimal denoiser as sigma goes to 0.

    x0_hat = x_j, j = argmin_i ||z - x_i||, at any noise level. Piecewise constant: its gradient is zero.

    Args:
        images: the training images.
    """
    def predict(z: Tensor, sigma: float) -> Tensor:
        indices = nearest_images(at_least_float32(z), images).indices[:, 0]
        return images[indices].to(z) + 0 * z  # stays in the graph, with its true gradient

    def terms(z: Tensor, sigma: float) -> Iterator[Term]:
        return optimal(images, neighbours=1).terms(z, sigma)  # type: ignore[misc]

    return Formula(images, predict, terms=terms, rebuild=nearest)
