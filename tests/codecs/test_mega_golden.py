"""The golden bytes of the MEGA format: read and written by the codec as they stand."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from brokerd.codecs import mega
from brokerd.codecs.mega import Code, Consume, Created, CreateTopic, Dialect, Produce, Refused
from tests.golden import golden

T = 1_700_000_000_000
DOCUMENT, REFERENCE = Dialect.DOCUMENT, Dialect.REFERENCE
TOO_LARGE = mega.MAX_PAYLOAD_BYTES + 1


class Example(NamedTuple):
    """Requests as values, in which dialects they are written, and what is answered."""

    requests: tuple[mega.Request, ...]
    answers: tuple[mega.Answer, ...]
    dialects: tuple[Dialect, ...] = ()


def consumed(correlation_id: int, next_offset: int, payload: bytes) -> mega.Consumed:
    return mega.Consumed(correlation_id, T, next_offset, payload)


def refusal(request: mega.Request, code: Code, dialect: Dialect = REFERENCE) -> Example:
    return Example((request,), (Refused(request.correlation_id, code),), (dialect,))


EXAMPLES: dict[str, Example] = {
    "seed-01-create": Example((CreateTopic(1, "test-topic", T),), (Created(1, T, "test-topic"),)),
    "seed-02-create-again": refusal(CreateTopic(2, "test-topic", T), Code.TOPIC_ALREADY_EXISTS),
    "seed-03-produce": Example(
        (Produce(3, "test-topic", T, b"Hello, World!"),), (mega.Produced(3, T, 0),)
    ),
    "seed-04-produce-empty": Example(
        (Produce(4, "test-topic", T, b""),), (mega.Produced(4, T, 1),)
    ),
    "seed-05-consume": Example(
        (Consume(5, "test-topic", T, 0),), (consumed(5, 1, b"Hello, World!"),)
    ),
    "seed-06-consume-empty": Example((Consume(6, "test-topic", T, 1),), (consumed(6, 2, b""),)),
    "seed-07-consume-at-the-end": refusal(Consume(7, "test-topic", T, 2), Code.INVALID_OFFSET),
    "seed-08-consume-below-0": refusal(Consume(8, "test-topic", T, -1), Code.INVALID_OFFSET),
    "seed-09-consume-unknown-topic": refusal(Consume(9, "nope", T, 0), Code.TOPIC_NOT_FOUND),
    "seed-10-produce-unknown-topic": refusal(Produce(10, "nope", T, b"x"), Code.TOPIC_NOT_FOUND),
    "seed-13-three-in-one-write": Example(
        (CreateTopic(21, "pipe", T), Produce(22, "pipe", T, b"a"), Consume(23, "pipe", T, 0)),
        (Created(21, T, "pipe"), mega.Produced(22, T, 0), consumed(23, 1, b"a")),
    ),
    "seed-14-document-create": Example(
        (CreateTopic(33, "seed", T),), (Created(33, T, "seed"),), (DOCUMENT,)
    ),
    "seed-15-document-id-0": Example(
        (CreateTopic(33, "seed", T), CreateTopic(0, "b", T)),
        (Created(33, T, "seed"), Created(0, T, "b")),
        (DOCUMENT, DOCUMENT),
    ),
    "ours-bad-name": refusal(CreateTopic(11, "bad topic", T), Code.INVALID_REQUEST),
    "ours-document-consume": Example(
        (Consume(34, "test-topic", T, 0),), (consumed(34, 1, b"Hello, World!"),), (DOCUMENT,)
    ),
    "ours-document-consume-id-0": Example(
        (Consume(0, "test-topic", T, 1),), (consumed(0, 2, b""),), (DOCUMENT,)
    ),
    "ours-mixed-dialects": Example(
        (
            CreateTopic(1, "mixed", T),
            Consume(0, "mixed", T, 0),
            CreateTopic(-1, "other", T),
            Consume(0x01000000, "mixed", T, 0),
            Produce(2, "mixed", -1, b"\0\xff"),
        ),
        (
            Created(1, T, "mixed"),
            Refused(0, Code.INVALID_OFFSET),
            Created(-1, T, "other"),
            Refused(0x01000000, Code.INVALID_OFFSET),
            mega.Produced(2, -1, 0),
        ),
        (DOCUMENT, REFERENCE, REFERENCE, DOCUMENT, DOCUMENT),
    ),
    "ours-produce-empty-topic": refusal(Produce(37, "", T, b"x"), Code.TOPIC_NOT_FOUND),
    "ours-create-empty-topic": refusal(CreateTopic(38, "", T), Code.INVALID_REQUEST),
    "ours-create-our-own": refusal(CreateTopic(39, "__brokerd.1", T), Code.INVALID_REQUEST),
    "ours-produce-disk-full": refusal(Produce(45, "test-topic", T, b"x"), Code.RESOURCE_EXHAUSTED),
    "ours-consume-unreadable": refusal(Consume(46, "test-topic", T, 0), Code.INTERNAL_ERROR),
}
REFUSED = {
    "seed-12-produce-too-large": Refused(12, Code.MESSAGE_TOO_LARGE),
    "ours-unknown-type": Refused(35, Code.INVALID_MESSAGE_TYPE),
    "ours-unknown-type-reference": Refused(36, Code.INVALID_MESSAGE_TYPE),
}
"""What the reader itself refuses, and goes on."""
CLOSED = {
    "ours-topic-length-below-0": Refused(40, Code.INVALID_REQUEST),
    "ours-topic-length-above-65535": Refused(41, Code.INVALID_REQUEST),
    "ours-payload-length-below-0": Refused(42, Code.INVALID_REQUEST),
    "ours-payload-length-absurd": Refused(43, Code.MESSAGE_TOO_LARGE),
}
STALLED = {"ours-stalled": Refused(44, Code.NETWORK_ERROR)}


BYTES = golden("mega")
BYTES["seed-12-produce-too-large", ">"] += bytes(TOO_LARGE)


def written(answer: mega.Answer) -> bytes:
    if isinstance(answer, Refused):
        return mega.refused(*answer)
    if isinstance(answer, Created):
        return mega.created(*answer)
    if isinstance(answer, mega.Produced):
        return mega.produced(*answer)
    correlation_id, timestamp, next_offset, payload = answer
    return mega.consumed(correlation_id, timestamp, next_offset - 1, payload)


def test_every_golden_line_is_used():
    names = [*EXAMPLES, *REFUSED, *CLOSED, *STALLED]
    assert {(name, way) for name in names for way in "><"} == set(BYTES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_requests_are_read_as_they_stand(name):
    assert tuple(mega.RequestReader().feed(BYTES[name, ">"])) == EXAMPLES[name].requests


@pytest.mark.parametrize("name", EXAMPLES)
def test_requests_are_written_as_they_stand(name):
    example = EXAMPLES[name]
    dialects = example.dialects or (REFERENCE,) * len(example.requests)
    data = b"".join(map(mega.encode_request, example.requests, dialects))
    assert data == BYTES[name, ">"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_answers_are_written_and_read_as_they_stand(name):
    example = EXAMPLES[name]
    assert b"".join(map(written, example.answers)) == BYTES[name, "<"]
    reader = mega.AnswerReader()
    for request in example.requests:
        reader.expect(request)
    assert tuple(reader.feed(BYTES[name, "<"])) == example.answers


@pytest.mark.parametrize("name", [*REFUSED, *CLOSED])
def test_what_the_reader_refuses_is_answered_as_it_stands(name):
    refused = {**REFUSED, **CLOSED}[name]
    reader = mega.RequestReader()
    assert reader.feed(BYTES[name, ">"]) == [refused]
    assert (reader.error is not None) is (name in CLOSED)
    assert mega.refused(*refused) == BYTES[name, "<"]


@pytest.mark.parametrize("name", STALLED)
def test_an_unfinished_request_is_answered_by_its_id(name):
    reader = mega.RequestReader()
    assert reader.feed(BYTES[name, ">"]) == []
    assert mega.refused(reader.partial_id, Code.NETWORK_ERROR) == BYTES[name, "<"]
