"""What ran and how long it took: code names its phases and plans, and a caller who wants to know collects them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Profile:
    """Seconds by phase, and the plan of each evaluation of a posterior, in the order in which they ran."""

    seconds: dict[str, float] = field(default_factory=dict)
    plans: list[dict[str, Any]] = field(default_factory=list)


_profile: ContextVar[Profile | None] = ContextVar("profile", default=None)


@contextmanager
def profiled() -> Iterator[Profile]:
    """Collect what runs within this block."""
    profile = Profile()
    token = _profile.set(profile)
    try:
        yield profile
    finally:
        _profile.reset(token)


def record_plan(describe: Callable[[], dict[str, Any]]) -> None:
    """Note the plan of an evaluation, if anyone collects."""
    profile = _profile.get()
    if profile is not None:
        profile.plans.append(describe())


def phase(name: str) -> AbstractContextManager[None]:
    """A part of the work; costs next to nothing if nobody collects."""
    profile = _profile.get()
    return nullcontext() if profile is None else _timed(name, profile.seconds)


@contextmanager
def _timed(name: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
