# Tests: tests/broker/test_archive_reader.py
"""An archive in memory, and its job: `brokerd.archive.contract.view` without files.

archive = FakeArchive()
house = House(open_archive=archive.open)
...
archive.roll_up(house)            # adds the sealed segments in its next version
archive.remove("t", 0, {3, 4})    # as compaction does, in a version of its own
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from brokerd.archive.contract.pin import segment_hash
from brokerd.archive.contract.view import (
    ArchivedEvent,
    ArchivedRows,
    ArchiveUnavailable,
    DamagedArchive,
    EventPlace,
    EventSlice,
)
from brokerd.broker.model.chunks import MutableChunk
from brokerd.values import Record
from brokerd.walformat import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryKind,
    EventKind,
    RecordColumns,
    decode_group_events,
    decode_records,
    decode_segment_header,
    entry_size,
    iter_entries,
    parse_frame_header,
    segment_salt,
)
from simulator.machine.bare import WAL_DIR, BareBroker

Key = tuple[int, int]
"""Topic id and partition."""


class Held(NamedTuple):
    """The contents of one partition in one version."""

    covered: tuple[tuple[int, int], ...] = ()
    """Disjoint ranges (first, end) in order; adjacent ranges are joined."""
    offsets: tuple[int, ...] = ()
    records: tuple[Record, ...] = ()


class FakeView:
    """One immutable version; its files may be made unreachable or damaged."""

    def __init__(
        self, archive: FakeArchive, version: int, held: dict[Key, Held], lsn: int, mark: int = 0
    ) -> None:
        self._archive = archive
        self._held = held
        self.log_id = archive.log_id
        self.archive_id = archive.archive_id
        self.segment_hash = mark
        self.version = version
        self.records_lsn = self.events_lsn = lsn
        self.max_topic_id = max((topic_id for topic_id, _ in held), default=0)
        self.files = len(held)
        self.bytes = sum(_size(one) for held_of in held.values() for one in held_of.records)
        self.is_vacuumed = False
        """Whether its files are gone, because a later version replaced them."""

    def covers(self, topic_id: int, partition: int, first: int, end: int) -> bool:
        self._reach()
        return first >= end or self._range(topic_id, partition, first)[1] >= end

    def read(
        self, topic_id: int, partition: int, offset: int, max_bytes: int
    ) -> ArchivedRows | None:
        self._reach()
        self._archive.reads += 1
        _, end = self._range(topic_id, partition, offset)
        if end <= offset:
            return None
        damage = self._archive.damage.get((topic_id, partition))
        if damage is not None and damage[0] <= offset < damage[1]:
            raise DamagedArchive("a file of the archive is damaged", *damage)
        if damage is not None and offset < damage[0] < end:
            end = damage[0]
        held = self._held[topic_id, partition]
        at = bisect_left(held.offsets, offset)
        stop, left = at, max_bytes
        while stop < len(held.offsets) and held.offsets[stop] < end:
            left -= _size(held.records[stop])
            if (left < 0 and stop > at) or stop - at == self._archive.rows_max:
                end = held.offsets[stop]
                break
            stop += 1
        rows = held.records[at:stop]
        return ArchivedRows(offset, end, list(held.offsets[at:stop]), columns_of(rows))

    def offset_at_time(self, topic_id: int, partition: int, time_us: int) -> int | None:
        self._reach()
        held = self._held.get((topic_id, partition), Held())
        at = bisect_left(held.records, time_us, key=lambda one: one.append_time_us)
        return held.offsets[at] if at < len(held.offsets) else None

    def offset_of_size(
        self, topic_id: int, partition: int, below: int, max_bytes: int
    ) -> int | None:
        self._reach()
        held = self._held.get((topic_id, partition), Held())
        stop = bisect_left(held.offsets, below)
        if not stop:
            return None
        first = below
        for at in range(stop - 1, -1, -1):
            max_bytes -= _size(held.records[at])
            if max_bytes < 0:
                break
            first = held.offsets[at]
        return first

    def record_lsn(self, topic_id: int, partition: int, offset: int) -> int:
        self._reach()
        return 0

    def events(
        self, topic_id: int, partition: int, offset: int, from_lsn: int, place: EventPlace
    ) -> EventSlice:
        """Read one entry at a time."""
        self._reach()
        key, events = self._archive.events[place.group]
        wanted = [one for one in events if one.event[0] > EventKind.DEAD or one.event[1] == offset]
        is_read = key == (topic_id, partition) and events[0].lsn >= from_lsn
        more = place.group + 1 < len(self._archive.events)
        return EventSlice(
            wanted if is_read else [], EventPlace(0, place.group + 1) if more else None
        )

    def _range(self, topic_id: int, partition: int, offset: int) -> tuple[int, int]:
        """Return the covered range of an offset; an empty range if it is not covered."""
        for first, end in self._held.get((topic_id, partition), Held()).covered:
            if first <= offset < end:
                return first, end
        return offset, offset

    def _reach(self) -> None:
        if self._archive.read_failure is not None:
            raise self._archive.read_failure
        if self.is_vacuumed:
            raise ArchiveUnavailable(f"the files of version {self.version} are gone")


class FakeArchive:
    """`Archive` in memory: `cover`, `remove` and `roll_up` each make a version."""

    def __init__(self, log_id: str = "", rows_max: int = 1 << 30) -> None:
        self.log_id = log_id
        self.archive_id = "a" * 16
        self.rows_max = rows_max
        """Most rows of one read, as from a row group."""
        self.failure: Exception | None = None
        """The error that `refresh` raises."""
        self.read_failure: Exception | None = None
        """The error that all other methods raise."""
        self.damage: dict[Key, tuple[int, int]] = {}
        """Offsets (first, end) that cannot be read, by topic id and partition."""
        self.refreshes = 0
        self.reads = 0
        self.versions: list[FakeView] = []
        self.events: list[tuple[Key, list[ArchivedEvent]]] = []
        """Entries of events that `roll_up` added."""

    @property
    def newest(self) -> FakeView | None:
        return self.versions[-1] if self.versions else None

    def open(self, log_id: str) -> FakeArchive:
        """Become the archive of a log; brokers get this method to open their archive."""
        self.log_id = log_id
        return self

    def refresh(self) -> FakeView | None:
        self.refreshes += 1
        if self.failure is not None:
            raise self.failure
        return self.newest

    def cover(
        self, key: Key, first: int, end: int, records: Iterable[Record] = (), lsn: int | None = None
    ) -> FakeView:
        """Cover the offsets ``first`` to ``end``, with ``records`` as their only records."""
        return self._commit({key: _added(self._of(key), [(first, end)], records)}, lsn)

    def remove(self, key: Key, offsets: Iterable[int]) -> FakeView:
        """Remove the records at these offsets."""
        gone = set(offsets)
        held = self._of(key)
        kept = [one for one in held.records if one.offset not in gone]
        return self._commit({key: _held(held.covered, kept)}, None)

    def forget(self, key: Key) -> FakeView:
        """Forget a partition, as an older archive does."""
        return self._commit({key: Held()}, None)

    def vacuum(self) -> None:
        """Delete the files of all versions but the newest."""
        for view in self.versions[:-1]:
            view.is_vacuumed = True

    def roll_up(self, house: BareBroker) -> FakeView:
        """Add the sealed segments of a broker, as the job does."""
        ranges: dict[Key, list[tuple[int, int]]] = {}
        found: dict[Key, list[Record]] = {}
        lsn = self.versions[-1].records_lsn if self.versions else 0
        mark = self.versions[-1].segment_hash if self.versions else 0
        for segment in house.wal.segments():
            if segment.sealed and segment.end_lsn > lsn:
                self.events += entries_of_events(house, segment.name)
                for key, records in batches(house, segment.name):
                    ranges.setdefault(key, []).append((records[0].offset, records[-1].offset + 1))
                    found.setdefault(key, []).extend(records)
                lsn, mark = segment.end_lsn, segment_hash(segment.segment_id)
        added = {key: _added(self._of(key), ranges[key], found[key]) for key in found}
        return self._commit(added, lsn, mark)

    def _of(self, key: Key) -> Held:
        return self.versions[-1]._held.get(key, Held()) if self.versions else Held()

    def _commit(self, changed: dict[Key, Held], lsn: int | None, mark: int = 0) -> FakeView:
        before = self.newest
        held = {**(before._held if before is not None else {}), **changed}
        if lsn is None:
            lsn = before.records_lsn if before is not None else 0
            mark = before.segment_hash if before is not None else 0
        self.versions.append(FakeView(self, len(self.versions), held, lsn, mark))
        return self.versions[-1]


def _added(held: Held, ranges: Iterable[tuple[int, int]], records: Iterable[Record]) -> Held:
    joined: list[tuple[int, int]] = []
    for first, end in sorted([*held.covered, *ranges]):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((first, end))
    every = {one.offset: one for one in (*held.records, *records)}
    return _held(tuple(joined), [every[offset] for offset in sorted(every)])


def _held(covered: tuple[tuple[int, int], ...], records: list[Record]) -> Held:
    return Held(covered, tuple(one.offset for one in records), tuple(records))


def _size(record: Record) -> int:
    return len(record.value) + len(record.key or b"") + len(record.metadata or b"")


def columns_of(records: Sequence[Record]) -> RecordColumns:
    """Return columns as a file gives them: rarely used columns may be None."""
    keys = [one.key for one in records]
    metadata = [one.metadata for one in records]
    producer_times = [one.producer_time for one in records]
    expiries = [one.expires_at_us for one in records]
    return RecordColumns(
        values=[one.value for one in records],
        keys=keys if any(key is not None for key in keys) else None,
        encodings=[int(one.encoding) for one in records],
        metadata=metadata if any(one is not None for one in metadata) else None,
        append_time_us=[one.append_time_us for one in records],
        producer_time=producer_times if any(t is not None for t in producer_times) else None,
        expires_at_us=expiries if any(expiries) else None,
        producer_format=[int(one.producer_format) for one in records],
    )


def entries_of_events(house: BareBroker, name: str) -> Iterator[tuple[Key, list[ArchivedEvent]]]:
    """Yield the entries of group events in a segment's file, in order."""
    for lsn, time_us, entry in _entries(house, name):
        if entry.kind == EntryKind.GROUP_EVENTS:
            group, events = decode_group_events(entry.body, entry.count)
            rows = [ArchivedEvent(lsn, seq, time_us, group, one) for seq, one in enumerate(events)]
            yield (entry.topic_id, entry.partition), rows


def batches(house: BareBroker, name: str) -> Iterator[tuple[Key, list[Record]]]:
    """Yield the batches of records in a segment's file, in order."""
    for _, _, entry in _entries(house, name):
        if entry.kind == EntryKind.RECORDS:
            chunk = MutableChunk(entry.base_offset)
            chunk.extend(entry.count, decode_records(entry.body, entry.count))
            yield (entry.topic_id, entry.partition), chunk.records(chunk.base, chunk.end)


def _entries(house: BareBroker, name: str) -> Iterator[tuple[int, int, Entry]]:
    """Yield (LSN, broker time, entry) of a segment's file."""
    file = house.disk.open(os.path.join(WAL_DIR, name))
    data = file.pread(file.size(), 0)
    segment = decode_segment_header(data)
    salt = segment_salt(segment.segment_id)
    position = SEGMENT_HEADER_BYTES
    while position < len(data):
        header = parse_frame_header(data, salt, position)
        at = position + FRAME_HEADER_BYTES
        for entry in iter_entries(data[position : position + header.length], salt):
            yield segment.first_lsn + at, header.time_us, entry
            at += entry_size(len(entry.body))
        position += header.length
