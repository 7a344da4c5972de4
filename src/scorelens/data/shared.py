"""Images shared by several processes: one process per node loads them, and all memory-map the same file.

Pages that a process never reads take no memory; pages that several read are in memory once per node.
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
    """An ImageSet whose pixels are rows of an .npy file."""

    path: Path
    rows: slice
    metadata: dict[str, Any]  # all fields of the ImageSet except the pixels
    fingerprint: str


def shared(load: Callable[[], ImageSet]) -> ImageSet:
    """The result of `load`; with several processes, each node loads once and memory-maps the pixels."""
    world = distributed.world()
    if world.size == 1:
        return load()
    by_node = world.once_per_node(lambda: _mapped(load()))
    if len({mapped.fingerprint for mapped in by_node.values()}) > 1:
        raise ScorelensError(f"{by_node[0].metadata['name']}: the machines hold different images under this name")
    mapped = by_node[world.node]
    images = ImageSet(open_array(mapped.path)[mapped.rows], **mapped.metadata)
    vars(images)["fingerprint"] = mapped.fingerprint  # sets the cached property; hashing would read every image
    return images


def _mapped(images: ImageSet) -> Mapped:
    """The file the pixels are already mapped from, or else a new file in the cache."""
    pixels, fingerprint = images.pixels, images.fingerprint
    metadata = {field.name: getattr(images, field.name) for field in fields(images) if field.name != "pixels"}
    whole = pixels
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    if isinstance(whole, np.memmap) and pixels.flags.c_contiguous and whole.shape[1:] == pixels.shape[1:]:
        first = (pixels.ctypes.data - whole.ctypes.data) // whole.strides[0]
        return Mapped(Path(str(whole.filename)), slice(first, first + len(images)), metadata, fingerprint)
    path = cached_path(f"shared-{fingerprint}")
    keep_array(path, pixels)
    return Mapped(path, slice(0, len(images)), metadata, fingerprint)
