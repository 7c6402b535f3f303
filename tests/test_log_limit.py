"""Strangers write only so much into the log, and hide nobody else's lines by it."""

from __future__ import annotations

from brokerd.server.log_limit import LISTENER_LINES, PEER_LINES, LogLimit


def test_of_one_address_a_few_lines_are_written_and_the_others_counted() -> None:
    limit = LogLimit()
    assert [limit.allow("one") for _ in range(PEER_LINES + 2)] == [True] * PEER_LINES + [False] * 2
    assert limit.allow("another")
    assert limit.reset() == 2
    assert limit.allow("one")
    assert limit.reset() == 0


def test_of_all_addresses_together_there_is_a_limit_too() -> None:
    """Neither lines nor memory grow with how many there are."""
    limit = LogLimit()
    assert sum(limit.allow(str(number)) for number in range(1_000)) == LISTENER_LINES
    assert len(limit._lines) == LISTENER_LINES
