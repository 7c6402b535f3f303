# Tests: tests/codecs/test_mega_answers.py
"""The client's side: encodes requests and reads answers (page, sections Requests and Answers).

The layout of an answer depends on its request, so `AnswerReader` needs each request.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from brokerd.codecs.mega.layouts import (
    CONSUMED,
    CREATED,
    HEAD,
    PRODUCED,
    REFUSED,
    START,
    TIMESTAMP,
    TIMESTAMP_NUMBER,
)
from brokerd.codecs.mega.values import (
    MAX_PAYLOAD_BYTES,
    Answer,
    Code,
    Consume,
    Consumed,
    Created,
    CreateTopic,
    Dialect,
    Produce,
    Produced,
    Refused,
    Request,
    StreamError,
    Type,
)

_NO_PAYLOAD = bytes(4)
_TYPES: Final = {Produce: Type.PRODUCE, Consume: Type.CONSUME, CreateTopic: Type.CREATE_TOPIC}


def encode_request(request: Request, dialect: Dialect = Dialect.REFERENCE) -> bytes:
    """A request's bytes. Raises ``struct.error`` for a number that does not fit its field."""
    topic = request.topic.encode("utf-8", "surrogateescape")
    head = HEAD.pack(request.correlation_id, _TYPES[type(request)], len(topic)) + topic
    if isinstance(request, Produce):
        length = len(request.payload)
        return head + TIMESTAMP_NUMBER.pack(request.timestamp, length) + request.payload
    if isinstance(request, Consume):
        fields = TIMESTAMP_NUMBER.pack(request.timestamp, request.offset)
    else:
        fields = TIMESTAMP.pack(request.timestamp)
    return head + fields + (_NO_PAYLOAD if dialect is Dialect.REFERENCE else b"")


class AnswerReader:
    """Answers of one connection, in the order of its requests.

    Use::

        reader.expect(request)          # when it is sent
        answers = reader.feed(data)
        if reader.error is not None:
            close()
    """

    def __init__(self) -> None:
        self._expected: deque[Request] = deque()
        self._partial = bytearray()
        self.error: StreamError | None = None
        """Set once the stream is out of step. Later bytes are dropped."""

    def expect(self, request: Request) -> None:
        """Know that this request was sent."""
        self._expected.append(request)

    @property
    def partial_bytes(self) -> int:
        """Bytes held of an answer that is not complete."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[Answer]:
        """The answers that ``data`` completes, in order."""
        answers: list[Answer] = []
        if self.error is not None:
            return answers
        partial = self._partial
        partial += data
        position = 0
        try:
            while position < len(partial):
                if not self._expected:
                    raise StreamError("the server sent an answer without a request")
                size = _size(self._expected[0], partial, position)
                if size is None or position + size > len(partial):
                    break
                answer = bytes(partial[position : position + size])
                answers.append(_answer(self._expected.popleft(), answer))
                position += size
        except StreamError as error:
            self.error = error
            position = len(partial)
        del partial[:position]
        return answers


def _size(request: Request, data: bytearray, position: int) -> int | None:
    """How many bytes an answer has; None while that cannot be known."""
    there = len(data) - position
    if there < START.size:
        return None
    correlation_id, flag = START.unpack_from(data, position)
    if correlation_id != request.correlation_id or flag not in (0, 1):
        raise StreamError(
            f"an answer has id {correlation_id} and flag {flag} where id {request.correlation_id} "
            "was asked"
        )
    if not flag:
        return REFUSED.size
    if isinstance(request, Produce):
        return PRODUCED.size
    if isinstance(request, CreateTopic):
        if there < CREATED.size:
            return None
        *_, topic_bytes = CREATED.unpack_from(data, position)
        return CREATED.size + int(topic_bytes)
    if there < CONSUMED.size:
        return None
    *_, payload_bytes = CONSUMED.unpack_from(data, position)
    if not 0 <= payload_bytes <= MAX_PAYLOAD_BYTES:
        raise StreamError(
            f"an answer has a payload of {payload_bytes} bytes, which is not from 0 to "
            f"{MAX_PAYLOAD_BYTES}"
        )
    return CONSUMED.size + int(payload_bytes)


def _answer(request: Request, data: bytes) -> Answer:
    """The value of one whole answer."""
    correlation_id, succeeded = START.unpack_from(data)
    if not succeeded:
        *_, code = REFUSED.unpack_from(data)
        if not Code.INVALID_REQUEST <= code <= Code.RESOURCE_EXHAUSTED:
            raise StreamError(f"an answer has error code {code}, which is not from 1 to 9")
        return Refused(correlation_id, code)
    if isinstance(request, Produce):
        _, _, timestamp, offset = PRODUCED.unpack_from(data)
        return Produced(correlation_id, timestamp, offset)
    if isinstance(request, Consume):
        _, _, timestamp, next_offset, _ = CONSUMED.unpack_from(data)
        return Consumed(correlation_id, timestamp, next_offset, data[CONSUMED.size :])
    _, _, timestamp, _ = CREATED.unpack_from(data)
    topic = data[CREATED.size :].decode("utf-8", "surrogateescape")
    return Created(correlation_id, timestamp, topic)
