# Tests: tests/test_logs.py
"""The operator's log: one event per line, as text or JSON.

Events for operators have a stable ``event_id`` and their facts as fields; docs/monitoring.rst lists
them. No event has a payload. Control characters are escaped, so that a client's name cannot forge a
line. Times are wall clock time in UTC. Lines to journald begin with their priority.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TextIO

from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    ILogObserver,
    LogEvent,
    LogLevel,
    LogLevelFilterPredicate,
    formatEvent,
)

from brokerd.server.journald import is_journal, journald_lines

_FACTS = (str, int, float, bool, type(None))

NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})


def make_observer(
    file: TextIO, log_format: str, level: str, environment: Mapping[str, str] = NO_ENVIRONMENT
) -> ILogObserver:
    """Make the observer that writes events of at least this level to the file.

    :param log_format: ``text`` or ``json``.
    :param environment: tells whether journald reads the file; see `is_journal`.
    """
    formats: dict[str, Callable[[LogEvent], str]] = {"text": text_line, "json": json_line}
    lines = formats[log_format]
    if is_journal(file, environment):
        lines = journald_lines(lines)
    return at_level(FileLogObserver(file, lines), level)


def at_level(observer: ILogObserver, level: str) -> ILogObserver:
    """Let only events of at least this level through to an observer."""
    predicate = LogLevelFilterPredicate(LogLevel.levelWithName(level))
    return FilteringLogObserver(observer, [predicate])


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
