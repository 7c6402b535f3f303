"""Durations in buckets."""

from __future__ import annotations

from brokerd.histogram import BOUNDS_SECONDS, Histogram


def test_each_duration_is_in_the_first_bucket_that_is_large_enough() -> None:
    """A bound belongs to its own bucket; the last bucket takes all that is longer."""
    histogram = Histogram()
    for seconds in (0.0, 0.0005, 0.0006, 10.0, 11.0):
        histogram.observe(seconds)
    counts = [0] * (len(BOUNDS_SECONDS) + 1)
    counts[0], counts[1], counts[-2], counts[-1] = 2, 1, 1, 1
    assert histogram.status() == {"counts": counts, "sum": 21.0011}


def test_a_status_does_not_change_later() -> None:
    """Another thread formats it."""
    histogram = Histogram()
    status = histogram.status()
    histogram.observe(1)
    assert sum(status["counts"]) == 0
