"""Sums over square windows, at a cost that does not depend on the size of the window.

A sum over k neighbours is made of sums over 1, 2, 4, ... neighbours, each the sum of two of the previous ones: log2(k)
additions along an axis, and no subtraction that could lose digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from scorelens.types import Shape

Plane = Float[Tensor, "_ _ n"]  # one value for each pixel, or each window, of n images


@dataclass(frozen=True)
class WindowGrid:
    """Square windows of all channels: one centred on each pixel, cut at the border or wrapped around it; or those that
    lie wholly inside the image, named by their upper left corners."""

    shape: Shape
    size: int
    border: Literal["cut", "wrap", "inside"] = "cut"

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of a window: at most the image's where it must lie inside."""
        _, h, w = self.shape
        return (min(self.size, h), min(self.size, w)) if self.border == "inside" else (self.size, self.size)

    @property
    def positions(self) -> tuple[int, int]:
        """How many windows there are along each axis."""
        (_, h, w), (rows, columns) = self.shape, self.sides
        return (h - rows + 1, w - columns + 1) if self.border == "inside" else (h, w)

    @property
    def masks(self) -> Float[Tensor, "q d"]:
        """The pixels of each window: 1 inside, 0 outside."""
        rows, columns = self.positions
        return self.spread(torch.eye(rows * columns)).T.repeat(1, self.shape[0])

    def sums(self, values: Float[Tensor, "d n"]) -> Float[Tensor, "q n"]:
        """The sum over the pixels of each window."""
        return self._sums(values.view(*self.shape, -1).sum(dim=0)).flatten(0, 1)

    def spread(self, values: Float[Tensor, "q n"]) -> Float[Tensor, "hw n"]:
        """The transpose of `sums`: for each pixel the sum over the windows that cover it."""
        plane = values.unflatten(0, self.positions)
        if self.border != "inside":
            return self._sums(plane).flatten(0, 1)  # a centred window covers those that it is covered by
        for axis, side in enumerate(self.sides):
            plane = sliding_sum(_padded(plane, side - 1, axis), side, axis)
        return plane.flatten(0, 1)

    def _sums(self, plane: Plane) -> Plane:
        for axis, side in enumerate(self.sides):
            length = plane.shape[axis]
            if self.border != "inside":  # beyond length - 1 a window contains nothing new
                plane = _padded(plane, min(side // 2, length - 1), axis, self.border == "wrap")
            plane = sliding_sum(plane, min(side, 2 * length - 1), axis)
        return plane


def sliding_sum(a: Tensor, size: int, axis: int) -> Tensor:
    """The sums over `size` neighbours along an axis, wholly inside: L - size + 1 of them."""
    count, width, parts = a.shape[axis] - size + 1, 1, []
    while True:
        if size & width:
            parts.append(a.narrow(axis, size & (width - 1), count))  # after what the narrower parts cover
        if 2 * width > size:
            return sum(parts[1:], parts[0])
        a = a.narrow(axis, 0, a.shape[axis] - width) + a.narrow(axis, width, a.shape[axis] - width)
        width *= 2


def _padded(a: Plane, margin: int, axis: int, wrap: bool = False) -> Plane:
    if wrap:
        return a.index_select(axis, torch.arange(-margin, a.shape[axis] + margin, device=a.device) % a.shape[axis])
    return pad(a, (0, 0) * (2 - axis) + (margin, margin))
