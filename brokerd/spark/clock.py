# Tests: tests/spark/test_source.py
"""The wall clock. A query skips records that have expired by this clock. No pyspark."""

from __future__ import annotations

import time


def now_us() -> int:
    """Return the microseconds since the Unix epoch."""
    return time.time_ns() // 1000
