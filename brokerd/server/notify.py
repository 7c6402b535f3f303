# Tests: tests/test_notify.py
"""Tells the service supervisor how far the broker is, by the protocol of ``sd_notify(3)``.

One datagram of ``NAME=value`` lines to the UNIX socket that ``NOTIFY_SOCKET`` names; a leading
``@`` is Linux's abstract name space. Without the variable every call does nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from twisted.logger import Logger


class Notifier:
    """Sends state lines such as ``READY=1`` to the supervisor named by the environment."""

    def __init__(self, environment: Mapping[str, str], log: Logger) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._log = log

    def send(self, *lines: str) -> None:
        """Send the lines in one message; a supervisor that is gone is logged, never fatal."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, address)
        except OSError as error:
            self._log.warn(
                "the supervisor at {address} was not told {lines}: {error}",
                event_id="notify-failed",
                address=self._address,
                lines=" ".join(lines),
                error=error.strerror or str(error),
            )
