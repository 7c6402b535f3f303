# Tests: tests/simulator/test_archive.py
"""A simulated archive behind `brokerd.archive.contract.view`, on a disk of its own.

`SimArchive` holds versions. A commit makes a version durable at once: no crash takes it back.
`OpenedArchive` is the view of one process; its reads take time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from brokerd.archive.contract.view import (
    Archive,
    ArchivedRows,
    ArchiveUnavailable,
    DamagedArchive,
    ForeignArchive,
)
from brokerd.values import Record
from brokerd.walformat import RecordColumns
from simulator.machine.crash import CrashModel

Key = tuple[int, int]
"""Topic id and partition."""

Wait = Callable[[], None]
"""Lets time pass, as a read of files does."""


class Held(NamedTuple):
    """The contents of one partition in one version."""

    covered: tuple[tuple[int, int], ...] = ()
    """Disjoint ranges (first, end) in order; adjacent ranges are joined."""
    records: tuple[Record, ...] = ()

    def with_more(self, ranges: Iterable[tuple[int, int]], records: Iterable[Record]) -> Held:
        """Return these contents with more covered ranges and their records."""
        every = {one.offset: one for one in (*self.records, *records)}
        joined = _joined([*self.covered, *ranges])
        return Held(joined, tuple(every[offset] for offset in sorted(every)))

    def without(self, offsets: frozenset[int]) -> Held:
        """Return these contents without the records at some offsets, which stay covered."""
        return Held(self.covered, tuple(one for one in self.records if one.offset not in offsets))

    def range_of(self, offset: int) -> tuple[int, int]:
        """Return the covered range of an offset; an empty range if it is not covered."""
        for first, end in self.covered:
            if first <= offset < end:
                return first, end
        return offset, offset


NOTHING = Held()

ARCHIVE_ID = "a" * 16
"""The id of the archive; it never changes."""


class Version(NamedTuple):
    """The result of one commit."""

    number: int
    held: Mapping[Key, Held]
    records_lsn: int = 0
    events_lsn: int = 0
    segment_hash: int = 0


class SimArchive:
    """All versions of the archive. Faults are set from outside."""

    has_files = False
    """Whether it has real files: `simulator.archive.files`."""

    def __init__(self) -> None:
        self.log_id = ""
        """Id of the log that it belongs to; "" before the first commit."""
        self.versions: list[Version] = []
        self.problem = ""
        """The reason why the archive cannot be reached; "" if it can."""
        self.is_gone = False
        """Whether it looks like an archive that never existed."""
        self.slow_factor = 1
        self.damage: dict[Key, tuple[int, int]] = {}
        """Offsets (first, end) that cannot be read."""
        self.failed_looks = 0
        """Number of refreshes that found it out of reach."""
        self._rewrites: dict[Key, list[int]] = defaultdict(list)
        """By partition, the versions that rewrote its files without some records."""
        self._restored = 0
        """Files of versions before this one are gone: an older copy replaced them."""
        self._vacuumed = -1
        """Files that this version or an earlier one replaced are deleted."""

    @property
    def newest(self) -> Version:
        return self.versions[-1] if self.versions else Version(-1, {})

    def lsn(self) -> int:
        """Return the LSN below which the newest version has all records and events."""
        return min(self.newest.records_lsn, self.newest.events_lsn)

    def events_lsn(self) -> int:
        """Return the LSN below which the newest version has all events."""
        return self.newest.events_lsn

    def commit(
        self,
        changed: Mapping[Key, Held],
        records_lsn: int | None = None,
        events_lsn: int | None = None,
        is_rewrite: bool = False,
        segment_hash: int | None = None,
    ) -> None:
        """Commit a version, durable at once, with new contents of some partitions."""
        last = self.newest
        number = last.number + 1
        if is_rewrite:
            for key in changed:
                self._rewrites[key].append(number)
        held = {key: one for key, one in {**last.held, **changed}.items() if one.covered}
        self.versions.append(
            Version(
                number,
                held,
                last.records_lsn if records_lsn is None else records_lsn,
                last.events_lsn if events_lsn is None else events_lsn,
                last.segment_hash if segment_hash is None else segment_hash,
            )
        )

    def vacuum(self) -> None:
        """Delete the files that the newest version does not use."""
        self._vacuumed = self.newest.number

    def restore(self, lsn: int) -> None:
        """Restore the oldest copy that has the whole log below ``lsn``; do nothing without one."""
        for older in self.versions:
            if min(older.records_lsn, older.events_lsn) >= lsn:
                self._restored = self.newest.number + 1
                self.versions.append(older._replace(number=self._restored))
                return

    def simulated(self) -> AbstractContextManager[None]:
        """Return a context for the whole run."""
        return nullcontext()

    def opened(self, log_id: str, wait: Wait) -> Archive:
        """Open the archive for a process of the broker; ``wait`` is called before each read."""
        return OpenedArchive(self, log_id, wait)

    def lose_power(self, model: CrashModel) -> None:
        """Do nothing: versions are durable."""

    def covered(self) -> Mapping[Key, Sequence[tuple[int, int]]]:
        """Return the ranges of offsets that the newest version covers."""
        return {key: held.covered for key, held in self.newest.held.items()}

    def reach(self) -> None:
        """Raise `ArchiveUnavailable` if the archive cannot be reached."""
        if self.problem:
            raise ArchiveUnavailable(self.problem)

    def reach_files(self, key: Key, number: int) -> None:
        """Raise `ArchiveUnavailable` if a version's files of a partition cannot be read."""
        self.reach()
        if number < self._restored or any(
            number < one <= self._vacuumed for one in self._rewrites.get(key, ())
        ):
            raise ArchiveUnavailable(f"files of version {number} are gone")


class OpenedArchive:
    """The archive of a log, as one process sees it; ``wait`` is called before each read."""

    def __init__(self, archive: SimArchive, log_id: str, wait: Wait) -> None:
        self._archive = archive
        self._log_id = log_id
        self._wait = wait
        self._view: SimView | None = None

    def refresh(self) -> SimView | None:
        """See `brokerd.archive.contract.view.Archive.refresh`."""
        self._wait()
        archive = self._archive
        try:
            archive.reach()
        except ArchiveUnavailable:
            archive.failed_looks += 1
            raise
        if archive.is_gone or not archive.versions:
            archive.failed_looks += archive.is_gone
            return None
        if archive.log_id != self._log_id:
            raise ForeignArchive(f"it is the archive of log {archive.log_id}")
        version = archive.newest
        if self._view is None or self._view.version != version.number:
            self._view = SimView(archive, version, self._wait)
        return self._view


class SimView:
    """One version; see `brokerd.archive.contract.view.ArchiveView`."""

    def __init__(self, archive: SimArchive, version: Version, wait: Wait) -> None:
        self._archive = archive
        self._held = version.held
        self._wait = wait
        self.log_id = archive.log_id
        self.archive_id = ARCHIVE_ID
        self.segment_hash = version.segment_hash
        self.version = version.number
        self.records_lsn = version.records_lsn
        self.events_lsn = version.events_lsn
        self.max_topic_id = max((topic_id for topic_id, _ in version.held), default=0)
        self.files = len(version.held)
        self.bytes = sum(size_of(one) for held in version.held.values() for one in held.records)

    def covers(self, topic_id: int, partition: int, first: int, end: int) -> bool:
        self._wait()  # answered from the names of files, which need not exist
        held = self._held.get((topic_id, partition), NOTHING)
        return first >= end or held.range_of(first)[1] >= end

    def read(
        self, topic_id: int, partition: int, offset: int, max_bytes: int
    ) -> ArchivedRows | None:
        held = self._reach((topic_id, partition))
        _, end = held.range_of(offset)
        if end <= offset:
            return None
        first_bad, end_bad = self._archive.damage.get((topic_id, partition), (0, 0))
        if first_bad <= offset < end_bad:
            raise DamagedArchive("a file of the archive is damaged", first_bad, end_bad)
        if offset < first_bad < end:
            end = first_bad
        at = _row_of(held, offset)
        stop, left = at, max_bytes
        while stop < len(held.records) and held.records[stop].offset < end:
            left -= size_of(held.records[stop])
            if left < 0 and stop > at:
                end = held.records[stop].offset
                break
            stop += 1
        rows = held.records[at:stop]
        return ArchivedRows(offset, end, [one.offset for one in rows], columns_of(rows))

    def offset_at_time(self, topic_id: int, partition: int, time_us: int) -> int | None:
        held = self._reach((topic_id, partition))
        for one in held.records:
            if one.append_time_us >= time_us:
                return one.offset
        return None

    def offset_of_size(
        self, topic_id: int, partition: int, below: int, max_bytes: int
    ) -> int | None:
        held = self._reach((topic_id, partition))
        stop = _row_of(held, below)
        if not stop:
            return None
        first = below
        for one in reversed(held.records[:stop]):
            max_bytes -= size_of(one)
            if max_bytes < 0:
                break
            first = one.offset
        return first

    def _reach(self, key: Key) -> Held:
        self._wait()
        self._archive.reach_files(key, self.version)
        return self._held.get(key, NOTHING)


def _row_of(held: Held, offset: int) -> int:
    """Return how many of the records lie below an offset."""
    return bisect_left(held.records, offset, key=lambda one: one.offset)


def _joined(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((first, end))
    return tuple(joined)


def size_of(record: Record) -> int:
    """Return the bytes of the key, value and metadata of a record."""
    return len(record.value) + len(record.key or b"") + len(record.metadata or b"")


def columns_of(records: Sequence[Record]) -> RecordColumns:
    """Return columns as a file gives them: rarely used columns may be None."""
    keys = [one.key for one in records]
    metadata = [one.metadata for one in records]
    times = [one.producer_time for one in records]
    expiries = [one.expires_at_us for one in records]
    return RecordColumns(
        values=[one.value for one in records],
        keys=keys if any(key is not None for key in keys) else None,
        encodings=[int(one.encoding) for one in records],
        metadata=metadata if any(one is not None for one in metadata) else None,
        append_time_us=[one.append_time_us for one in records],
        producer_time=times if any(time is not None for time in times) else None,
        expires_at_us=expiries if any(expiries) else None,
        producer_format=[int(one.producer_format) for one in records],
    )
