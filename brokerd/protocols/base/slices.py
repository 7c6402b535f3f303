# Tests: tests/protocols/test_slices.py
"""Cooperative slices: long work is cut into pieces of a few milliseconds, one per reactor turn.

Twisted's ``task.Cooperator`` gives each of many tasks a share of every turn, so the turn grows with
the number of tasks. A `SliceQueue` runs one slice a turn, however many tasks wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from brokerd.broker import Clock

SLICE_SECONDS = 0.003
"""Length of a slice. It ends after the step of work during which this time runs out."""


class SliceQueue:
    """Runs the slices of one listener in order of arrival, one per reactor turn."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], object]] = deque()

    def add(self, work: Callable[[], object]) -> None:
        """Call ``work`` in a later reactor turn, after the slices that wait already."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            self._clock.callLater(0, self._next)

    def _next(self) -> None:
        work = self._waiting[0]
        try:
            work()
        finally:
            self._waiting.popleft()
            if self._waiting:
                self._clock.callLater(0, self._next)
