# Tests: tests/broker/test_journal.py, tests/broker/test_cold_reader.py
"""The report of a callback that failed.

The journal, the cold reader and the waiters call back many connections in a loop. A fault in one
callback must not stop the loop: they catch it, report it here, and go on.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

_log = Logger()


def report_fault(callback: Callable[..., object]) -> None:
    """Log the exception in hand with its traceback, as a fault of ``callback``."""
    _log.failure(
        "a fault in brokerd: {callback} failed; what waits behind it goes on",
        callback=getattr(callback, "__qualname__", repr(callback)),
        event_id="callback-fault",
    )
