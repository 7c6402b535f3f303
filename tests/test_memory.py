"""A test run keeps nothing in memory that its tests are done with."""

from __future__ import annotations

import weakref

import pytest
from twisted.logger import Logger, capturedLogs


class Loud:
    """What says something in the log, which names it as the source."""

    log = Logger()


@pytest.mark.xfail(raises=ZeroDivisionError, strict=True, reason="the next test needs a failed one")
def test_a_test_that_captures_the_log_may_fail() -> None:
    """`capturedLogs` does not remove its observer then. tests/conftest.py does."""
    with capturedLogs():
        raise ZeroDivisionError


def test_what_was_logged_about_is_not_kept() -> None:
    """Though nobody was told, and a test before it failed while it captured the log."""
    loud = Loud()
    loud.log.error("something is wrong", event_id="wrong")
    gone = weakref.ref(loud)
    del loud
    assert gone() is None
