"""Strangers write only so much into the log, and hide nobody else's lines by it."""

from __future__ import annotations

from brokerd.server.line_limit import LISTENER_LINES, PEER_LINES, LineLimit


def test_of_one_address_a_few_lines_are_written_and_the_others_counted() -> None:
    limit = LineLimit()
    assert [limit.takes("one") for _ in range(PEER_LINES + 2)] == [True] * PEER_LINES + [False] * 2
    assert limit.takes("another")
    assert limit.begin_anew() == 2
    assert limit.takes("one")
    assert limit.begin_anew() == 0


def test_of_all_addresses_together_there_is_a_limit_too() -> None:
    """Neither lines nor memory grow with how many there are."""
    limit = LineLimit()
    assert sum(limit.takes(str(number)) for number in range(1_000)) == LISTENER_LINES
    assert len(limit._lines) == LISTENER_LINES
