"""Posterior weights: the images behind each output, by one pass over the source.

The images with the most weight are those with the smallest distances, which are kept while the softmax adds up all
others. Outputs whose weights are mixtures of several queries, and sums over many outputs, need normalized weights
first, hence a second pass. Chunks, batches and processes merge as the softmax does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens import progress
from scorelens.distributed import World
from scorelens.posterior.engine import MEMORY, Posterior, Run, prepared
from scorelens.posterior.plans.fused import FusedMasks
from scorelens.posterior.queries import Masks
from scorelens.posterior.responses import OwnOutput, Writers
from scorelens.posterior.softmax import Nearest, State, merge_nearest, relative_weights_
from scorelens.posterior.sources import Chosen, Source, origins, rows_of
from scorelens.types import Flat, Shape
from scorelens.validation import wide_dtype


@dataclass(frozen=True, eq=False)
class Term:
    """Outputs of some noisy images that are posterior means: x0_hat_q = share sum_i w_i^q x_i,q + what has no weights.

    Each noisy image may have several rows of z, such as its patches; their queries stand side by side.
    """

    posterior: Posterior
    z: Float[Tensor, "rows d"]  # what is compared with the rows of the source; rows = b * each
    sigma: float
    noisy: Int[Tensor, "b"]  # the noisy images of the batch
    writers: Writers
    each: int = 1  # rows of z for each noisy image
    temperature: float = 1.0
    softmax_batch: int | None = None
    memory: int = MEMORY
    share: float = 1.0  # of the outputs; other terms that write them have the rest
    centres: Int[Tensor, "q"] | None = None  # the pixel of each query, where the source consists of patches

    def at(self, outputs: Int[Tensor, "r"]) -> Term | None:
        """The same for these outputs only, as far as the term writes them; only their masks are computed."""
        (wanted,) = torch.isin(self.writers.outputs, outputs).nonzero(as_tuple=True)
        kept, target, mix = self.writers.outputs[wanted], self.writers.target[wanted], self.writers.mix
        if len(kept) == 0:
            return None
        if len(wanted) == len(self.writers.outputs):
            return self
        queries, target = target.unique(return_inverse=True)
        if mix is not None:
            return replace(self, writers=Writers(kept, target, _rows_of(mix, queries)))
        if isinstance(self.posterior.queries, Masks) and self.each == 1:
            first = torch.stack([kept[target == k][0] for k in range(len(queries))]).to(self.z.device)
            some = replace(self.posterior, queries=self.posterior.queries.subset(queries), responses=OwnOutput(first))
            return replace(self, posterior=some, writers=Writers(kept, target))
        return replace(self, writers=Writers(kept, self.writers.target[wanted]))

    @property
    def shape(self) -> Shape:
        """(C, H, W) of the images behind the source."""
        return image_shape(self.posterior.source)

    def offset(self, place: Int[Tensor, "b t k"]) -> Int[Tensor, "b t k 2"]:
        """How far from an output's pixel the pixel of the training image is that it averages, modulo H and W."""
        _, h, w = self.shape
        down, right = torch.div(place % (h * w), w, rounding_mode="floor"), place % w
        if self.centres is not None:
            centre = self.centres.to(place.device)[None, :, None]
            return torch.stack([down - torch.div(centre, w, rounding_mode="floor"), right - centre % w], dim=3)
        return torch.stack([-down, -right], dim=3)


def image_shape(source: Source) -> Shape:
    """(C, H, W) of the images that a source is made of."""
    images: Any = getattr(source, "images", source)
    return tuple(images.shape)


def _rows_of(mix: Tensor, rows: Int[Tensor, "t"]) -> Tensor:
    return mix.index_select(0, rows.to(mix.device)).coalesce() if mix.is_sparse else mix[rows.to(mix.device)]


class TopWeights(NamedTuple):
    """The k rows of the source with the most weight, for each of t targets of b noisy images."""

    image: Int[Tensor, "b t k"]  # its number; -1 where there are fewer than k
    place: Int[Tensor, "b t k"]  # translation or centre, see `Origin`
    weight: Float[Tensor, "b t k"]  # decreasing
    squares: Float[Tensor, "b t"]  # sum_i w_i^2, over all rows


def top_weights(term: Term, count: int) -> TopWeights:
    """The rows of the source with the most weight, for each target of a term: its queries, or mixtures of them."""
    run, z = _run(term)
    count = min(count, len(term.posterior.source))
    found = [_mixed_top(run, z, images, term, count) if term.writers.mix is not None
             else _folded(_nearest_top(run, z, images, count), term.each) for images in run.groups()]
    top = found[0]
    for more in found[1:]:
        top = _merged(top, more, count)
    top = _gathered(top, run.batch_group, count)._replace(squares=run.batch_group.sum(top.squares))
    return top._replace(weight=top.weight / run.batches, squares=top.squares / run.batches**2)


def image_weights(term: Term, targets: Float[Tensor, "t out"], size: int) -> Float[Tensor, "b t size"]:
    """The weight of each of `size` images in weighted sums of the term's outputs, one for each row of `targets`.

    Weights of several patches or translations of an image are added. Two passes; memory for one number for each image.
    """
    run, z = _run(term)
    dtype = wide_dtype(z)
    sums = torch.zeros(len(z) // term.each, len(targets), size, dtype=dtype, device=z.device)
    for images in run.groups():
        state = run.state(z, images)
        queries = _query_weights(term.writers, targets.to(dtype).cpu(), term.each * state.total.shape[1]).to(z.device)
        queries = queries.unflatten(1, (term.each, -1)).transpose(0, 1)  # [each, t, q]
        for part, rows, weights in _normalized(run, z, images, state):
            row = torch.arange(part.start, min(part.stop, len(z)), device=z.device)
            image = torch.from_numpy(origins(run.shard.source, np.arange(rows.start, rows.stop)).image).to(z.device)
            chosen = queries[row % term.each].to(weights.dtype)  # [rows, t, q]
            shares = torch.bmm(chosen, weights).to(dtype)  # [rows, t, n]
            here = torch.zeros(len(sums), *shares.shape[1:], dtype=dtype, device=z.device)
            here.index_add_(0, torch.div(row, term.each, rounding_mode="floor"), shares)
            sums.index_add_(2, image, here)
    return run.batch_group.sum(run.shard.group.sum(sums)) / run.batches * term.share


def removed_means(term: Term, numbers: Int[np.ndarray, "m"]) -> tuple[Tensor, Tensor]:
    """For each image of these numbers its weight behind each output, and its part of the outputs; [b, m, out] both.

    Only for terms whose outputs are posterior means of pixels, each of one query. Two passes: one over the source for
    the normalizers, one over these images.
    """
    run, z = _run(term)
    assert run.batches == 1 and term.writers.mix is None, "weights of one softmax"
    state, source = run.state(z, run.groups()[0]), term.posterior.source
    chosen = Chosen(source, rows_of(source, numbers))
    few = replace(run, posterior=replace(run.posterior, source=chosen), around=source)
    weights = torch.cat([weights for *_, weights in _by_part(few, z, state)])  # [b * each, q, rows]
    weights = weights.unflatten(0, (-1, term.each)).flatten(1, 2)[:, term.writers.target.to(z.device)]  # [b, out, rows]
    found, values = _values(term, chosen)  # [rows], [out, rows]
    owner = torch.from_numpy(np.searchsorted(np.sort(numbers), found)).to(z.device)
    shape = (len(weights), weights.shape[1], len(numbers))
    weight = weights.new_zeros(shape).index_add_(2, owner, weights)
    part = weights.new_zeros(shape).index_add_(2, owner, weights * values.to(weights))
    order = torch.from_numpy(np.argsort(np.argsort(numbers))).to(z.device)
    return weight[:, :, order].transpose(1, 2), part[:, :, order].transpose(1, 2)


def _by_part(run: Run, z: Flat, state: State) -> Iterator[tuple[slice, range, Tensor]]:
    """The weights of few rows, which one chunk holds, for each part of the noisy images."""
    rows = range(len(run.posterior.source))
    parts: dict[int, list[Tensor]] = {}
    for part, _, weights in _normalized(run, z, rows, state):
        parts.setdefault(part.start, []).append(weights.clone())
    for start, several in parts.items():
        yield slice(start, None), rows, torch.cat(several, dim=2)


def _values(term: Term, chosen: Chosen) -> tuple[Int[np.ndarray, "n"], Float[Tensor, "out n"]]:
    """The number of the image of each row, and the pixel that it would give to each output."""
    images: Any = getattr(term.posterior.source, "images", term.posterior.source)
    (_, h, w), outputs = term.shape, term.writers.outputs
    found = chosen.origins(np.arange(len(chosen)))
    place = torch.from_numpy(found.place)[None, None].expand(1, len(outputs), -1)
    by_target = replace(term, centres=None if term.centres is None else term.centres[term.writers.target])
    offset = by_target.offset(place)[0]  # [out, rows, 2]
    row = (torch.div(outputs % (h * w), w, rounding_mode="floor")[:, None] + offset[..., 0]) % h
    column = (outputs[:, None] % w + offset[..., 1]) % w
    column = torch.where(place[0] >= h * w, w - 1 - column, column)
    index = torch.from_numpy(np.searchsorted(images.numbers, found.image, sorter=np.argsort(images.numbers)))
    at = torch.from_numpy(np.argsort(images.numbers))[index]
    return found.image, images[at].flatten(1).T.reshape(-1, h * w, len(at))[
        torch.div(outputs, h * w, rounding_mode="floor")[:, None], row * w + column, torch.arange(len(at))]


def _run(term: Term) -> tuple[Run, Flat]:
    run, z = prepared(term.posterior, term.z.detach(), term.sigma, term.temperature, term.softmax_batch, "auto",
                      term.memory)
    z = z - run.shift(z)
    return run, run.broadcast(z)


def _query_weights(writers: Writers, targets: Float[Tensor, "t out"], count: int) -> Float[Tensor, "t q"]:
    """Weighted sums of outputs as weighted sums of `count` queries."""
    size = count if writers.mix is None else writers.mix.shape[0]
    sums = targets.new_zeros(len(targets), size).index_add_(1, writers.target, targets)
    return sums if writers.mix is None else (writers.mix.to(sums).T @ sums.T).T


def _normalized(run: Run, z: Flat, images: range, state: State) -> Iterator[tuple[slice, range, Tensor]]:
    """The normalized weights of each chunk for each part of the noisy images, with the rows of the source."""
    stop = images.start
    for part, x, weights in run._weights(z, images, state):
        if part.start == 0:
            start, stop = stop, stop + x.shape[1]
        yield part, range(start, stop), weights


def _nearest_top(run: Run, z: Flat, images: range, count: int) -> TopWeights:
    """One pass: the smallest distances have the most weight."""
    nearest = _compiled_nearest(run, z, images, count) or _chunked_nearest(run, z, images, count)
    return _gathered(_weights_of(nearest, run), run.shard.group, count)


def _compiled_nearest(run: Run, z: Flat, images: range, count: int) -> Nearest | None:
    """By a plan whose compiled kernel keeps the nearest images; None if the plan has none."""
    if not isinstance(run.plan, FusedMasks):
        return None
    nearest = None
    spans = run.plan.nearest_spans(z, run.shard.source, images, run.zero(z), run.scale, run.margin, count)
    for span, done in spans:
        nearest = span if nearest is None else merge_nearest(nearest, span, run.scale, count)
        progress.fraction((images.start + done * len(images)) / run.groups()[-1].stop)
    return nearest


def _chunked_nearest(run: Run, z: Flat, images: range, count: int) -> Nearest:
    parts = run.parts(z)
    found: list[Nearest | None] = [None] * len(parts)
    start = images.start
    for x in run.chunks(z, images):
        for k, part in enumerate(parts):
            so_far = found[k]
            distances = run.plan.distances(z[part], x, None if so_far is None else so_far.best, run.margin)
            found[k] = _with_chunk(so_far, distances, start, run.scale, count)
        start += x.shape[1]
    return Nearest(*(torch.cat(tensors) for tensors in zip(*filter(None, found), strict=True)))


def _with_chunk(so_far: Nearest | None, distances: Float[Tensor, "b q n"], start: int, scale: float,
                count: int) -> Nearest:
    """The state with one more chunk, whose first image is row `start`; overwrites `distances`."""
    distance, row = distances.topk(min(count, distances.shape[2]), dim=2, largest=False)
    best = distance[:, :, 0].clone()
    weights = relative_weights_(distances, best, scale)
    total, squares = weights.sum(dim=2), weights.square().sum(dim=2)
    new = Nearest(best, total, squares, distance, row + start)
    return new if so_far is None else merge_nearest(so_far, new, scale, count)


def _weights_of(nearest: Nearest, run: Run) -> TopWeights:
    """Distances as weights, normalized over the images of all processes."""
    group, scale = run.shard.group, run.scale
    best = group.min(nearest.best)
    c = (best - nearest.best).mul(scale).exp()
    total, squares = group.sum(c * nearest.total), group.sum(c.square() * nearest.squares)
    weight = (best[:, :, None] - nearest.distance).mul(scale).exp() / total[:, :, None]
    image, place = _origins(run.shard.source, nearest.row.clamp(min=0))
    return TopWeights(image.where(nearest.row >= 0, -1), place, weight.where(nearest.row >= 0, 0),
                      squares / total.square())


def _origins(source: Source, row: Int[Tensor, "b t k"]) -> tuple[Tensor, Tensor]:
    found = origins(source, row.flatten().cpu().numpy())
    image, place = (torch.from_numpy(each.astype(np.int64)).view(row.shape).to(row.device) for each in found)
    return image, place


def _mixed_top(run: Run, z: Flat, images: range, term: Term, count: int) -> TopWeights:
    """Two passes: normalizers first, then the mixtures of normalized weights."""
    assert term.writers.mix is not None
    assert term.each == 1 or run.plan.together is None, "all rows of a noisy image must be mixed together"
    state = run.state(z, images)
    found: dict[int, TopWeights] = {}
    mix = term.writers.mix.to(z.device, state.total.dtype)
    for part, rows, weights in _normalized(run, z, images, state):
        mixed = _mixture(mix, weights.unflatten(0, (-1, term.each)).flatten(1, 2))  # [b, t, n]
        weight, row = mixed.topk(min(count, len(rows)), dim=2)
        new = TopWeights(*_origins(run.shard.source, row + rows.start), weight, mixed.square_().sum(dim=2))
        found[part.start] = _merged(found[part.start], new, count) if part.start in found else new
    top = TopWeights(*(torch.cat(tensors) for tensors in zip(*found.values(), strict=True)))
    top = top._replace(squares=run.shard.group.sum(top.squares))
    return _gathered(top, run.shard.group, count)


def _mixture(mix: Tensor, weights: Float[Tensor, "b q n"]) -> Float[Tensor, "b t n"]:
    return torch.stack([mix @ each for each in weights])


def _merged(a: TopWeights, b: TopWeights, count: int) -> TopWeights:
    """The union of disjoint sets of rows."""
    return _largest([a, b], count)._replace(squares=a.squares + b.squares)


def _largest(several: list[TopWeights], count: int) -> TopWeights:
    image, place, weight = (torch.cat(tensors, dim=2) for tensors in list(zip(*several, strict=True))[:3])
    weight, order = weight.topk(min(count, weight.shape[2]), dim=2)
    return TopWeights(image.gather(2, order), place.gather(2, order), weight, several[0].squares)


def _gathered(top: TopWeights, group: World, count: int) -> TopWeights:
    """The largest weights of all processes; the squares stay this process's."""
    if group.size == 1:
        return top
    padded = [_padded(tensor, count, value) for tensor, value in zip(top[:3], (-1, 0, 0.0), strict=True)]
    image, place, weight = (group.gather(tensor) for tensor in padded)
    several = [TopWeights(*each, top.squares) for each in zip(image, place, weight, strict=True)]
    return _largest(several, count)


def _padded(tensor: Tensor, count: int, value: float) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, count - tensor.shape[2]), value=value)


def _folded(top: TopWeights, each: int) -> TopWeights:
    """Rows of z that belong to one noisy image as its targets, side by side."""
    return TopWeights(*(tensor.unflatten(0, (-1, each)).flatten(1, 2) for tensor in top))
