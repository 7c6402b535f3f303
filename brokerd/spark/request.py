# Tests: tests/spark/test_options.py
"""The request of a query: which records it reads, and which columns. No pyspark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from brokerd.archive.contract.layout import RECORDS

COLUMNS = tuple(column.name for column in RECORDS.file_columns())
"""All columns of a row."""
PARTITION_BYTES = 64 << 20


class Request(NamedTuple):
    """The records and columns that a query reads. It is pickled."""

    topics: tuple[str, ...] | None = None
    """Names, or patterns with ``*``; None: all topics except the broker's own."""
    columns: tuple[str, ...] = COLUMNS
    """A part of `COLUMNS`, in the order of the rows."""
    from_time_us: int | None = None
    to_time_us: int | None = None
    """Append times, by broker time; exclusive."""
    from_offset: int | None = None
    to_offset: int | None = None
    """In every partition; exclusive."""
    from_offsets: Mapping[str, Mapping[int, int]] = {}
    to_offsets: Mapping[str, Mapping[int, int]] = {}
    """By topic name and partition. Partitions that are not named are read whole."""
    first_lsn: int = 0
    end_lsn: int | None = None
    """LSNs of the batches, exclusive; None: the end of the log."""
    partition_bytes: int = PARTITION_BYTES
    """The approximate size of a split."""
    tail: bool = True
    """Whether to read the open journal file."""
    unknown_topics: bool = False
    """Whether an unknown topic has no records yet. Otherwise it is an error."""
