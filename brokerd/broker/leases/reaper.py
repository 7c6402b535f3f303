# Tests: tests/test_garbage.py
"""Frees the groups of deleted topics, and the tables of deleted groups, in short slices of turns.

A group with a million leases took 0.15 s in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from brokerd.broker.clock import Clock, Timer
from brokerd.broker.model.topics import ConsumerGroup

SLICE_SECONDS = 0.002
"""The longest slice of one reactor turn."""

CLOCK_INTERVAL = 64
"""Groups freed between two reads of the clock."""

CLOCK_ENTRIES = 1_000
"""Entries of a table freed between two reads of the clock."""


class GroupReaper:
    """Frees groups. 100,000 groups take about a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.gives_way: Callable[[], bool] = lambda: False
        """Called before the slice of a timer: whether it waits for the next turn. It may answer
        clients, so it must not be called within a change."""
        self._groups: list[ConsumerGroup] = []
        self._tables: list[Any] = []
        self._call: Timer | None = None

    def free(self, tables: list[Any]) -> None:
        """Empty and free dicts, sets and lists that nobody else changes, from a later turn on."""
        self._tables += tables
        if self._call is None:
            self._call = self._clock.callLater(0, self._go_on)

    def dispose(self, groups: Iterable[ConsumerGroup]) -> None:
        """Free the groups of a deleted topic. The first slice runs now."""
        self._groups += groups
        if self._call is None:
            self._free_slice()

    def stop(self) -> None:
        """Stop freeing. The end of the process frees the others."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _go_on(self) -> None:
        self._call = None
        if self.gives_way():
            self._call = self._clock.callLater(0, self._go_on)
        else:
            self._free_slice()

    def _free_slice(self) -> None:
        """Free groups for one slice, and schedule the next one if groups are left.

        A step is made although the slice may be over before it: the process may wait for a
        processor.
        """
        until = self._clock.seconds() + SLICE_SECONDS
        groups, tables = self._groups, self._tables
        while tables or groups:
            if tables:
                if not _free_some(tables[-1]):
                    tables.pop()
            else:
                for group in islice(reversed(groups), CLOCK_INTERVAL):
                    group.dispose()
                del group, groups[-CLOCK_INTERVAL:]
            if self._clock.seconds() >= until:
                break
        if (groups or tables) and self._call is None:
            self._call = self._clock.callLater(0, self._go_on)


def _free_some(table: Any) -> bool:
    """Remove some entries; return whether others are left. A small table is left as it is."""
    if len(table) <= CLOCK_ENTRIES:
        return False
    if type(table) is list:
        del table[-CLOCK_ENTRIES:]
        return True
    if type(table) is dict:
        remove = table.popitem
    elif type(table) is set:
        remove = table.pop
    else:
        return False  # a snapshot shares it
    for _ in range(CLOCK_ENTRIES):
        remove()
    return True
