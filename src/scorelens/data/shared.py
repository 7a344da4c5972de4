"""Images for several processes: one of a machine's loads them, and all map its file into memory.

What a process never reads of the file, it does not hold; what several read, the machine holds once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from scorelens import distributed
from scorelens.data.array_cache import cached_path, keep_array, open_array
from scorelens.data.images import ImageSet
from scorelens.types import ScorelensError


@dataclass(frozen=True)
class Mapped:
    """An ImageSet whose pixels are rows of a file."""

    path: Path
    rows: slice
    others: dict[str, Any]  # its fields but for the pixels
    fingerprint: str

    def open(self) -> ImageSet:
        images = ImageSet(open_array(self.path)[self.rows], **self.others)
        vars(images)["fingerprint"] = self.fingerprint  # known: a pass over all images is spared
        return images


def shared(load: Callable[[], ImageSet]) -> ImageSet:
    """What `load` returns, its pixels memory-mapped where several processes need them."""
    world = distributed.world()
    if world.size == 1:
        return load()
    found = world.once_per_node(lambda: _mapped(load()))
    if len({each.fingerprint for each in found.values()}) > 1:
        raise ScorelensError(f"{found[0].others['name']}: the machines hold different images under this name")
    return found[world.node].open()


def _mapped(images: ImageSet) -> Mapped:
    """Where the pixels are mapped from already, or a file in the cache, written for this."""
    names = [field.name for field in fields(images) if field.init and field.name != "pixels"]
    others = {name: getattr(images, name) for name in names}
    whole = images.pixels
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    if isinstance(whole, np.memmap) and images.pixels.flags.c_contiguous and whole.shape[1:] == images.pixels.shape[1:]:
        first = (images.pixels.ctypes.data - whole.ctypes.data) // whole.strides[0]
        return Mapped(Path(str(whole.filename)), slice(first, first + len(images)), others, images.fingerprint)
    path = cached_path(f"shared-{images.fingerprint}")
    keep_array(path, images.pixels)
    return Mapped(path, slice(0, len(images)), others, images.fingerprint)
