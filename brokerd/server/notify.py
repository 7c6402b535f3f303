# Tests: tests/test_notify.py
"""Notifies the service supervisor by the protocol of ``sd_notify(3)``.

A notification is one datagram of ``NAME=value`` lines to the UNIX socket in ``NOTIFY_SOCKET``; a
leading ``@`` means Linux's abstract name space. Without the variable every call does nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from twisted.logger import Logger


class Notifier:
    """Sends state lines, for example ``READY=1``, to the supervisor."""

    def __init__(self, environment: Mapping[str, str], log: Logger) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._log = log

    def send(self, *lines: str) -> None:
        """Send the lines in one message; log a failure and continue."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, address)
        except OSError as error:
            self._log.warn(
                "cannot send {lines} to the supervisor at {address}: {error}",
                event_id="notify-failed",
                address=self._address,
                lines=" ".join(lines),
                error=error.strerror or str(error),
            )
