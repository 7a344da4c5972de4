"""Posterior means within a tolerance: of the images that a noisy image is compared with, a few speak for all.

At high noise many images share the weight of a pixel. Each is drawn with a chance pi_i, the higher the more it weighs,
and a drawn one counts 1 / pi_i times (Horvitz & Thompson 1952): nothing is cut off, what has little weight is drawn
rarely and stands for all that are like it.

What an image weighs is told by tiles. The masks of neighbouring pixels are alike, and so are their posteriors; that of
their mean mask, over images of which only the leading principal components are kept, costs next to nothing for all
images. It says whom to draw, and is a control variate: the draws estimate its mean too, which is known, and their error
there is most of their error at the pixels.

A few pixels are computed exactly, from all images. They tell how many draws the tolerance needs, before, and how far
off the result is, after. Where that would be too many, or too far, the exact plan does the work.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
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
from scorelens.posterior.responses import OwnOutput
from scorelens.posterior.softmax import State, chunk_state, merge
from scorelens.statistics.leading import leading_components
from scorelens.timings import phase
from scorelens.types import Flat, Shape
from scorelens.validation import at_least_float32

SPOTS = 16  # pixels that are computed exactly
UNIFORM = 0.1  # share of the draws that do not care about weights: what the tiles overlook is found too
SAFETY = 0.7  # of the tolerance, which the draws aim at
PILOT, LEAST_PILOT = 32, 2048  # one of so many images, but that many, tell whether to look at all of them
SUPPORT = 32  # images that share the weight of a pixel in the pilot: with fewer, no one speaks for the others
LEAST_TILE = 16  # pixels
RANK = 128  # principal components of the tiles' images
SHARES = [2 ** (-k / 2) for k in range(14, 4, -1)]  # of the images that may be drawn: from 1 / 128 to 1 / 5.7
LEAST = 256  # draws, for their spread to be what is expected


class ToleranceWarning(UserWarning):
    """An approximation missed its tolerance, and was computed exactly."""


@dataclass(frozen=True)
class Approximation:
    """Posterior means, and what is known of the error of each; 0 where the exact plan did the work."""

    mean: Tensor  # [B, C, H, W]
    drawn: Int[Tensor, "b"]  # images that were compared
    expected: Float[Tensor, "b"]  # rms, before the draws
    checked: Float[Tensor, "b"]  # rms at the pixels that were computed exactly


def mean_within(posterior: Posterior, z: Tensor, sigma: float, tolerance: float, *, temperature: float = 1.0,
                plan: str = "auto", memory: int = MEMORY) -> Approximation:
    """The posterior mean of masks on a grid, each pixel's of its own, to an rms of `tolerance` for each noisy image.
    What is compared is compared by the `plan`."""
    masks, images = posterior.queries, posterior.source
    flat, scale, n = at_least_float32(z).flatten(1), logit_scale(sigma, temperature), len(posterior.source)
    mean, drawn = torch.empty_like(flat), torch.full((len(flat),), n)
    expected, checked = torch.zeros(len(flat)), torch.zeros(len(flat))
    if isinstance(masks, Masks) and isinstance(images, ImageSet) and isinstance(posterior.responses, OwnOutput):
        for k, screened in _screened(masks, images, flat, scale, tolerance, memory):
            tried = 0
            for chances, expected[k] in screened.chances(tolerance):
                rows = systematic(chances)
                with phase("drawn images"):
                    mean[k] = weighted_mean(masks, images, rows, chances[rows], flat[k], scale, plan)
                    mean[k] += screened.correction(rows, chances[rows])
                checked[k], tried = screened.error(mean[k]), len(rows)
                if checked[k] <= tolerance:
                    drawn[k] = tried
                    break
            if tried and drawn[k] == n:
                warnings.warn(f"{tried} of {n} images miss the tolerance {tolerance:g} at sigma = {sigma:.3g} "
                              f"(rms {checked[k]:.2g}); computed exactly instead", ToleranceWarning, stacklevel=3)
    rest = (drawn == n).nonzero()[:, 0]
    if len(rest):
        exact = posterior_mean(posterior, z[rest.to(z.device)], sigma, temperature=temperature, plan=plan,
                               memory=memory)
        mean[rest.to(z.device)] = exact.flatten(1).to(mean)
        expected[rest] = checked[rest] = 0.0
    return Approximation(mean.view(z.shape).to(z.dtype), drawn, expected, checked)


_memory: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # for as long as the objects themselves live


def remembered(thing: object, what: str, make: Callable[[], Any]) -> Any:
    """What was computed from these masks or images before, or is computed now."""
    held = _memory.setdefault(thing, {})
    if what not in held:
        held[what] = make()
    return held[what]


@dataclass(frozen=True, eq=False)
class Tiles:
    """Squares of neighbouring pixels, all channels of them."""

    weights: Float[Tensor, "t d"]  # the mean mask of each
    owner: Int[Tensor, "q"]  # the tile of each pixel


@dataclass(frozen=True, eq=False)
class Sketch:
    """Images as sums of a few directions, relative to the set's centre."""

    basis: Float[Tensor, "d r"]
    coordinates: Float[Tensor, "r n"]

    def some(self, rows: slice) -> Sketch:
        return Sketch(self.basis, self.coordinates[:, rows])

    def to(self, like: Tensor) -> Sketch:
        return Sketch(self.basis.to(like), self.coordinates.to(like))


@dataclass(frozen=True, eq=False)
class Spots:
    """Pixels that are computed exactly: rather those that differ from image to image, where errors are larger. Each
    stands for so many pixels that their mean is that of all."""

    pixels: Int[Tensor, "p"]
    counts: Float[Tensor, "p"]  # 1 in the mean
    values: Float[Tensor, "p n"]  # of the images there

    def some(self, rows: slice) -> Spots:
        return Spots(self.pixels, self.counts, self.values[:, rows])

    def to(self, like: Tensor) -> Spots:
        return Spots(self.pixels.to(like.device), self.counts.to(like), self.values.to(like))

    def mean(self, values: Float[Tensor, "p *n"]) -> Float[Tensor, "*n"]:
        return torch.tensordot(self.counts, values, dims=1) / len(self.counts)


@dataclass(frozen=True)
class Screened:
    """One noisy image against all images: by the tiles, and by the masks of the spots."""

    tiles: Float[Tensor, "t n"]  # the posterior of each tile
    owner: Int[Tensor, "q"]  # the tile of each pixel
    sketch: Sketch
    spots: Spots
    weights: Float[Tensor, "p n"]  # of the spots' own posteriors

    @property
    def exact(self) -> Float[Tensor, "p"]:
        return (self.weights * self.spots.values).sum(dim=1)

    def chances(self, tolerance: float) -> Iterator[tuple[Float[Tensor, "n"], float]]:
        """With which chance to draw each image, and the rms to expect: the fewest draws that the tolerance allows, then
        more; nothing where it takes too many."""
        n = self.tiles.shape[1]
        proposal, influence = (1 - UNIFORM) * self.tiles.mean(dim=0) + UNIFORM / n, self._influence()
        for count in (share * n for share in SHARES if share * n >= LEAST):
            found = drawing_chances(proposal, count)
            rms = math.sqrt((influence * (1 / found - 1)).sum().item())
            if rms <= SAFETY * tolerance:
                yield found, rms

    def _influence(self) -> Float[Tensor, "n"]:
        """How far the spots' means move with an image's weight, squared: beyond what the control variate takes off."""
        control = self.tiles[self.owner[self.spots.pixels]]  # [p, n]
        sketched = self.sketch.basis[self.spots.pixels] @ self.sketch.coordinates
        moved = control.mul_(sketched.sub_((control * sketched).sum(dim=1, keepdim=True)))
        return self.spots.mean((self.spots.values - self.exact[:, None]).mul_(self.weights).sub_(moved).square_())

    def error(self, found: Float[Tensor, "q"]) -> float:
        """The rms of a result, as the spots tell it."""
        return math.sqrt(self.spots.mean((found[self.spots.pixels] - self.exact).square()).item())

    def correction(self, rows: Int[Tensor, "k"], chances: Float[Tensor, "k"]) -> Float[Tensor, "q"]:
        """What the draws miss of the tiles' sketched means, at each pixel."""
        drawn = self.tiles[:, rows] / chances
        missed = self.tiles @ self.sketch.coordinates.T
        missed -= (drawn / drawn.sum(dim=1, keepdim=True)) @ self.sketch.coordinates[:, rows].T  # [t, r]
        return (self.sketch.basis * missed[self.owner]).sum(dim=1)


def _screened(masks: Masks, images: ImageSet, z: Flat, scale: float, tolerance: float,
              memory: int) -> Iterator[tuple[int, Screened]]:
    """Those noisy images for which draws may do, against all images, which are read once for as many noisy ones as
    there is memory for.

    Distances are sums of x (x - 2 z) over a mask, both relative to the centre: two products, the first of which all
    noisy images share. At noise this high they lose no digit that matters."""
    tiles: Tiles = remembered(masks, "tiles", lambda: tiles_of(masks, images.shape))
    if len(tiles.weights) * LEAST_TILE > len(masks):  # masks are small, and tiles spare nothing
        return
    n, stride = len(images), max(1, min(PILOT, len(images) // LEAST_PILOT))
    with phase("sketch"):
        sketch: Sketch = remembered(images, "sketch", lambda: sketch_of(images, stride)).to(z)
        spots: Spots = remembered(images, "spots", lambda: spots_of(images, stride)).to(z)
    weights, keep, owner = tiles.weights.to(z), masks.keep.to(z.device)[spots.pixels].to(z), tiles.owner.to(z.device)
    rows, parts = torch.cat([weights, keep]), [len(weights), len(keep)]
    run = Run(Posterior(masks, OwnOutput(), images), CentredMasks(rows), scale, n, memory)
    z = z - run.shift(z)

    def screened(k: int, energies: Tensor, distances: Tensor, sketch: Sketch, spots: Spots) -> Screened:
        products = (weights * z[k]) @ sketch.basis @ sketch.coordinates  # [t, n]
        by_tile = torch.softmax(products.mul_(2).sub_(energies).mul_(scale), dim=1)
        return Screened(by_tile, owner, sketch, spots, torch.softmax(distances * -scale, dim=1))

    with phase("pilot"):
        x = _floats(torch.from_numpy(images.pixels[::stride]).flatten(1).T, z, run.zero(z))
        energies, of_spots = (rows @ x.square()).split(parts)
        few, which = slice(None, None, stride), []
        for k, one in enumerate(z):
            distances = torch.addmm(of_spots, keep * one, x, alpha=-2)
            support = 1 / torch.softmax(distances * -scale, dim=1).square().sum(dim=1)
            if support.quantile(0.25) >= SUPPORT:
                pilot = screened(k, energies, distances, sketch.some(few), spots.some(few))
                larger = math.sqrt(stride) * tolerance  # as errors of fewer images are
                if any(True for _ in pilot.chances(larger)):
                    which.append(k)
    together = max(1, memory // (4 * len(keep) * n))
    for first in range(0, len(which), together):
        some = which[first:first + together]
        energies, distances, start = z.new_empty(len(weights), n), z.new_empty(len(some), n, len(keep)), 0
        for x in run.chunks(z, range(n)):
            here = slice(start, start := start + x.shape[1])
            with phase("screening"):
                energies[:, here], of_spots = (rows @ x.square()).split(parts)
                for k, found in zip(some, distances, strict=True):  # one by one: none depends on its company
                    torch.addmm(of_spots.T, x.T, (keep * z[k]).T, alpha=-2, out=found[here])
        for k, found in zip(some, distances, strict=True):
            yield k, screened(k, energies, found.T.contiguous(), sketch, spots)


def spots_of(images: ImageSet, stride: int) -> Spots:
    """Spots by the variance of some of the images."""
    variance = images[::stride].flatten(1).var(dim=0) + 1e-3
    pixels = torch.multinomial(variance, min(SPOTS, images.dim), generator=torch.Generator().manual_seed(0))
    values = torch.cat([x.flatten(1)[:, pixels] for x in images.chunks(reuse=True)])
    return Spots(pixels, variance.mean() / variance[pixels], values.T.contiguous())


@dataclass(frozen=True)
class CentredMasks(DenseMasks):
    """Dense masks, on images relative to the mean one, in the order of memory in which few masks are fastest."""

    centred: ClassVar[bool] = True
    pixel_major: ClassVar[bool] = False


def weighted_mean(masks: Masks, images: ImageSet, rows: Int[Tensor, "k"], chances: Float[Tensor, "k"],
                  z: Float[Tensor, "d"], scale: float, plan: str = "auto") -> Float[Tensor, "d"]:
    """The posterior mean over some images, each counted 1 / its chance times."""
    chosen = choose_plan(masks.plans(z[None], scale), plan).plan
    run = Run(Posterior(masks, OwnOutput(), images), chosen, scale, len(images), MEMORY)
    zero, shift, pixels = run.zero(z[None]), run.shift(z[None]), torch.from_numpy(images.pixels).flatten(1)
    state: State | None = None
    size = cached_chunk(len(z), z.element_size(), MEMORY)
    for start in range(0, len(rows), size):
        here = slice(start, start + size)
        x = _floats(pixels[rows[here].cpu()].T, z, zero)
        distances = chosen.distances(z[None] - shift, x, None, math.inf).add_(chances[here].log() / scale)
        state = merge(state, chunk_state(distances, scale, OwnOutput(), x), scale)
    assert state is not None
    return state.mean[0, :, 0] + (shift[0] if isinstance(shift, Tensor) else 0.0)


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
    """Images in the leading principal components of some of them."""
    some = images.subset(range(0, len(images), stride))
    basis = leading_components(some, min(RANK, images.dim, len(some) - 1))[2].float()
    shift = basis.T @ ((torch.from_numpy(images.centre()).flatten().float() - 127.5) / 127.5)
    return Sketch(basis, torch.cat([x.flatten(1) @ basis - shift for x in images.chunks(reuse=True)]).T.contiguous())


def drawing_chances(proposal: Float[Tensor, "n"], count: float) -> Float[Tensor, "n"]:
    """The chance of each image to be drawn: proportional to the proposal, at most 1, `count` in all."""
    certain = torch.zeros_like(proposal, dtype=torch.bool)
    while True:
        rest = proposal.masked_fill(certain, 0)
        chances = torch.where(certain, 1.0, rest * ((count - certain.sum()) / rest.sum()))
        if not (more := chances > 1).any():
            return chances
        certain |= more


def systematic(chances: Float[Tensor, "n"]) -> Int[Tensor, "k"]:
    """Which are drawn: those at equal steps through the sum of the chances; the same ones every time."""
    steps = chances.cpu().double().cumsum(dim=0).add_(0.5).floor_()  # not every device has float64
    return (steps.diff(prepend=steps.new_zeros(1)) > 0).nonzero()[:, 0].to(chances.device)


def _floats(raw: Tensor, like: Tensor, zero: float | Tensor = 127.5) -> Tensor:
    return to_floats(raw, like.new_empty(raw.shape), zero)
