"""Square windows: distances by box sums, whose cost does not depend on the size of the window.

A sum over k neighbours is made of sums over 1, 2, 4, ... neighbours, each the sum of two of the ones before: log2(k)
additions an axis, and no subtraction that could cost a digit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from scorelens.posterior.plans import Buffers, sparse_chunk
from scorelens.posterior.slots import Border, Chunk, Windows
from scorelens.types import Flat

Plane = Float[Tensor, "_ _ n"]  # one value for each place, or each window, of n images


def sliding_sum(a: Tensor, size: int, axis: int) -> Tensor:
    """The sums over `size` neighbours along an axis, wholly inside: one for each of L - size + 1 places."""
    count, width, parts = a.shape[axis] - size + 1, 1, []
    while True:
        if size & width:
            parts.append(a.narrow(axis, size & (width - 1), count))  # after what the narrower parts cover
        if 2 * width > size:
            return sum(parts[1:], parts[0])
        a = a.narrow(axis, 0, a.shape[axis] - width) + a.narrow(axis, width, a.shape[axis] - width)
        width *= 2


def box_sum(a: Plane, sides: tuple[int, int], border: Border) -> Plane:
    """The sum over a window at each place: centred and cut or wrapped at the border, or wholly inside."""
    for axis, side in enumerate(sides):
        a = sliding_sum(_padded(a, side // 2, axis, border), min(side, 2 * a.shape[axis] - 1), axis)
    return a


def box_spread(a: Plane, sides: tuple[int, int], border: Border) -> Plane:
    """The transpose of `box_sum`: at each place the sum over the windows that cover it."""
    if border != "inside":
        return box_sum(a, sides, border)  # a centred window covers those that it is covered by
    for axis, side in enumerate(sides):
        a = sliding_sum(_padded(a, side - 1, axis, "cut", clip=False), side, axis)
    return a


def _padded(a: Plane, margin: int, axis: int, border: Border, clip: bool = True) -> Plane:
    if border == "inside" or margin == 0:
        return a
    length = a.shape[axis]
    margin = min(margin, length - 1) if clip else margin  # beyond that a window sees nothing new
    if border == "wrap":
        return a.index_select(axis, torch.arange(-margin, length + margin, device=a.device) % length)
    shape = list(a.shape)
    shape[axis] = margin
    edge = a.new_zeros(shape)
    return torch.cat([edge, a, edge], dim=axis)


@dataclass(frozen=True)
class BoxSums:
    """A weight per image and window: squared differences, added up over channels and then over windows."""

    name: ClassVar[str] = "box sums"
    centred: ClassVar[bool] = False
    pixel_major: ClassVar[bool] = True
    together: ClassVar[int | None] = 1
    windows: Windows
    buffers: Buffers = field(default_factory=Buffers)

    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        return sparse_chunk(d, itemsize, memory)

    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "1 q"] | None, margin: float) -> Float[Tensor, "1 q n"]:
        square = torch.sub(x, z.T, out=self.buffers.get("square", x, *x.shape)).square_()
        plane = square.view(*self.windows.shape, -1).sum(dim=0)  # [H, W, n]
        return box_sum(plane, self.windows.sides, self.windows.border).flatten(0, 1)[None]

    def pull_back(self, cotangent: Float[Tensor, "1 q n"], z: Flat, x: Chunk) -> Flat:
        spread = box_spread(self._plane(cotangent[0]), self.windows.sides, self.windows.border).flatten(0, 1)  # [HW, n]
        return 2 * (spread * (z.T - x).unflatten(0, (self.windows.shape[0], -1))).sum(dim=2).flatten()[None]

    def _plane(self, a: Float[Tensor, "q n"]) -> Plane:
        return as_plane(self.windows, a)


def as_plane(windows: Windows, a: Float[Tensor, "q n"]) -> Plane:
    """One value for each window, where the windows are."""
    _, h, w = windows.shape
    rows, columns = windows.sides
    return a.unflatten(0, (h - rows + 1, w - columns + 1) if windows.border == "inside" else (h, w))


@dataclass(frozen=True)
class WindowMeans:
    """Responses: each window inside the image writes all of its pixels; where windows overlap, they are averaged."""

    overlapping: ClassVar[bool] = True
    windows: Windows

    def respond(self, weights: Float[Tensor, "b q n"], x: Chunk) -> Float[Tensor, "b 1 d"]:
        values = x.unflatten(0, (self.windows.shape[0], -1))  # [C, HW, n]
        spread = (box_spread(as_plane(self.windows, w), self.windows.sides, "inside") for w in weights)
        return torch.stack([(s.flatten(0, 1) * values).sum(dim=2).flatten() for s in spread])[:, None] / self._counts(x)

    def collect(self, means: Float[Tensor, "b 1 d"]) -> Flat:
        return means[:, 0]

    def written(self, y: Flat) -> Flat:
        return y

    def share(self, g: Flat) -> Float[Tensor, "b 1 d"]:
        return g[:, None]

    def project(self, g: Flat, x: Chunk) -> Float[Tensor, "b q n"]:
        planes = ((one[:, None] * x).view(*self.windows.shape, -1).sum(dim=0) for one in g / self._counts(x))
        return torch.stack([box_sum(plane, self.windows.sides, "inside").flatten(0, 1) for plane in planes])

    def _counts(self, x: Chunk) -> Float[Tensor, "d"]:
        """How many windows write each pixel."""
        _, h, w = self.windows.shape
        rows, columns = self.windows.sides
        ones = x.new_ones(h - rows + 1, w - columns + 1, 1)
        return box_spread(ones, self.windows.sides, "inside").flatten().repeat(self.windows.shape[0])
