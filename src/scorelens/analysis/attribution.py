"""Which training images made this? The posterior weights behind pixels, regions, whole images and trajectories.

Every posterior-mean denoiser is x0_hat_q = sum_i w_i^q x_i,q. The weights are exact, and computed by streaming. A
network has no weights, but the formula that predicts it best on the very same noisy image has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scorelens import progress
from scorelens.analysis.models import build_model
from scorelens.data.images import ImageSet
from scorelens.denoisers import recipe_of
from scorelens.metrics import r2
from scorelens.posterior import Affine, Masks, Term, Windows, image_weights, top_weights
from scorelens.sampling import Guided, Samples
from scorelens.types import Denoiser, ScorelensError
from scorelens.validation import check_memory, check_noisy, check_sigma, shape_of, wide_dtype

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMULAS = ("optimal", "kernel", "locality")  # that may stand for a network
WHOLE = "whole image"
CLEAR = 0.3  # a noise level at which few images share a pixel, and the image is not yet fixed
Formulas = Sequence[str] | Mapping[str, Denoiser]  # denoisers with their options; or built ones, by name
Pixel = tuple[int, int]  # (row, column)
Region = tuple[int, int, int, int]  # top, left, height, width


@dataclass(frozen=True, eq=False)
class Behind:
    """The training images with the most weight behind each of T targets of B noisy images."""

    names: tuple[str, ...]  # of the targets
    index: Int[Tensor, "b t k"]  # into the training images that the denoiser was built from
    weight: Float[Tensor, "b t k"]  # decreasing
    effective: Float[Tensor, "b t"]  # 1 / sum_i w_i^2, the effective number of images

    @property
    def covered(self) -> Float[Tensor, "b t"]:
        """The share of all weight that these images have."""
        return self.weight.sum(dim=2)


@dataclass(frozen=True, eq=False)
class Outputs:
    """The training images, or parts of them, with the most weight behind each output of x0_hat."""

    index: Int[Tensor, "b k c h w"]
    offset: Int[Tensor, "b k c h w 2"]  # output (c, r, q) averages pixel (c, r + down, q + right), modulo H and W
    weight: Float[Tensor, "b k c h w"]  # decreasing in k
    effective: Float[Tensor, "b c h w"]

    @property
    def covered(self) -> Float[Tensor, "b c h w"]:
        return self.weight.sum(dim=1)


@dataclass(frozen=True, eq=False)
class Attribution:
    """Training images behind a prediction: as a table, as a mosaic, as files."""

    formula: str  # the denoiser whose weights these are
    images: ImageSet  # the training images
    sigma: float
    z: Tensor
    x0_hat: Tensor  # of the denoiser that was asked about
    behind: Behind  # the whole image, pixels or a region
    outputs: Outputs | None  # each output
    r2: Float[Tensor, "b"] | None = None  # of a network: how well the formula predicts it on these noisy images

    def pictures(self, index: Sequence[int]) -> Tensor:
        """The training images of these indices, as they are shown."""
        return self.images.pictures(self.images[list(index)])

    def label(self, index: int) -> str:
        """The class of a training image, if it has one."""
        if self.images.labels is None:
            return ""
        label = int(self.images.labels[index])
        return self.images.class_names[label] if label < len(self.images.class_names) else str(label)

    def table(self) -> str:
        """The images with the most weight, as Markdown."""
        from scorelens.report.attribution import attribution_table

        return attribution_table(self)

    def figure(self, which: int = 0) -> Figure:
        """The mosaic of one noisy image: pixels in the colours of the training images with the most weight behind them.
        """
        from scorelens.report.attribution import mosaic_figure

        return mosaic_figure(self, which)

    def record(self) -> dict[str, Any]:
        """All numbers but those of single outputs."""
        from scorelens.report.attribution import attribution_record

        return attribution_record(self)

    def save(self, folder: str | Path, record: dict[str, Any] | None = None) -> Path:
        """Write attribution.json, report.html and a mosaic for each noisy image into a new folder."""
        from scorelens.report.attribution import write_attribution

        return write_attribution(self, Path(folder), record or {})


@dataclass(frozen=True, eq=False)
class TrajectoryAttribution:
    """Training images behind each step of a trajectory, and behind all steps: the mean of their weights."""

    steps: list[Attribution]
    total: Behind

    def table(self) -> str:
        """The images with the most weight at each step and in sum, as Markdown."""
        from scorelens.report.attribution import trajectory_table

        return trajectory_table(self)

    def figure(self, which: int = 0) -> Figure:
        """The prediction of each step, with the training images that have the most weight below it."""
        from scorelens.report.attribution import trajectory_figure

        return trajectory_figure(self, which)

    def mosaic(self, which: int = 0, step: int | None = None) -> Figure:
        """The mosaic of a step, with those of other steps below it; by default of the step nearest to sigma 0.3.

        Needs what is behind single outputs: attribute_samples(..., outputs=True).
        """
        from scorelens.report.attribution import mosaic_figure

        at = min(self.steps, key=lambda at: abs(math.log(at.sigma / CLEAR))) if step is None else self.steps[step]
        return mosaic_figure(at, which, self.steps)

    def save(self, folder: str | Path, record: dict[str, Any] | None = None) -> Path:
        """Write trajectory.json, report.html and a figure for each image into a new folder."""
        from scorelens.report.attribution import write_trajectory

        return write_trajectory(self, Path(folder), record or {})


def attribute(denoiser: Denoiser, z: Tensor, sigma: float, *, pixels: Sequence[Pixel] | None = None,
              region: Region | Bool[Tensor, "h w"] | None = None, top: int = 10, outputs: bool = True,
              images: ImageSet | None = None, formulas: Formulas = FORMULAS) -> Attribution:
    """The training images behind x0_hat = denoiser(z, sigma), with their posterior weights.

    Args:
        denoiser: any posterior-mean denoiser; or a network, for which the best of `formulas` answers.
        z: noisy images [B, C, H, W].
        sigma: their noise level.
        pixels: (row, column) of output pixels to ask about, channels averaged; by default the whole image.
        region: (top, left, height, width) or a mask [H, W] to ask about instead: the mean over its outputs.
        top: how many training images.
        outputs: also find those behind each single output, for the mosaic.
        images: the training images of a network.
        formulas: closed-form denoisers that may stand for a network; the one with the greatest r2 on z does.
    """
    check_noisy(z, shape_of(denoiser))
    sigma = check_sigma(sigma)
    check_top(top)
    with torch.no_grad():
        x0_hat, (name, formula, fit) = denoiser(z, sigma), explained(denoiser, z, sigma, images, formulas)
        names, targets = _targets(z, pixels, region)
        weights = whole_weights(formula, z, sigma, targets)
        behind = _behind(names, weights, top)
        found = outputs_behind(formula, z, sigma, top) if outputs else None
    return Attribution(name, training_images(formula), sigma, z, x0_hat, behind, found, fit)


def check_top(top: int) -> None:
    """A number of training images to name."""
    if top < 1:
        raise ScorelensError(f"top must be at least 1, got {top}")


def attribute_samples(denoiser: Denoiser, samples: Samples, *, pixels: Sequence[Pixel] | None = None,
                      region: Region | Bool[Tensor, "h w"] | None = None, top: int = 10, outputs: bool = False,
                      images: ImageSet | None = None, formulas: Formulas = FORMULAS) -> TrajectoryAttribution:
    """The training images behind every step of sampled trajectories, and behind all of them: the mean over the steps.

    The arguments are those of `attribute`; the steps are those of `sample`. For a network, each step has its own best
    formula.
    """
    check_top(top)
    steps, total = [], torch.zeros(())
    for step in progress.track(samples.steps, "attribution", unit="step"):
        with torch.no_grad():
            name, formula, fit = explained(denoiser, step.z, step.sigma, images, formulas, step.x0_hat)
            names, targets = _targets(step.z, pixels, region)
            weights = whole_weights(formula, step.z, step.sigma, targets)
            found = outputs_behind(formula, step.z, step.sigma, top) if outputs else None
        total = total.to(weights) + weights / len(samples.steps)
        steps.append(Attribution(name, training_images(formula), step.sigma, step.z, step.x0_hat,
                                 _behind(names, weights, top), found, fit))
    return TrajectoryAttribution(steps, _behind(names, total, top))


def explained(denoiser: Denoiser, z: Tensor, sigma: float, images: ImageSet | None, formulas: Formulas,
              x0_hat: Tensor | None = None) -> tuple[str, Denoiser, Tensor | None]:
    """A denoiser with posterior weights: this one, or the formula that predicts it best on z; its name and its r2."""
    if has_weights(denoiser):
        recipe = recipe_of(denoiser)
        return recipe.name if recipe else type(denoiser).__name__, denoiser, None
    if images is None:
        raise _no_weights(denoiser)
    if not formulas:
        raise ScorelensError("no formulas given that could stand for the network")
    reference = denoiser(z, sigma) if x0_hat is None else x0_hat
    models = formulas if isinstance(formulas, Mapping) else {name: build_model(name, images) for name in formulas}
    for name, model in models.items():
        if not has_weights(model):
            raise ScorelensError(f"{name} has no posterior weights, so it cannot stand for a network; leave it out")
    fits = {name: r2(model(z, sigma), reference) for name, model in models.items()}
    best = max(fits, key=lambda name: fits[name].mean().item())
    return best, models[best], fits[best]


def has_weights(denoiser: Any) -> bool:
    """Whether a denoiser is a posterior mean, entirely or up to a linear part."""
    return getattr(denoiser, "terms", None) is not None


def terms_of(denoiser: Any, z: Tensor, sigma: float) -> Iterator[Term]:
    """The posterior means that a denoiser consists of."""
    if not has_weights(denoiser):
        raise _no_weights(denoiser)
    terms: Iterator[Term] = denoiser.terms(z, sigma)
    return terms


def compared_pixels(denoiser: Any, z: Tensor, sigma: float, pixel: Pixel) -> Float[Tensor, "h w"] | None:
    """The mask through which an output pixel compares z with the training images: the share of its queries that
    compare each pixel, over the channels. None where whole images, or patches at any position, are compared."""
    c, h, w = z.shape[1:]
    outputs = torch.arange(c) * h * w + pixel[0] * w + pixel[1]
    for term in terms_of(denoiser, z, sigma):
        some = term.at(outputs)
        if some is None:
            continue
        queries = some.posterior.queries
        if isinstance(queries, Affine):  # of kernel-locality
            model = denoiser.at_level(sigma) if hasattr(denoiser, "at_level") else denoiser
            rows = model.masks(sigma)[outputs.to(model.masks(sigma).device)].double().cpu()
        elif isinstance(queries, Masks) or (isinstance(queries, Windows) and queries.border != "wrap"):
            keep = (queries.keep if isinstance(queries, Masks) else queries.masks).double().cpu()  # [q, d]
            mix = some.writers.mix
            rows = keep[some.writers.target] if mix is None else mix.double().cpu() @ keep
        else:
            return None
        return rows.view(-1, c, h, w).mean(dim=(0, 1))
    return None


def _no_weights(denoiser: Any) -> ScorelensError:
    if isinstance(denoiser, Guided):
        return ScorelensError("a guided denoiser is a difference of two posterior means, with weights of both signs; "
                              "attribute its conditional and its unconditional denoiser")
    name = type(denoiser).__name__
    if name in ("Wiener", "Formula"):
        return ScorelensError(f"{name if name == 'Wiener' else 'local-wiener'} is linear in z and has no posterior "
                              "weights; the nearest formula that has is kernel, a mixture of Gaussians around the "
                              "training images")
    return ScorelensError(f"{name} is not a posterior mean, so it has no weights; give images=, its training images, "
                          "and the formula that predicts it best answers")


def training_images(denoiser: Any) -> ImageSet:
    """The set that indices refer to: that of the denoiser, in the order in which it was given."""
    images: ImageSet = denoiser.images
    if images.rows is None:
        return images
    return _spread(images)


def _spread(images: ImageSet) -> ImageSet:
    """The images at their numbers; those that the denoiser does not use are black."""
    size = int(images.numbers.max()) + 1
    pixels = np.zeros((size, *images.shape), images.pixels.dtype)
    pixels[images.numbers[::-1]] = images.pixels[::-1]  # of mirrored copies, the first
    labels = None
    if images.labels is not None:
        labels = np.zeros(size, np.int64)
        labels[images.numbers[::-1]] = images.labels[::-1]
    return replace(images, pixels=pixels, labels=labels, rows=None)


def whole_weights(denoiser: Any, z: Tensor, sigma: float,
                  targets: Float[Tensor, "t d"]) -> Float[Tensor, "b t n"]:
    """The weight of each training image in weighted sums of outputs; one number for each image."""
    size = int(denoiser.images.numbers.max()) + 1
    check_memory(8 * len(z) * len(targets) * size, f"the weights of {size:,} images behind {len(targets)} targets")
    total = torch.zeros(len(z), len(targets), size, dtype=wide_dtype(z), device=z.device)
    needed = targets.ne(0).any(dim=0).nonzero()[:, 0]
    for term in terms_of(denoiser, z, sigma):
        some = term.at(needed)
        if some is not None:
            part = image_weights(some, targets[:, some.writers.outputs], size)
            total.index_add_(0, some.noisy.to(z.device), part.to(total))
    return total


def outputs_behind(denoiser: Any, z: Tensor, sigma: float, top: int) -> Outputs:
    """The training images with the most weight behind each output, by one pass where no weights are mixed."""
    c, h, w = z.shape[1:]
    d, dtype = c * h * w, wide_dtype(z)
    index = torch.full((len(z), d, top), -1, device=z.device)
    weight = torch.zeros(len(z), d, top, dtype=dtype, device=z.device)
    offset = torch.zeros(len(z), d, top, 2, dtype=torch.long, device=z.device)
    squares = torch.ones(len(z), d, dtype=dtype, device=z.device)
    for term in terms_of(denoiser, z, sigma):
        if term.share != 1:
            return _same_everywhere(denoiser, z, sigma, top)
        found, outputs, target = top_weights(term, top), term.writers.outputs, term.writers.target.to(z.device)
        rows, kept = term.noisy.to(z.device)[:, None], found.weight.shape[2]
        index[rows, outputs, :kept] = found.image[:, target]
        weight[rows, outputs, :kept] = found.weight[:, target].to(dtype)
        offset[rows, outputs, :kept] = term.offset(found.place)[:, target]
        squares[rows, outputs] = found.squares[:, target].to(dtype)
    shape = (len(z), c, h, w, top)
    return Outputs(index.view(shape).movedim(4, 1), offset.view(*shape, 2).movedim(4, 1),
                   weight.view(shape).movedim(4, 1), (1 / squares).view(len(z), c, h, w))


def _same_everywhere(denoiser: Any, z: Tensor, sigma: float, top: int) -> Outputs:
    """Several posterior means over different images, averaged, with the same weights for all outputs."""
    c, h, w = z.shape[1:]
    whole = _behind((WHOLE,), whole_weights(denoiser, z, sigma, torch.full((1, c * h * w), 1 / (c * h * w))), top)
    shape = (len(z), whole.index.shape[2], c, h, w)
    index, weight = (tensor[:, 0, :, None, None, None].expand(shape) for tensor in (whole.index, whole.weight))
    return Outputs(index, torch.zeros(*shape, 2, dtype=torch.long), weight,
                   whole.effective[:, :1, None, None].expand(len(z), c, h, w))


def _behind(names: tuple[str, ...], weights: Float[Tensor, "b t n"], top: int) -> Behind:
    weight, index = weights.topk(min(top, weights.shape[2]), dim=2)
    return Behind(names, index, weight, 1 / weights.square().sum(dim=2))


def _targets(z: Tensor, pixels: Sequence[Pixel] | None, region: Region | Tensor | None,
             ) -> tuple[tuple[str, ...], Float[Tensor, "t d"]]:
    """The names of what is asked about, and each as a mean over outputs."""
    c, h, w = z.shape[1:]
    if pixels is not None and region is not None:
        raise ScorelensError("pixels and region exclude each other; give one of them")
    if pixels is not None:
        for row, column in pixels:
            if not (0 <= row < h and 0 <= column < w):
                raise ScorelensError(f"pixel ({row}, {column}) lies outside the image of {h}x{w}")
        if not len(pixels):
            raise ScorelensError("pixels is empty; give (row, column) pairs, or None for the whole image")
        masks = [_one(h, w, pixel) for pixel in pixels]
        names = tuple(f"pixel ({row}, {column})" for row, column in pixels)
    elif region is not None:
        masks, names = [_region_mask(region, h, w)], ("region",)
    else:
        masks, names = [torch.ones(h, w, dtype=torch.bool)], (WHOLE,)
    flat = torch.stack([mask.expand(c, h, w).flatten() for mask in masks]).double()
    return names, flat / flat.sum(dim=1, keepdim=True)


def _one(h: int, w: int, pixel: Pixel) -> Bool[Tensor, "h w"]:
    mask = torch.zeros(h, w, dtype=torch.bool)
    mask[pixel] = True
    return mask


def _region_mask(region: Region | Tensor, h: int, w: int) -> Bool[Tensor, "h w"]:
    if isinstance(region, Tensor):
        if region.shape != (h, w) or not region.any():
            raise ScorelensError(f"region must be a mask [{h}, {w}] with at least one pixel, got {list(region.shape)}")
        return region.bool().cpu()
    upper, left, height, width = region
    if not (0 <= upper < upper + height <= h and 0 <= left < left + width <= w):
        raise ScorelensError(f"region (top, left, height, width) = {tuple(region)} does not lie inside the image of "
                             f"{h}x{w}")
    mask = torch.zeros(h, w, dtype=torch.bool)
    mask[upper:upper + height, left:left + width] = True
    return mask
