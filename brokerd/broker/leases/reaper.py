# Tests: tests/test_garbage.py
"""Frees the groups of deleted topics, in short slices of reactor turns."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from brokerd.broker.clock import Clock, Timer
from brokerd.broker.model.topics import ConsumerGroup

SLICE_SECONDS = 0.005
"""The longest slice of one reactor turn."""

CLOCK_INTERVAL = 64
"""Groups freed between two reads of the clock."""


class GroupReaper:
    """Frees groups. 100,000 groups take about a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: list[ConsumerGroup] = []
        self._call: Timer | None = None

    def dispose(self, groups: Iterable[ConsumerGroup]) -> None:
        """Free the groups of a deleted topic. The first slice runs now."""
        self._groups += groups
        if self._call is None:
            self._go_on()

    def stop(self) -> None:
        """Stop freeing. The end of the process frees the others."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _go_on(self) -> None:
        """Free groups for one slice, and schedule the next one if groups are left."""
        self._call = None
        until = self._clock.seconds() + SLICE_SECONDS
        groups = self._groups
        while groups and self._clock.seconds() < until:
            for group in islice(reversed(groups), CLOCK_INTERVAL):
                group.dispose()
            del group, groups[-CLOCK_INTERVAL:]
        if groups:
            self._call = self._clock.callLater(0, self._go_on)
