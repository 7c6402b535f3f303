# Tests: tests/test_journald.py
"""Priorities of log lines for journald, so that ``journalctl -p err`` finds errors.

A line that begins with ``<N>`` has the syslog priority N in systemd's journal (sd-daemon(3)).
systemd sets ``JOURNAL_STREAM`` to the device and the inode of the stream that it connects to
journald (systemd.exec(5)). Lines to another stream have no prefix.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from twisted.logger import LogEvent, LogLevel

ERROR = 3
"""LOG_ERR of syslog(3)."""
WARNING = 4
"""LOG_WARNING of syslog(3)."""

PRIORITIES = {
    LogLevel.critical: 2,
    LogLevel.error: ERROR,
    LogLevel.warn: WARNING,
    LogLevel.info: 6,
    LogLevel.debug: 7,
}
"""Level of a log event -> priority of syslog(3)."""


def is_journal(stream: Any, environment: Mapping[str, str]) -> bool:
    """Return whether journald reads a stream, such as stdout or stderr."""
    try:
        status = os.fstat(stream.fileno())
    except (AttributeError, OSError, ValueError):  # no stream, closed, or not a file
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def journald_lines(format_event: Callable[[LogEvent], str]) -> Callable[[LogEvent], str]:
    """Return a formatter that puts the priority of an event before each of its lines."""

    def lines(event: LogEvent) -> str:
        priority = PRIORITIES[event.get("log_level", LogLevel.info)]
        text = format_event(event).removesuffix("\n")
        return "".join(f"<{priority}>{line}\n" for line in text.split("\n"))

    return lines
