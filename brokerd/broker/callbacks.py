# Tests: tests/broker/test_group_commit.py, tests/broker/test_cold_reader.py
"""Guarded calls of callbacks.

The journal, the readers of log and archive, and the long polls call back many connections in a
loop. A fault in one callback is logged here, and the loop goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.logger import Logger

_log = Logger()


def run_callback(callback: Callable[..., Any], *arguments: object) -> Any:
    """Call ``callback`` and return its result. If it raises, log the exception and return None."""
    try:
        return callback(*arguments)
    except Exception:
        _log.failure(
            "a fault in brokerd: {callback} failed; what waits behind it goes on",
            callback=getattr(callback, "__qualname__", repr(callback)),
            event_id="callback-fault",
        )
        return None
