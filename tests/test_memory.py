"""A test run keeps nothing in memory that its tests are done with."""

from __future__ import annotations

import weakref
from contextlib import suppress

from twisted.logger import Logger, capturedLogs

from tests.observers import removed_observers


class Loud:
    """What says something in the log, which names it as the source."""

    log = Logger()


def test_what_was_logged_about_is_not_kept() -> None:
    """Though nobody was told, and a block raised while it captured the log."""
    with suppress(ZeroDivisionError), removed_observers(), capturedLogs():
        raise ZeroDivisionError
    loud = Loud()
    loud.log.error("something is wrong", event_id="wrong")
    gone = weakref.ref(loud)
    del loud
    assert gone() is None
