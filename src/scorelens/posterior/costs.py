"""Which plan is fastest: an estimate of each from rates measured on this machine, once per process, in a moment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch

from scorelens import distributed
from scorelens.data.images import to_floats
from scorelens.posterior.patches import Products
from scorelens.posterior.plans import (
    DenseMasks,
    FullImage,
    MaskDifferences,
    Plan,
    SparseMasks,
    changes,
    difference_sums,
    mask_sums,
    sparse_chunk,
)
from scorelens.posterior.slots import Masks, OwnPixel, Precisions, Queries, WholeImage, WholePatch, Windows
from scorelens.posterior.softmax import chunk_state, merge
from scorelens.posterior.windows import BoxSums
from scorelens.types import Flat, Shape
from scorelens.validation import unknown, wide_dtype

PLANS = ("auto", "dense", "sparse", "differences")
CHAIN_ERROR = 2e-4  # nats: what the additions and subtractions of a chain of masks may cost
SMALL = 128**2  # entries of masks below which the choice is not worth a measurement
CHAIN_STEPS = 3.0  # roundings of a chain, as a random walk has it


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

    @property
    def operations(self) -> int:
        """Multiplications and additions of the distances."""
        return self.products + self.entries

    def seconds_per_pair(self) -> float:
        rates = measured_rates(self.device, self.dtype)
        return (self.products * rates.product + self.entries * rates.entry + self.values * rates.value
                + self.calls * rates.call)

    def seconds(self, noisy: int, source: int) -> float:
        """What is expected for so many noisy images and images of the source."""
        reading = self.reads * measured_rates(self.device, self.dtype).read
        return source * (reading + noisy * self.seconds_per_pair())


@dataclass(frozen=True)
class Choice:
    """A plan, ready to run, and its cost."""

    plan: Plan
    cost: Cost


def choose_plan(queries: Queries, z: Flat, scale: float, name: str = "auto") -> Choice:
    """The fastest exact plan for these queries, or the one that is named."""
    if name not in PLANS:
        raise unknown("plan", name, PLANS)
    d, cost = z.shape[1], Cost(z.device, z.dtype, reads=z.shape[1])
    match queries:
        case WholeImage():
            return Choice(FullImage(queries.compared), replace(cost, products=2 * d))
        case WholePatch():
            return Choice(Products(_patch_dtype(z, scale)), replace(cost, products=d + 2, values=1))
        case Windows():
            c, h, w = queries.shape
            additions = c + 2 * queries.size.bit_length()
            return Choice(BoxSums(queries), replace(cost, values=h * w * additions, calls=1 / 512))
        case Precisions():
            weights = queries.weights.to(device=z.device, dtype=z.dtype)
            return Choice(DenseMasks(weights), replace(cost, products=weights.numel(), values=d, calls=1 / 2048))
    if name == "auto":
        name = _fastest(queries, z, scale)
    return Choice(_plan(name, queries, z), _cost(name, queries, z))


def _patch_dtype(z: Flat, scale: float) -> torch.dtype:
    """float32 where the expanded square of a patch of pixels in [-1, 1] keeps its digits in it, else float64."""
    d, sigma = z.shape[1], math.sqrt(1 / (2 * scale))
    exact = torch.finfo(torch.float32).eps / 2 * scale * d * (2 + sigma) < CHAIN_ERROR
    return z.dtype if exact else wide_dtype(z)


def _fastest(masks: Masks, z: Flat, scale: float) -> str:
    if masks.keep.numel() < SMALL:
        return "dense"
    names = ["dense", "sparse", *(["differences"] if chain_is_exact(masks, z.dtype, scale) else [])]
    return min(names, key=lambda name: _cost(name, masks, z).seconds_per_pair())


def chain_is_exact(masks: Masks, dtype: torch.dtype, scale: float) -> bool:
    """Whether distances as sums and differences of neighbours keep their digits: sums over m pixels of x' (x' - 2 z'),
    each of x' at most about 1 and of z' about sigma, round by eps (m + 2 sigma sqrt(m)) a few times."""
    if masks.grid is None:
        return False
    m, sigma = masks.keep.sum(dim=1).float().mean().item(), math.sqrt(1 / (2 * scale))
    return CHAIN_STEPS * torch.finfo(dtype).eps / 2 * (m + 2 * sigma * math.sqrt(m)) * scale < CHAIN_ERROR


def _cost(name: str, masks: Masks, z: Flat) -> Cost:
    q, d = masks.keep.shape
    once = Cost(z.device, z.dtype, values=(q + d) / 2, reads=d)
    if name == "dense":
        return replace(once, products=q * d, calls=1 / 2048)
    return replace(once, entries=_entries(name, masks), calls=1 / sparse_chunk(d, z.element_size(), 2**62))


def _plan(name: str, masks: Masks, z: Flat) -> Plan:
    if name == "dense":
        return DenseMasks(masks.keep.to(device=z.device, dtype=z.dtype))
    make = mask_sums if name == "sparse" else difference_sums
    sums = remembered(masks, f"{name} sums", lambda: make(masks)).to(z.device)
    if name == "sparse":
        return SparseMasks(masks, sums)
    assert masks.grid is not None, "differences need a grid"
    return MaskDifferences(masks, sums, masks.grid)


def _entries(name: str, masks: Masks) -> int:
    used = (lambda: masks.keep) if name == "sparse" else (lambda: changes(masks))
    return int(remembered(masks, f"{name} entries", lambda: int(used().sum())))


_memory: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # as long as the things themselves are kept


def remembered(thing: object, what: str, make: Callable[[], Any]) -> Any:
    """What was made of these masks, or images, before; or is made now."""
    held = _memory.setdefault(thing, {})
    if what not in held:
        held[what] = make()
    return held[what]


@lru_cache(maxsize=8)
def measured_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """A few tenths of a second of what the plans themselves do, on square windows of a colour image."""
    few, many, tiny = (_window_step(grid, radius, device, dtype) for grid, radius in
                       [((3, 32, 32), 2), ((3, 32, 32), 9), ((1, 2, 2), 1)])
    (few_entries, few_values, few_work), (many_entries, _, many_work), (_, _, tiny_work) = few, many, tiny
    fast, slow = _seconds(few_work, device), _seconds(many_work, device)
    entry = max(slow - fast, 0.1 * slow) / (many_entries - few_entries)
    side, raw = 1024, torch.zeros(256, 3072, dtype=torch.uint8)
    left = torch.rand(side, side, device=device, dtype=dtype)
    floats = torch.empty(raw.T.shape, device=device, dtype=dtype)
    rates = Rates(product=_seconds(lambda: left @ left, device) / side**3, entry=entry,
                  value=max(fast - entry * few_entries, 0.1 * fast) / few_values,
                  read=_seconds(lambda: to_floats(raw.T, floats), device) / raw.numel(),
                  call=_seconds(tiny_work, device))
    same = distributed.world().agreed(torch.tensor(astuple(rates), dtype=torch.float64))  # so that all choose one plan
    return Rates(*same.tolist())


def _window_step(grid: Shape, radius: int, device: torch.device,
                 dtype: torch.dtype) -> tuple[int, int, Callable[[], object]]:
    """A chunk of square windows by differences, softmax and response included: its entries, its values, the work."""
    c, h, w = grid
    row, column = (axis.flatten() for axis in torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij"))
    near = ((row[:, None] - row).abs() <= radius) & ((column[:, None] - column).abs() <= radius)  # [HW, HW]
    masks = Masks(near.repeat(c, c), grid)
    plan = MaskDifferences(masks, difference_sums(masks).to(device), grid)
    n = sparse_chunk(c * h * w, dtype.itemsize, 2**62)
    x, z = torch.rand(c * h * w, n, device=device, dtype=dtype), torch.rand(1, c * h * w, device=device, dtype=dtype)

    def work() -> object:
        state = chunk_state(plan.distances(z, x, None, math.inf), 1.0, OwnPixel(), x)
        return merge(state, state, 1.0)

    return plan.sums.entries * n, c * h * w * n, work


def _seconds(work: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])
