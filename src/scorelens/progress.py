"""Progress bars with a time estimate, for work that takes over two seconds; shown only within `shown()`.

Library code reports with `track` and `steps` (iterations) and `fraction` (progress within a step), shown or not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")
_shown: ContextVar[bool] = ContextVar("progress_shown", default=False)
_on_fraction: ContextVar[Callable[[float], object] | None] = ContextVar("progress_on_fraction", default=None)


def shown() -> AbstractContextManager[None]:
    """Show bars on stderr within this block: the command line does; the library is silent by default."""
    return _set(_shown, True)


def track(items: Iterable[T], label: str, total: int | None = None, unit: str = "it", *, first: int = 0,
          note: Callable[[T], str] | None = None) -> Iterator[T]:
    """The items, with a bar after two seconds. It starts at `first` and shows a note on the latest item."""
    bar = tqdm(items, label, total, unit=unit, initial=first, disable=not _shown.get(), **_options())
    for item in bar:
        if note is not None and not bar.disable:
            bar.set_postfix_str(note(item), refresh=False)
        yield item


def steps(items: Iterable[T], label: str, total: int) -> Iterator[T]:
    """Like `track`, for a few long steps: code within a step moves the bar with `fraction`."""
    if not _shown.get():
        yield from items
        return
    with tqdm(desc=label, total=total, bar_format="{l_bar}{bar}| {n:.2f}/{total} [{elapsed}<{remaining}]",
              **_options()) as bar, watched(lambda done: bar.update(int(bar.n) + done - bar.n)):
        for done, item in enumerate(items, start=1):
            bar.update(done - bar.n)
            yield item


def weighted(items: Sequence[T], label: str, weights: Sequence[float]) -> Iterator[T]:
    """Like `track`, for items of very unequal duration: the estimate uses their weights."""
    with tqdm(desc=label, total=sum(weights), disable=not _shown.get(), **_options(),
              bar_format="{l_bar}{bar}|{postfix} [{elapsed}<{remaining}]") as bar:
        for done, (item, weight) in enumerate(zip(items, weights, strict=True), start=1):
            yield item
            bar.set_postfix_str(f"{done}/{len(items)}", refresh=False)
            bar.update(weight)


def estimated(work: Callable[[], T], label: str, seconds: Callable[[], float]) -> T:
    """work(), which cannot report progress, beside a bar that follows the clock to the estimated time."""
    if not _shown.get():
        return work()
    with ThreadPoolExecutor(1) as pool, tqdm(desc=label, total=1.0, bar_format="{l_bar}{bar}| [{elapsed}<{remaining}]",
                                             **_options()) as bar:
        expected, start = seconds(), time.monotonic()
        result = pool.submit(work)
        while not result.done():
            wait([result], timeout=0.2)
            bar.update(min((time.monotonic() - start) / expected, 0.99) - bar.n)
        return result.result()


def _options() -> dict[str, Any]:
    """Bars appear after two seconds, are cleared at the end, and are rarely written to log files."""
    return {"delay": 2, "leave": False, "mininterval": 0.1 if sys.stderr.isatty() else 15}


def fraction(done: float) -> None:
    """Report that the current step of `steps` is done to this fraction (0 to 1)."""
    callback = _on_fraction.get()
    if callback is not None:
        callback(min(done, 0.999))


def watched(callback: Callable[[float], object]) -> AbstractContextManager[None]:
    """Call `callback` on every `fraction` of this thread; it may cancel the work by raising."""
    return _set(_on_fraction, callback)


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
