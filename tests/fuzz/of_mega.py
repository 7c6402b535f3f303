"""MEGA for the fuzzer."""

from __future__ import annotations

from random import Random
from typing import Any

from brokerd.broker import Broker, Clock
from brokerd.codecs import mega
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.mega.connection import MegaFactory
from tests.fuzz.wire import Ask, FuzzedFormat, Split

TOPICS = ("test-topic", "orders", "A.b_c-9", "x" * 255, "x" * 256, "", "é", "__brokerd.x")
IDS = (0, 1, 2, 0x01000000, 0x02000000, 0x03000000, -1)
TIMES = (0, -1, 1_700_000_000_000, (1 << 63) - 1, -(1 << 63))
OFFSETS = (0, 0, 1, 2, 5, -1, mega.MAX_OFFSET)
DIALECTS = tuple(mega.Dialect)
PRODUCE, CONSUME = int(mega.Type.PRODUCE), int(mega.Type.CONSUME)


def requests(rng: Random) -> list[bytes]:
    """Return requests in one dialect, or in both."""
    dialects = rng.choice((DIALECTS[:1], DIALECTS[1:], DIALECTS))
    topics = rng.choice((TOPICS[:2], TOPICS))
    made = []
    for _ in range(rng.randrange(1, 24)):
        topic, correlation_id, at = rng.choice(topics), rng.choice(IDS), rng.choice(TIMES)
        kind = rng.randrange(5)
        request: mega.Request
        if kind == 0:
            request = mega.CreateTopic(correlation_id, topic, at)
        elif kind <= 2:
            payload = rng.randbytes(rng.choice((0, 1, 13, 13, 300, 9_000)))
            request = mega.Produce(correlation_id, topic, at, payload)
        else:
            request = mega.Consume(correlation_id, topic, at, rng.choice(OFFSETS))
        made.append(mega.encode_request(request, rng.choice(dialects)))
    return made


def huge(rng: Random) -> list[bytes]:
    """Return a payload of about the largest size, and a consume of it."""
    most = mega.MAX_PAYLOAD_BYTES
    payload = bytes(rng.choice((100_000, most - 1, most, most + 1)))
    topic = TOPICS[0]
    sent = (
        mega.CreateTopic(1, topic, 0),
        mega.Produce(2, topic, 0, payload),
        mega.Consume(3, topic, 0, 0),
        mega.Consume(4, topic, 0, rng.randrange(3)),
    )
    return [mega.encode_request(request, rng.choice(DIALECTS)) for request in sent]


def split(stream: bytes, _: int) -> Split:
    """Split a stream by the rule of the notes; too large payloads count as requests, too."""
    found: list[bytes] = []
    position, maybe_trailer = 0, False
    while True:
        if maybe_trailer:
            if len(stream) - position < 10:
                return found, False
            if stream[position : position + 4] == bytes(4) and not stream[position + 9]:
                position += 4
        if len(stream) - position < 9:
            return found, False
        kind = stream[position + 4]
        topic_bytes = int.from_bytes(stream[position + 5 : position + 9], "big")
        if topic_bytes > mega.MAX_TOPIC_BYTES:
            return found, True
        end = position + 9 + topic_bytes + 8
        if kind in (PRODUCE, CONSUME):
            end += 4
        if kind == PRODUCE and end <= len(stream):
            payload_bytes = int.from_bytes(stream[end - 4 : end], "big")
            if payload_bytes > mega.MAX_SKIPPED_BYTES:
                return found, True
            end += payload_bytes
        if end > len(stream):
            return found, False
        found.append(stream[position:end])
        position, maybe_trailer = end, kind != PRODUCE


def read_answers(data: bytes, requests: list[bytes]) -> int:
    """Count one answer to each request, in order, and perhaps one error after them."""
    count, position = 0, 0
    for request in requests:
        if position == len(data):
            return count
        assert data[position : position + 4] == request[:4], "the id of another request"
        size = _answer_bytes(request, data, position)
        assert len(data) - position >= size, "the answer is cut off"
        position += size
        count += 1
    if position < len(data):
        assert len(data) - position == 6 and not data[position + 4], "more than was asked for"
        count += 1
    return count


def _answer_bytes(request: bytes, data: bytes, position: int) -> int:
    """Return the size of the answer to this request at this position."""
    flag = data[position + 4]
    assert flag in (0, 1), "a flag that is none"
    if not flag:
        assert 1 <= data[position + 5] <= 9, "a code that is none"
        return 6
    if request[4] == CONSUME:
        return 21 + int.from_bytes(data[position + 17 : position + 21], "big", signed=True)
    at = 9 + int.from_bytes(request[5:9], "big")
    assert data[position + 5 : position + 13] == request[at : at + 8], "another timestamp"
    if request[4] == PRODUCE:
        return 17
    return 15 + int.from_bytes(data[position + 13 : position + 15], "big")


class MegaWitness:
    """Creates a topic of its own, produces and consumes."""

    TOPIC = "the-witness-of-MEGA"

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._payloads: list[tuple[int, bytes]] = []

    def step(self, ask: Ask) -> None:
        number = len(self._payloads)
        if not number:
            created = _answers(ask, mega.CreateTopic(7, self.TOPIC, 5))
            assert created == [mega.Created(7, 5, self.TOPIC)], created
        at = self._rng.randrange(1 << 62)
        payload = self._rng.randbytes(self._rng.choice((0, 1, 20, 300)))
        self._payloads.append((at, payload))
        answers = _answers(
            ask,
            mega.Produce(number, self.TOPIC, at, payload),
            mega.Consume(-number, self.TOPIC, 0, number),
            mega.Consume(3, self.TOPIC, 0, number + 1),
        )
        assert answers == [
            mega.Produced(number, at, number),
            mega.Consumed(-number, at, number + 1, payload),
            mega.Refused(3, mega.Code.INVALID_OFFSET),
        ], answers

    def read_back(self, ask: Ask) -> None:
        for number, (at, payload) in enumerate(self._payloads):
            (answer,) = _answers(ask, mega.Consume(number, self.TOPIC, 0, number))
            assert answer == mega.Consumed(number, at, number + 1, payload), answer
        (answer,) = _answers(ask, mega.Consume(1, self.TOPIC, 0, len(self._payloads)))
        assert isinstance(answer, mega.Refused), answer


def _answers(ask: Ask, *sent: mega.Request) -> list[mega.Answer]:
    reader = mega.AnswerReader()
    for request in sent:
        reader.expect(request)
    answers = reader.feed(ask(b"".join(map(mega.encode_request, sent)), len(sent)))
    assert reader.error is None, reader.error
    return answers


def _held(connection: Any) -> int:
    """Return 0: skipped bytes are not held."""
    return len(connection._reader._partial)


def _factory(broker: Broker, clock: Clock, limits: Limits, _: bool) -> MegaFactory:
    return MegaFactory(broker, clock, limits)


FORMAT = FuzzedFormat(
    name="mega",
    factory=_factory,
    topics=TOPICS[:2],
    requests=requests,
    huge=huge,
    greeting=(),
    witness=MegaWitness,
    read_answers=read_answers,
    framing=None,
    split=split,
    frame_bytes_max=mega.MAX_PAYLOAD_BYTES,
    owes=lambda request: True,
    closes_upon=lambda request: False,
    tokens=(
        bytes(4),
        bytes(10),
        b"\0\0\0\1",
        b"\xff\xff\xff\xff",
        b"\0\x10\0\0",
        b"\0\x10\0\1",
        b"\4\0\0\0",
        b"\4\0\0\1",
        b"\0\0\xff\xff",
        b"\0\1\0\0",
        b"\x80\0\0\0",
        b"\0" * 30,
    ),
    header_bytes=mega.MAX_TOPIC_BYTES + 25,
    held=_held,
)
