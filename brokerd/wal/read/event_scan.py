# Tests: tests/wal/test_event_scan.py
"""Finds the events of consumer groups about one record, in segments from an LSN on.

An event index tells which parts of a sealed segment to read; without one the scan reads the whole
segment. It goes from entry to entry by their lengths. Of the entries of the partition it decodes
only those that hold the record's offset, or an event without an offset of its own. It verifies
headers of frames, and the entries that it decodes. ``brokerctl wal verify`` verifies everything.

One thread at a time runs :meth:`EventScan.step`. Memory: one slice, or one frame if that is larger,
one index, and the groups with an event about the record.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from brokerd.wal.disk import Disk, File
from brokerd.walformat import (
    ENTRY_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    EntryKind,
    EventKind,
    FormatError,
    FrameHeader,
    decode_group_events,
    entry_body,
    parse_entry_header,
    parse_frame_header,
    segment_salt,
)
from brokerd.walformat.event_index import EventIndex
from brokerd.walformat.events import (
    EVENTS_HEADER_BYTES,
    EVENTS_PEEK,
    EVENTS_PEEK_AT,
    OWN_KINDS,
    GroupEvent,
)

SLICE_BYTES: Final = 2 << 20
"""Bytes that one step reads, or one frame if that is larger."""

_ENTRY: Final = struct.Struct("<4sI12s")
"""Kind, version and flags of an entry; bytes of its body; topic id and partition."""
_BEGIN: Final = bytes((EntryKind.GROUP_EVENTS, 1, 0, 0))
_CONSTANTS: Final = 0x1111111
"""Kinds of the columns of an entry with one event."""
_COLUMNS_AT: Final = ENTRY_HEADER_BYTES + EVENTS_HEADER_BYTES
_ARRAY: Final = 2

LoadIndex = Callable[[bytes, int, int], EventIndex | None]
"""Returns the event index of the segment with an id, first LSN and end LSN. Raises OSError."""


class SegmentSpan(NamedTuple):
    """Positions ``start`` to ``end``, exclusive, of a segment file to search."""

    name: str
    segment_id: bytes
    first_lsn: int
    start: int
    end: int


class RecordEvent(NamedTuple):
    """An event about the record."""

    lsn: int
    """LSN of the entry of the event."""
    seq: int
    """Place of the event in its entry."""
    time_us: int
    """Broker time of the frame."""
    group: str
    event: GroupEvent


class RecordEventFilter:
    """Selects the events that concern one offset. It must see all events of the partition that may
    concern it, in order.
    """

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._groups: set[str] = set()
        """Groups with an event about the record."""
        self._dead: dict[str, str] = {}
        """Groups in which the record is a dead letter, and its reason."""
        self._committed: set[str] = set()
        """Groups whose committed offset is above the record."""

    def select(self, group: str, events: Sequence[GroupEvent]) -> Iterator[tuple[int, GroupEvent]]:
        """Yield (place, event) of the events of a group that concern the record."""
        for seq, event in enumerate(events):
            if self.accept(group, event):
                yield seq, event

    def accept(self, group: str, event: GroupEvent) -> bool:
        """Return whether the next event concerns the record."""
        is_wanted = self._concerns(group, event)
        if is_wanted and event[0] != EventKind.DELETED:
            self._groups.add(group)
        return is_wanted

    def is_above(self, group: str) -> bool:
        """Return whether the group's committed offset is above the record."""
        return group in self._committed

    def _concerns(self, group: str, event: GroupEvent) -> bool:
        kind, first, end, _, _, _, reason = event
        if kind <= EventKind.DEAD:
            if first != self._offset:
                return False
            self._dead.pop(group, None)
            if kind == EventKind.DEAD:
                self._dead[group] = reason
            return True
        if kind == EventKind.COMMITTED:
            was_above = group in self._committed
            (self._committed.add if first > self._offset else self._committed.discard)(group)
            return was_above != (first > self._offset)
        if kind == EventKind.SETTLED_RANGE:
            return first <= self._offset < end
        if kind == EventKind.SEEK:
            self._dead.pop(group, None)
            return True
        if kind in (EventKind.REPLAYED, EventKind.PURGED):
            found = self._dead.get(group)
            if found is None or not first <= self._offset < end or reason not in ("", found):
                return False
            del self._dead[group]
            return True
        is_known = group in self._groups
        if kind == EventKind.DELETED:
            self._groups.discard(group)
            self._committed.discard(group)
            self._dead.pop(group, None)
        return is_known


class EventScan:
    """Searches spans in order, a slice in each step.

    ``problems`` has a text for each part that could not be read, and for each gap that a deleted
    segment left between two spans, or between ``archived_lsn``, up to which the archive was
    searched, and the first span. ``events_filter`` has seen earlier events of the partition.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        topic_id: int,
        partition: int,
        offset: int,
        spans: Sequence[SegmentSpan],
        events_filter: RecordEventFilter | None = None,
        load_index: LoadIndex = lambda segment_id, first_lsn, end_lsn: None,
        archived_lsn: int | None = None,
    ) -> None:
        self.problems: list[str] = [*_gaps(archived_lsn, spans)]
        self.bytes_read = 0
        """Of segments and indexes."""
        self.from_lsn = spans[0].first_lsn if spans else 0
        """Events below this LSN are not searched."""
        self._disk = disk
        self._path = path
        self._identity = struct.pack("<QI", topic_id, partition)
        self._key = topic_id, partition
        self._load_index = load_index
        self._offset = offset
        self._packed_offset = struct.pack("<q", offset)
        self._filter = events_filter or RecordEventFilter(offset)
        self._spans = list(reversed(spans))
        self._file: File | None = None
        self._parts: Iterator[tuple[int, int]] = iter(())
        """Parts of the segment that are still to be read."""
        self._position = 0
        self._end = 0
        """Where the part that is read now ends."""
        self._salt = 0
        self._is_lost = False
        """Whether the last bytes were no frame."""

    @property
    def done(self) -> bool:
        return not self._spans

    def step(self) -> list[RecordEvent]:
        """Search about the next 2 MiB; return the events about the record.

        Raises OSError, except for a segment that is deleted: that is a problem.
        """
        found: list[RecordEvent] = []
        until = self.bytes_read + SLICE_BYTES
        while self._spans and self.bytes_read < until:
            span = self._spans[-1]
            if self._file is None:
                try:
                    self._file = self._disk.open(os.path.join(self._path, span.name))
                except FileNotFoundError:
                    self.problems.append(f"{span.name} was deleted during the search; try again")
                    self._spans.pop()
                    continue
                self._parts = self._parts_of(span)
                self._salt = segment_salt(span.segment_id)
                self._position = self._end = 0
            if self._position >= self._end:
                part = next(self._parts, None)
                if part is None:
                    self._file = None
                    self._spans.pop()
                    continue
                self._position, self._end = part
                self._is_lost = False
            found += self._slice(self._file, span)
        return found

    def _parts_of(self, span: SegmentSpan) -> Iterator[tuple[int, int]]:
        """Return the parts of a segment to read: by its index, or all of it."""
        index = None
        with suppress(OSError):  # the segment itself may be sound
            index = self._load_index(span.segment_id, span.first_lsn, span.first_lsn + span.end)
        if index is None:
            return iter(((span.start, span.end),))
        self.bytes_read += index.size
        return index.parts(*self._key, self._offset, self._filter.is_above)

    def _slice(self, file: File, span: SegmentSpan) -> Iterator[RecordEvent]:
        """Yield the events of the next whole frames; advance the position behind them."""
        rest = self._end - self._position
        data = file.pread(min(SLICE_BYTES, rest), self._position)
        self.bytes_read += len(data)
        at = 0
        while at < len(data) or not data:
            header = self._frame_header(data, span, at)
            if header is None:
                if at and at + FRAME_HEADER_BYTES > len(data) and len(data) < rest:
                    break  # the header may go on in the next slice
                at = self._skip(data, span, at)
                if not data:
                    at = rest
                    break
                continue
            self._is_lost = False
            end = at + header.length
            if end > len(data):
                if at:
                    break
                data = file.pread(header.length, self._position)
                self.bytes_read += len(data)
                if len(data) < end:
                    self.problems.append(f"{span.name} at {self._position}: a frame is cut short")
                    at = rest
                    break
            yield from self._frame(span, data, at, end, header)
            at = end
        self._position += at

    def _frame_header(self, data: bytes, span: SegmentSpan, at: int) -> FrameHeader | None:
        with suppress(FormatError):
            header = parse_frame_header(data, self._salt, at)
            if header.lsn == span.first_lsn + self._position + at:
                return header
        return None

    def _skip(self, data: bytes, span: SegmentSpan, at: int) -> int:
        """Report bytes that are no frame once; return where the next frame may begin."""
        if not self._is_lost:
            self._is_lost = True
            self.problems.append(f"{span.name} at {self._position + at}: no frame can be read")
        found = data.find(FRAME_MAGIC, at + 1)
        while found >= 0 and found % 8:
            found = data.find(FRAME_MAGIC, found + 1)
        return found if found >= 0 else max(at + 8, len(data) & ~7)

    def _frame(
        self, span: SegmentSpan, data: bytes, at: int, end: int, header: FrameHeader
    ) -> Iterator[RecordEvent]:
        """Yield the events about the record of one frame, from ``at`` to ``end`` in ``data``."""
        identity, unpack, peek, find = (
            self._identity,
            _ENTRY.unpack_from,
            EVENTS_PEEK.unpack_from,
            data.find,
        )
        packed, offset, start = self._packed_offset, self._offset, at
        at += FRAME_HEADER_BYTES
        last = end - ENTRY_HEADER_BYTES
        while at <= last:
            begin, size, of = unpack(data, at)
            if of == identity and begin == _BEGIN and at + _COLUMNS_AT <= end:
                count, kinds, kind, constant = peek(data, at + EVENTS_PEEK_AT)
                concerns = kind > 7  # EventKind.DEAD
                if kinds == _CONSTANTS:
                    concerns = concerns or constant == offset
                else:
                    columns = at + _COLUMNS_AT
                    if kinds & 15 == _ARRAY:
                        concerns = bool(data[columns : columns + count].translate(None, OWN_KINDS))
                        columns += (count + 7) & ~7
                    if kinds >> 4 & 15 == _ARRAY:
                        concerns = concerns or find(packed, columns, columns + 8 * count) >= 0
                    else:
                        concerns = concerns or constant == offset
                if concerns:
                    yield from self._events(span, data, at, header.time_us)
            at += (ENTRY_HEADER_BYTES + size + 7) & ~7
        if at != end:
            self.problems.append(f"{span.name} at {self._position + start}: the frame is damaged")

    def _events(
        self, span: SegmentSpan, data: bytes, at: int, time_us: int
    ) -> Iterator[RecordEvent]:
        """Yield the events about the record of the entry at ``at``."""
        position = self._position + at
        try:
            header = parse_entry_header(data, self._salt, at)
            group, events = decode_group_events(entry_body(data, header, at), header.count)
        except FormatError as error:
            self.problems.append(f"{span.name} at {position}: {error}")
            return
        for seq, event in self._filter.select(group, events):
            yield RecordEvent(span.first_lsn + position, seq, time_us, group, event)


def _gaps(lsn: int | None, spans: Sequence[SegmentSpan]) -> Iterator[str]:
    """Yield a text for each gap between two spans, and between ``lsn`` and the first one."""
    for span in spans:
        if lsn is not None and lsn < span.first_lsn:
            yield (
                f"journal files with LSN {lsn} to {span.first_lsn} are deleted: events there are "
                "not shown"
            )
        lsn = span.first_lsn + span.end
