# Tests: tests/codecs/test_mega_requests.py
"""Reads requests of both dialects (page, sections Requests and Bad input).

A request has no length of its own: each field contains the length of the next one. A wrong request
becomes a `Refused` in its place among the requests. `RequestReader.error` is also set if the rest
of the stream is unreadable. A length is checked when its four bytes have arrived. A payload that is
too large is skipped as it arrives. The reader holds at most the fields of one request and one
chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from struct import Struct
from typing import Any

from brokerd.codecs.mega.layouts import HEAD, TIMESTAMP, TIMESTAMP_NUMBER
from brokerd.codecs.mega.values import (
    MAX_PAYLOAD_BYTES,
    MAX_SKIPPED_BYTES,
    MAX_TOPIC_BYTES,
    Code,
    Consume,
    CreateTopic,
    Produce,
    Refused,
    Request,
    StreamError,
    Type,
)

_new_produce: Callable[[tuple[Any, ...]], Produce] = partial(tuple.__new__, Produce)
"""`Produce._make` without a step of Python: a read has hundreds of requests."""

_ID = Struct(">i")
_HEAD_BYTES = HEAD.size
_KIND_LENGTH_BYTES = _HEAD_BYTES - _ID.size
_TIMESTAMP_BYTES = TIMESTAMP.size
_TIMESTAMP_NUMBER_BYTES = TIMESTAMP_NUMBER.size
_PRODUCE, _CONSUME, _CREATE_TOPIC = map(int, Type)
"""Plain integers: the lookup of an enum member costs as much as the rest."""
_TRAILER = bytes(4)
_TRAILER_BYTES = len(_TRAILER)
_LOOK_AHEAD_BYTES = 10


class RequestReader:
    """Reads the requests of one connection.

    Use::

        for request in reader.feed(data):
            ...
        if reader.error is not None:
            close()     # after answering all of them
    """

    __slots__ = (
        "_max_payload_bytes",
        "_maybe_trailer",
        "_needed",
        "_partial",
        "_skip_bytes",
        "_skipped_id",
        "error",
    )

    def __init__(self, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._partial = bytearray()
        self._needed = 0  # bytes that `_partial` must have before the next parse
        self._maybe_trailer = False
        self._skip_bytes = 0
        self._skipped_id = 0
        self.error: StreamError | None = None
        """Set when the rest of the stream is unreadable. Later bytes are dropped."""

    @property
    def partial_bytes(self) -> int:
        """Number of held or skipped bytes of an incomplete request; 0 between requests.

        Bytes that may be the empty payload of the request before count as 0.
        """
        if self._skip_bytes:
            return self._skip_bytes
        held = len(self._partial)
        if self._maybe_trailer and held <= _TRAILER_BYTES and not any(self._partial):
            return 0
        return held

    @property
    def partial_id(self) -> int:
        """Correlation id of the incomplete request; 0 while unknown."""
        if self._skip_bytes:
            return self._skipped_id
        partial = self._partial
        if len(partial) < _TRAILER_BYTES or (self._maybe_trailer and partial.startswith(_TRAILER)):
            return 0
        (correlation_id,) = _ID.unpack_from(partial)
        return int(correlation_id)

    def feed(self, data: bytes) -> list[Request | Refused]:
        """Return the requests that ``data`` completes, in order."""
        requests: list[Request | Refused] = []
        if self.error is not None:
            return requests
        partial = self._partial
        if partial:
            partial += data
            if len(partial) < self._needed:
                return requests
            data = bytes(partial)
            self._partial = bytearray()
        self._parse(data, requests)
        return requests

    def _parse(self, data: bytes, requests: list[Request | Refused]) -> None:
        position, size = 0, len(data)
        while position < size:
            if self._skip_bytes:
                position += self._skip(size - position, requests)
                continue
            if self._maybe_trailer:
                if size - position < _LOOK_AHEAD_BYTES:
                    self._keep(data, position, _LOOK_AHEAD_BYTES)
                    return
                self._maybe_trailer = False
                if data.startswith(_TRAILER, position) and not data[position + 9]:
                    position += _TRAILER_BYTES
            end = self._request(data, position, size, requests)
            if end == position:
                return
            if end < size and not (self._skip_bytes or self._maybe_trailer):
                end = self._produces(data, position, end, size, requests)
            position = end

    def _produces(
        self, data: bytes, start: int, end: int, size: int, requests: list[Request | Refused]
    ) -> int:
        """Append the next requests as long as they are PRODUCEs with topics of the same length.

        The last request is at ``start`` to ``end``. Return the end of the others. It has the
        effect of `_request` for each, in a third of the time.
        """
        last = requests[-1]
        if type(last) is not Produce:
            return end
        fixed = end - start - len(last.payload)
        kind_topic = data[start + _ID.size : start + fixed - _TIMESTAMP_NUMBER_BYTES]
        kind_length = kind_topic[:_KIND_LENGTH_BYTES]
        if not data.startswith(kind_length, end + _ID.size):
            return end
        topic, longest = last.topic, self._max_payload_bytes
        unpack = _produce_layout(len(kind_topic)).unpack_from
        position = end
        while position + fixed <= size:
            correlation_id, found, timestamp, length = unpack(data, position)
            payload = position + fixed
            end = payload + length
            if end > size or not 0 <= length <= longest:
                break
            if found != kind_topic:
                if not found.startswith(kind_length):
                    break
                kind_topic = found
                topic = _text(found[_KIND_LENGTH_BYTES:])
            requests.append(_new_produce((correlation_id, topic, timestamp, data[payload:end])))
            position = end
        return position

    def _request(
        self, data: bytes, position: int, size: int, requests: list[Request | Refused]
    ) -> int:
        """Append one request; return its end, or ``position`` if it is incomplete or wrong."""
        correlation_id: int
        kind: int
        topic_bytes: int
        number: int
        fields = position + _HEAD_BYTES
        if fields > size:
            return self._keep(data, position, _HEAD_BYTES)
        correlation_id, kind, topic_bytes = HEAD.unpack_from(data, position)
        if not 0 <= topic_bytes <= MAX_TOPIC_BYTES:
            self._fail(
                correlation_id,
                Code.INVALID_REQUEST,
                f"a topic length is {topic_bytes}, which is not from 0 to {MAX_TOPIC_BYTES}",
                requests,
            )
            return position
        times = fields + topic_bytes
        numbered = kind in (_PRODUCE, _CONSUME)
        end = times + (_TIMESTAMP_NUMBER_BYTES if numbered else _TIMESTAMP_BYTES)
        if end > size:
            return self._keep(data, position, end - position)
        if kind == _PRODUCE:
            timestamp, number = TIMESTAMP_NUMBER.unpack_from(data, times)
            if not 0 <= number <= self._max_payload_bytes:
                return self._no_payload(correlation_id, number, position, end, requests)
            payload, end = end, end + number
            if end > size:
                return self._keep(data, position, end - position)
            topic = _text(data[fields:times])
            requests.append(Produce(correlation_id, topic, timestamp, data[payload:end]))
            return end
        self._maybe_trailer = True
        if kind == _CONSUME:
            timestamp, number = TIMESTAMP_NUMBER.unpack_from(data, times)
            requests.append(Consume(correlation_id, _text(data[fields:times]), timestamp, number))
        elif kind == _CREATE_TOPIC:
            (timestamp,) = TIMESTAMP.unpack_from(data, times)
            requests.append(CreateTopic(correlation_id, _text(data[fields:times]), timestamp))
        else:
            requests.append(Refused(correlation_id, Code.INVALID_MESSAGE_TYPE))
        return end

    def _no_payload(
        self,
        correlation_id: int,
        length: int,
        position: int,
        end: int,
        requests: list[Request | Refused],
    ) -> int:
        """Skip a payload that is too large, or set `error`; result as of `_request`."""
        if 0 < length <= MAX_SKIPPED_BYTES:
            self._skip_bytes, self._skipped_id = length, correlation_id
            return end
        self._fail(
            correlation_id,
            Code.INVALID_REQUEST if length < 0 else Code.MESSAGE_TOO_LARGE,
            f"a payload length is {length}, which is not from 0 to {self._max_payload_bytes}",
            requests,
        )
        return position

    def _skip(self, count: int, requests: list[Request | Refused]) -> int:
        """Skip up to ``count`` bytes of a payload; return their number."""
        skipped = min(count, self._skip_bytes)
        self._skip_bytes -= skipped
        if not self._skip_bytes:
            requests.append(Refused(self._skipped_id, Code.MESSAGE_TOO_LARGE))
        return skipped

    def _keep(self, data: bytes, position: int, needed: int) -> int:
        """Hold a partial request until it has ``needed`` bytes; return ``position``."""
        self._partial += data[position:] if position else data
        self._needed = needed
        return position

    def _fail(
        self, correlation_id: int, code: int, problem: str, requests: list[Request | Refused]
    ) -> None:
        requests.append(Refused(correlation_id, code))
        self.error = StreamError(f"{problem}; the connection cannot be followed any further")


@lru_cache(maxsize=64)
def _produce_layout(kind_topic_bytes: int) -> Struct:
    """Return the layout of a PRODUCE before its payload: id, kind and topic, time, length."""
    return Struct(f">i{kind_topic_bytes}sqi")


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")
