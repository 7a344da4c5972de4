"""Cache of fitted tensors, keyed by the content they were fitted to and written atomically."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from scorelens import distributed
from scorelens.files import atomic_file, cache_folder

FORMAT = 1  # increment when the meaning of stored tensors changes


def cached(kind: str, key: Sequence[object], fit: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors that `fit` returns, loaded if stored under this key (content hashes and parameters)."""
    name = hashlib.sha256(repr((FORMAT, kind, list(key))).encode()).hexdigest()[:32]
    path = cache_folder(kind) / f"{name}.safetensors"
    stored = distributed.world().broadcast_tensors(lambda: _load(path))
    if stored is not None:
        return dict(stored)
    tensors = fit()
    if distributed.world().is_main:
        with atomic_file(path) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
    return tensors


def _load(path: Path) -> dict[str, Tensor] | None:
    if path.exists():
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            warnings.warn(f"the cached file {path} cannot be read ({error}); fitting again", stacklevel=3)
    return None
