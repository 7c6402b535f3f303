# Tests: tests/test_memory_errors.py
"""Ends the broker after a `MemoryError` that may have left a change incomplete.

Any allocation may fail. Code that expects that, as the allocation of a segment, handles the error.
Every other place logs it: the reactor, a connection, a guarded callback. The observer of this
module looks at these events. A connection that fails before it reaches the broker closes, and
nothing else has changed. After any other `MemoryError` the state in memory may differ from the log,
or a callback is lost, so the broker ends and its next start replays the log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from twisted.logger import ILogObserver, LogEvent
from twisted.python.failure import Failure
from twisted.python.threadable import isInIOThread
from zope.interface import implementer

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STATE = tuple(os.path.join(_PACKAGE, name) + os.sep for name in ("broker", "groups", "wal"))
_CONNECTIONS = os.path.join(_PACKAGE, "protocols") + os.sep
_SOCKET_EVENT = "_doReadOrWrite"
"""Function of Twisted that closes a connection after an error."""


@implementer(ILogObserver)
class MemoryErrorObserver:
    """A log observer that calls ``failed(error)`` in the reactor's thread."""

    def __init__(self, failed: Callable[[MemoryError], None], reactor: Any) -> None:
        self._failed = failed
        self._reactor = reactor

    def __call__(self, event: LogEvent) -> None:
        failure = event.get("log_failure")
        if failure is None or not isinstance(failure.value, MemoryError):
            return
        if closes_one_connection(failure):
            return
        if isInIOThread():
            self._failed(failure.value)
        else:
            self._reactor.callFromThread(self._failed, failure.value)


def closes_one_connection(failure: Failure) -> bool:
    """Return whether an error came from a connection that had not called the broker."""
    is_connection = False
    for path, function in _functions(failure):
        if path.startswith(_STATE):
            return False
        is_connection |= function == _SOCKET_EVENT or path.startswith(_CONNECTIONS)
    return is_connection


def _functions(failure: Failure) -> Iterator[tuple[str, str]]:
    """Yield path and name of the functions in the traceback."""
    traceback = failure.getTracebackObject()
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code.co_filename, code.co_name
        traceback = traceback.tb_next
