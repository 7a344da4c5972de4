"""What ran and how long it took: code reports its phases and plans, and `profiled` collects them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """Collect the phases and plans of this block."""
    profile = Profile()
    token = _profile.set(profile)
    try:
        yield profile
    finally:
        _profile.reset(token)


def record_plan(describe: Callable[[], dict[str, Any]]) -> None:
    """Record the plan of an evaluation, within `profiled`."""
    profile = _profile.get()
    if profile is not None:
        profile.plans.append(describe())


@contextmanager
def phase(name: str) -> Iterator[None]:
    """A part of the work, timed within `profiled`."""
    profile, start = _profile.get(), time.perf_counter()
    yield
    if profile is not None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        profile.seconds[name] = profile.seconds.get(name, 0.0) + time.perf_counter() - start
