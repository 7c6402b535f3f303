# Tests: tests/broker/test_light_first.py
"""Lets light requests go first where a step of heavy work would begin.

A reactor turn reads connections, then calls timers. A light request that arrives during a heavy
read would wait for all timers of that turn, each with a step of 1 or 2 ms. So a step that is about
to begin looks whether a light request has arrived. If one has, the step waits for the next turn.
"""

from __future__ import annotations

from typing import Final

from brokerd.broker.clock import Clock
from brokerd.broker.group_commit import GroupCommit

OWED_STEP_SECONDS: Final = 0.001
"""Length of a step, about. For each such time of a wait, one step begins without a look."""

OWED_STEPS_MAX: Final = 100


class LightFirst:
    """The precedence of light requests over one kind of heavy work."""

    __slots__ = ("_clock", "_gave_way_seconds", "_group_commit", "_steps_owed")

    def __init__(self, group_commit: GroupCommit, clock: Clock) -> None:
        self._group_commit = group_commit
        self._clock = clock
        self._gave_way_seconds: float | None = None
        self._steps_owed = 0

    def gives_way(self) -> bool:
        """Return whether the next step should wait for the next reactor turn.

        If not, it begins now, and this method has waited for quick commits of light requests and
        may have answered clients, so it must not be called within a change. Heavy work that waited
        has about that time before it gives way again: the turn of a crowd of light connections is
        long, and heavy work has one step in each.
        """
        if self._gave_way_seconds is not None:
            waited_seconds = self._clock.seconds() - self._gave_way_seconds
            self._steps_owed = min(int(waited_seconds / OWED_STEP_SECONDS), OWED_STEPS_MAX)
            self._gave_way_seconds = None
        elif self._steps_owed:
            self._steps_owed -= 1
        elif self._group_commit.light_arrives():
            self._gave_way_seconds = self._clock.seconds()
            return True
        self._group_commit.answer_light_first()
        return False
