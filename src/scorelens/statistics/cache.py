"""Cache of fitted tensors, keyed by the content they were fitted to; each file is verified before it is used."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from scorelens import distributed
from scorelens.entries import find_entry, new_entry, set_aside
from scorelens.files import cache_folder, write_errors
from scorelens.types import ScorelensError

FORMAT = 1  # increment when the meaning of stored tensors changes


def cached(kind: str, key: Sequence[object], fit: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors that `fit` returns, loaded if stored under this key (content hashes and parameters)."""
    stored = find_cached(kind, key)
    if stored is not None:
        return stored
    tensors = fit()
    if distributed.world().is_main:
        _store(_path(kind, key), tensors)
    return tensors


def find_cached(kind: str, key: Sequence[object]) -> dict[str, Tensor] | None:
    """The tensors stored under this key, or None."""
    stored = distributed.world().broadcast_tensors(lambda: _load(_path(kind, key)))
    return None if stored is None else dict(stored)


def _path(kind: str, key: Sequence[object]) -> Path:
    name = hashlib.sha256(repr((FORMAT, kind, list(key))).encode()).hexdigest()[:32]
    return cache_folder(kind) / f"{name}.safetensors"


def _store(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write the tensors; where that fails, the result is right all the same, and is fitted again the next time."""
    try:
        with write_errors(path), new_entry(path) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
    except ScorelensError as error:
        warnings.warn(f"{error}; the result is not cached (set SCORELENS_CACHE to another folder)", stacklevel=3)


def _load(path: Path) -> dict[str, Tensor] | None:
    file = find_entry(path)
    if file is not None:
        try:
            return load_file(file)
        except (SafetensorError, OSError) as error:
            set_aside(file, str(error))
    return None
