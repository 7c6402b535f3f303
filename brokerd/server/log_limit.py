# Tests: tests/test_log_limit.py
"""Lines of the log that strangers can cause, and not without end: so many for each, then a count.

Whoever writes such lines asks `LogLimit.allow` first, and begins a new window of `WINDOW_SECONDS`
by the clock that it has.
"""

from __future__ import annotations

WINDOW_SECONDS = 60.0
PEER_LINES = 3
LISTENER_LINES = 30


class LogLimit:
    """No more than `PEER_LINES` of one address and `LISTENER_LINES` of one listener in a window."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}
        """How many lines were written, by peer."""
        self._left_out = 0

    def allow(self, peer: str) -> bool:
        """Whether a line about this peer may be written; if not, it is counted."""
        lines = self._lines.get(peer, 0)
        if lines >= PEER_LINES or sum(self._lines.values()) >= LISTENER_LINES:
            self._left_out += 1
            return False
        self._lines[peer] = lines + 1
        return True

    def reset(self) -> int:
        """Begin another window; how many lines were left out of the one before."""
        left_out, self._left_out = self._left_out, 0
        self._lines.clear()
        return left_out
