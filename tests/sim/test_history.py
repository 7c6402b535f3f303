"""The history of a run: what may be told of a request, and what is left open."""

from __future__ import annotations

from brokerd.sim.history import NEVER, Boot, GroupRules, History, Message, Place, Produce


def produce(**fields: object) -> Produce:
    messages = (Message(b"a"),)
    return Produce(number=0, client="c", topic="t", messages=messages, **fields)  # type: ignore[arg-type]


def test_a_request_succeeded_when_it_was_answered_and_not_refused() -> None:
    assert produce(answered_us=5, places=(Place(0, 0),)).succeeded
    assert not produce(answered_us=5, error="the disk is full").succeeded


def test_a_request_without_an_answer_neither_succeeded_nor_was_refused() -> None:
    lost = produce(sent_us=1, arrived_us=2)
    assert not lost.succeeded
    assert lost.error == ""
    assert lost.written_us == lost.answered_us == lost.lost_us == NEVER


def test_what_nobody_tells_is_left_open() -> None:
    """Clock steps and power: not told is not the same as none."""
    assert History().clock_steps is None
    assert Boot(number=0, begun_us=0).power_lost is None
    assert not History().rotted


def test_the_rules_of_a_run_are_those_of_a_broker_that_is_not_configured() -> None:
    assert GroupRules() == (3, False, 0, 600_000_000)


def test_equal_requests_are_equal() -> None:
    assert produce(sent_us=1) == produce(sent_us=1)
    assert produce(sent_us=1) != produce(sent_us=2)
