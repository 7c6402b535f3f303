# Tests: tests/test_certificate_log.py
"""A log and a counter of valid client certificates that match no account.

Without the log line an operator cannot see why a client is anonymous. `brokerd.server.log_limit`
limits the lines; the counter has all.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from brokerd.errors import escaped
from brokerd.server.log_limit import WINDOW_SECONDS, LogLimit

SUBJECT_MAX = 200
"""Characters of a subject in the log."""


class CertificateLog:
    """Logs such certificates of all listeners.

    :param seconds: a monotonic clock.
    """

    _log = Logger(namespace="brokerd")

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.count = 0
        """Number of such certificates."""
        self._seconds = seconds
        self._ends = 0.0
        self._limits: dict[str, LogLimit] = {}

    def add(self, wire_format: str, peer: str, subject: str, reason: str) -> None:
        """Log and count a connection whose certificate matches no account."""
        self.count += 1
        now = self._seconds()
        if now >= self._ends:
            self._ends = now + WINDOW_SECONDS
            self._limits.clear()
        if self._limits.setdefault(wire_format, LogLimit()).allow(peer):
            self._log.warn(
                "{listener}: the certificate of {peer}, {subject}, gives no access: {reason}",
                listener=wire_format,
                peer=peer,
                subject=escaped(subject[:SUBJECT_MAX]) or "without a subject",
                reason=escaped(reason),
                event_id="certificate-refused",
            )
