"""Which plan is fastest: costs estimated from rates that are measured on this machine, once per process."""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from scorelens import distributed
from scorelens.data.images import ImageSet, to_floats
from scorelens.posterior.plans.base import Plan, cached_chunk
from scorelens.posterior.plans.dense import DenseMasks
from scorelens.posterior.plans.differences import MaskDifferences, mask_changes
from scorelens.posterior.plans.fused import GROUP, SPAN, FusedMasks, linked
from scorelens.posterior.plans.sparse import sums_over
from scorelens.posterior.responses import OwnOutput
from scorelens.posterior.softmax import chunk_state, merge
from scorelens.types import Shape
from scorelens.validation import unknown

PLANS = ("auto", "dense", "sparse", "differences", "fused")


@dataclass(frozen=True)
class Rates:
    """Seconds on one device, for one dtype."""

    product: float  # a multiplication and addition within a matrix product
    entry: float  # an addition of a table's row to a sum, per value
    value: float  # everything that is done once to a distance or a pixel: differences, softmax, response
    read: float  # a pixel turned from a byte into a float, transposed
    call: float  # a chunk and noisy image, however small


@dataclass(frozen=True)
class Cost:
    """What a plan does for one noisy image and one image of the source, on one device and for one dtype."""

    device: torch.device
    dtype: torch.dtype
    products: int = 0
    entries: int = 0
    values: float = 0
    calls: float = 0
    reads: int = 0  # for one image of the source, shared by all noisy ones
    fused: bool = False  # in the compiled kernel

    @property
    def operations(self) -> int:
        """Multiplications and additions of the distances."""
        return self.products + self.entries

    def seconds(self, noisy: int, source: int) -> float:
        """The time expected for so many noisy images and images of the source."""
        reading = self.reads * measured_rates(self.device, self.dtype).read
        return source * (reading + noisy * self.seconds_per_pair())

    def seconds_per_pair(self) -> float:
        rates = fused_rates() if self.fused else measured_rates(self.device, self.dtype)
        return (self.products * rates.product + self.entries * rates.entry + self.values * rates.value
                + self.calls * rates.call)


@dataclass(frozen=True)
class Candidate:
    """A plan that suits some queries, and its cost; both are computed when they are needed."""

    name: str
    estimate: Callable[[], Cost]
    build: Callable[[], Plan]
    exact: bool = True  # keeps enough digits at this noise level to be chosen
    preferred: bool = False  # chosen without measuring rates: the problem is small, or the kernel is compiled
    rows: int = 0  # of the source, in this process, where they are known

    @cached_property
    def cost(self) -> Cost:
        return self.estimate()

    @cached_property
    def plan(self) -> Plan:
        return self.build()

    def describe(self, noisy: int, source: int) -> dict[str, Any]:
        """The plan's name, its work, and the seconds expected for so many noisy images and images of the source."""
        return {"plan": self.name, "operations_per_pair": self.cost.operations,
                "expected_seconds": self.cost.seconds(noisy, source)}


def choose_plan(candidates: Sequence[Candidate], name: str = "auto") -> Candidate:
    """The fastest plan, or the one of this name if it is among the candidates."""
    if name not in PLANS:
        raise unknown("plan", name, PLANS)
    named = [candidate for candidate in candidates if candidate.name == name]
    chosen = named or [candidate for candidate in candidates if candidate.preferred or len(candidates) == 1]
    return chosen[0] if chosen else min((candidate for candidate in candidates if candidate.exact),
                                        key=lambda candidate: candidate.cost.seconds_per_pair())


@lru_cache(maxsize=8)
def measured_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """A few tenths of a second of what the plans themselves do, on square windows of a colour image."""
    steps = [((3, 32, 32), 2), ((3, 32, 32), 9), ((1, 2, 2), 1)]
    (entries, values, fast), (more, _, slow), (_, _, call) = (_window_step(*step, device, dtype) for step in steps)
    entry = max(slow - fast, 0.1 * slow) / (more - entries)
    side, raw = 1024, torch.zeros(256, 3072, dtype=torch.uint8)
    left = torch.rand(side, side, device=device, dtype=dtype)
    floats = torch.empty(raw.T.shape, device=device, dtype=dtype)
    rates = Rates(product=_seconds(lambda: left @ left, device) / side**3, entry=entry,
                  value=max(fast - entry * entries, 0.1 * fast) / values,
                  read=_seconds(lambda: to_floats(raw.T, floats), device) / raw.numel(), call=call)
    same = distributed.world().broadcast(torch.tensor(astuple(rates), dtype=torch.float64))
    return Rates(*same.tolist())  # all processes must choose the same plan


@lru_cache(maxsize=1)
def fused_rates() -> Rates:
    """The rates of the compiled kernel, from the same windows and a group of noisy images."""
    grid, images, z = (3, 32, 32), torch.randint(256, (SPAN, 3, 32, 32), dtype=torch.uint8), torch.rand(GROUP, 3072)
    (entries, fast), (more, slow) = (_fused_step(grid, radius, images, z) for radius in (2, 9))
    entry = max(slow - fast, 0.1 * slow) / (more - entries)
    rates = Rates(0.0, entry, max(fast - entry * entries, 0.1 * fast) / images.numel(), 0.0, 0.0)
    return Rates(*distributed.world().broadcast(torch.tensor(astuple(rates), dtype=torch.float64)).tolist())


def _fused_step(grid: Shape, radius: int, images: Tensor, z: Tensor) -> tuple[int, float]:
    """A span of square windows by the compiled kernel: its entries, and the seconds for a noisy image if all
    threads have such spans."""
    source = ImageSet(images.numpy(), "random")
    plan = FusedMasks(lambda: DenseMasks(z), linked(_windows(grid, radius), grid), chained=True)

    def work() -> object:
        return list(plan.spans(z, source, range(len(source)), 127.5, 1.0, math.inf, OwnOutput()))

    return plan.links.entries * len(source), _seconds(work, z.device) / len(z) / torch.get_num_threads()


def _window_step(grid: Shape, radius: int, device: torch.device, dtype: torch.dtype) -> tuple[int, int, float]:
    """A chunk of square windows by differences, with softmax and response: its entries, values and seconds."""
    keep, d = _windows(grid, radius), math.prod(grid)
    plan = MaskDifferences(keep, sums_over(mask_changes(keep, grid), keep).to(device), grid)
    n = cached_chunk(d, dtype.itemsize, 2**62)
    x, z = torch.rand(d, n, device=device, dtype=dtype), torch.rand(1, d, device=device, dtype=dtype)

    def work() -> object:
        state = chunk_state(plan.distances(z, x, None, math.inf), 1.0, OwnOutput(), x)
        return merge(state, state, 1.0)

    return plan.sums.entries * n, x.numel(), _seconds(work, device)


def _windows(grid: Shape, radius: int) -> Bool[Tensor, "d d"]:
    """Masks that keep all channels of the pixels within this radius."""
    c, h, w = grid
    pixels = torch.cartesian_prod(torch.arange(h), torch.arange(w))
    return ((pixels[:, None] - pixels).abs() <= radius).all(dim=2).repeat(c, c)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    def synchronized() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize()

    return min(timeit.repeat(synchronized, number=1, repeat=6)[1:])
