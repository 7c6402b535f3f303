# Tests: tests/codecs/test_rustlog_binary.py
"""The client's side of the binary dialect: encodes requests and decodes answers."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from brokerd.codecs.length_prefixed import length_prefixed as frame
from brokerd.codecs.rustlog import binary
from brokerd.codecs.rustlog.binary import (
    LENGTH_BYTES,
    PARTITION_OFFSET,
    U16,
    U32,
    U64,
    encode_records,
    encode_string,
)
from brokerd.codecs.rustlog.values import (
    Answer,
    AnswerError,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Failed,
    Fetch,
    Fetched,
    ListTopics,
    Metrics,
    MetricsFetch,
    OffsetCommit,
    OffsetCommitted,
    OffsetFetch,
    OffsetFetched,
    PartitionDescription,
    Ping,
    Pong,
    Produce,
    Produced,
    Request,
    TopicCreated,
    TopicDescription,
    TopicList,
    TopicSummary,
)

_U8 = Struct(">B")
_PRODUCED = Struct(">QI")
_TOPIC_BYTES_MIN = 6


def encode_request(request: Request) -> bytes:
    """Return a request as a complete frame."""
    command, fields = _REQUESTS[type(request)]
    return frame(bytes((command,)) + fields(request))


def _produce(request: Produce) -> bytes:
    topic, partition, records = request
    return b"".join(
        (
            encode_string(topic),
            U32.pack(partition),
            U32.pack(len(records)),
            encode_records(records),
        )
    )


def _fetch(request: Fetch) -> bytes:
    topic, partition, offset, max_bytes, group = request
    place = PARTITION_OFFSET.pack(partition, offset)
    return encode_string(group or "") + encode_string(topic) + place + U32.pack(max_bytes)


def _offset_commit(request: OffsetCommit) -> bytes:
    topic, partition, group, offset = request
    return encode_string(group) + encode_string(topic) + PARTITION_OFFSET.pack(partition, offset)


def _offset_fetch(request: OffsetFetch) -> bytes:
    topic, partition, group = request
    return encode_string(group) + encode_string(topic) + U32.pack(partition)


def _topic_number(request: CreateTopic | DescribePartition) -> bytes:
    topic, number = request
    return encode_string(topic) + U32.pack(number)


_REQUESTS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    Produce: (binary.PRODUCE, _produce),
    Fetch: (binary.FETCH, _fetch),
    OffsetCommit: (binary.OFFSET_COMMIT, _offset_commit),
    OffsetFetch: (binary.OFFSET_FETCH, _offset_fetch),
    CreateTopic: (binary.CREATE_TOPIC, _topic_number),
    ListTopics: (binary.LIST_TOPICS, lambda request: b""),
    DescribeTopic: (binary.DESCRIBE_TOPIC, lambda request: encode_string(request.topic)),
    DescribePartition: (binary.DESCRIBE_PARTITION, _topic_number),
    MetricsFetch: (binary.METRICS, lambda request: b""),
    Ping: (binary.PING, lambda request: b""),
}


# -- answers ----------------------------------------------------------------------------------


class _Fields:
    """The fields of a payload, one after the other."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 1

    def numbers(self, layout: Struct) -> tuple[int, ...]:
        return layout.unpack(self.bytes(layout.size))

    def number(self, layout: Struct) -> int:
        return self.numbers(layout)[0]

    def bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._payload):
            raise AnswerError(
                f"the answer ends {end - len(self._payload)} bytes too early, at byte "
                f"{len(self._payload)}"
            )
        found = self._payload[self._at : end]
        self._at = end
        return found

    def text(self, layout: Struct = U16) -> str:
        try:
            return self.bytes(self.number(layout)).decode()
        except UnicodeDecodeError as problem:
            raise AnswerError(f"a text of the answer is not UTF-8: {problem}") from None

    def count(self, bytes_each: int) -> int:
        """Return a count of items of at least this many bytes each."""
        count = self.number(U32)
        if count * bytes_each > len(self._payload) - self._at:
            raise AnswerError(f"the answer claims {count} items, and has no room for them")
        return count


def decode_answer(payload: bytes) -> Answer:
    """Return the answer of a non-empty payload. Raises `AnswerError`."""
    decode = _ANSWERS.get(payload[0])
    if decode is None:
        raise AnswerError(f"no answer has the type {payload[0]}")
    return decode(_Fields(payload))


def _fetched(fields: _Fields) -> Fetched:
    count = fields.count(LENGTH_BYTES)
    records = [fields.bytes(fields.number(U32)) for _ in range(count)]
    next_offset = fields.number(U64)
    if next_offset < count:
        raise AnswerError(f"{count} records cannot end before offset {next_offset}")
    return Fetched(range(next_offset - count, next_offset), records, next_offset)


def _offset_fetched(fields: _Fields) -> OffsetFetched:
    return OffsetFetched(fields.number(U64) if fields.number(_U8) else None)


def _topic_list(fields: _Fields) -> TopicList:
    count = fields.count(_TOPIC_BYTES_MIN)
    return TopicList(tuple(TopicSummary(fields.text(), fields.number(U32)) for _ in range(count)))


def _topic_description(fields: _Fields) -> TopicDescription:
    topic = fields.text()
    fields.number(U32)
    count = fields.count(PARTITION_OFFSET.size)
    return TopicDescription(topic, tuple(fields.numbers(PARTITION_OFFSET)[1] for _ in range(count)))


def _topic_created(fields: _Fields) -> TopicCreated:
    if fields.number(_U8) != 1:
        raise AnswerError("the broker neither made the topic nor said why")
    return TopicCreated()


_ANSWERS: dict[int, Callable[[_Fields], Answer]] = {
    binary.PRODUCE: lambda fields: Produced._make(fields.numbers(_PRODUCED)),
    binary.FETCH: _fetched,
    binary.OFFSET_COMMIT: lambda fields: OffsetCommitted(fields.number(_U8) == 1),
    binary.OFFSET_FETCH: _offset_fetched,
    binary.CREATE_TOPIC: _topic_created,
    binary.LIST_TOPICS: _topic_list,
    binary.DESCRIBE_TOPIC: _topic_description,
    binary.DESCRIBE_PARTITION: lambda fields: PartitionDescription(
        fields.text(), *fields.numbers(PARTITION_OFFSET)
    ),
    binary.METRICS: lambda fields: Metrics(fields.text(U32)),
    binary.ERROR: lambda fields: Failed(fields.number(U16), fields.text()),
    binary.PING: lambda fields: Pong(),
}
