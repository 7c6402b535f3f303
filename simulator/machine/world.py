# Tests: tests/simulator/test_world.py
"""Simulated time and chance: one queue of events, one random source for each purpose.

Everything in a run is an event of this queue, so a run is a function of its seed. Time is integer
microseconds and advances when no event is left for the current moment.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import ceil


class Event:
    """An event at a time; also the result of ``callLater`` of a reactor."""

    __slots__ = ("_arguments", "_function", "at_us", "done")

    def __init__(
        self, at_us: int, function: Callable[..., object], arguments: tuple[object, ...]
    ) -> None:
        self.at_us = at_us
        self._function = function
        self._arguments = arguments
        self.done = False

    def cancel(self) -> None:
        """Cancel the event. A past event does not change."""
        self.done = True

    def active(self) -> bool:
        return not self.done

    def getTime(self) -> float:
        return self.at_us / 1_000_000

    def happen(self) -> None:
        if not self.done:
            self.done = True
            self._function(*self._arguments)


class World:
    """The clock of the simulated world and its event queue."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_us = 0
        self.events = 0
        """Number of past events."""
        self.lines: list[str] = []
        """The trace, as lines of text."""
        self._due: list[tuple[int, int, Event]] = []
        self._numbers = count()

    def chance(self, purpose: str) -> random.Random:
        """Return a random source for one purpose, independent of the others."""
        return random.Random(f"{self.seed}/{purpose}")  # str seeds go through sha512, not hash()

    def call_at(self, at_us: int, function: Callable[..., object], *arguments: object) -> Event:
        """Call a function at a time, or now if that time is past."""
        if at_us < self.now_us:
            at_us = self.now_us
        event = Event(at_us, function, arguments)
        heappush(self._due, (at_us, next(self._numbers), event))
        return event

    def call_after(self, us: int, function: Callable[..., object], *arguments: object) -> Event:
        """Call a function after ``us`` microseconds."""
        return self.call_at(self.now_us + us, function, *arguments)

    def call_later(
        self, seconds: float, function: Callable[..., object], *arguments: object
    ) -> Event:
        """Call a function after ``seconds``, never early."""
        return self.call_at(self.now_us + ceil(seconds * 1_000_000), function, *arguments)

    def step(self) -> bool:
        """Run the next event. Return False if none is left."""
        while self._due:
            at_us, _, event = heappop(self._due)
            if event.done:
                continue
            self.now_us = at_us
            self.events += 1
            event.happen()
            return True
        return False

    def trace(self, text: str) -> None:
        """Add a line to the trace."""
        self.lines.append(f"{self.now_us / 1_000_000:12.6f}  {text}")

    def digest(self) -> str:
        """Return a hash of the trace."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()
