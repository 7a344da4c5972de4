"""Threads that take whole pieces of the work, and meet once at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """The results in order, by as many threads as torch uses, each of which works alone and without gradients."""
    threads = torch.get_num_threads()

    def alone(item: Item) -> Result:
        with torch.no_grad():
            return work(item)

    with ThreadPoolExecutor(min(threads, len(items)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield from pool.map(alone, items)
        finally:
            torch.set_num_threads(threads)  # which threads that start later take over
