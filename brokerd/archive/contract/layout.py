# Tests: tests/archive/test_layout.py
"""Tables of the archive, their columns and their file names (docs/archive-format.rst).

Only `arrow_schema` imports pyarrow, so a broker without an archive does not load it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from brokerd.archive.contract.view import ForeignArchive

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
"""The version of tables and files."""
LOG_ID_PROPERTY = "brokerd.log_id"
VERSION_PROPERTY = "brokerd.version"
STAGING = "staging"
"""The directory of a rollup's unfinished work, beside the tables."""
ROLLUP_APP = "brokerd-rollup"
"""The Delta app transaction whose version is the LSN up to which a table holds the log."""
SEGMENT_APP = "brokerd-segment"
"""Its version is the `brokerd.archive.contract.pin.segment_hash` of the last archived segment."""
ARCHIVE_APP = "brokerd-archive"
"""Its version is a random number that a table gets when it is created. The archive's id is the
number of ``records``."""
ERASE_APP = "brokerd-erase"
"""Its version is the number of erasures that deleted files while a run of another machine could
still commit them."""

BUCKETS = 16
BUCKET = "bucket"
UNFINISHED = "unfinished-"
"""Begins the names of incomplete files."""


def bucket_of(topic_id: int) -> int:
    """Return the partition of the table ``records`` that holds a topic."""
    return topic_id % BUCKETS


class Column(NamedTuple):
    """A column of a table. The type has its name in Delta Lake."""

    name: str
    type: str
    nullable: bool = False


class Layout(NamedTuple):
    """The schema of a table."""

    name: str
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...] = ()
    """Columns whose values are only in the Delta log."""
    statistics: tuple[str, ...] = ()
    """Columns of numbers and times with a minimum and a maximum for each file."""
    texts: tuple[str, ...] = ()
    """Columns of text with a minimum and a maximum for each file, for other programs."""
    dictionary: tuple[str, ...] = ()
    """Columns with few distinct values."""

    def file_columns(self) -> tuple[Column, ...]:
        """Return the columns whose values are in the files."""
        return tuple(c for c in self.columns if c.name not in self.partition_by)

    @property
    def skipping(self) -> tuple[str, ...]:
        """Return the columns by which other programs skip files and row groups."""
        return (*self.texts, *self.statistics)


RECORDS = Layout(
    "records",
    (
        Column(BUCKET, "integer"),
        Column("topic", "string"),
        Column("topic_id", "long"),
        Column("partition", "integer"),
        Column("offset", "long"),
        Column("append_time", "timestamp"),
        Column("producer_time", "long", nullable=True),
        Column("lsn", "long"),
        Column("key", "binary", nullable=True),
        Column("value", "binary"),
        Column("encoding", "byte"),
        Column("metadata", "binary", nullable=True),
        Column("expires_at", "long"),
        Column("producer_format", "byte"),
    ),
    partition_by=(BUCKET,),
    statistics=("topic_id", "partition", "offset", "append_time", "lsn", "expires_at"),
    texts=("topic",),
    dictionary=("topic", "topic_id", "partition", "encoding", "producer_format"),
)

EVENTS = Layout(
    "events",
    (
        Column("topic", "string"),
        Column("topic_id", "long"),
        Column("partition", "integer"),
        Column("group_name", "string"),
        Column("lsn", "long"),
        Column("seq", "integer"),
        Column("time", "timestamp"),
        Column("kind", "string"),
        Column("offset", "long"),
        Column("amount", "long"),
        Column("token", "long"),
        Column("count", "long"),
        Column("owner", "string", nullable=True),
        Column("reason", "string", nullable=True),
    ),
    statistics=("topic_id", "lsn", "time"),
    texts=("topic", "group_name"),
    dictionary=("topic", "topic_id", "partition", "group_name", "kind", "owner", "reason"),
)

DELIVERIES = Layout(
    "deliveries",
    (
        Column("topic", "string"),
        Column("topic_id", "long"),
        Column("partition", "integer"),
        Column("group_name", "string"),
        Column("offset", "long"),
        Column("outcome", "string"),
        Column("reason", "string", nullable=True),
        Column("grants", "long"),
        Column("failures", "long"),
        Column("first_lease_time", "timestamp", nullable=True),
        Column("outcome_time", "timestamp"),
        Column("latency_us", "long", nullable=True),
        Column("owner", "string", nullable=True),
        Column("lsn", "long"),
    ),
    statistics=("topic_id", "outcome_time", "lsn"),
    texts=("topic", "group_name"),
)

HOURLY = Layout(
    "hourly",
    (
        Column("hour", "timestamp"),
        Column("topic", "string"),
        Column("topic_id", "long"),
        Column("group_name", "string"),
        Column("records", "long"),
        Column("bytes", "long"),
        Column("settled", "long"),
        Column("dead", "long"),
        Column("failures", "long"),
        Column("latency_p50_us", "long", nullable=True),
        Column("latency_p99_us", "long", nullable=True),
        Column("latency_max_us", "long", nullable=True),
    ),
    statistics=("hour", "topic_id"),
    texts=("topic", "group_name"),
)

LAYOUTS = {layout.name: layout for layout in (RECORDS, EVENTS, DELIVERIES, HOURLY)}


def arrow_schema(layout: Layout) -> pa.Schema:
    """Return the Arrow schema of a table's files."""
    import pyarrow as pa

    types = {
        "byte": pa.int8(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema(
        [pa.field(c.name, types[c.type], nullable=c.nullable) for c in layout.file_columns()]
    )


# -- Covered ranges ------------------------------------------------------------------------------


class Range(NamedTuple):
    """A covered range: the archive holds all records of a partition from ``first`` to ``end``.

    ``end`` is exclusive. In the table ``events`` these are LSNs; topic id and partition are 0.
    """

    topic_id: int
    partition: int
    first: int
    end: int


# -- File names ----------------------------------------------------------------------------------


class RecordsName(NamedTuple):
    """The parts of the name of a file of ``records``."""

    bucket: int
    first_topic_id: int
    first_partition: int
    last_topic_id: int
    last_partition: int
    only: Range | None
    """The covered range of a file of one partition, or None if the footer lists several ranges."""
    footer_hash: int

    def may_hold(self, topic_id: int, partition: int) -> bool:
        """Return whether a file of this name may hold records of a partition."""
        first = (self.first_topic_id, self.first_partition)
        last = (self.last_topic_id, self.last_partition)
        return self.bucket == bucket_of(topic_id) and first <= (topic_id, partition) <= last


class EventsName(NamedTuple):
    """The parts of the name of a file of ``events``: its first LSN, and its end (exclusive)."""

    first: int
    end: int
    footer_hash: int


_N = "(0|[1-9][0-9]{0,17})"
_TAIL = r"[0-9a-f]{8}-([0-9a-f]{16})\.parquet"
_ONE = re.compile(rf"bucket={_N}/p-{_N}-{_N}-{_N}-{_N}-{_TAIL}")
_SHARED = re.compile(rf"bucket={_N}/s-{_N}\.{_N}-{_N}\.{_N}-{_TAIL}")
_EVENTS = re.compile(rf"e-{_N}-{_N}-{_TAIL}")


def _foreign(layout: Layout, path: str) -> ForeignArchive:
    return ForeignArchive(
        f"the table {layout.name} has a file that brokerd did not write: {path!r}; use another "
        "archive, or restore the version of the table before another program wrote to it"
    )


def parse_records_name(path: str) -> RecordsName:
    """Parse a path relative to the table. Raises ForeignArchive if brokerd did not write it."""
    found = _ONE.fullmatch(path)
    if found is not None:
        *numbers, footer = found.groups()
        bucket, topic_id, partition, first, end = map(int, numbers)
        if bucket == bucket_of(topic_id) and first < end:
            only = Range(topic_id, partition, first, end)
            key = (topic_id, partition)
            return RecordsName(bucket, *key, *key, only, int(footer, 16))
    found = _SHARED.fullmatch(path)
    if found is not None:
        *numbers, footer = found.groups()
        bucket, *keys = map(int, numbers)
        if bucket == bucket_of(keys[0]) == bucket_of(keys[2]) and keys[:2] <= keys[2:]:
            return RecordsName(bucket, keys[0], keys[1], keys[2], keys[3], None, int(footer, 16))
    raise _foreign(RECORDS, path)


def parse_events_name(path: str) -> EventsName:
    """Parse a path relative to the table. Raises ForeignArchive if brokerd did not write it."""
    found = _EVENTS.fullmatch(path)
    if found is None or int(found[1]) >= int(found[2]):
        raise _foreign(EVENTS, path)
    return EventsName(int(found[1]), int(found[2]), int(found[3], 16))


def records_name(bucket: int, first: Range, last: Range, tail: str) -> str:
    """Return the path, relative to the table, of a file of ``records``.

    :param first: the first covered range.
    :param last: the last covered range.
    :param tail: 8 random hexadecimal digits, a hyphen and the footer's checksum.
    """
    if first == last:
        name = f"p-{first.topic_id}-{first.partition}-{first.first}-{first.end}"
    else:
        name = f"s-{first.topic_id}.{first.partition}-{last.topic_id}.{last.partition}"
    return f"{BUCKET}={bucket}/{name}-{tail}.parquet"


def events_name(first: int, end: int, tail: str) -> str:
    """Return the path, relative to the table, of a file of ``events`` that covers these LSNs."""
    return f"e-{first}-{end}-{tail}.parquet"
