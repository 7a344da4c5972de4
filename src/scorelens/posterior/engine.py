"""The posterior engine: streams the source through a plan and the softmax, forwards and backwards.

Nothing of size N is ever held: the backward pass reads the data again and recomputes the weights chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from scorelens import progress
from scorelens.data.images import to_floats
from scorelens.posterior.costs import choose_plan
from scorelens.posterior.plans import Plan
from scorelens.posterior.slots import Chunk, Posterior, SomePixels
from scorelens.posterior.softmax import State, chunk_state, merge, relative_weights_
from scorelens.timings import phase
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

    @property
    def margin(self) -> float:
        """How much farther than the best an image must be to have no weight at all."""
        return (math.log(len(self.posterior.source)) + NEGLIGIBLE) / self.scale

    def groups(self) -> Iterator[range]:
        count = len(self.posterior.source)
        return (range(start, min(start + self.group, count)) for start in range(0, count, self.group))

    def parts(self, z: Flat) -> list[slice]:
        """Noisy images that are worked on together; the others wait while the chunk is in the cache."""
        size = self.plan.together or len(z)
        return [slice(start, start + size) for start in range(0, len(z), size)]

    def chunks(self, z: Flat, images: range) -> Iterator[Chunk]:
        """The images of one group as columns, in the memory layout that the plan likes, minus `zero`."""
        source, d = self.posterior.source, self.posterior.source.dim
        rows = self.plan.chunk_rows(self.plan.together or len(z), d, z.element_size(), self.memory)
        size = max(1, min(rows, len(images)))
        memory, zero = z.new_empty(size * d), self.zero(z)
        for start in range(images.start, images.stop, size):
            raw = source.raw(start, min(start + size, images.stop)).flatten(1).T  # [d, n]
            shape = raw.shape if self.plan.pixel_major else raw.T.shape
            out = memory[:raw.numel()].view(shape)
            with phase("reading the data"):
                x = to_floats(raw, out if self.plan.pixel_major else out.T, zero)
            yield x
            progress.fraction((start + raw.shape[1]) / len(source))

    def zero(self, z: Flat) -> float | Tensor:
        """The pixel values that become 0: those of the mean image for a plan that wants it, else the middle grey."""
        if not self.plan.centred:
            return 127.5
        return torch.from_numpy(self.posterior.source.centre.reshape(-1, 1)).to(z)

    def states(self, z: Flat, images: range) -> list[State]:
        """The state of one group of images, for each part of the noisy ones."""
        parts = self.parts(z)
        states: list[State | None] = [None] * len(parts)
        for x in self.chunks(z, images):
            for k, part in enumerate(parts):
                so_far = states[k]
                with phase("distances"):
                    distances = self.plan.distances(z[part], x, None if so_far is None else so_far.best, self.margin)
                with phase("softmax and response"):
                    state = chunk_state(distances, self.scale, self.posterior.responses, x)
                    states[k] = merge(so_far, state, self.scale)
        return [state for state in states if state is not None]

    def pull_back(self, g: Float[Tensor, "b out"], z: Flat, images: range, states: list[State]) -> Flat:
        """g^T d mean / dz: d mean / d logit_i = w_i (x_i - mean), d logit_i = -scale d distance_i."""
        responses, gradient = self.posterior.responses, torch.zeros_like(z)
        for x in self.chunks(z, images):
            for part, state in zip(self.parts(z), states, strict=True):
                distances = self.plan.distances(z[part], x, state.best, self.margin)
                weights = relative_weights_(distances, state.best, self.scale).div_(state.total[:, :, None])
                spread = responses.project(g[part], x).sub_(responses.inner(g[part], state.mean)[:, :, None])
                cotangent = weights.mul_(spread).mul_(-self.scale)  # [b, q, n]
                gradient[part] += self.plan.pull_back(cotangent, z[part], x)
        return gradient


class _PosteriorMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, run: _Run) -> Tensor:
        ctx.run, ctx.states = run, [run.states(z, images) for images in run.groups()]
        ctx.save_for_backward(z)
        return torch.stack([torch.cat([state.mean for state in states]) for states in ctx.states]).mean(dim=0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        run, (z,) = ctx.run, ctx.saved_tensors
        g = g.contiguous() / len(ctx.states)
        parts = zip(run.groups(), ctx.states, strict=True)
        return sum((run.pull_back(g, z, images, states) for images, states in parts), torch.zeros_like(z)), None


def logit_scale(sigma: float, temperature: float) -> float:
    """1 / (2 sigma^2 T), kept finite in float32: sharper than any data."""
    if temperature <= 0:
        raise ScorelensError(f"temperature must be > 0, got {temperature:g}")
    return min(1 / (2 * sigma**2 * temperature), 1e30)


def posterior_mean(posterior: Posterior, z: Tensor, sigma: float, *, temperature: float = 1.0,
                   softmax_batch: int | None = None, plan: str = "auto", memory: int = MEMORY) -> Tensor:
    """sum_i softmax_i(-distance_q(z, x_i) / (2 sigma^2 temperature)) x_i; differentiable in z.

    [B, C, H, W], or [B, pixels] for the responses SomePixels.

    `softmax_batch` is the published code's approximation: the softmax is normalized within each batch of that many
    images, and the batches, whatever their size, are averaged with equal weight. `plan` names one of `costs.PLANS`
    instead of the fastest; `memory` bounds the workspace, in bytes.
    """
    if softmax_batch is not None and softmax_batch < 1:
        raise ScorelensError(f"softmax_batch must be at least 1, got {softmax_batch}")
    flat, scale = at_least_float32(z).flatten(1), logit_scale(sigma, temperature)
    with phase("choosing a plan"):
        chosen = choose_plan(posterior.queries, flat, scale, plan)
    run = _Run(posterior, chosen.plan, scale, softmax_batch or len(posterior.source), memory)
    zero = run.zero(flat)
    shift = (zero.T - 127.5) / 127.5 if isinstance(zero, Tensor) else flat.new_zeros(1, flat.shape[1])  # [1, d]
    mean = _PosteriorMean.apply(flat - shift, run)
    if isinstance(posterior.responses, SomePixels):
        return (mean + shift[:, posterior.responses.pixels]).to(z.dtype)
    return (mean + shift).view(z.shape).to(z.dtype)
