# Tests: tests/admin/test_access_log.py
"""One log line for each request to the admin site, with a limit.

The log has at most `LINES` lines in `WINDOW_SECONDS` for refused requests and for requests without
a login. Further ones are counted, and the count is logged at the end of the window.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.web import http

from brokerd.security import Access

WINDOW_SECONDS = 60.0
LINES = 60
SHOWN_MAX = 200
"""Characters of a path in the log."""


class AccessLog:
    """Writes the lines.

    :param clock: a reactor, for the window; the log has its own time.
    """

    def __init__(self, log: Logger, clock: Any) -> None:
        self._log = log
        self._clock = clock
        self._lines = 0
        self._left_out = 0
        self._window: IDelayedCall | None = None

    def add(self, request: Any, access: Access | None) -> None:
        """Log an answered request; ``access`` is its authenticated sender, or None."""
        is_known = access is not None and access.is_known
        if (request.code < http.BAD_REQUEST and is_known) or self._has_room():
            self._write(request)

    def _has_room(self) -> bool:
        if self._window is None:
            self._window = self._clock.callLater(WINDOW_SECONDS, self.end)
        if self._lines >= LINES:
            self._left_out += 1
            return False
        self._lines += 1
        return True

    def end(self) -> None:
        """Start a new window and log the count of the last one."""
        if self._window is not None and self._window.active():
            self._window.cancel()
        if self._left_out:
            self._log.info(
                "{count} more requests that were refused or had no login",
                event_id="admin-requests-more",
                count=self._left_out,
            )
        self._window = None
        self._lines = self._left_out = 0

    def _write(self, request: Any) -> None:
        self._log.info(
            '{client} "{method} {path} {protocol}" {code} {sent_bytes}',
            event_id="admin-request",
            client=getattr(request.client, "host", None) or "-",
            method=_text(request.method),
            path=_text(request.uri),
            protocol=_text(request.clientproto),
            code=request.code,
            sent_bytes=request.sentLength,
        )


def _text(raw: bytes) -> str:
    text = raw[: SHOWN_MAX + 1].decode("ascii", "backslashreplace")
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
