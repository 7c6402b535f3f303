# Tests: tests/admin/test_stream_calls.py
"""Requests and answers about named streams."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from brokerd.admin.shapes.common import Offset


class StreamPosition(Struct, forbid_unknown_fields=True):
    """The position of a stream, for a report."""

    log_id: Annotated[str, Meta(max_length=64)]
    """The id of the log that the stream reads."""
    lsn: Offset
    """The stream has read everything below."""
    topics: list[str] | None = None
    """Names, or patterns with ``*``. Null: all topics but the broker's own."""
    offsets: dict[str, list[Offset]] = {}
    """The next offset of each partition, by topic id. A topic that is not in it is not read yet."""
    holds: bool = False
    """Whether retention shall wait for the stream."""


class StreamShape(Struct):
    """A named stream."""

    name: str
    owner: str
    """The account that reported first; empty: anonymous."""
    topics: list[str] | None
    """Names, or patterns with ``*``. Null: all topics but the broker's own."""
    lsn: int
    """The stream has read everything below."""
    lag_records: int | None
    """Records of its topics that it has not read. Null in a list: not counted yet."""
    lag_bytes: int | None
    """Bytes of the journal behind its position; 0 if it has read all records."""
    holds: bool
    """Whether retention waits for the stream now."""
    hold_dropped: str
    """Why it does not although the stream asks for it: silent, bytes or disk; else empty."""
    created: datetime
    reported: datetime
    """Time of the last report."""
    silent_seconds: float
    """Time since then."""


class TopicOffsets(Struct):
    """The position of a stream in a topic."""

    topic: str
    topic_id: int
    offsets: list[int]
    """The next offset of each partition."""
    next_offsets: list[int]
    """The end of each partition."""


class StreamDetails(StreamShape):
    """A named stream with its position in each topic."""

    positions: list[TopicOffsets]
    """The first 1,000 topics, up to 40,000 partitions."""


class StreamList(Struct):
    """A page of streams, by name."""

    streams: list[StreamShape]
    next: int | None
    """``first`` of the next page."""
