# Tests: tests/protocols/test_slices.py
"""Turns of the reactor for work that takes long, so that nobody has to wait for it.

It is cut into slices, each of a few milliseconds. Of all the work that shares a `Turns` one slice
runs a turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from brokerd.broker import Clock

SLICE_SECONDS = 0.003
"""A slice goes on in another turn after so long; one step of the work may still be added."""


class Turns:
    """Gives those that have much to do their turns of the reactor, one each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], object]] = deque()

    def take(self, work: Callable[[], object]) -> None:
        """Call ``work`` in a turn that it has for itself."""
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
