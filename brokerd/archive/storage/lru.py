# Tests: tests/archive/test_lru.py
"""A cache with a limit of values and a limit of bytes, safe for threads.

`cachetools.LRUCache` has only one limit and no lock, and refuses a value that is larger than the
cache.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """Keeps the values used last: at most ``limit`` and ``limit_bytes``, or one larger value.

    An evicted value exists as long as other objects refer to it.
    """

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """Return the value of a key, or None if it is not cached."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def all_keys(self) -> list[Hashable]:
        """Return the keys of all values."""
        with self._lock:
            return [*self._values]

    def drop(self, keys: Iterable[Hashable]) -> None:
        """Evict the values of some keys."""
        with self._lock:
            for key in keys:
                _, size = self._values.pop(key, (None, 0))
                self.used_bytes -= size

    def put(self, key: Hashable, value: Value, size: int) -> None:
        """Cache a value of ``size`` bytes, and evict older values."""
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = value, size
            self.used_bytes += size - before
            while len(self._values) > 1 and (
                len(self._values) > self._limit or self.used_bytes > self._limit_bytes
            ):
                _, (_, evicted) = self._values.popitem(last=False)
                self.used_bytes -= evicted
