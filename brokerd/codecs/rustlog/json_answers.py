# Tests: tests/codecs/test_rustlog_json.py
"""Encodes answers of the JSON dialect, on the server.

The JSON is compact UTF-8 with few escapes and members in the order of the reference's types, like
the output of serde_json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from brokerd.codecs.length_prefixed import length_prefixed as frame
from brokerd.codecs.rustlog.values import (
    Answer,
    Failed,
    Fetched,
    Metrics,
    OffsetCommitted,
    OffsetFetched,
    PartitionDescription,
    Pong,
    Produced,
    TopicCreated,
    TopicDescription,
    TopicList,
)

_encode = msgspec.json.Encoder().encode
_BELOW_10 = bytes(range(10))
_BELOW_100 = bytes(range(100))


def encode_answer(answer: Answer) -> bytes:
    """Return an answer as a complete frame. The caller keeps it within MAX_PAYLOAD."""
    if isinstance(answer, TopicList):
        return encode_topic_list([encode_topics(answer.topics)], len(answer.topics))
    return frame(_encode(_ANSWERS[type(answer)](answer)))


def fetched_length(offset: int, record: bytes) -> int:
    """Return the size of the answer with only this record."""
    count = len(record)
    digits = (
        3 * count
        - (count - len(record.translate(None, _BELOW_10)))
        - (count - len(record.translate(None, _BELOW_100)))
    )
    empty = _encode(_fetched(Fetched((offset,), (b"",), offset + 1)))
    return len(empty) + digits + max(0, count - 1)


def _produced(answer: Produced) -> dict[str, Any]:
    base, count = answer
    return {"Produce": {"offsets": list(range(base, base + count))}}


def _fetched(answer: Fetched) -> dict[str, Any]:
    offsets, records, next_offset = answer
    return {
        "Fetch": {
            "records": [
                {"offset": offset, "payload": list(record)}
                for offset, record in zip(offsets, records, strict=True)
            ],
            "next_offset": next_offset,
        }
    }


def encode_topics(topics: Sequence[tuple[str, int]]) -> bytes:
    """Return a part of the topics of an answer to ListTopics."""
    return _encode([{"topic": name, "partition_count": count} for name, count in topics])[1:-1]


def encode_topic_list(rows: Sequence[bytes], count: int) -> bytes:
    """Return the answer to ListTopics from results of `encode_topics`; JSON has no count."""
    return frame(b'{"ListTopics":{"topics":[%b]}}' % b",".join(filter(None, rows)))


def _topic_description(answer: TopicDescription) -> dict[str, Any]:
    topic, next_offsets = answer
    return {
        "DescribeTopic": {
            "topic": topic,
            "partition_count": len(next_offsets),
            "partitions": _partitions(next_offsets),
        }
    }


def _partitions(next_offsets: Sequence[int]) -> list[dict[str, int]]:
    return [
        {"partition": index, "high_watermark": offset} for index, offset in enumerate(next_offsets)
    ]


def _partition_description(answer: PartitionDescription) -> dict[str, Any]:
    topic, partition, offset = answer
    return {"DescribePartition": {"topic": topic, "partition": partition, "high_watermark": offset}}


_ANSWERS: dict[type, Callable[[Any], Any]] = {
    Produced: _produced,
    Fetched: _fetched,
    OffsetCommitted: lambda answer: {"OffsetCommit": {"success": answer.success}},
    OffsetFetched: lambda answer: {"OffsetFetch": {"offset": answer.offset}},
    TopicCreated: lambda answer: {"CreateTopic": {"success": True}},
    TopicDescription: _topic_description,
    PartitionDescription: _partition_description,
    Metrics: lambda answer: {"MetricsFetch": {"text": answer.text}},
    Pong: lambda answer: "Pong",
    Failed: lambda answer: {"Error": {"message": answer.message}},
}
