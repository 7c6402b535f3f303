"""The history of a run: what may be told of a request, and what is left open."""

from __future__ import annotations

from simulator.history.operations import NEVER, Message, Place, Produce


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
