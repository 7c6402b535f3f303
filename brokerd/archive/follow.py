# Tests: tests/archive/test_follow.py
"""Runs the job again and again: ``brokerd-rollup --follow`` (docs/rollup.rst, "Following").

Most rounds only ingest what is sealed, in this process. A complete run is due once in a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

RETRY_SECONDS = 300.0
"""The longest wait after failed rounds, unless rounds are rarer. A failed complete run is tried
again after this time, and small rounds go on."""


class Pace(NamedTuple):
    """The times between rounds, in seconds."""

    follow: float
    """From the begin of a round to the begin of the next."""
    maintain: float
    """From a complete run to the next."""


def follow(
    run: Callable[[bool], bool],
    pace: Pace,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Run rounds until an exception ends it. The first round is a complete run.

    :param run: runs a round, a complete one if its argument is false. Returns False if it failed.
    :param clock: a monotonic clock.
    """
    due = clock()
    failures = 0
    while True:
        began = clock()
        is_small = began < due
        succeeded = run(is_small)
        if not is_small:
            due = began + (pace.maintain if succeeded else min(pace.maintain, RETRY_SECONDS))
            succeeded = True  # the next small round tells whether it can go on
        failures = 0 if succeeded else min(failures + 1, 32)
        wait = min(pace.follow * 2**failures, max(pace.follow, RETRY_SECONDS))
        sleep(max(0.0, began + wait - clock()))
