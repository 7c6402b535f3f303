# Tests: tests/test_garbage.py
"""Groups of deleted topics are let go of beside other work, in slices of a turn."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from brokerd.broker.journal import Clock, DelayedCall
from brokerd.broker.model.topics import ConsumerGroup

SLICE_SECONDS = 0.005
"""How long one turn goes on with it."""

LOOKS = 64
"""Groups between two looks at the clock."""


class GroupReaper:
    """Frees groups, 100,000 of which take about a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: list[ConsumerGroup] = []
        self._call: DelayedCall | None = None

    def dispose(self, groups: Iterable[ConsumerGroup]) -> None:
        """Free these, of a topic that is deleted; the first of them now."""
        self._groups += groups
        if self._call is None:
            self._go_on()

    def stop(self) -> None:
        """Leave the others to the end of the process."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _go_on(self) -> None:
        self._call = None
        until = self._clock.seconds() + SLICE_SECONDS
        groups = self._groups
        while groups and self._clock.seconds() < until:
            for group in islice(reversed(groups), LOOKS):
                group.dispose()
            del group, groups[-LOOKS:]
        if groups:
            self._call = self._clock.callLater(0, self._go_on)
