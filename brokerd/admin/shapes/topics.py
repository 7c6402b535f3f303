# Tests: tests/admin/test_openapi.py
"""Requests and answers about topics and records; see `brokerd.admin.shapes.common`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from brokerd.admin.shapes.common import PAGE_MAX, Bytes, Index, Offset, Seconds


class TopicSettingsShape(Struct):
    """The settings of a topic. null: the broker's default; 0: no limit."""

    retention_seconds: float | None
    retention_bytes: int | None
    ttl_seconds: float | None
    compact: bool | None
    """Whether the archive keeps only the latest record of each key; null: it keeps all."""


class TopicAdmin(Struct, forbid_unknown_fields=True):
    """Settings to change. null: the broker's default; 0: no limit; left out: unchanged."""

    retention_seconds: Seconds | UnsetType | None = UNSET
    retention_bytes: Bytes | UnsetType | None = UNSET
    ttl_seconds: Seconds | UnsetType | None = UNSET
    compact: bool | UnsetType | None = UNSET


class NewTopic(Struct, forbid_unknown_fields=True):
    """A topic to create."""

    name: str
    partitions: Annotated[int, Meta(ge=1, le=32_767)] = 1
    settings: TopicAdmin = msgspec.field(default_factory=TopicAdmin)


class TopicShape(Struct):
    """One topic; offsets by partition."""

    name: str
    topic_id: int
    start_offsets: list[int]
    next_offsets: list[int]
    groups: int
    settings: TopicSettingsShape


class TopicList(Struct):
    """A page of topics. ``next`` is ``first`` of the next page."""

    topics: list[TopicShape]
    next: int | None


class Trim(Struct, forbid_unknown_fields=True):
    """The offset below which records are removed."""

    offset: Offset
    partition: Index = 0


class Trimmed(Struct):
    """The start offset after a trim."""

    start_offset: int


EncodingName = Literal["bytes", "text", "msgpack"]


class NewRecord(Struct, forbid_unknown_fields=True, gc=False):
    """A record to append: a ``value`` (text, or JSON to store as MessagePack), or its bytes."""

    value: Any = UNSET
    value_base64: str | None = None
    encoding: EncodingName | None = None
    key: str | None = None
    key_base64: str | None = None
    metadata: dict[str, Any] | None = None
    metadata_base64: str | None = None
    producer_time: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    """A number that the producer chooses; not for delayed messages."""
    partition: Index | None = None
    ttl_seconds: Seconds | None = None
    """Left out: the TTL of the topic; 0: no expiry."""
    delay_seconds: Seconds = 0


class NewRecords(Struct, forbid_unknown_fields=True):
    """Records to append, all or none."""

    records: Annotated[list[NewRecord], Meta(min_length=1, max_length=PAGE_MAX)]


class OffsetAtTime(Struct):
    """The first offset appended at or after a time; the next offset if there is none."""

    partition: int
    offset: int


class Appended(Struct, omit_defaults=True, gc=False):
    """The position of a record, or the schedule id of a delayed message."""

    partition: int | None = None
    offset: int | None = None
    schedule_id: int | None = None


class AppendedList(Struct):
    """Positions of the records, in the order of the request."""

    records: list[Appended]


class RecordShape(Struct):
    """One record. A field that JSON cannot represent is null, and its base64 is given."""

    partition: int
    offset: int
    append_time: datetime
    expires_at: datetime | None
    producer_time: int | None
    format: str | None
    encoding: EncodingName
    value: Any
    value_base64: str | None
    key: str | None
    key_base64: str | None
    metadata: Any
    metadata_base64: str | None


class RecordList(Struct):
    """Records, and the offset to read next. ``damage``: why records before it are missing."""

    records: list[RecordShape]
    next_offset: int
    damage: str | None


class ScheduledShape(Struct):
    """A delayed message. Its content is null unless the message is in memory."""

    schedule_id: int
    due: datetime
    partition: int | None
    bytes: int | None
    key: str | None
    preview: str | None
    """The beginning of the value."""


class ScheduledList(Struct):
    """A page of delayed messages. ``next_id`` is ``first_id`` of the next page."""

    scheduled: list[ScheduledShape]
    next_id: int | None


class Cancelled(Struct):
    """The schedule id of the cancelled message."""

    cancelled: int
