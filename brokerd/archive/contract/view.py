# Tests: tests/archive/test_bounds.py
"""What a broker asks of an archive, so that another can take its place in tests and simulations.

An archive is opened by its address. `Archive.refresh` gives an `ArchiveView`: what one version of
its tables holds, which never changes. Every method may block and read files: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from brokerd.errors import BrokerdError, DamagedData
from brokerd.walformat import RecordColumns


class ArchiveUnavailable(BrokerdError):
    """The archive, or a file of it, cannot be reached now; the same call may succeed later."""

    retryable = True


class ForeignArchive(BrokerdError):
    """What stands at the address is no archive, or that of another log; nothing of it is used."""


class DamagedArchive(DamagedData):
    """Bytes of a file in the archive are not what was written.

    Nothing can be said of offsets ``first`` to ``end``, exclusive, of the partition asked for.
    """

    def __init__(self, problem: str, first: int, end: int) -> None:
        super().__init__(problem)
        self.first = first
        self.end = end


class ArchivedRows(NamedTuple):
    """Records of one partition as an archive gives them back.

    All is known of the offsets ``first`` to ``end``, exclusive: a record that is not among
    ``offsets``, which grow, is removed. There may be no record at all.
    """

    first: int
    end: int
    offsets: Sequence[int]
    columns: RecordColumns
    """One row for each of ``offsets``; when there are none, it means nothing."""


class ArchiveView(Protocol):
    """One version of an archive. Offsets are those of one partition of a topic, by the topic's id.

    Methods raise `ArchiveUnavailable` when a file cannot be reached, `DamagedArchive` when it is
    not what was written, and NewerFormat for one of a later version of brokerd.
    """

    log_id: str
    """The log that this is the archive of: `brokerd.archive.contract.bounds.Bounds.log_id`."""
    archive_id: str
    """16 hexadecimal digits that were drawn when the archive was made; "": it is older than that.
    """
    version: int
    """Of the table of records; each commit raises it by one."""
    records_lsn: int
    """The table of records holds all that the log had below this LSN."""
    events_lsn: int
    """The table of events does."""
    segment_mark: int
    """`segment_mark` of the segment of the log that ends at ``records_lsn``; 0: it is not known."""
    max_topic_id: int
    """The largest topic id it holds records of; 0: none."""
    files: int
    """Files of the table of records."""
    bytes: int
    """Their size."""

    def covers(self, topic_id: int, partition: int, first: int, end: int) -> bool:
        """Whether all is known of every offset from ``first`` to ``end``, exclusive."""

    def read(
        self, topic_id: int, partition: int, offset: int, max_bytes: int
    ) -> ArchivedRows | None:
        """What is known from ``offset`` on, which is ``first`` of the answer; None: nothing.

        At least one offset, however large its record is, and then as many as fit ``max_bytes`` of
        keys, values and metadata, near enough.
        """

    def offset_at_time(self, topic_id: int, partition: int, time_us: int) -> int | None:
        """The first offset appended at or after broker time ``time_us``; None if there is none."""

    def offset_of_size(
        self, topic_id: int, partition: int, below: int, max_bytes: int
    ) -> int | None:
        """The first offset from which on the records below offset ``below`` take ``max_bytes``.

        At most so many bytes of keys, values and metadata, to the nearest file or row group. None
        if there is nothing of the partition below ``below``.
        """


class Archive(Protocol):
    """The archive at an address."""

    def refresh(self) -> ArchiveView | None:
        """The newest version; the same object as before if there is no newer one, which is cheap.

        None when nothing was ever archived there. Raises `ArchiveUnavailable`, `ForeignArchive`,
        NewerFormat.
        """
