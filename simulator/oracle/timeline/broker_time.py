# Tests: tests/simulator/test_oracle_changes.py
"""Bounds of the broker time that removal uses, after docs/broker.rst.

This is broker time as far as the wall clock was trusted: it ran steadily for the grace, or a start
found it at most an hour past the log, or an operator set
broker time to it.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import NamedTuple

from simulator.history.operations import History, SetClock
from simulator.oracle.timeline.spans import EVER_US, Lives, Span

START_GAP_US = 3_600 * 1_000_000
NOTICE_US = 1_000_000
"""The greatest difference between a measured time and the broker's."""


class _Bound(NamedTuple):
    """From ``at_us`` on, broker time is at most ``fast_us`` ahead of the world."""

    at_us: int
    fast_us: int


class BrokerTime:
    """Moments of the world at which waits in broker time end."""

    def __init__(self, history: History, lives: Lives) -> None:
        self._tolerance_us, self._grace_us = history.clock
        self._are_steps_known = history.clock_steps is not None
        steps = sorted(history.clock_steps or ())
        self._step_times = [step.at_us for step in steps]
        self._offsets = list(accumulate(step.step_us for step in steps))
        """How far the wall clock is from the time of the world after each step."""
        self._follows = (
            self._are_steps_known
            and all(step.step_us >= 0 for step in steps)
            and sum(step.step_us for step in steps) < self._tolerance_us - NOTICE_US
        )
        """Whether the time for removal is the wall clock all the time."""
        starts = [(each.ended_us, each.ready_us) for each in lives.crossings]
        sets = [lives.span(op) for op in history.operations if isinstance(op, SetClock)]
        bounds = self._fast(starts, sets)
        ends = [bound.at_us for bound in bounds[1:]] + [EVER_US]
        self._bounds = [(*bound, end_us) for bound, end_us in zip(bounds, ends, strict=True)]
        """Each bound, and where the next one begins."""
        self._slowest = list(accumulate([0, *self._offsets], min))
        """The least offset up to each step."""

    def earliest_us(self, begun_us: int, wait_us: int) -> int:
        """Return the first moment at which a wait from ``begun_us`` may have ended."""
        if wait_us >= EVER_US or not self._are_steps_known:
            return EVER_US if wait_us >= EVER_US else begun_us
        slow_us = self._slowest[bisect_right(self._step_times, begun_us)]
        for at_us, fast_us, end_us in self._bounds:
            over_us = max(begun_us, at_us, begun_us + wait_us + slow_us - fast_us)
            if over_us < end_us:
                return over_us
        return EVER_US

    def latest_us(self, begun_us: int, wait_us: int) -> int:
        """Return the last moment at which a wait from ``begun_us`` may still go on."""
        return min(begun_us + wait_us, EVER_US) if self._follows else EVER_US

    @property
    def may_go_back(self) -> bool:
        """Whether the time for removal may go back, so that expired records are there again."""
        return not self._are_steps_known or any(
            after < before for before, after in pairwise([0, *self._offsets])
        )

    def _offsets_during(self, first_us: int, last_us: int) -> list[int]:
        """Return the offsets of the wall clock during a span."""
        before = [0, *self._offsets]
        since = [-1, *self._step_times]
        until = [*self._step_times, EVER_US]
        return [
            offset
            for offset, begun_us, ended_us in zip(before, since, until, strict=True)
            if begun_us <= last_us and ended_us >= first_us
        ]

    def _fast(self, starts: list[tuple[int, int]], sets: list[Span]) -> list[_Bound]:
        """Return the bounds of broker time; the first holds from the beginning."""
        changes: list[tuple[int, int, int]] = []
        """When an offset may be trusted, the offset, and how far it may exceed the trusted one."""
        for index, offset in enumerate(self._offsets):
            changes.append((self._step_times[index], offset, self._tolerance_us))
            near = 2 * self._tolerance_us
            first = index
            while first > 0 and abs(self._offsets[first - 1] - offset) <= near:
                first -= 1
            held_us = self._step_times[first] + self._grace_us - NOTICE_US
            end_us = [*self._step_times, EVER_US][index + 1]
            if held_us < end_us:
                changes.append((max(held_us, self._step_times[index]), offset, EVER_US))
        for ended_us, ready_us in starts:
            for offset in self._offsets_during(ended_us, ready_us):
                changes.append((ended_us, offset, START_GAP_US + NOTICE_US))
        for span in sets:
            for offset in self._offsets_during(*span):
                changes.append((span.first_us, offset, EVER_US))
        bounds, trusted_us, highest_us = [_Bound(0, 0)], 0, 0
        for at_us, offset, gap_us in sorted(changes):
            highest_us = max(highest_us, offset)
            if offset - trusted_us <= gap_us:
                trusted_us = max(trusted_us, offset)
            bounds.append(_Bound(at_us, min(highest_us, trusted_us + self._tolerance_us)))
        return bounds
