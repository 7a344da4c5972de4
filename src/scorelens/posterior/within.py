"""Posterior means within a tolerance: of the images that a noisy image is compared with, a few speak for all.

At high noise many images share the weight of a pixel. Each is drawn with a chance pi_i, the higher the more it weighs,
and a drawn one counts 1 / pi_i times (Horvitz & Thompson 1952): nothing is cut off, what has little weight is drawn
rarely and stands for all that are like it. What an image weighs is told by tiles: masks of neighbouring pixels are
alike, and the posterior of the majority's mask of a tile is cheap.

A few pixels are computed exactly, from all images. They tell how many draws the tolerance needs, before, and how far
off the result is, after. Where that would be too many, or too far, the exact plan does the work.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from scorelens.data.images import ImageSet, to_floats
from scorelens.posterior.costs import choose_plan, remembered
from scorelens.posterior.engine import MEMORY, Run, logit_scale, posterior_mean
from scorelens.posterior.plans import DenseMasks, sparse_chunk
from scorelens.posterior.slots import Masks, OwnPixel, Posterior
from scorelens.posterior.softmax import State, chunk_state, merge
from scorelens.timings import phase
from scorelens.types import Flat, Shape, at_least_float32

SPOTS = 16  # pixels that are computed exactly
UNIFORM = 0.1  # share of the draws that do not care about weights: what the tiles overlook is found too
SAFETY = 0.7  # of the tolerance, which the draws aim at
PILOT, LEAST_PILOT = 16, 2048  # one of so many images, but that many, tell whether to look at all of them
DOUBT = 1.5  # how far the pilot may miss what is needed
SUPPORT = 32  # images that share the weight of a pixel in the pilot: with fewer, no one speaks for the others
LEAST_TILE = 4  # pixels
SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 10, 1 / 7, 1 / 5, 1 / 4)  # of the images that may be drawn


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
                memory: int = MEMORY) -> Approximation:
    """The posterior mean of masks on a grid, each pixel's of its own, to an rms of `tolerance` for each noisy image."""
    masks, images = posterior.queries, posterior.source
    flat, scale, n = at_least_float32(z).flatten(1), logit_scale(sigma, temperature), len(posterior.source)
    mean, drawn = torch.empty_like(flat), torch.full((len(flat),), n)
    expected, checked = torch.zeros(len(flat)), torch.zeros(len(flat))
    if isinstance(masks, Masks) and isinstance(images, ImageSet) and isinstance(posterior.responses, OwnPixel):
        tiles = remembered(masks, "tiles", lambda: tile_masks(masks, images.shape))
        with phase("pilot"):
            stride = max(1, min(PILOT, n // LEAST_PILOT))
            few = images[::stride].flatten(1)
            spots = _spots(few).to(z.device)
            alike = len(tiles) * LEAST_TILE <= len(masks)  # else masks are small, and tiles spare nothing
            promising = list(_promising(tiles, masks, spots, few.to(z), flat, scale,
                                        DOUBT * math.sqrt(stride) * tolerance)) if alike else []
        for k, screened in _screened(tiles, masks, spots, images, flat, promising, scale, memory):
            chances, expected[k] = screened.chances(tolerance)
            if chances is None:
                continue
            rows = systematic(chances)
            with phase("drawn images"):
                mean[k] = weighted_mean(masks, images, rows, chances[rows], flat[k], scale)
            checked[k] = (mean[k, screened.spots] - screened.exact).square().mean().sqrt()
            if checked[k] <= tolerance:
                drawn[k] = len(rows)
            else:
                warnings.warn(f"{len(rows)} of {n} images miss the tolerance {tolerance:g} at sigma = {sigma:.3g} "
                              f"(rms {checked[k]:.2g}); computed exactly instead", ToleranceWarning, stacklevel=3)
    rest = (drawn == n).nonzero()[:, 0]
    if len(rest):
        exact = posterior_mean(posterior, z[rest.to(z.device)], sigma, temperature=temperature, memory=memory)
        mean[rest.to(z.device)] = exact.flatten(1).to(mean)
        expected[rest] = checked[rest] = 0.0
    return Approximation(mean.view(z.shape).to(z.dtype), drawn, expected, checked)


@dataclass(frozen=True)
class Screened:
    """One noisy image against all images: by the masks of tiles, and by those of a few pixels, the spots."""

    tiles: Float[Tensor, "t n"]  # distances, up to a number for each tile
    spots: Int[Tensor, "p"]
    weights: Float[Tensor, "p n"]  # of the spots' own posteriors
    values: Float[Tensor, "p n"]  # of the images at the spots
    scale: float

    @property
    def exact(self) -> Float[Tensor, "p"]:
        return (self.weights * self.values).sum(dim=1)

    def chances(self, tolerance: float) -> tuple[Float[Tensor, "n"] | None, float]:
        """With which chance to draw each image, and the rms to expect; None where it takes too many draws."""
        n, rms = self.tiles.shape[1], math.inf
        weight = torch.softmax(self.tiles * -self.scale, dim=1).mean(dim=0)
        proposal = (1 - UNIFORM) * weight + UNIFORM / n
        influence = (self.weights * (self.values - self.exact[:, None])).square().mean(dim=0)  # of each image
        for share in SHARES:
            found = drawing_chances(proposal, share * n)
            rms = math.sqrt((influence * (1 / found - 1)).sum().item())
            if rms <= SAFETY * tolerance:
                return found, rms
        return None, rms


def _spots(x: Flat) -> Int[Tensor, "p"]:
    """Pixels to compute exactly: rather those that differ from image to image, where errors are larger."""
    return torch.multinomial(x.var(dim=0) + 1e-9, min(SPOTS, x.shape[1]), generator=torch.Generator().manual_seed(0))


def _promising(tiles: Masks, masks: Masks, spots: Int[Tensor, "p"], x: Float[Tensor, "n d"], z: Flat,
               scale: float, tolerance: float) -> Iterator[int]:
    """Noisy images for which draws may do, by a few of the images. Of n times as many errors are sqrt(n) smaller, so
    the tolerance is that much larger here."""
    of_tiles, of_spots = tiles.keep.to(z), masks.keep.to(z.device)[spots].to(z)
    for k, one in enumerate(z):
        square = (x - one).square_()
        weights = torch.softmax(of_spots @ square.T * -scale, dim=1)  # [p, n]
        support = 1 / weights.square().sum(dim=1)
        if support.quantile(0.25) >= SUPPORT:
            found = Screened(of_tiles @ square.T, spots, weights, x[:, spots].T, scale)
            if found.chances(tolerance)[0] is not None:
                yield k


def _screened(tiles: Masks, masks: Masks, spots: Int[Tensor, "p"], images: ImageSet, z: Flat, which: list[int],
              scale: float, memory: int) -> Iterator[tuple[int, Screened]]:
    """These noisy images against all images, which are read once for as many as there is memory for.

    Distances are sums of x (x - 2 z) over a mask, both relative to the mean image: two products, the first of which all
    noisy images share. At noise this high they lose no digit that matters."""
    n, values = len(images), _floats(torch.from_numpy(images.pixels).flatten(1)[:, spots.cpu()].T, z)
    rows = torch.cat([tiles.keep.to(z.device), masks.keep.to(z.device)[spots]]).to(z)  # [r, d]
    run = Run(Posterior(tiles, OwnPixel(), images), CentredMasks(rows), scale, n, memory)
    shifted = z - run.shift(z)
    together = max(1, memory // (4 * len(rows) * max(n, z.shape[1])))
    for first in range(0, len(which), together):
        some = which[first:first + together]
        distances, start = z.new_empty(len(some), len(rows), n), 0
        queries = rows * (-2 * shifted[some])[:, None]  # [b, r, d]
        for x in run.chunks(shifted, range(n)):
            with phase("screening"):
                shared = rows @ x.square()
                for query, found in zip(queries, distances, strict=True):  # one by one: none depends on its company
                    found[:, start:start + x.shape[1]] = torch.addmm(shared, query, x)
            start += x.shape[1]
        for k, found in zip(some, distances, strict=True):
            by_tiles, by_spots = found.split([len(tiles), len(spots)])
            yield k, Screened(by_tiles, spots, torch.softmax(by_spots * -scale, dim=1), values, scale)


@dataclass(frozen=True)
class CentredMasks(DenseMasks):
    """Dense masks, on images relative to the mean one."""

    centred: ClassVar[bool] = True


def weighted_mean(masks: Masks, images: ImageSet, rows: Int[Tensor, "k"], chances: Float[Tensor, "k"],
                  z: Float[Tensor, "d"], scale: float) -> Float[Tensor, "d"]:
    """The posterior mean over some images, each counted 1 / its chance times."""
    plan = choose_plan(masks, z[None], scale).plan
    run = Run(Posterior(masks, OwnPixel(), images), plan, scale, len(images), MEMORY)
    zero, shift, pixels = run.zero(z[None]), run.shift(z[None]), torch.from_numpy(images.pixels).flatten(1)
    state: State | None = None
    size = sparse_chunk(len(z), z.element_size(), MEMORY)
    for start in range(0, len(rows), size):
        here = slice(start, start + size)
        x = _floats(pixels[rows[here].cpu()].T, z, zero)
        distances = plan.distances(z[None] - shift, x, None, math.inf).add_(chances[here].log() / scale)
        state = merge(state, chunk_state(distances, scale, OwnPixel(), x), scale)
    assert state is not None
    return state.mean[0, :, 0] + (shift[0] if isinstance(shift, Tensor) else 0.0)


def tile_masks(masks: Masks, shape: Shape) -> Masks:
    """One mask for each tile: the input pixels that at least half of its pixels' masks keep. A tile is about half as
    wide as a mask reaches."""
    c, h, w = shape
    reach = math.sqrt(masks.keep.sum(dim=1).float().mean().item() / (c * math.pi))
    side = 2 ** max(0, round(math.log2(max(reach / 2, 1))))
    keep = masks.keep.view(c, h, w, -1)
    found: list[Bool[Tensor, "d"]] = [
        keep[:, row:row + side, column:column + side].flatten(0, 2).float().mean(dim=0) >= 0.5
        for row in range(0, h, side) for column in range(0, w, side)]
    return Masks(torch.stack(found), (1, -(-h // side), -(-w // side)))


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
    steps = chances.double().cumsum(dim=0).add_(0.5).floor_()
    return (steps.diff(prepend=steps.new_zeros(1)) > 0).nonzero()[:, 0]


def _floats(raw: Tensor, like: Tensor, zero: float | Tensor = 127.5) -> Tensor:
    return to_floats(raw, like.new_empty(raw.shape), zero)
