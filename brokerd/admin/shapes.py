# Tests: tests/admin/test_openapi.py
"""What the API takes and answers, as types: they read requests, write answers and describe both.

Times are ISO 8601 in UTC, by broker time; durations are seconds (docs/admin-api.rst).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

PAGE_MAX = 10_000
"""Most entries of one page."""
PAGE_PARTITIONS = 40_000
"""How many partitions, of all its entries, one page looks at."""
NUMBER_MAX = (1 << 62) - 1
SECONDS_MAX = 100 * 365 * 86_400
"""A hundred years, as everywhere."""

Offset = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Index = Annotated[int, Meta(ge=0, le=32_767)]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Seconds = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
Bytes = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Time = Annotated[datetime, Meta(tz=True)]

Thing = TypeVar("Thing")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def time_of(time_us: int) -> datetime:
    """Broker time for people and programs; what no calendar holds is its end."""
    try:
        return _EPOCH + time_us * _MICROSECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def time_us_of(time: datetime) -> int:
    """Broker time in microseconds."""
    return (time - _EPOCH) // _MICROSECOND


def seconds_of(duration_us: int) -> float:
    """A duration in seconds."""
    return duration_us / 1e6


def us_of(seconds: float) -> int:
    """A duration in microseconds."""
    return round(seconds * 1e6)


class Refusal(Struct):
    """Why a request was refused."""

    error: str
    """What is wrong, where, and what to do."""
    retryable: bool
    """Whether the same request may succeed later, unchanged."""


# -- queries --------------------------------------------------------------------------------------


class Query(Struct, frozen=True, forbid_unknown_fields=True):
    """A query string; what it does not name is refused."""


class Page(Query, frozen=True):
    """A page of a list: how many to skip, how many to show."""

    first: Offset = 0
    limit: Limit = 1_000

    def of(self, found: Iterable[Thing], partitions: int) -> tuple[list[Thing], int | None]:
        """(what to show, where the next page begins); ``partitions`` are those of each thing.

        What has many partitions takes long to describe, so fewer of it are a page.
        """
        most = min(self.limit, max(1, PAGE_PARTITIONS // max(1, partitions)))
        page = list(islice(found, self.first, self.first + most + 1))
        return page[:most], self.first + most if len(page) > most else None


class Place(Query, frozen=True):
    """A page of a list by offset: where it begins, how many to show."""

    partition: Index = 0
    offset: Offset = 0
    limit: Limit = 1_000


class LetterQuery(Place, frozen=True):
    """Which dead letters to show."""

    reason: str | None = None
    before: Time | None = None


class RecordQuery(Query, frozen=True):
    """Which records to read."""

    partition: Index = 0
    offset: Offset = 0
    limit: Limit = 100
    bytes_max: Annotated[int, Meta(ge=1, le=1 << 20)] = 256 << 10


class ScheduleQuery(Query, frozen=True):
    """Which delayed messages to show."""

    first_id: Offset = 0
    limit: Limit = 1_000


# -- topics ---------------------------------------------------------------------------------------


class NextPlace(Struct):
    """Where the next page begins."""

    partition: int
    offset: int


class TopicSettingsShape(Struct):
    """How long a topic keeps its records. null: as the broker is configured; 0: no limit."""

    retention_seconds: float | None
    retention_bytes: int | None
    ttl_seconds: float | None


class TopicChanges(Struct, forbid_unknown_fields=True):
    """Settings to change. null: as the broker is configured; 0: no limit; left out: as it was."""

    retention_seconds: Seconds | UnsetType | None = UNSET
    retention_bytes: Bytes | UnsetType | None = UNSET
    ttl_seconds: Seconds | UnsetType | None = UNSET


class NewTopic(Struct, forbid_unknown_fields=True):
    """A topic to create."""

    name: str
    partitions: Annotated[int, Meta(ge=1, le=32_767)] = 1
    settings: TopicChanges = msgspec.field(default_factory=TopicChanges)


class TopicShape(Struct):
    """One topic; offsets by partition."""

    name: str
    topic_id: int
    start_offsets: list[int]
    next_offsets: list[int]
    groups: int
    settings: TopicSettingsShape


class TopicList(Struct):
    """A page of topics; ``next`` is what the next page skips."""

    topics: list[TopicShape]
    next: int | None


class Deleted(Struct):
    """What was deleted."""

    deleted: str


class Trim(Struct, forbid_unknown_fields=True):
    """Below which offset records are to be removed."""

    offset: Offset
    partition: Index = 0


class Trimmed(Struct):
    """Below which offset records are removed now."""

    start_offset: int


# -- records --------------------------------------------------------------------------------------


EncodingName = Literal["bytes", "text", "msgpack"]


class NewRecord(Struct, forbid_unknown_fields=True):
    """A record to append: a ``value`` (text, or JSON to be stored as MessagePack), or its bytes."""

    value: Any = UNSET
    value_base64: str | None = None
    encoding: EncodingName | None = None
    key: str | None = None
    key_base64: str | None = None
    metadata: dict[str, Any] | None = None
    partition: Index | None = None
    ttl_seconds: Seconds | None = None
    """Left out: as the topic is configured; 0: never expire."""
    delay_seconds: Seconds = 0


class NewRecords(Struct, forbid_unknown_fields=True):
    """Records to append, all or none."""

    records: Annotated[list[NewRecord], Meta(min_length=1, max_length=PAGE_MAX)]


class Appended(Struct, omit_defaults=True):
    """Where a record is; or the number of a delayed message."""

    partition: int | None = None
    offset: int | None = None
    schedule_id: int | None = None


class AppendedList(Struct):
    """What became of records, in their order."""

    records: list[Appended]


class RecordShape(Struct):
    """One record. What JSON cannot say is null, and in base64 beside it."""

    partition: int
    offset: int
    append_time: datetime
    expires_at: datetime | None
    producer_time: int | None
    format: str
    encoding: EncodingName
    value: Any
    value_base64: str | None
    key: str | None
    key_base64: str | None
    metadata: Any
    metadata_base64: str | None


class RecordList(Struct):
    """Records, and where to go on; ``damage`` says why there are none before that."""

    records: list[RecordShape]
    next_offset: int
    damage: str | None


class ScheduledShape(Struct):
    """A message that waits for its time; its size and partition are told while it is in memory."""

    schedule_id: int
    due: datetime
    partition: int | None
    bytes: int | None


class ScheduledList(Struct):
    """A page of delayed messages; ``next_id`` is where the next one begins."""

    scheduled: list[ScheduledShape]
    next_id: int | None


class Cancelled(Struct):
    """Which delayed message was cancelled."""

    cancelled: int


# -- groups ---------------------------------------------------------------------------------------


Attempts = Literal["failures", "grants"]


class GroupSettingsShape(Struct):
    """How a group treats its records."""

    max_attempts: int
    attempts: Attempts
    backoff_base_seconds: float
    backoff_max_seconds: float
    default_duration_seconds: float
    key_ordered: bool


class GroupChanges(Struct, forbid_unknown_fields=True):
    """Settings to change. null: as the broker is configured; left out: as it was."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000000)] | UnsetType | None = UNSET
    attempts: Attempts | UnsetType | None = UNSET
    backoff_base_seconds: Seconds | UnsetType | None = UNSET
    backoff_max_seconds: Seconds | UnsetType | None = UNSET
    default_duration_seconds: Seconds | UnsetType | None = UNSET
    key_ordered: bool | UnsetType | None = UNSET


class LaneShape(Struct):
    """Where a group stands in one partition; counts of records."""

    partition: int
    floor: int
    next: int
    lag: int
    leased: int
    delayed: int
    dead: int
    committed: int | None


class GroupShape(Struct):
    """Where a group stands, over all partitions and by partition (the first 1,000)."""

    topic: str
    group: str
    paused: bool
    partitions: int
    floor: int
    next: int
    lag: int
    leased: int
    ready: int
    delayed: int
    dead: int
    committed: int | None
    oldest_age_seconds: float | None
    settings: GroupSettingsShape
    by_partition: list[LaneShape]


class GroupBrief(Struct):
    """What a group has to do; counts of records over all partitions."""

    group: str
    paused: bool
    lag: int
    leased: int
    delayed: int
    dead: int


class GroupList(Struct):
    """A page of groups; ``next`` is what the next page skips."""

    groups: list[GroupBrief]
    next: int | None


class Seek(Struct, forbid_unknown_fields=True):
    """Where a group goes on: ``to`` an offset, "start" or "end", or ``to_time``."""

    to: Offset | Literal["start", "end"] | None = None
    to_time: Time | None = None
    partition: Index | None = None


# -- leases and dead letters ----------------------------------------------------------------------


class LeaseShape(Struct):
    """One lease."""

    partition: int
    offset: int
    client: str
    token: int
    grants: int
    failures: int
    duration_seconds: float
    remaining_seconds: float


class LeaseList(Struct):
    """A page of leases."""

    leases: list[LeaseShape]
    next: NextPlace | None


class Release(Struct, forbid_unknown_fields=True):
    """Which leases to end: all of a client, or that of one record."""

    client: str | None = None
    offset: Offset | None = None
    partition: Index = 0
    delay_seconds: Seconds = 0


class Released(Struct):
    """How many leases were ended."""

    released: int


class LetterShape(Struct):
    """One dead letter."""

    partition: int
    offset: int
    reason: str
    grants: int
    failures: int
    first_attempt: datetime | None
    last_attempt: datetime | None


class LetterList(Struct):
    """A page of dead letters."""

    dead_letters: list[LetterShape]
    next: NextPlace | None


class LetterWithRecord(LetterShape):
    """One dead letter with its record, or why there is none."""

    record: RecordShape | None
    record_error: str | None


class LetterChoice(Struct, forbid_unknown_fields=True):
    """Which dead letters: those that fit all of it. ``end`` is exclusive."""

    partition: Index | None = None
    first: Offset = 0
    end: Offset | None = None
    reason: str | None = None
    before: Time | None = None


class Changed(Struct):
    """How many dead letters were changed."""

    count: int
