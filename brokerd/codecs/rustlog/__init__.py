# Tests: tests/codecs/test_rustlog_golden.py
"""The RustLog wire format, both dialects: bytes to values and back, pure.

Page: docs/protocols/rustlog.rst. A server reads payloads with `FrameReader`, calls `dialect_of` for
each, and uses that dialect's ``decode_request`` and ``encode_answer``. A client uses the
``encode_request`` and ``decode_answer`` of its dialect (`CODECS`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from brokerd.codecs.length_prefixed import FrameLengthError
from brokerd.codecs.length_prefixed import length_prefixed as frame
from brokerd.codecs.rustlog import binary, binary_peer, json_answers, json_peer, json_requests
from brokerd.codecs.rustlog.binary import FETCHED_BYTES, LENGTH_BYTES, MAX_RECORD_BYTES
from brokerd.codecs.rustlog.frames import Dialect, FrameReader, dialect_of
from brokerd.codecs.rustlog.json_answers import fetched_length
from brokerd.codecs.rustlog.json_records import SLICE_BYTES, RecordsParser
from brokerd.codecs.rustlog.json_requests import MAX_ENVELOPE_BYTES, LongProduce
from brokerd.codecs.rustlog.values import (
    MAX_OFFSET,
    MAX_PAYLOAD,
    MAX_RECORDS,
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
    RequestError,
    TooManyRecords,
    TopicCreated,
    TopicDescription,
    TopicList,
    TopicSummary,
)


class Codec(NamedTuple):
    """The functions of a dialect.

    ``encode_topic_list`` takes results of ``encode_topics`` and the number of their topics. It
    returns the same frame as ``encode_answer`` of a `TopicList`.
    """

    decode_request: Callable[[bytes], Request | LongProduce]
    encode_answer: Callable[[Answer], bytes]
    encode_request: Callable[[Request], bytes]
    decode_answer: Callable[[bytes], Answer]
    encode_topics: Callable[[Sequence[tuple[str, int]]], bytes]
    encode_topic_list: Callable[[Sequence[bytes], int], bytes]


CODECS = {
    Dialect.BINARY: Codec(
        binary.decode_request,
        binary.encode_answer,
        binary_peer.encode_request,
        binary_peer.decode_answer,
        binary.encode_topics,
        binary.encode_topic_list,
    ),
    Dialect.JSON: Codec(
        json_requests.decode_request,
        json_answers.encode_answer,
        json_peer.encode_request,
        json_peer.decode_answer,
        json_answers.encode_topics,
        json_answers.encode_topic_list,
    ),
}

__all__ = [
    "CODECS",
    "FETCHED_BYTES",
    "LENGTH_BYTES",
    "MAX_ENVELOPE_BYTES",
    "MAX_OFFSET",
    "MAX_PAYLOAD",
    "MAX_RECORDS",
    "MAX_RECORD_BYTES",
    "SLICE_BYTES",
    "Answer",
    "AnswerError",
    "Codec",
    "CreateTopic",
    "DescribePartition",
    "DescribeTopic",
    "Dialect",
    "Failed",
    "Fetch",
    "Fetched",
    "FrameLengthError",
    "FrameReader",
    "ListTopics",
    "LongProduce",
    "Metrics",
    "MetricsFetch",
    "OffsetCommit",
    "OffsetCommitted",
    "OffsetFetch",
    "OffsetFetched",
    "PartitionDescription",
    "Ping",
    "Pong",
    "Produce",
    "Produced",
    "RecordsParser",
    "Request",
    "RequestError",
    "TooManyRecords",
    "TopicCreated",
    "TopicDescription",
    "TopicList",
    "TopicSummary",
    "dialect_of",
    "fetched_length",
    "frame",
]
