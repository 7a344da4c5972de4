"""A cache of recently used values, limited by their total size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """A thread-safe LRU cache; `size` measures a value, `limit` bounds the sum."""

    def __init__(self, limit: int, size: Callable[[V], int] = lambda value: 1) -> None:
        self._limit, self._size, self._lock = limit, size, threading.Lock()
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: V) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            total = sum(map(self._size, self._values.values()))
            while total > self._limit and self._values:
                _, oldest = self._values.popitem(last=False)
                total -= self._size(oldest)

    def __len__(self) -> int:
        return len(self._values)
