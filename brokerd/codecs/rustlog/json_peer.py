# Tests: tests/codecs/test_rustlog_json.py
"""The client's side of the JSON dialect: encodes requests and decodes answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from brokerd.codecs.length_prefixed import length_prefixed as frame
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

_encode = msgspec.json.Encoder().encode
_MEMBERS: dict[type, str] = {
    Produce: "Produce",
    Fetch: "Fetch",
    OffsetCommit: "OffsetCommit",
    OffsetFetch: "OffsetFetch",
    CreateTopic: "CreateTopic",
    DescribePartition: "DescribePartition",
}
_UNITS: dict[type, str] = {ListTopics: "ListTopics", MetricsFetch: "MetricsFetch", Ping: "Ping"}


def encode_request(request: Request) -> bytes:
    """Return a request as a complete frame."""
    unit = _UNITS.get(type(request))
    return frame(_encode(_members(request) if unit is None else unit))


def _members(request: Any) -> dict[str, Any]:
    if isinstance(request, DescribeTopic):
        return {"DescribeTopic": {"topic": request.topic}}
    members = request._asdict()
    if isinstance(request, Produce):
        members["records"] = list(map(list, request.records))
    return {_MEMBERS[type(request)]: members}


# -- answers ----------------------------------------------------------------------------------


class _Produced(msgspec.Struct):
    offsets: list[int]


class _Record(msgspec.Struct):
    offset: int
    payload: list[int]


class _Fetched(msgspec.Struct):
    records: list[_Record]
    next_offset: int


class _Success(msgspec.Struct):
    success: bool


class _Offset(msgspec.Struct):
    offset: int | None


class _Summary(msgspec.Struct):
    topic: str
    partition_count: int


class _Topics(msgspec.Struct):
    topics: list[_Summary]


class _Place(msgspec.Struct):
    partition: int
    high_watermark: int


class _Topic(msgspec.Struct):
    topic: str
    partition_count: int
    partitions: list[_Place]


class _Partition(msgspec.Struct):
    topic: str
    partition: int
    high_watermark: int


class _Text(msgspec.Struct):
    text: str


class _Message(msgspec.Struct):
    message: str


def decode_answer(payload: bytes) -> Answer:
    """Return the answer of a payload. Raises `AnswerError`."""
    try:
        answer = msgspec.json.decode(payload, type=dict[str, msgspec.Raw] | str)
        if answer == "Pong":
            return Pong()
        if isinstance(answer, str) or len(answer) != 1:
            raise AnswerError('no answer looks like that: one member is expected, or "Pong"')
        ((name, content),) = answer.items()
        if name not in _ANSWERS:
            raise AnswerError(f"no answer has the name {name[:64]!r}")
        layout, make = _ANSWERS[name]
        return make(msgspec.json.decode(content, type=layout))
    except (ValueError, OverflowError) as problem:  # msgspec's errors are of the first kind
        raise AnswerError(f"the answer cannot be read: {problem}") from None


def _produced(answer: _Produced) -> Produced:
    offsets = answer.offsets
    if not offsets:
        return Produced(0, 0)
    if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
        raise AnswerError("the offsets of a batch do not follow one another")
    return Produced(offsets[0], len(offsets))


def _fetched(answer: _Fetched) -> Fetched:
    offsets = [record.offset for record in answer.records]
    records = [bytes(bytearray(record.payload)) for record in answer.records]
    return Fetched(offsets, records, answer.next_offset)


def _topic_created(answer: _Success) -> TopicCreated:
    if not answer.success:
        raise AnswerError("the broker neither made the topic nor said why")
    return TopicCreated()


_ANSWERS: dict[str, tuple[Any, Callable[[Any], Answer]]] = {
    "Produce": (_Produced, _produced),
    "Fetch": (_Fetched, _fetched),
    "OffsetCommit": (_Success, lambda answer: OffsetCommitted(answer.success)),
    "OffsetFetch": (_Offset, lambda answer: OffsetFetched(answer.offset)),
    "CreateTopic": (_Success, _topic_created),
    "ListTopics": (
        _Topics,
        lambda answer: TopicList(
            tuple(TopicSummary(one.topic, one.partition_count) for one in answer.topics)
        ),
    ),
    "DescribeTopic": (
        _Topic,
        lambda answer: TopicDescription(
            answer.topic, tuple(place.high_watermark for place in answer.partitions)
        ),
    ),
    "DescribePartition": (
        _Partition,
        lambda answer: PartitionDescription(answer.topic, answer.partition, answer.high_watermark),
    ),
    "MetricsFetch": (_Text, lambda answer: Metrics(answer.text)),
    "Error": (_Message, lambda answer: Failed(0, answer.message)),
}
