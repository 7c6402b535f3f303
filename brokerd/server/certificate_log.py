# Tests: tests/test_certificate_log.py
"""Certificates that are valid and let nobody in: a line of the log each, and a count.

Without a line nobody finds out why a client is anonymous. There are no more of them than
`brokerd.server.log_limit` has; all are counted.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from brokerd.errors import escaped
from brokerd.server.log_limit import WINDOW_SECONDS, LogLimit

SUBJECT_MAX = 200
"""Of a subject so many characters are told."""


class CertificateLog:
    """Tells of certificates that let nobody in, of all listeners.

    :param seconds: a monotonic clock.
    """

    _log = Logger(namespace="brokerd")

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.count = 0
        """How many there were."""
        self._seconds = seconds
        self._ends = 0.0
        self._limits: dict[str, LogLimit] = {}

    def tell(self, form: str, peer: str, subject: str, reason: str) -> None:
        """Whoever showed this certificate is not let in by it."""
        self.count += 1
        now = self._seconds()
        if now >= self._ends:
            self._ends = now + WINDOW_SECONDS
            self._limits.clear()
        if self._limits.setdefault(form, LogLimit()).allow(peer):
            self._log.warn(
                "{listener}: the certificate of {peer}, {subject}, lets nobody in: {reason}",
                listener=form,
                peer=peer,
                subject=escaped(subject[:SUBJECT_MAX]) or "without a subject",
                reason=escaped(reason),
                event_id="certificate-refused",
            )
