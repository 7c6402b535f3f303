# Tests: tests/archive/test_bounds.py
"""The interface through which the broker reads an archive. Tests and simulator implement it, too.

`Archive.refresh` returns an `ArchiveView`: one version of the tables, which never changes. Every
method may read files and block, so callers use a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from brokerd.errors import BrokerdError, DamagedData
from brokerd.walformat import RecordColumns
from brokerd.walformat.events import GroupEvent


class ArchiveUnavailable(BrokerdError):
    """The archive or one of its files cannot be reached; the same call may succeed later."""

    retryable = True


class ForeignArchive(BrokerdError):
    """The address holds no archive, or the archive of another log. The broker does not use it."""


class DamagedArchive(DamagedData):
    """A file of the archive has wrong bytes.

    The content of the partition's offsets ``first`` to ``end`` (exclusive) is unknown.
    """

    def __init__(self, problem: str, first: int, end: int) -> None:
        super().__init__(problem)
        self.first = first
        self.end = end


class ArchivedRows(NamedTuple):
    """Records of one partition, from offset ``first`` to ``end`` (exclusive).

    ``offsets`` ascend, and may be empty. The records of all other offsets were removed.
    """

    first: int
    end: int
    offsets: Sequence[int]
    columns: RecordColumns
    """One row for each of ``offsets``; undefined if ``offsets`` is empty."""


class ArchiveView(Protocol):
    """One version of an archive. Methods take offsets of one partition of a topic id.

    Methods raise `ArchiveUnavailable` if a file cannot be reached, `DamagedArchive` if it has wrong
    bytes, and NewerFormat if a later version of brokerd wrote it.
    """

    log_id: str
    """The id of the archived log: `brokerd.archive.contract.bounds.Bounds.log_id`."""
    archive_id: str
    """16 random hexadecimal digits; "" for archives of versions that had no ids."""
    version: int
    """The version of the table ``records``; each commit raises it by one."""
    records_lsn: int
    """The table ``records`` holds everything that the log held below this LSN."""
    events_lsn: int
    """The same for the table ``events``."""
    segment_hash: int
    """`brokerd.archive.contract.pin.segment_hash` of the segment that ends at ``records_lsn``; 0:
    unknown."""
    max_topic_id: int
    """The largest topic id with records in the archive; 0 if it has no records."""
    files: int
    """The number of files of the table ``records``."""
    bytes: int
    """The size of these files."""

    def covers(self, topic_id: int, partition: int, first: int, end: int) -> bool:
        """Return whether the archive covers every offset from ``first`` to ``end`` (exclusive)."""

    def read(
        self, topic_id: int, partition: int, offset: int, max_bytes: int
    ) -> ArchivedRows | None:
        """Read records from ``offset`` on.

        :param max_bytes: approximate limit of keys, values and metadata; a larger record comes
            alone.
        :return: rows whose ``first`` is ``offset``, or None if the archive does not cover it.
        """

    def offset_at_time(self, topic_id: int, partition: int, time_us: int) -> int | None:
        """Return the first offset appended at or after broker time ``time_us``, or None."""

    def offset_of_size(
        self, topic_id: int, partition: int, below: int, max_bytes: int
    ) -> int | None:
        """Return the first offset from which records up to ``below`` take at most ``max_bytes``.

        :param max_bytes: of keys, values and metadata, to the nearest file or row group.
        :return: the offset, or None if the archive holds no record of the partition below
            ``below``.
        """


class ArchivedEvent(NamedTuple):
    """An event of a group: place in the log, broker time, group, and the event's fields."""

    lsn: int
    seq: int
    time_us: int
    group: str
    event: GroupEvent


class EventPlace(NamedTuple):
    """A row group of the table ``events``: numbers of its file and of the group in it."""

    file: int = 0
    group: int = 0


class EventSlice(NamedTuple):
    """Events of some row groups, by (lsn, seq), and the next place; None at the end."""

    events: list[ArchivedEvent]
    next: EventPlace | None


@runtime_checkable
class EventView(Protocol):
    """A version of an archive that also reads the table ``events``. Raises as `ArchiveView`."""

    events_lsn: int

    def record_lsn(self, topic_id: int, partition: int, offset: int) -> int:
        """Return an LSN that is not above that of an archived record; 0 if it is not there."""

    def events(
        self, topic_id: int, partition: int, offset: int, from_lsn: int, place: EventPlace
    ) -> EventSlice:
        """Read the next row groups with events from an LSN on.

        Returns the events of a partition that have this offset, and all events of kinds that name
        no single record (from COMMITTED on).
        """


class Archive(Protocol):
    """The archive at an address."""

    def refresh(self) -> ArchiveView | None:
        """Return the newest version. If it has not changed, return the same object, cheaply.

        :return: the version, or None if the address holds no archive yet.
        :raises ArchiveUnavailable: the archive cannot be reached.
        :raises ForeignArchive: the address holds other files, or the archive of another log.
        :raises NewerFormat: a later version of brokerd wrote it.
        """
