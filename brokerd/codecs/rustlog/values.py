# Tests: tests/codecs/test_rustlog_binary.py, tests/codecs/test_rustlog_json.py
"""Requests and answers of both dialects, as values (page, section Requests).

Names of fields are those of the JSON dialect; their order is its order too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_PAYLOAD = 10_485_760
"""Largest payload of a frame, in bytes (seed, section Frame Structure)."""
MAX_RECORDS = 65_536
"""Largest number of records of one Produce (brokerd's limit; page, section Limits)."""
MAX_OFFSET = (1 << 63) - 1
"""The largest offset that a log can have."""
MAX_MESSAGE_BYTES = 65_535


class RequestError(Exception):
    """A payload is malformed. The connection stays open: the next frame can be read."""


class TooManyRecords(RequestError):
    """A Produce has more than MAX_RECORDS."""

    def __init__(self) -> None:
        super().__init__(f"a request has at most {MAX_RECORDS} records; send several requests")


class AnswerError(Exception):
    """A client cannot decode an answer."""


# -- requests ---------------------------------------------------------------------------------


class Produce(NamedTuple):
    """Append records to a partition, all or none."""

    topic: str
    partition: int
    records: Sequence[bytes]


class Fetch(NamedTuple):
    """Read records from an offset on; ``group_id`` None: without a group."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    group_id: str | None = None


class OffsetCommit(NamedTuple):
    topic: str
    partition: int
    group_id: str
    offset: int


class OffsetFetch(NamedTuple):
    topic: str
    partition: int
    group_id: str


class CreateTopic(NamedTuple):
    topic: str
    partition_count: int


@dataclass(frozen=True)
class ListTopics:
    """Ask for all topics."""


@dataclass(frozen=True)
class DescribeTopic:
    topic: str


class DescribePartition(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True)
class MetricsFetch:
    """Ask for numbers, as text."""


@dataclass(frozen=True)
class Ping:
    """Ask for a Pong."""


Request = (
    Produce
    | Fetch
    | OffsetCommit
    | OffsetFetch
    | CreateTopic
    | ListTopics
    | DescribeTopic
    | DescribePartition
    | MetricsFetch
    | Ping
)


# -- answers ----------------------------------------------------------------------------------


class Produced(NamedTuple):
    """The records have ``base_offset`` and the offsets that follow it."""

    base_offset: int
    record_count: int


class Fetched(NamedTuple):
    """Records with their offsets, and the offset of the next fetch.

    In the binary dialect the offsets are consecutive and not written.
    """

    offsets: Sequence[int]
    records: Sequence[bytes]
    next_offset: int


@dataclass(frozen=True)
class OffsetCommitted:
    success: bool


@dataclass(frozen=True)
class OffsetFetched:
    """``offset`` None: the group has no commit."""

    offset: int | None


@dataclass(frozen=True)
class TopicCreated:
    """The topic was created."""


class TopicSummary(NamedTuple):
    topic: str
    partition_count: int


@dataclass(frozen=True)
class TopicList:
    """Topics, each a `TopicSummary` or an equal tuple."""

    topics: Sequence[tuple[str, int]]


class TopicDescription(NamedTuple):
    """``next_offsets`` holds the offset of the next record of partition 0, 1, ..."""

    topic: str
    next_offsets: tuple[int, ...]


class PartitionDescription(NamedTuple):
    topic: str
    partition: int
    next_offset: int


@dataclass(frozen=True)
class Metrics:
    text: str


@dataclass(frozen=True)
class Pong:
    """The answer to Ping."""


class Failed(NamedTuple):
    """A request was refused. ``code`` is 0 in the JSON dialect, which has none."""

    code: int
    message: str


Answer = (
    Produced
    | Fetched
    | OffsetCommitted
    | OffsetFetched
    | TopicCreated
    | TopicList
    | TopicDescription
    | PartitionDescription
    | Metrics
    | Pong
    | Failed
)
