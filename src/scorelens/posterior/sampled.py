"""Importance-sampled posterior means with a checked error.

At high noise many images share the weight of a pixel. A sample of them is drawn: image i with probability pi_i, which
grows with its weight, and each drawn image counts 1 / pi_i times (Horvitz & Thompson 1952).

Tiles of neighbouring pixels estimate the weights: the posterior of a tile's mean mask, over images reduced to their
leading principal components, is cheap to compute for all images. It is also a control variate: the sample estimates its
mean too, which is known, and the error there is most of the error at the pixels.

A few pixels are computed exactly, from all images. They predict how many images the tolerance needs, and measure the
error of the result. If the sample would be too large, or its error is, the exact plan runs instead.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens.data.images import ImageSet, to_floats
from scorelens.posterior.costs import choose_plan
from scorelens.posterior.engine import MEMORY, Posterior, Run, logit_scale, posterior_mean
from scorelens.posterior.plans.base import cached_chunk
from scorelens.posterior.plans.dense import DenseMasks
from scorelens.posterior.queries import Masks
from scorelens.posterior.responses import Chunk, OwnOutput
from scorelens.posterior.softmax import State, chunk_state, merge
from scorelens.statistics.leading import leading_components
from scorelens.timings import phase
from scorelens.types import Flat, Shape
from scorelens.validation import at_least_float32

CHECKED = 16  # pixels that are computed exactly
UNIFORM = 0.1  # share of the sample that is drawn uniformly, in case the tiles overlook an image
SAFETY = 0.7  # the error to aim at, relative to the tolerance
PILOT, LEAST_PILOT = 32, 2048  # the pilot reads one of PILOT images, but at least LEAST_PILOT
SUPPORT = 32  # images that share the weight of a pixel in the pilot; with fewer, a sample cannot represent them
LEAST_TILE = 16  # pixels
RANK = 128  # principal components of the tiles' images
SHARES = [2 ** (-k / 2) for k in range(14, 4, -1)]  # of the images that may be drawn: 1 / 128 to 1 / 5.7
LEAST = 256  # images, the smallest sample whose error can be predicted


class ToleranceWarning(UserWarning):
    """An approximation missed its tolerance, and was computed exactly."""


@dataclass(frozen=True)
class Approximation:
    """Posterior means, and estimates of the error of each; 0 where the exact plan ran."""

    mean: Tensor  # [B, C, H, W]
    drawn: Int[Tensor, "b"]  # images that were compared
    expected: Float[Tensor, "b"]  # rms, predicted before sampling
    checked: Float[Tensor, "b"]  # rms at the pixels that were computed exactly


def sampled_mean(posterior: Posterior, z: Tensor, sigma: float, tolerance: float, *, temperature: float = 1.0,
                 plan: str = "auto", memory: int = MEMORY) -> Approximation:
    """The posterior mean with an rms error of at most `tolerance` per noisy image; `plan` computes the distances.

    Only masks on a grid, one for each output, are sampled; other posteriors are computed exactly.
    """
    masks, images, responses = posterior.queries, posterior.source, posterior.responses
    per_output = isinstance(responses, OwnOutput) and responses.pixels is ...
    flat, scale, n = at_least_float32(z).flatten(1), logit_scale(sigma, temperature), len(posterior.source)
    mean, drawn = torch.empty_like(flat), torch.full((len(flat),), n)
    expected, checked = torch.zeros(len(flat)), torch.zeros(len(flat))
    if isinstance(masks, Masks) and not masks.soft and isinstance(images, ImageSet) and per_output:
        for k, screened in _screened(masks, images, flat, scale, tolerance, memory):
            tried = 0
            for probabilities, expected[k] in screened.probabilities(tolerance):
                rows = systematic_sample(probabilities)
                with phase("drawn images"):
                    mean[k] = weighted_mean(masks, images, rows, probabilities[rows], flat[k], scale, plan)
                    mean[k] += screened.correction(rows, probabilities[rows])
                checked[k], tried = screened.error(mean[k]), len(rows)
                if checked[k] <= tolerance:
                    drawn[k] = tried
                    break
            if tried and drawn[k] == n:
                warnings.warn(f"{tried} of {n} images miss the tolerance {tolerance:g} at sigma = {sigma:.3g} "
                              f"(rms {checked[k]:.2g}); computed exactly instead", ToleranceWarning, stacklevel=3)
    rest = (drawn == n).nonzero()[:, 0]
    if len(rest):
        rows = rest.to(z.device)
        exact = posterior_mean(posterior, z[rows], sigma, temperature=temperature, plan=plan, memory=memory)
        mean[rows] = exact.flatten(1).to(mean)
        expected[rest] = checked[rest] = 0.0
    return Approximation(mean.view(z.shape).to(z.dtype), drawn, expected, checked)


class Tiles(NamedTuple):
    """Squares of neighbouring pixels, with all their channels."""

    weights: Float[Tensor, "t d"]  # the mean mask of each
    owner: Int[Tensor, "q"]  # the tile of each pixel


class Sketch(NamedTuple):
    """Images as linear combinations of a few directions, relative to the centre of the set."""

    basis: Float[Tensor, "d r"]
    coordinates: Float[Tensor, "r n"]


class Checks(NamedTuple):
    """Pixels that are computed exactly, drawn by their variance; their weighted mean estimates that of all pixels."""

    pixels: Int[Tensor, "p"]
    weights: Float[Tensor, "p"]  # 1 on average
    values: Float[Tensor, "p n"]  # of the images at these pixels

    def mean(self, values: Float[Tensor, "p *n"]) -> Float[Tensor, "*n"]:
        return torch.tensordot(self.weights, values, dims=1) / len(self.weights)


_cache: WeakKeyDictionary[Any, dict[Callable[..., Any], Any]] = WeakKeyDictionary()  # while the arguments exist


def _cached(make: Callable[..., Any], key: object, argument: object, like: Tensor) -> Any:
    """make(key, argument), computed once for each key; on the device, and in the dtype, of `like`."""
    results = _cache.setdefault(key, {})
    if make not in results:
        results[make] = make(key, argument)
    tensors = (t.to(like) if t.is_floating_point() else t.to(like.device) for t in results[make])
    return type(results[make])(*tensors)


@dataclass(frozen=True)
class Screened:
    """One noisy image compared with all images: by the tiles, and by the masks of the checked pixels."""

    tiles: Float[Tensor, "t n"]  # posterior weights of each tile
    owner: Int[Tensor, "q"]  # the tile of each pixel
    sketch: Sketch
    checks: Checks
    weights: Float[Tensor, "p n"]  # posterior weights of the checked pixels

    @property
    def exact(self) -> Float[Tensor, "p"]:
        return (self.weights * self.checks.values).sum(dim=1)

    def probabilities(self, tolerance: float) -> Iterator[tuple[Float[Tensor, "n"], float]]:
        """The probability to draw each image, and the rms error to expect: for the smallest sample that the tolerance
        allows, then for larger ones; nothing if it needs too many images."""
        n = self.tiles.shape[1]
        proposal, influence = (1 - UNIFORM) * self.tiles.mean(dim=0) + UNIFORM / n, self._influence()
        for count in (share * n for share in SHARES if share * n >= LEAST):
            probabilities = inclusion_probabilities(proposal, count)
            rms = math.sqrt((influence * (1 / probabilities - 1)).sum().item())
            if rms <= SAFETY * tolerance:
                yield probabilities, rms

    def _influence(self) -> Float[Tensor, "n"]:
        """How much the mean of a checked pixel changes with the weight of an image, beyond the control variate."""
        control = self.tiles[self.owner[self.checks.pixels]]  # [p, n]
        sketched = self.sketch.basis[self.checks.pixels] @ self.sketch.coordinates
        moved = control.mul_(sketched.sub_((control * sketched).sum(dim=1, keepdim=True)))
        return self.checks.mean((self.checks.values - self.exact[:, None]).mul_(self.weights).sub_(moved).square_())

    def error(self, mean: Float[Tensor, "q"]) -> float:
        """The rms error of a result, estimated at the checked pixels."""
        return math.sqrt(self.checks.mean((mean[self.checks.pixels] - self.exact).square()).item())

    def correction(self, rows: Int[Tensor, "k"], probabilities: Float[Tensor, "k"]) -> Float[Tensor, "q"]:
        """The sample's error in the tiles' sketched means, with the opposite sign, at each pixel."""
        drawn = self.tiles[:, rows] / probabilities
        missed = self.tiles @ self.sketch.coordinates.T
        missed -= (drawn / drawn.sum(dim=1, keepdim=True)) @ self.sketch.coordinates[:, rows].T  # [t, r]
        return (self.sketch.basis * missed[self.owner]).sum(dim=1)


def _screened(masks: Masks, images: ImageSet, z: Flat, scale: float, tolerance: float,
              memory: int) -> Iterator[tuple[int, Screened]]:
    """The noisy images for which a sample may suffice, compared with all images.

    Distances are sums of x (x - 2 z) over a mask, both relative to the centre: two products, the first of which all
    noisy images share. They are precise enough at high noise."""
    tiles: Tiles = _cached(tiles_of, masks, images.shape, z)
    if len(tiles.weights) * LEAST_TILE > len(masks):  # masks are small, and tiles save nothing
        return
    n, stride = len(images), max(1, min(PILOT, len(images) // LEAST_PILOT))
    with phase("sketch"):
        sketch: Sketch = _cached(sketch_of, images, stride, z)
        checks: Checks = _cached(checks_of, images, stride, z)
    keep = masks.keep.to(z.device)[checks.pixels].to(z)
    rows, sizes = torch.cat([tiles.weights, keep]), [len(tiles.weights), len(keep)]
    run = Run(Posterior(masks, OwnOutput(), images), CentredMasks(rows), scale, n, memory)
    z = z - run.shift(z)

    def compare(which: list[int], every: slice, chunks: Callable[[], Iterable[Chunk]],
                name: str) -> Iterator[tuple[int, Screened]]:
        some = sketch._replace(coordinates=sketch.coordinates[:, every])
        exact, count = checks._replace(values=checks.values[:, every]), some.coordinates.shape[1]
        together = max(1, memory // (4 * len(keep) * count))
        for first in range(0, len(which), together):
            batch, start = which[first:first + together], 0
            energies, distances = z.new_empty(sizes[0], count), z.new_empty(len(batch), count, len(keep))
            for x in chunks():
                here = slice(start, start := start + x.shape[1])
                with phase(name):
                    energies[:, here], squares = (rows @ x.square()).split(sizes)
                    for k, out in zip(batch, distances, strict=True):  # one by one: independent of the batch
                        torch.addmm(squares.T, x.T, (keep * z[k]).T, alpha=-2, out=out[here])
            for k, distance in zip(batch, distances, strict=True):
                products = (tiles.weights * z[k]) @ some.basis @ some.coordinates  # [t, n]
                by_tile = torch.softmax(products.mul_(2).sub_(energies).mul_(scale), dim=1)
                weights = torch.softmax(distance.T.contiguous() * -scale, dim=1)
                yield k, Screened(by_tile, tiles.owner, some, exact, weights)

    every, larger = slice(None, None, stride), math.sqrt(stride) * tolerance  # errors are larger with fewer images
    pilot = _floats(torch.from_numpy(images.pixels[every]).flatten(1).T, z, run.zero(z))
    promising = [k for k, screened in compare(list(range(len(z))), every, lambda: [pilot], "pilot")
                 if (1 / screened.weights.square().sum(dim=1)).quantile(0.25) >= SUPPORT
                 and next(screened.probabilities(larger), None)]
    yield from compare(promising, slice(None), lambda: run.chunks(z, range(n)), "screening")


@dataclass(frozen=True)
class CentredMasks(DenseMasks):
    """Dense masks on images relative to the mean image, in the memory layout that is fastest for few masks."""

    centred: ClassVar[bool] = True
    pixel_major: ClassVar[bool] = False


def weighted_mean(masks: Masks, images: ImageSet, rows: Int[Tensor, "k"], probabilities: Float[Tensor, "k"],
                  z: Float[Tensor, "d"], scale: float, plan: str = "auto") -> Float[Tensor, "d"]:
    """The posterior mean over some images, each counted 1 / its probability times."""
    chosen = choose_plan(masks.plans(z[None], scale), plan).plan
    run = Run(Posterior(masks, OwnOutput(), images), chosen, scale, len(images), MEMORY)
    zero, shift, pixels = run.zero(z[None]), run.shift(z[None]), torch.from_numpy(images.pixels).flatten(1)
    state: State | None = None
    size = cached_chunk(len(z), z.element_size(), MEMORY)
    for chunk, probability in zip(rows.split(size), probabilities.split(size), strict=True):
        x = _floats(pixels[chunk.cpu()].T, z, zero)
        distances = chosen.distances(z[None] - shift, x, None, math.inf).add_(probability.log() / scale)
        state = merge(state, chunk_state(distances, scale, OwnOutput(), x), scale)
    assert state is not None
    return state.mean[0, :, 0] + shift[0]


def tiles_of(masks: Masks, shape: Shape) -> Tiles:
    """Tiles about as wide as a mask reaches from its pixel."""
    c, h, w = shape
    reach = math.sqrt(masks.keep.sum(dim=1).float().mean().item() / (c * math.pi))
    side = 2 ** int(math.log2(max(reach, 1)))
    row, column = (torch.arange(size) // side for size in (h, w))
    owner = (row[:, None] * (-(-w // side)) + column).expand(c, h, w).flatten().to(masks.keep.device)
    count = torch.bincount(owner)
    sums = torch.zeros(len(count), c * h * w, device=owner.device).index_add_(0, owner, masks.keep.float())
    return Tiles(sums / count[:, None], owner)


def sketch_of(images: ImageSet, stride: int) -> Sketch:
    """The images in the leading principal components of every stride-th image."""
    some = images.subset(range(0, len(images), stride))
    basis = leading_components(some, min(RANK, images.dim, len(some) - 1))[2].float()
    shift = basis.T @ ((torch.from_numpy(images.centre()).flatten().float() - 127.5) / 127.5)
    return Sketch(basis, torch.cat([x.flatten(1) @ basis - shift for x in images.chunks(reuse=True)]).T.contiguous())


def checks_of(images: ImageSet, stride: int) -> Checks:
    """Pixels drawn by the variance over every stride-th image."""
    variance = images[::stride].flatten(1).var(dim=0) + 1e-3
    pixels = torch.multinomial(variance, min(CHECKED, images.dim), generator=torch.Generator().manual_seed(0))
    values = torch.cat([x.flatten(1)[:, pixels] for x in images.chunks(reuse=True)])
    return Checks(pixels, variance.mean() / variance[pixels], values.T.contiguous())


def inclusion_probabilities(proposal: Float[Tensor, "n"], count: float) -> Float[Tensor, "n"]:
    """The probability to draw each image: proportional to the proposal, at most 1, with the sum `count`."""
    certain = torch.zeros_like(proposal, dtype=torch.bool)
    while True:
        rest = proposal.masked_fill(certain, 0)
        probabilities = torch.where(certain, 1.0, rest * ((count - certain.sum()) / rest.sum()))
        if not (more := probabilities > 1).any():
            return probabilities
        certain |= more


def systematic_sample(probabilities: Float[Tensor, "n"]) -> Int[Tensor, "k"]:
    """The images drawn, at equal steps through the cumulative probabilities; deterministic."""
    steps = probabilities.cpu().double().cumsum(dim=0).add_(0.5).floor_()  # not every device has float64
    return (steps.diff(prepend=steps.new_zeros(1)) > 0).nonzero()[:, 0].to(probabilities.device)


def _floats(raw: Tensor, like: Tensor, zero: float | Tensor) -> Tensor:
    return to_floats(raw, like.new_empty(raw.shape), zero)
