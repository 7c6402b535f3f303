# Tests: tests/test_logs.py
"""The operator's log: one event per line, as text or JSON.

Events for operators have a stable ``event_id`` and their facts as fields; docs/monitoring.rst lists
them. No event has a payload. Control characters are escaped, so that a client's name cannot forge a
line. Times are wall clock time in UTC. Lines to journald begin with their priority.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TextIO

from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    ILogObserver,
    LogEvent,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    formatEvent,
)
from twisted.python.logfile import LogFile

from brokerd.errors import error_text
from brokerd.server.journald import is_journal, journald_lines
from brokerd.server.sections import Log

_FACTS = (str, int, float, bool, type(None))

NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})


def make_observer(
    file: TextIO, log_format: str, level: str, environment: Mapping[str, str] = NO_ENVIRONMENT
) -> ILogObserver:
    """Make the observer that writes events of at least this level to the file.

    :param log_format: ``text`` or ``json``.
    :param environment: tells whether journald reads the file; see `is_journal`.
    """
    predicate = LogLevelFilterPredicate(LogLevel.levelWithName(level))
    return FilteringLogObserver(file_observer(file, log_format, environment), [predicate])


def file_observer(
    file: TextIO, log_format: str, environment: Mapping[str, str] = NO_ENVIRONMENT
) -> ILogObserver:
    """Make the observer that writes events of all levels to the file, as `make_observer`."""
    formats: dict[str, Callable[[LogEvent], str]] = {"text": text_line, "json": json_line}
    lines = formats[log_format]
    if is_journal(file, environment):
        lines = journald_lines(lines)
    return FileLogObserver(file, lines)


class OperatorLogFile(LogFile):
    """A log file that goes on with the old file if a rotation fails, for example on a full disk.

    Twisted's own would be closed then, and lose all later lines. This class uses ``_openFile`` and
    ``size``, which are not documented.
    """

    problem = ""
    """Why the last rotation failed, or ""."""

    def rotate(self) -> None:
        """Begin a new file. If that fails, go on with the old one, for as many bytes again."""
        self.problem = ""
        if not os.access(self.directory, os.W_OK):  # Twisted's own does nothing then
            self.problem = f"{self.directory}: {os.strerror(errno.EACCES)}"
            self.size = 0
            return
        try:
            super().rotate()
        except OSError as error:
            self.problem = error_text(error)
            first = f"{self.path}.1"
            if not os.path.exists(self.path) and os.path.exists(first):
                os.rename(first, self.path)
            self._openFile()
            self.size = 0


class OperatorLog:
    """The observer of the operator's log, whose level can change, and its file.

    :param observer: writes events of all levels.
    :param file: the log file, None for stdout and syslog.
    """

    _log = Logger(namespace="brokerd")

    def __init__(
        self, observer: ILogObserver, config: Log, file: OperatorLogFile | None = None
    ) -> None:
        self._predicate = LogLevelFilterPredicate()
        self._file = file
        self.observer: ILogObserver = FilteringLogObserver(observer, [self._predicate])
        self.configure(config)

    def configure(self, config: Log) -> None:
        """Use another level, and another size of the log file."""
        self._predicate.defaultLogLevel = LogLevel.levelWithName(config.level)
        self._predicate.clearLogLevels()
        if self._file is not None:
            self._file.rotateLength = config.rotate_bytes

    def reopen(self) -> None:
        """Open the log file again, because another program may have moved it."""
        if self._file is None:
            return
        try:
            with open(self._file.path, "ab"):
                pass  # without the file, the earlier one stays open
            self._file.reopen()
        except OSError as error:
            self._log.error(
                "cannot open the log file {path} again: {reason}",
                event_id="log-not-reopened",
                path=self._file.path,
                reason=error.strerror,
            )

    def rotate(self) -> None:
        """Begin a new log file; the present one gets a number."""
        if self._file is None:
            return
        self._file.rotate()
        if self._file.problem:
            self._log.error(
                "cannot begin another log file {path}: {reason}; the present one stays in use",
                event_id="log-not-rotated",
                path=self._file.path,
                reason=self._file.problem,
            )


def text_line(event: LogEvent) -> str:
    """Write an event as ``time level [event_id] message``, any traceback below it."""
    event_id = event.get("event_id")
    label = f" [{event_id}]" if event_id else ""
    line = f"{_time(event)} {_level(event):<8}{label} {_message(event)}\n"
    return line + _traceback(event)


def json_line(event: LogEvent) -> str:
    """Write an event as one JSON object: time, level, event, message, then its facts."""
    fields: dict[str, Any] = {
        "time": _time(event),
        "level": _level(event),
        "event": event.get("event_id"),
        "message": _message(event),
    }
    if fields["event"]:
        for name, value in event.items():
            if not name.startswith("log_") and name != "event_id" and isinstance(value, _FACTS):
                fields.setdefault(name, value)
    trace = _traceback(event)
    if trace:
        fields["traceback"] = trace
    return json.dumps(fields, ensure_ascii=False) + "\n"


def _time(event: LogEvent) -> str:
    moment = datetime.fromtimestamp(event.get("log_time", 0), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _level(event: LogEvent) -> str:
    level = event.get("log_level", LogLevel.info)
    return str(level.name)


def _message(event: LogEvent) -> str:
    text = formatEvent(event)
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _traceback(event: LogEvent) -> str:
    failure = event.get("log_failure")
    return str(failure.getTraceback()) if failure is not None else ""
