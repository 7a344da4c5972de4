"""Where the time goes: code names its phases, and a caller who wants to know collects them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch

_collected: ContextVar[dict[str, float] | None] = ContextVar("timings", default=None)


@contextmanager
def collected() -> Iterator[dict[str, float]]:
    """Seconds by phase, of everything that runs within this block."""
    seconds: dict[str, float] = {}
    token = _collected.set(seconds)
    try:
        yield seconds
    finally:
        _collected.reset(token)


def phase(name: str) -> AbstractContextManager[None]:
    """A part of the work; costs next to nothing while nobody collects."""
    seconds = _collected.get()
    return nullcontext() if seconds is None else _timed(name, seconds)


@contextmanager
def _timed(name: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
