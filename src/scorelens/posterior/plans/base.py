"""What every plan implements, and helpers that several plans share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from scorelens.posterior.responses import Chunk, Responses
from scorelens.posterior.softmax import State
from scorelens.posterior.sources import Source
from scorelens.types import Flat

CACHE_ELEMENTS = 2**19  # of a chunk whose rows are added up: it stays in the second-level cache


class Buffers(dict[str, Tensor]):
    """Workspace that is reused: allocating fresh pages costs more than the arithmetic."""

    def reserve(self, name: str, like: Tensor, *shape: int) -> Tensor:
        size = math.prod(shape)
        if name not in self or self[name].numel() < size:
            self[name] = like.new_empty(size)
        return self[name][:size].view(shape)


@dataclass(frozen=True)
class Plan(ABC):
    """Compares b noisy images z with a chunk of n images x, for q queries."""

    name: ClassVar[str]
    centred: ClassVar[bool] = False  # subtract the mean image from the images and from z, to lose fewer digits
    pixel_major: ClassVar[bool] = True  # memory layout of a chunk: the values of a pixel together, or those of an image
    together: ClassVar[int | None] = 1  # how many noisy images are processed at once; None for all
    buffers: Buffers = field(default_factory=Buffers, kw_only=True)

    @abstractmethod
    def chunk_rows(self, b: int, d: int, itemsize: int, memory: int) -> int:
        """How many images make a chunk within this many bytes of workspace, for b noisy images at once."""

    @abstractmethod
    def distances(self, z: Flat, x: Chunk, best: Float[Tensor, "b q"] | None, margin: float) -> Float[Tensor, "b q n"]:
        """Squared distances, up to a constant for each b and q.

        The caller may overwrite the result until the next call. `best` is the smallest distance of earlier chunks; a
        distance beyond best + margin has no weight and need not be accurate.
        """

    @abstractmethod
    def pull_back(self, cotangent: Float[Tensor, "b q n"], z: Flat, x: Chunk) -> Flat:
        """sum over i and q of cotangent_qi d distance_qi / dz, for cotangents that sum to zero over the images."""


@runtime_checkable
class Fused(Protocol):
    """A plan that updates the softmax state itself, without returning distances."""

    def prepare(self, x: Chunk) -> Any:
        """What is computed once for a chunk and used for all noisy images."""

    def with_chunk(self, so_far: State | None, z: Flat, x: Chunk, prepared: Any, scale: float,
                   responses: Responses | None) -> State: ...


@runtime_checkable
class Streaming(Protocol):
    """A plan that also reads the images itself, in spans that several threads can share."""

    def spans(self, z: Flat, source: Source, images: range, zero: float | Tensor, scale: float, margin: float,
              responses: Responses | None) -> Iterator[tuple[State, float]]:
        """The softmax state of each span of these images, and the share of them that is done; pixel values `zero` of
        the source become 0. Without responses, weights are only added up."""


def cached_chunk(d: int, itemsize: int, memory: int) -> int:
    """The largest power of two such that a chunk of d pixels fits the cache and its workspace the memory."""
    rows = min(CACHE_ELEMENTS * 4 // (d * itemsize), 512, memory // (4 * d * itemsize))
    return 1 << max(0, rows.bit_length() - 1)
