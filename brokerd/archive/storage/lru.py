# Tests: tests/archive/test_lru.py
"""What was used last, up to some number and some size: a cache for any number of threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """Keeps at most ``limit`` values of ``limit_bytes`` together, or one that is larger.

    What is forgotten here lives on as long as somebody uses it.
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
        """What was put here under the key, if it is still here."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Value, size: int) -> None:
        """Keep a value that takes ``size`` bytes, and forget others for it."""
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = value, size
            self.used_bytes += size - before
            while len(self._values) > 1 and (
                len(self._values) > self._limit or self.used_bytes > self._limit_bytes
            ):
                _, (_, gone) = self._values.popitem(last=False)
                self.used_bytes -= gone
