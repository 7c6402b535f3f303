# Tests: tests/test_log_limit.py
"""A limit on log lines that unauthenticated peers can cause; the rest is counted.

The writer of such lines calls `LogLimit.allow` first, and starts a new window every
`WINDOW_SECONDS` by its own clock.
"""

from __future__ import annotations

WINDOW_SECONDS = 60.0
PEER_LINES = 3
LISTENER_LINES = 30


class LogLimit:
    """Allows `PEER_LINES` of an address and `LISTENER_LINES` of a listener in a window."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}
        """Peer -> lines written in this window."""
        self._left_out = 0

    def allow(self, peer: str) -> bool:
        """Return whether a line about this peer may be written; count it if not."""
        lines = self._lines.get(peer, 0)
        if lines >= PEER_LINES or sum(self._lines.values()) >= LISTENER_LINES:
            self._left_out += 1
            return False
        self._lines[peer] = lines + 1
        return True

    def reset(self) -> int:
        """Start a new window; return the count of the last one."""
        left_out, self._left_out = self._left_out, 0
        self._lines.clear()
        return left_out
