# Tests: tests/spark/test_planning.py
"""What a query reads, and in which parts: files of the archive, and pieces of the journal.

No record is read here. No pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from brokerd.archive.layout import RECORDS
from brokerd.spark.place import Place

COLUMNS = tuple(column.name for column in RECORDS.file_columns())
"""All that a row has."""
PARTITION_BYTES = 64 << 20

Span = tuple[int | None, int | None]
"""First and end (exclusive); None: nothing limits it on this side."""
EVERYTHING: Span = (None, None)


class Narrow(NamedTuple):
    """What conditions of a query leave of it; all of them hold. None: nothing is said."""

    topics: frozenset[str] | None = None
    topic_ids: frozenset[int] | None = None
    partitions: frozenset[int] | None = None
    offsets: Span = EVERYTHING
    times_us: Span = EVERYTHING
    lsns: Span = EVERYTHING


class Request(NamedTuple):
    """What somebody wants to read; goes to other processes."""

    topics: tuple[str, ...] | None = None
    """Names, or patterns with ``*``; None: all but the broker's own."""
    columns: tuple[str, ...] = COLUMNS
    """Of `COLUMNS`, in the order that the rows are to have."""
    from_time_us: int | None = None
    to_time_us: int | None = None
    """Append times, by broker time; exclusive."""
    from_offset: int | None = None
    to_offset: int | None = None
    """In every partition; exclusive."""
    from_offsets: Mapping[str, Mapping[int, int]] = {}
    to_offsets: Mapping[str, Mapping[int, int]] = {}
    """By name of the topic and partition; what is not named is read whole."""
    first_lsn: int = 0
    end_lsn: int | None = None
    """Of the batches, exclusive; None: all there is."""
    partition_bytes: int = PARTITION_BYTES
    """About how much one split reads."""
    tail: bool = True
    """Whether the file is read that is written to right now."""
    unknown_topics: bool = False
    """Whether a name that no topic has is no error, but has no records yet."""
    narrow: Narrow = Narrow()


class Count(NamedTuple):
    """How much of something a query reads, and how much there is of it."""

    read: int = 0
    all: int = 0


class Split(NamedTuple):
    """What one task reads; goes to other processes, and is small."""

    bytes: int
    """About how much."""
    records: int
    """How many rows at most."""


class Plan(NamedTuple):
    """What a query reads."""

    log_id: str
    splits: tuple[Split, ...]
    end_lsn: int
    """The rows are those below it: the end of the journal that was seen to be durable, or the
    request's, if that is below."""
    records: int
    """How many rows at most."""
    files: Count
    """Of the archive."""
    file_bytes: Count
    segments: Count
    """Files of the journal."""
    segment_bytes: Count
    """Of batches of records, in them."""


class End(NamedTuple):
    """How far a log has got."""

    log_id: str
    lsn: int


def plan(place: Place, request: Request, now_us: int) -> Plan:
    """Divide a query into splits.

    :param now_us: what is expired by then is left out.
    :raises BrokerdError: what is there cannot be read, or is not what it should be.
    """
    raise NotImplementedError


def end_of(place: Place, tail: bool = True) -> End:
    """How far the log has got: records from there on come later. Raises as `plan` does."""
    raise NotImplementedError


def end_after(place: Place, first_lsn: int, max_bytes: int, tail: bool = True) -> End:
    """Where about ``max_bytes`` of the log from an LSN on end; at the end if there are fewer.

    At least one batch of records, if there is one. Raises as `plan` does.
    """
    raise NotImplementedError
