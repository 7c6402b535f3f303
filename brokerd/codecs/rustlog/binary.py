# Tests: tests/codecs/test_rustlog_binary.py
"""The server's side of the binary dialect: decodes requests and encodes answers.

Layout, field order and texts: page, sections Requests and Errors. The texts are those of the
reference server. Integers are big-endian. Strings are a length of two bytes and UTF-8. Bytes after
the last field are ignored. A count is compared with the remaining bytes before objects are built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct, error
from typing import Any

from brokerd.codecs.length_prefixed import length_prefixed as frame
from brokerd.codecs.rustlog.values import (
    MAX_MESSAGE_BYTES,
    MAX_PAYLOAD,
    MAX_RECORDS,
    Answer,
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
    RequestError,
    TooManyRecords,
    TopicCreated,
    TopicDescription,
    TopicList,
)

PRODUCE, FETCH, OFFSET_COMMIT, OFFSET_FETCH, CREATE_TOPIC = 1, 2, 3, 4, 5
LIST_TOPICS, DESCRIBE_TOPIC, DESCRIBE_PARTITION, METRICS = 6, 7, 8, 9
ERROR, PING = 0xFE, 0xFF

U16 = Struct(">H")
U32 = Struct(">I")
U64 = Struct(">Q")
PARTITION_OFFSET = Struct(">IQ")
_PRODUCED = Struct(">IBQI").pack
_PRODUCED_BYTES = 13
_FETCHED = Struct(">IBI").pack

LENGTH_BYTES = 4
"""Size of a record's length in a frame."""
FETCHED_BYTES = 13
"""Size of an answer to Fetch without records."""
MAX_RECORD_BYTES = MAX_PAYLOAD - FETCHED_BYTES - LENGTH_BYTES
"""The longest record that fits an answer."""
EQUAL_RECORDS_MAX = 1_024
"""Largest number of records of one length to unpack in one step, by a cached layout."""


# -- requests ---------------------------------------------------------------------------------


def decode_request(payload: bytes) -> Request:
    """Return the request of a non-empty payload. Raises `RequestError` with the wire's text."""
    decode = _REQUESTS.get(payload[0])
    if decode is None:
        raise RequestError(f"Decode error: unknown request type: {payload[0]}")
    return decode(payload)


def _malformed(what: str) -> RequestError:
    return RequestError(f"Decode error: decode error: {what}")


def _string(payload: bytes, start: int, what: str) -> tuple[str, int]:
    """Return a string and the position after it."""
    begin = start + 2
    if begin > len(payload):
        raise _malformed(f"missing {what} length")
    end = begin + (payload[start] << 8) + payload[start + 1]
    raw = payload[begin:end]
    if end > len(payload):
        raise _malformed(f"truncated {what}")
    try:
        return raw.decode(), end
    except UnicodeDecodeError as problem:
        raise _malformed(f"invalid utf8 {what}: {_utf8_problem(problem)}") from None


def _utf8_problem(problem: UnicodeDecodeError) -> str:
    """Return the text that the reference server's language uses."""
    if problem.reason == "unexpected end of data":
        return f"incomplete utf-8 byte sequence from index {problem.start}"
    count = problem.end - problem.start
    return f"invalid utf-8 sequence of {count} bytes from index {problem.start}"


def _number(layout: Struct, payload: bytes, start: int, what: str) -> int:
    try:
        number: int = layout.unpack_from(payload, start)[0]
    except error:
        raise _malformed(f"missing {what}") from None
    return number


def _produce(payload: bytes) -> Produce:
    topic, start = _string(payload, 1, "topic")
    partition = _number(U32, payload, start, "partition")
    count = _number(U32, payload, start + 4, "record count")
    start += 8
    if count * LENGTH_BYTES > len(payload) - start:
        raise _malformed("truncated record length")
    if count > MAX_RECORDS:
        raise TooManyRecords
    return Produce(topic, partition, _records(payload, start, count))


def _records(payload: bytes, start: int, count: int) -> Sequence[bytes]:
    """Return `count` records from `start` on. Records of one length are unpacked in one step."""
    if 1 < count <= EQUAL_RECORDS_MAX:
        (length,) = U32.unpack_from(payload, start)
        step = LENGTH_BYTES + length
        last = start + (count - 1) * step
        if last + step <= len(payload) and U32.unpack_from(payload, last)[0] == length:
            fields = _equal_records(count, length).unpack_from(payload, start)
            if fields[::2].count(length) == count:
                return fields[1::2]
    records = []
    unpack = U32.unpack_from
    try:
        for _ in range(count):
            begin = start + LENGTH_BYTES
            start = begin + unpack(payload, start)[0]
            records.append(payload[begin:start])
    except error:
        cut_short = "record" if start > len(payload) else "record length"
        raise _malformed(f"truncated {cut_short}") from None
    if start > len(payload):
        raise _malformed("truncated record")
    return records


@lru_cache(maxsize=16)
def _equal_records(count: int, length: int) -> Struct:
    return Struct(">" + f"I{length}s" * count)


def _fetch(payload: bytes) -> Fetch:
    group, start = _string(payload, 1, "group_id")
    topic, start = _string(payload, start, "topic")
    partition = _number(U32, payload, start, "partition")
    offset = _number(U64, payload, start + 4, "offset")
    max_bytes = _number(U32, payload, start + 12, "max_bytes")
    return Fetch(topic, partition, offset, max_bytes, group or None)


def _offset_commit(payload: bytes) -> OffsetCommit:
    group, start = _string(payload, 1, "group")
    topic, start = _string(payload, start, "topic")
    partition = _number(U32, payload, start, "partition")
    return OffsetCommit(topic, partition, group, _number(U64, payload, start + 4, "offset"))


def _offset_fetch(payload: bytes) -> OffsetFetch:
    group, start = _string(payload, 1, "group")
    topic, start = _string(payload, start, "topic")
    return OffsetFetch(topic, _number(U32, payload, start, "partition"), group)


def _create_topic(payload: bytes) -> CreateTopic:
    topic, start = _string(payload, 1, "topic")
    return CreateTopic(topic, _number(U32, payload, start, "partition count"))


def _describe_partition(payload: bytes) -> DescribePartition:
    topic, start = _string(payload, 1, "topic")
    return DescribePartition(topic, _number(U32, payload, start, "partition"))


_REQUESTS: dict[int, Callable[[bytes], Request]] = {
    PRODUCE: _produce,
    FETCH: _fetch,
    OFFSET_COMMIT: _offset_commit,
    OFFSET_FETCH: _offset_fetch,
    CREATE_TOPIC: _create_topic,
    LIST_TOPICS: lambda payload: ListTopics(),
    DESCRIBE_TOPIC: lambda payload: DescribeTopic(_string(payload, 1, "topic")[0]),
    DESCRIBE_PARTITION: _describe_partition,
    METRICS: lambda payload: MetricsFetch(),
    PING: lambda payload: Ping(),
}


# -- answers ----------------------------------------------------------------------------------


def encode_answer(answer: Answer) -> bytes:
    """Return an answer as a complete frame. The caller keeps it within MAX_PAYLOAD."""
    return _ANSWERS[type(answer)](answer)


def encode_string(text: str) -> bytes:
    """Return a string of at most 65,535 bytes with its length."""
    raw = text.encode()
    return U16.pack(len(raw)) + raw


def encode_records(records: Sequence[bytes]) -> bytes:
    """Return records with their lengths. Records of one length are packed in one step."""
    if not records:
        return b""
    sizes = list(map(len, records))
    if sizes.count(sizes[0]) == len(sizes):
        header = U32.pack(sizes[0])
        return header + header.join(records)
    parts: list[bytes] = [b""] * (2 * len(records))
    parts[::2] = map(U32.pack, sizes)
    parts[1::2] = records
    return b"".join(parts)


def _produced(answer: Produced) -> bytes:
    return _PRODUCED(_PRODUCED_BYTES, PRODUCE, *answer)


def _fetched(answer: Fetched) -> bytes:
    body = encode_records(answer.records)
    header = _FETCHED(FETCHED_BYTES + len(body), FETCH, len(answer.records))
    return b"".join((header, body, U64.pack(answer.next_offset)))


def _offset_fetched(answer: OffsetFetched) -> bytes:
    if answer.offset is None:
        return frame(bytes((OFFSET_FETCH, 0)))
    return frame(bytes((OFFSET_FETCH, 1)) + U64.pack(answer.offset))


def encode_topics(topics: Sequence[tuple[str, int]]) -> bytes:
    """Return a part of the topics of an answer to ListTopics."""
    parts = []
    for topic, count in topics:
        raw = topic.encode()
        parts.append(U16.pack(len(raw)) + raw + U32.pack(count))
    return b"".join(parts)


def encode_topic_list(rows: Sequence[bytes], count: int) -> bytes:
    """Return the answer to ListTopics from results of `encode_topics` with ``count`` topics."""
    return frame(b"".join((bytes((LIST_TOPICS,)), U32.pack(count), *rows)))


def _topic_description(answer: TopicDescription) -> bytes:
    count = U32.pack(len(answer.next_offsets))
    parts = [bytes((DESCRIBE_TOPIC,)), encode_string(answer.topic), count, count]
    for place in enumerate(answer.next_offsets):
        parts.append(PARTITION_OFFSET.pack(*place))
    return frame(b"".join(parts))


def _partition_description(answer: PartitionDescription) -> bytes:
    topic, partition, offset = answer
    place = PARTITION_OFFSET.pack(partition, offset)
    return frame(bytes((DESCRIBE_PARTITION,)) + encode_string(topic) + place)


def _metrics(answer: Metrics) -> bytes:
    text = answer.text.encode()
    return frame(bytes((METRICS,)) + U32.pack(len(text)) + text)


def _failed(answer: Failed) -> bytes:
    text = answer.message.encode()
    if len(text) > MAX_MESSAGE_BYTES:
        text = text[:MAX_MESSAGE_BYTES].decode(errors="ignore").encode()
    return frame(bytes((ERROR,)) + U16.pack(answer.code) + U16.pack(len(text)) + text)


_ANSWERS: dict[type, Callable[[Any], bytes]] = {
    Produced: _produced,
    Fetched: _fetched,
    OffsetCommitted: lambda answer: frame(bytes((OFFSET_COMMIT, answer.success))),
    OffsetFetched: _offset_fetched,
    TopicCreated: lambda answer: frame(bytes((CREATE_TOPIC, 1))),
    TopicList: lambda answer: encode_topic_list([encode_topics(answer.topics)], len(answer.topics)),
    TopicDescription: _topic_description,
    PartitionDescription: _partition_description,
    Metrics: _metrics,
    Pong: lambda answer: frame(bytes((PING,))),
    Failed: _failed,
}
