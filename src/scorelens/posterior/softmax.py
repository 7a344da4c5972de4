"""The only softmax in the repository: online, exact, mergeable.

For logits -distance * scale, scale = 1 / (2 sigma^2 T), the state of a set of images is its smallest distance, the sum
of their weights relative to it, and the weighted sum of their values. Two states merge associatively, so chunks of a
file, and shards on many machines, combine the same way. Distances are subtracted before they are scaled: nearby ones
lose no digit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scorelens.distributed import World
from scorelens.posterior.responses import Chunk, OwnOutput, Responses

LOG2_E = math.log2(math.e)


class State(NamedTuple):
    """Partial softmax of q queries for b noisy images."""

    best: Float[Tensor, "b q"]  # the smallest distance, or one that is near enough to it
    total: Float[Tensor, "b q"]  # sum_i exp((best - distance_i) scale)
    weighted: Float[Tensor, "b q r"]  # sum_i exp((best - distance_i) scale) x_i, over the pixels each query writes

    @property
    def mean(self) -> Float[Tensor, "b q r"]:
        return (self.weighted / self.total[:, :, None]).to(self.weighted.dtype)


def chunk_state(distances: Float[Tensor, "b q n"], scale: float, responses: Responses | None, x: Chunk) -> State:
    """The state of one chunk of n images; overwrites `distances`. Without responses the weights are only added up."""
    best = distances.amin(dim=2)
    return weighted_state(best, relative_weights_(distances, best, scale), responses, x)


def weighted_state(best: Float[Tensor, "b q"], weights: Float[Tensor, "b q n"], responses: Responses | None,
                   x: Chunk) -> State:
    """The state of a chunk whose weights relative to `best` are known; may overwrite them."""
    total = weights.sum(dim=2)
    return State(best, total, x.new_empty(*total.shape, 0) if responses is None else responses.respond(weights, x))


def relative_weights_(distances: Float[Tensor, "b q n"], best: Float[Tensor, "b q"],
                      scale: float) -> Float[Tensor, "b q n"]:
    """exp((best - distance) scale), in place; as a power of 2, which costs a fraction of exp where weights vanish."""
    return distances.sub_(best[:, :, None]).mul_(-scale * LOG2_E).exp2_()


def merge(a: State | None, b: State, scale: float) -> State:
    """The state of the union of two sets of images; None is the empty one."""
    if a is None:
        return b
    best = torch.minimum(a.best, b.best)
    ca, cb = (best - a.best).mul_(scale).exp_(), (best - b.best).mul_(scale).exp_()
    dtype = a.weighted.dtype
    weighted = ca[:, :, None].to(dtype) * a.weighted + cb[:, :, None].to(dtype) * b.weighted
    return State(best, ca * a.total + cb * b.total, weighted)


def with_near(so_far: State, distances: Float[Tensor, "1 q n"], scale: float, margin: float, x: Chunk) -> State:
    """The state of `so_far`, which may be overwritten, and one more chunk, where query q writes output q.

    Queries for which no image of the chunk lies within the margin of the best skip it: at low noise nearly all do.
    """
    best = distances.amin(dim=2)
    near = (best[0] <= so_far.best[0] + margin).nonzero()[:, 0]
    if 4 * len(near) > len(best[0]):
        return merge(so_far, weighted_state(best, relative_weights_(distances, best, scale), OwnOutput(), x), scale)
    kept = State(*(whole[:, near] for whole in so_far))
    merged = merge(kept, chunk_state(distances[:, near], scale, OwnOutput(near), x), scale)
    for whole, part in zip(so_far, merged, strict=True):
        whole[:, near] = part
    return so_far


def merge_processes(state: State, scale: float, group: World) -> State:
    """The state merged over all processes."""
    if group.size == 1:
        return state
    best = group.min(state.best)
    c = (best - state.best).mul_(scale).exp_()
    total = group.sum(c * state.total)
    return State(best, total, group.sum(c[:, :, None].to(state.weighted.dtype) * state.weighted))


class Nearest(NamedTuple):
    """Partial softmax of q queries, with the smallest distances seen so far."""

    best: Float[Tensor, "b q"]
    total: Float[Tensor, "b q"]  # sum_i exp((best - distance_i) scale)
    squares: Float[Tensor, "b q"]  # sum_i exp(2 (best - distance_i) scale)
    distance: Float[Tensor, "b q k"]  # increasing
    row: Int[Tensor, "b q k"]  # of the source


def merge_nearest(a: Nearest, b: Nearest, scale: float, count: int) -> Nearest:
    """The state of the union of two sets of images."""
    best = torch.minimum(a.best, b.best)
    ca, cb = ((best - each.best).mul_(scale).exp_() for each in (a, b))
    distance, row = torch.cat([a.distance, b.distance], dim=2), torch.cat([a.row, b.row], dim=2)
    distance, order = distance.topk(min(count, distance.shape[2]), dim=2, largest=False)
    return Nearest(best, ca * a.total + cb * b.total, ca.square() * a.squares + cb.square() * b.squares, distance,
                   row.gather(2, order))
