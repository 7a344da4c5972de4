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

from scorelens.types import Shape

Border = Literal["cut", "wrap", "inside"]
Plane = Float[Tensor, "_ _ n"]  # one value for each pixel, or each window, of n images


@dataclass(frozen=True)
class WindowGrid:
    """Square windows of all channels: one centred on each pixel, cut at the border or wrapped around it; or those that
    lie wholly inside the image, named by their upper left corners."""

    shape: Shape
    size: int
    border: Border = "cut"

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of a window: at most the image's where it must lie inside."""
        _, h, w = self.shape
        return (min(self.size, h), min(self.size, w)) if self.border == "inside" else (self.size, self.size)

    def plane(self, values: Float[Tensor, "q n"]) -> Plane:
        """One value for each window, on the grid of the windows."""
        _, h, w = self.shape
        rows, columns = self.sides
        return values.unflatten(0, (h - rows + 1, w - columns + 1) if self.border == "inside" else (h, w))


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


def box_sum(a: Plane, sides: tuple[int, int], border: Border) -> Plane:
    """The sum over a window at each pixel: centred and cut or wrapped at the border, or wholly inside."""
    for axis, side in enumerate(sides):
        a = sliding_sum(_padded(a, side // 2, axis, border), min(side, 2 * a.shape[axis] - 1), axis)
    return a


def box_spread(a: Plane, sides: tuple[int, int], border: Border) -> Plane:
    """The transpose of `box_sum`: at each pixel the sum over the windows that cover it."""
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
