# Tests: tests/spark/test_options.py
"""The request of a query: the records and columns to read. No pyspark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from brokerd.archive.contract.layout import RECORDS

COLUMNS = tuple(column.name for column in RECORDS.file_columns())
"""All columns of a row."""
PARTITION_BYTES = 64 << 20


class AsOf(NamedTuple):
    """An earlier version of the archive. Exactly one field is set."""

    version: int | None = None
    time_us: int | None = None
    """The newest version at this time."""
    lsn: int | None = None
    """The oldest version with the log up to this LSN."""


class Request(NamedTuple):
    """The records and columns that a query reads. It is pickled."""

    topics: tuple[str, ...] | None = None
    """Names, or patterns with ``*``. None selects all topics except the broker's own topics."""
    columns: tuple[str, ...] = COLUMNS
    """Some of `COLUMNS`, in the order of the rows."""
    from_time_us: int | None = None
    to_time_us: int | None = None
    """Limits of append times, by broker time; the end is exclusive."""
    from_offset: int | None = None
    to_offset: int | None = None
    """Limits of offsets in every partition; the end is exclusive."""
    from_offsets: Mapping[str, Mapping[int, int]] = {}
    to_offsets: Mapping[str, Mapping[int, int]] = {}
    """Offsets by topic name and partition. Other partitions are read whole."""
    first_lsn: int = 0
    end_lsn: int | None = None
    """Limits of the batches' LSNs; the end is exclusive. None means the end of the log."""
    partition_bytes: int = PARTITION_BYTES
    """The approximate size of a split."""
    tail: bool = True
    """Whether to read the open journal file."""
    archived: bool = True
    """Whether to read the records that the archive has."""
    unarchived: bool = True
    """Whether to read the records that only the journal has."""
    only_ids: frozenset[int] | None = None
    """Ids of the topics to read among those that ``topics`` selects. None means all of them."""
    unread: Mapping[tuple[int, int], int] = {}
    """The first offsets to read, by topic id and partition. Other partitions are read whole."""
    unknown_topics: bool = False
    """Whether to accept unknown topics, which count as empty. If not, they are an error."""
    as_of: AsOf | None = None
    """The version of the archive to read, without the journal. None: archive and journal now."""
