# Tests: tests/spark/test_source.py
"""The wall clock, by which records are expired for a query. No pyspark."""

from __future__ import annotations

import time


def now_us() -> int:
    """Microseconds since the Unix epoch."""
    return time.time_ns() // 1000
