"""The posterior engine: streams the source through a plan and the softmax, forwards and backwards.

Nothing of size N is ever held: the backward pass reads the data again and recomputes the weights chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scorelens import progress
from scorelens.posterior.plans import Plan, choose_plan
from scorelens.posterior.slots import Chunk, Posterior
from scorelens.posterior.softmax import State, chunk_state, merge, relative_weights_
from scorelens.types import Flat, ScorelensError, at_least_float32

MEMORY = 128 * 2**20  # bytes of workspace; larger chunks are no faster
NEGLIGIBLE = 17.0  # N weights below exp(-17) / N of the largest do not change a float32 sum


@dataclass(frozen=True)
class _Run:
    """One evaluation: what is averaged, how, and in which pieces."""

    posterior: Posterior
    plan: Plan
    scale: float  # 1 / (2 sigma^2 T)
    group: int  # images that share a softmax: all of them, or a batch of the published code
    memory: int

    def groups(self) -> Iterator[range]:
        count = len(self.posterior.source)
        return (range(start, min(start + self.group, count)) for start in range(0, count, self.group))

    def chunks(self, images: range, read: Tensor) -> Iterator[Chunk]:
        """The images of one group, in pieces that fit `read`."""
        source = self.posterior.source
        for start in range(images.start, images.stop, len(read)):
            stop = min(start + len(read), images.stop)
            yield source.read(start, stop, read).flatten(1)
            progress.fraction(stop / len(source))

    def buffer(self, z: Flat) -> Tensor:
        """Memory for one chunk of the source, as large as the budget allows."""
        source, itemsize = self.posterior.source, z.element_size()
        row = source.dim * itemsize + len(z) * self.plan.pair_bytes(itemsize)
        rows = max(1, min(self.memory // row, self.group, len(source)))
        return torch.empty((rows, *source.shape), dtype=z.dtype, device=z.device)

    def batches(self, z: Flat) -> Iterator[slice]:
        """Noisy images that are worked on together: as many as leave room for a few images of the source."""
        size = max(1, self.memory // (16 * self.plan.pair_bytes(z.element_size())))
        return (slice(start, start + size) for start in range(0, len(z), size))

    @property
    def margin(self) -> float:
        """How much farther than the best an image must be to have no weight at all."""
        return (math.log(len(self.posterior.source)) + NEGLIGIBLE) / self.scale

    def state(self, z: Flat, images: range, read: Tensor) -> State:
        state = None
        for x in self.chunks(images, read):
            distances = self.plan.distances(z, x, None if state is None else state.best, self.margin)
            state = merge(state, chunk_state(distances, self.scale, self.posterior.responses, x), self.scale)
        assert state is not None, "a group is never empty"
        return state

    def pull_back(self, g: Flat, z: Flat, images: range, read: Tensor, state: State) -> Flat:
        """g^T d mean / dz: d mean / d logit_i = w_i (x_i - mean), d logit_i = -scale d distance_i."""
        responses, gradient = self.posterior.responses, torch.zeros_like(z)
        centre = responses.inner(g, state.mean)[:, None]  # [b, 1, q]
        for x in self.chunks(images, read):
            distances = self.plan.distances(z, x, state.best, self.margin)
            weights = relative_weights_(distances, state.best, self.scale).div_(state.total[:, None])
            cotangent = weights.mul_(responses.project(g, x).sub_(centre)).mul_(-self.scale)  # [b, n, q]
            gradient += self.plan.pull_back(cotangent, z, x)
        return gradient


class _PosteriorMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, run: _Run) -> Tensor:
        read = run.buffer(z)
        ctx.run, ctx.states = run, [run.state(z, images, read) for images in run.groups()]
        ctx.save_for_backward(z)
        return torch.stack([state.mean for state in ctx.states]).mean(dim=0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        run, (z,) = ctx.run, ctx.saved_tensors
        read, g = run.buffer(z), g.contiguous() / len(ctx.states)
        parts = zip(run.groups(), ctx.states, strict=True)
        return sum((run.pull_back(g, z, images, read, state) for images, state in parts), torch.zeros_like(z)), None


def posterior_mean(posterior: Posterior, z: Tensor, sigma: float, *, temperature: float = 1.0,
                   softmax_batch: int | None = None, memory: int = MEMORY) -> Tensor:
    """sum_i softmax_i(-distance_q(z, x_i) / (2 sigma^2 temperature)) x_i, [B, C, H, W]; differentiable in z.

    `softmax_batch` is the published code's approximation: the softmax is normalized within each batch of that many
    images, and the batches, whatever their size, are averaged with equal weight. `memory` bounds the workspace, in
    bytes.
    """
    if temperature <= 0:
        raise ScorelensError(f"temperature must be > 0, got {temperature:g}")
    if softmax_batch is not None and softmax_batch < 1:
        raise ScorelensError(f"softmax_batch must be at least 1, got {softmax_batch}")
    flat = at_least_float32(z).flatten(1)
    scale = min(1 / (2 * sigma**2 * temperature), 1e30)  # finite in float32: sharper than any data
    run = _Run(posterior, choose_plan(posterior.queries, flat), scale, softmax_batch or len(posterior.source), memory)
    parts = [_PosteriorMean.apply(flat[batch], run) for batch in run.batches(flat)]
    return torch.cat(parts).view(z.shape).to(z.dtype)
