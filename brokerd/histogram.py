# Tests: tests/test_histogram.py
"""Counts durations by buckets, for the metrics. An observation costs a search of ten bounds."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

BOUNDS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0)
"""Upper bounds of the buckets; the last bucket has none."""


class Histogram:
    """Durations by bucket, and their sum."""

    __slots__ = ("counts", "sum_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds

    def status(self) -> dict[str, Any]:
        """Return the counts by bucket and the sum, in values that JSON can hold."""
        return {"counts": list(self.counts), "sum": round(self.sum_seconds, 6)}
