# Tests: tests/test_memory.py
"""Observers of Twisted's log that a test leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from twisted.logger import globalLogPublisher


@contextmanager
def removed_observers() -> Iterator[None]:
    """Remove the observers of the log that a block leaves when it raises.

    `capturedLogs` leaves its own. It would keep all later events, and every object that these
    mention.
    """
    before = [*globalLogPublisher._observers]
    try:
        yield
    except BaseException:
        for observer in [*globalLogPublisher._observers]:
            if observer not in before:
                globalLogPublisher.removeObserver(observer)
        raise
