"""Progress bars with an estimate, on anything over two seconds; silent unless a command asked for them.

A command opens `bar`; whatever runs inside reports with `track` (an iteration) or `fraction` (how far the current
step has come), and neither knows nor cares whether anyone is looking.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")
_shown: ContextVar[bool] = ContextVar("progress_shown", default=False)
_steps: ContextVar[tqdm | _Watch | None] = ContextVar("progress_steps", default=None)


@contextmanager
def shown() -> Iterator[None]:
    """Show bars on stderr within this block (the command line does; the library alone stays quiet)."""
    token = _shown.set(True)
    try:
        yield
    finally:
        _shown.reset(token)


def track(items: Iterable[T], label: str, total: int | None = None, unit: str = "it", *, first: int = 0,
          note: Callable[[T], str] | None = None) -> Iterator[T]:
    """The items, with a bar once they have taken two seconds: from `first`, and with a note on the latest item."""
    bar = tqdm(items, label, total, unit=unit, initial=first, disable=not _shown.get(), **_manners())
    for item in bar:
        if note is not None and not bar.disable:
            bar.set_postfix_str(note(item), refresh=False)
        yield item


def steps(items: Iterable[T], label: str, total: int) -> Iterator[T]:
    """Like `track` for a few long steps: what runs inside one moves the bar with `fraction`."""
    if not _shown.get():
        yield from items
        return
    with tqdm(desc=label, total=total, bar_format="{l_bar}{bar}| {n:.2f}/{total} [{elapsed}<{remaining}]",
              **_manners()) as bar:
        token = _steps.set(bar)
        try:
            for done, item in enumerate(items, start=1):
                bar.update(done - bar.n)
                yield item
        finally:
            _steps.reset(token)


def weighted(items: Sequence[T], label: str, weights: Sequence[float]) -> Iterator[T]:
    """Like `track` for items of very unequal length: the estimate goes by their weights."""
    with tqdm(desc=label, total=sum(weights), disable=not _shown.get(), **_manners(),
              bar_format="{l_bar}{bar}|{postfix} [{elapsed}<{remaining}]") as bar:
        for done, (item, weight) in enumerate(zip(items, weights, strict=True), start=1):
            yield item
            bar.set_postfix_str(f"{done}/{len(items)}", refresh=False)
            bar.update(weight)


def _manners() -> dict[str, Any]:
    """Nothing in the first two seconds, nothing left behind, and a log file is not filled with it."""
    return {"delay": 2, "leave": False, "mininterval": 0.1 if sys.stderr.isatty() else 15}


def fraction(done: float) -> None:
    """The current step of `steps` is this far (0 to 1)."""
    bar = _steps.get()
    if bar is not None:
        bar.update(int(bar.n) + min(done, 0.999) - bar.n)


class _Watch:
    """Stands where a bar would."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        self.n, self._tell = 0.0, tell

    def update(self, more: float) -> None:
        self.n += more
        self._tell(self.n)


@contextmanager
def watched(tell: Callable[[float], None]) -> Iterator[None]:
    """`tell` hears every `fraction` of this thread, and may end the work by raising."""
    token = _steps.set(_Watch(tell))
    try:
        yield
    finally:
        _steps.reset(token)
