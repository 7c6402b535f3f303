# Tests: tests/broker/test_light_first.py
"""Lets light requests go first where a step of heavy work would begin.

A reactor turn reads connections, then calls timers. A light request that arrives during a heavy
read would wait for all timers of that turn, each with a step of 1 or 2 ms. So a step that is about
to begin looks whether a light request has arrived, and waits for the next turn then.
"""

from __future__ import annotations

from brokerd.broker.group_commit import GroupCommit


class LightFirst:
    """The precedence of light requests over one kind of heavy work."""

    __slots__ = ("_gave_way", "_group_commit")

    def __init__(self, group_commit: GroupCommit) -> None:
        self._group_commit = group_commit
        self._gave_way = False

    def gives_way(self) -> bool:
        """Return whether the next step should wait for the next reactor turn.

        If not, it begins now, and this method has waited for quick commits of light requests. It
        never returns True twice in a row, so many light requests leave heavy work half of the
        turns.
        """
        self._gave_way = not self._gave_way and self._group_commit.light_arrives()
        if not self._gave_way:
            self._group_commit.answer_light_first()
        return self._gave_way
