"""The posterior engine: streams the source through a plan and the softmax, forward and backward.

Nothing of size N is ever held: the backward pass reads the data again and recomputes the weights chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from scorelens import distributed, progress
from scorelens.data.images import to_floats
from scorelens.distributed import World
from scorelens.posterior.costs import Candidate, choose_plan
from scorelens.posterior.plans.base import Buffers, Fused, Plan, Streaming
from scorelens.posterior.queries import Queries, WholeImage
from scorelens.posterior.responses import Chunk, OwnOutput, Responses, WholeOutput, collect
from scorelens.posterior.softmax import State, chunk_state, merge, merge_processes, relative_weights_, with_near
from scorelens.posterior.sources import Projected, Shard, Source, shard_of
from scorelens.posterior.threads import map_threads
from scorelens.timings import phase, record_plan
from scorelens.types import Flat, ScorelensError
from scorelens.validation import at_least_float32

MEMORY = 128 * 2**20  # bytes of workspace; larger chunks are no faster
SPAN, SPANS = 2048, 64  # images that a thread takes at a time, at least; how many such spans there are, at most
COPIES = 3  # of a chunk of projected rows: as it is read, as it is projected, and the engine's own
NEGLIGIBLE = 17.0  # N weights below exp(-17) / N of the largest do not change a float32 sum


@dataclass(frozen=True)
class Posterior:
    """A denoiser's declaration: which pixels are compared, which are written, which images are averaged.

    x0_hat[what query q writes] = sum_i softmax_i(-distance_q(z, x_i) / 2 sigma^2) x_i[what query q writes]
    """

    queries: Queries
    responses: Responses
    source: Source


@dataclass(frozen=True)
class Run:
    """One evaluation: what is averaged, by which plan, and in which pieces."""

    posterior: Posterior
    plan: Plan
    scale: float  # 1 / (2 sigma^2 T)
    group: int  # images that share a softmax: all of them, or a batch of the published code
    memory: int
    around: Source | None = None  # whose centre is subtracted, if not that of the posterior's source

    @property
    def margin(self) -> float:
        """How much farther than the nearest image an image must be to have no weight in float32."""
        return (math.log(len(self.posterior.source)) + NEGLIGIBLE) / self.scale

    @property
    def batches(self) -> int:
        """How many softmaxes are averaged."""
        return math.ceil(len(self.posterior.source) / self.group)

    @cached_property
    def shard(self) -> Shard:
        """What this process averages. A single softmax is sharded by image; several are distributed whole."""
        source = self.posterior.source
        return shard_of(source) if self.batches == 1 else Shard(source, range(len(source)), distributed.ALONE)

    @property
    def batch_group(self) -> World:
        """The processes that share several softmaxes."""
        return distributed.group(self.batches)

    def groups(self) -> list[range]:
        """The images of this process, for each softmax that it takes part in."""
        rows, starts = self.shard.rows, (k * self.group for k in self.batch_group.shard(self.batches))
        return [rows] if self.batches == 1 else [rows[start:start + self.group] for start in starts]

    def parts(self, z: Flat) -> list[slice]:
        """Noisy images that are processed together, while the chunk is in the cache."""
        size = self.plan.together or len(z)
        return [slice(start, start + size) for start in range(0, len(z), size)]

    def chunks(self, z: Flat, images: range) -> Iterator[Chunk]:
        """The images of one group as columns, in the memory layout of the plan, minus `zero`."""
        source, d = self.shard.source, self.posterior.source.dim
        rows = self.plan.chunk_rows(self.plan.together or len(z), d, z.element_size(), self.memory)
        size = max(1, min(rows, len(images)))
        memory, zero = z.new_empty(size * d), self.zero(z)
        for start in range(images.start, images.stop, size):
            raw = source.raw(start, min(start + size, images.stop)).flatten(1).T  # [d, n]
            out = memory[:raw.numel()]
            with phase("reading the data"):
                x = to_floats(raw, out.view(raw.shape) if self.plan.pixel_major else out.view(raw.T.shape).T, zero)
            yield x
            progress.fraction((start + raw.shape[1]) / self.groups()[-1].stop)

    def zero(self, z: Flat) -> float | Tensor:
        """The pixel values that become 0: the mean image if the plan is centred and the source has one, else grey."""
        source = self.posterior.source if self.around is None else self.around
        if self.plan.centred and hasattr(source, "centre"):
            return torch.from_numpy(source.centre().reshape(-1, 1)).to(z)
        return 127.5

    def shift(self, z: Flat) -> Float[Tensor, "1 d"]:
        """The zero of the chunks, in units of z."""
        zero = self.zero(z)
        return (zero.T - 127.5) / 127.5 if isinstance(zero, Tensor) else z.new_zeros(1, self.posterior.source.dim)

    def state(self, z: Flat, images: range) -> State:
        """The softmax state of one group of images, merged over all processes."""
        plan = self.plan
        whole = self._streamed(plan, z, images) if isinstance(plan, Streaming) else self._chunked(z, images)
        return merge_processes(whole, self.scale, self.shard.group)

    def _streamed(self, plan: Streaming, z: Flat, images: range) -> State:
        """The state by a plan that reads the images itself."""
        responses = None if self.posterior.responses.overlapping else self.posterior.responses
        state = None
        with phase("distances, softmax and response"):
            spans = plan.spans(z, self.shard.source, images, self.zero(z), self.scale, self.margin, responses)
            for span, done in spans:
                state = merge(state, span, self.scale)
                progress.fraction((images.start + done * len(images)) / self.groups()[-1].stop)
        assert state is not None
        return State(state.best, state.total.to(z.dtype), state.weighted.to(z.dtype))

    def _chunked(self, z: Flat, images: range) -> State:
        """The state by a plan of torch. Where it takes noisy images one by one, in many small steps, a thread of a CPU
        takes a whole span of images: threads that share every step would wait for each other thousands of times."""
        spans = self._spans(images) if self.plan.together == 1 and z.device.type == "cpu" else [images]
        if len(spans) == 1:
            return self._of_chunks(z, images)
        state = None
        with phase("distances, softmax and response"):
            for span, found in zip(spans, map_threads(lambda span: self._alone()._of_chunks(z, span), spans),
                                   strict=True):
                state = merge(state, found, self.scale)
                progress.fraction(span.stop / self.groups()[-1].stop)
        assert state is not None
        return state

    def _spans(self, images: range) -> list[range]:
        """Images that a thread takes at a time; not dependent on the number of threads."""
        size = max(SPAN, -(-len(images) // SPANS))
        return [images[start:start + size] for start in range(0, len(images), size)]

    def _alone(self) -> Run:
        """The same run with a workspace of its own."""
        return replace(self, plan=replace(self.plan, buffers=Buffers()))

    def _of_chunks(self, z: Flat, images: range) -> State:
        parts = self.parts(z)
        states: list[State | None] = [None] * len(parts)
        for x in self.chunks(z, images):
            prepared = self.plan.prepare(x) if isinstance(self.plan, Fused) else None
            for k, part in enumerate(parts):
                states[k] = self._with_chunk(states[k], z[part], x, prepared)
        return State(*(torch.cat(tensors) for tensors in zip(*filter(None, states), strict=True)))

    def _with_chunk(self, so_far: State | None, z: Flat, x: Chunk, prepared: Any) -> State:
        responses = None if self.posterior.responses.overlapping else self.posterior.responses
        if isinstance(self.plan, Fused):
            with phase("distances, softmax and response"):
                return self.plan.with_chunk(so_far, z, x, prepared, self.scale, responses)
        with phase("distances"):
            distances = self.plan.distances(z, x, None if so_far is None else so_far.best, self.margin)
        with phase("softmax and response"):
            if so_far is not None and len(z) == 1 and isinstance(responses, OwnOutput) and responses.pixels is ...:
                return with_near(so_far, distances, self.scale, self.margin, x)
            return merge(so_far, chunk_state(distances, self.scale, responses, x), self.scale)

    def _weights(self, z: Flat, images: range, state: State) -> Iterator[tuple[slice, Chunk, Float[Tensor, "b q n"]]]:
        """The normalized weights of each chunk, for each part of the noisy images."""
        for x in self.chunks(z, images):
            for part in self.parts(z):
                best, total = state.best[part], state.total[part, :, None]
                distances = self.plan.distances(z[part], x, best, self.margin)
                yield part, x, relative_weights_(distances, best, self.scale).div_(total)

    def mean(self, z: Flat, images: range, state: State) -> Float[Tensor, "b out"]:
        """The output. Overlapping responses need normalized weights first, hence a second pass."""
        responses, mean = self.posterior.responses, torch.zeros_like(z)
        if not responses.overlapping:
            return collect(state.mean)
        for part, x, weights in self._weights(z, images, state):
            mean[part] += collect(responses.respond(weights, x))
        return self.shard.group.sum(mean)

    def pull_back(self, g: Float[Tensor, "b out"], z: Flat, images: range, state: State) -> Flat:
        """g^T d mean / dz: d mean / d logit_i = w_i (x_i - mean), d logit_i = -scale d distance_i."""
        gradient, means = torch.zeros_like(z), self._projected_means(g, z, images, state)
        for part, x, weights in self._weights(z, images, state):
            spread = self.posterior.responses.project(g[part], x).sub_(means[part, :, None])
            gradient[part] += self.plan.pull_back(weights.mul_(spread).mul_(-self.scale), z[part], x)
        return self.shard.group.sum(gradient)

    def _projected_means(self, g: Float[Tensor, "b out"], z: Flat, images: range,
                         state: State) -> Float[Tensor, "b q"]:
        """sum_i w_i (g . x_i) for each query: from the output, or by another pass."""
        responses, means = self.posterior.responses, torch.zeros_like(state.total)
        if not responses.overlapping:
            return (g.unflatten(1, state.mean.shape[:0:-1]).transpose(1, 2) * state.mean).sum(dim=2)
        for part, x, weights in self._weights(z, images, state):
            means[part] += weights.mul_(responses.project(g[part], x)).sum(dim=2)
        return self.shard.group.sum(means)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Bitwise the same tensor for all processes that share the work."""
        return self.batch_group.broadcast(self.shard.group.broadcast(tensor))


class _PosteriorMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, run: Run) -> Tensor:
        z = run.broadcast(z)
        ctx.run, ctx.states = run, [run.state(z, images) for images in run.groups()]
        ctx.save_for_backward(z)
        means = [run.mean(z, *pair) for pair in zip(run.groups(), ctx.states, strict=True)]
        return run.batch_group.sum(torch.stack(means).sum(dim=0)) / run.batches

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        run, (z,) = ctx.run, ctx.saved_tensors
        g = run.broadcast(g.contiguous()) / run.batches
        pulled = (run.pull_back(g, z, *pair) for pair in zip(run.groups(), ctx.states, strict=True))
        return run.batch_group.sum(sum(pulled, torch.zeros_like(z))), None


def logit_scale(sigma: float, temperature: float) -> float:
    """1 / (2 sigma^2 T), kept finite in float32: sharper than any data."""
    if temperature <= 0:
        raise ScorelensError(f"temperature must be > 0, got {temperature:g}")
    return min(1 / (2 * sigma**2 * temperature), 1e30)


def plan_for(posterior: Posterior, z: Flat, scale: float, name: str = "auto") -> Candidate:
    """The plan that a call takes, and its expected cost."""
    return choose_plan(posterior.queries.plans(z, scale), name)


def posterior_mean(posterior: Posterior, z: Tensor, sigma: float, *, temperature: float = 1.0,
                   softmax_batch: int | None = None, plan: str = "auto", memory: int = MEMORY) -> Tensor:
    """sum_i softmax_i(-distance_q(z, x_i) / (2 sigma^2 temperature)) x_i; differentiable in z.

    [B, C, H, W], or [B, pixels] for responses that write others than all of z's.

    `softmax_batch` is the published code's approximation: the softmax is normalized within each batch of that many
    images, and the batches, whatever their size, are averaged with equal weight. `plan` names one of `costs.PLANS`
    instead of the fastest; `memory` bounds the workspace, in bytes.
    """
    flat = at_least_float32(z).flatten(1)
    run, flat = prepared(posterior, flat, sigma, temperature, softmax_batch, plan, memory)
    shift = run.shift(flat)
    mean = _PosteriorMean.apply(flat - shift, run) + shift[:, posterior.responses.pixels]
    return (mean.view(z.shape) if mean.shape == flat.shape else mean).to(z.dtype)


def prepared(posterior: Posterior, z: Flat, sigma: float, temperature: float, softmax_batch: int | None, plan: str,
             memory: int) -> tuple[Run, Flat]:
    """The run that evaluates a posterior at z, and z in the dtype that it needs."""
    if softmax_batch is not None and softmax_batch < 1:
        raise ScorelensError(f"softmax_batch must be at least 1, got {softmax_batch}")
    scale = logit_scale(sigma, temperature)
    with phase("choosing a plan"):
        chosen = plan_for(posterior, z, scale, plan)
        run = Run(posterior, chosen.plan, scale, softmax_batch or len(posterior.source), memory)
    record_plan(lambda: {"sigma": sigma, **chosen.describe(len(z), len(run.shard.rows))})
    return run, z.to(getattr(chosen.plan, "dtype", z.dtype))


def mean_behind(z: Flat, query: Float[Tensor, "b r"], source: Projected, sigma: float, temperature: float,
                memory: int) -> Float[Tensor, "b v"]:
    """The posterior mean of the coordinates that follow the r which are compared with the query."""
    posterior, padded = posterior_behind(z, query, source, sigma)
    return posterior_mean(posterior, padded, sigma, temperature=temperature, memory=memory // COPIES)


def posterior_behind(z: Flat, query: Float[Tensor, "b r"], source: Projected,
                     sigma: float) -> tuple[Posterior, Float[Tensor, "b k"]]:
    """The posterior over rows of which the first r coordinates are compared with the query; and the query, as long as
    a row."""
    (b, r), d, dtype = query.shape, source.dim, source.dtype(query.shape[1], sigma, z)
    rows = replace(source, matrix=source.matrix.to(dtype))
    posterior = Posterior(WholeImage(r), WholeOutput(torch.arange(r, d, device=query.device)), rows)
    return posterior, torch.cat([query, query.new_zeros(b, d - r)], dim=1).to(dtype)
