# Tests: tests/test_notify.py
"""Notifies the service supervisor by the protocol of ``sd_notify(3)``.

A notification is one datagram of ``NAME=value`` lines to the UNIX socket in ``NOTIFY_SOCKET``; a
leading ``@`` means Linux's abstract name space. Without the variable every call does nothing.

If the supervisor has a watchdog (``WATCHDOG_USEC``), it ends a process that does not send
``WATCHDOG=1`` in this time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from twisted.logger import Logger


class Notifier:
    """Sends state lines, for example ``READY=1``, to the supervisor."""

    def __init__(self, environment: Mapping[str, str], log: Logger) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.watchdog_seconds = _watchdog_seconds(environment) if self._address else 0.0
        """Time of the supervisor's watchdog; 0 without one."""
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


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Return the time of the watchdog for this process, as ``sd_watchdog_enabled(3)``."""
    time_us = environment.get("WATCHDOG_USEC", "")
    is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(time_us) / 1e6 if is_ours and time_us.isdecimal() else 0.0
