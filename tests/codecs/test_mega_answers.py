"""What a client that reads MEGA answers observes, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import mega
from tests.strategies.chunks import CUTS, chunkings
from tests.strategies.mega import (
    codes,
    correlation_ids,
    names,
    offsets,
    payloads,
    timestamps,
)

T = 1_700_000_000_000


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[mega.Request, mega.Answer, bytes]:
    """A request, the answer to it, and the answer's bytes."""
    correlation_id, timestamp = draw(correlation_ids), draw(timestamps)
    topic, offset, payload = draw(names), draw(st.integers(0, mega.MAX_OFFSET - 1)), draw(payloads)
    request = draw(
        st.sampled_from(
            [
                mega.CreateTopic(correlation_id, topic, timestamp),
                mega.Produce(correlation_id, topic, timestamp, payload),
                mega.Consume(correlation_id, topic, timestamp, offset),
            ]
        )
    )
    if draw(st.booleans()):
        code = draw(codes)
        return request, mega.Refused(correlation_id, code), mega.refused(correlation_id, code)
    if isinstance(request, mega.CreateTopic):
        answer: mega.Answer = mega.Created(correlation_id, timestamp, topic)
        return request, answer, mega.created(correlation_id, timestamp, topic)
    if isinstance(request, mega.Produce):
        answer = mega.Produced(correlation_id, timestamp, offset)
        return request, answer, mega.produced(correlation_id, timestamp, offset)
    answer = mega.Consumed(correlation_id, timestamp, offset + 1, payload)
    return request, answer, mega.consumed(correlation_id, timestamp, offset, payload)


def reader_of(*requests: mega.Request) -> mega.AnswerReader:
    reader = mega.AnswerReader()
    for request in requests:
        reader.expect(request)
    return reader


@given(st.lists(exchanges(), max_size=8), CUTS)
def test_any_chunks_yield_the_same_answers(exchanged, cuts):
    for pieces in chunkings(b"".join(data for _, _, data in exchanged), cuts):
        reader = reader_of(*(request for request, _, _ in exchanged))
        answers = [answer for piece in pieces for answer in reader.feed(piece)]
        assert answers == [answer for _, answer, _ in exchanged]
        assert reader.error is None
        assert reader.partial_bytes == 0


@given(exchanges(), offsets)
def test_an_answer_to_another_request_is_out_of_step(exchange, other_id):
    request, _, data = exchange
    wrong = (request.correlation_id ^ 1).to_bytes(4, "big", signed=True) + data[4:]
    reader = reader_of(request)
    assert reader.feed(wrong) == []
    assert f"where id {request.correlation_id} was asked" in str(reader.error)
    assert reader.feed(data) == []


WRONG = {
    "a flag of 2": (bytes.fromhex("00000001 02"), "flag 2"),
    "a code of 0": (bytes.fromhex("00000001 00 00"), "error code 0"),
    "a code of 10": (bytes.fromhex("00000001 00 0a"), "error code 10"),
    "a payload of -1 bytes": (mega.consumed(1, T, 0, b"")[:-4] + b"\xff" * 4, "payload of -1"),
    "a payload over 1 MiB": (
        mega.consumed(1, T, 0, b"")[:-4] + (mega.MAX_PAYLOAD_BYTES + 1).to_bytes(4, "big"),
        "payload of 1048577",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_server_answers_is_out_of_step_at_once(name):
    """A length is judged before its bytes are waited for."""
    data, text = WRONG[name]
    reader = reader_of(mega.Produce(1, "t", T, b""), mega.Consume(1, "t", T, 0))
    first = mega.produced(1, T, 5)
    assert reader.feed(first + data) == [mega.Produced(1, T, 5)]
    assert text in str(reader.error)
    assert reader.partial_bytes == 0


def test_an_answer_nobody_asked_for_is_out_of_step():
    """As the reference server's after 30 idle seconds."""
    reader = mega.AnswerReader()
    assert reader.feed(bytes.fromhex("00000000 00 08")) == []
    assert "without a request" in str(reader.error)


def test_the_next_offset_of_the_last_offset_wraps_around():
    """There is no other number in 4 bytes; CONSUME of it finds nothing."""
    data = mega.consumed(1, T, mega.MAX_OFFSET, b"last")
    (answer,) = reader_of(mega.Consume(1, "t", T, mega.MAX_OFFSET)).feed(data)
    assert isinstance(answer, mega.Consumed)
    assert answer.next_offset == -(1 << 31)
