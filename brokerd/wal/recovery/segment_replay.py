# Tests: tests/wal/test_recover.py
"""Reads a log back after a start: what is sound, what is torn, what is damaged.

The rules are docs/wal-format.rst, section "Reading a log back". Nothing on disk changes before
everything has been read: a newer format leaves the directory as it was. Then leftovers are deleted,
accepted bytes beyond the last synced position are written again and synced, and the last segment is
trimmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from brokerd.errors import DamagedData, NewerFormat
from brokerd.wal.disk import File
from brokerd.wal.read.scanner import FoundEntry, FoundFrame, SegmentScanner, Unreadable
from brokerd.wal.recovery.report import Cut, Damage, Frame, LostRange, RecoveryReport
from brokerd.wal.segment import Segment
from brokerd.walformat import (
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryKind,
    FormatError,
    SegmentHeader,
    UnsupportedFormat,
    decode_segment_header,
    entry_size,
    parse_frame_header,
    segment_salt,
)
from brokerd.walformat.index import GrowingIndex, SegmentIndex

REWRITE_BYTES = 1 << 20


def read_segment_header(file: File, name: str) -> tuple[SegmentHeader, str | None]:
    """The header of a segment file, and what is wrong with the block if it had to be guessed.

    A damaged block is replaced by what the name and the first sound frame tell. Raises DamagedData
    when no frame tells either, NewerFormat.
    """
    first_lsn = int(name.partition(".")[0])
    try:
        header = decode_segment_header(file.pread(SEGMENT_HEADER_BYTES, 0))
        if header.first_lsn == first_lsn:
            return header, None
        problem = f"the header says the segment begins at LSN {header.first_lsn}"
    except UnsupportedFormat as error:
        raise NewerFormat(f"{name}: {error}; upgrade brokerd to read it") from None
    except FormatError as error:
        problem = str(error)
    segment_id = _id_from_frames(file, first_lsn)
    if segment_id is None:
        raise DamagedData(f"{name} at 0: {problem}, and no sound frame follows")
    return SegmentHeader(segment_id, first_lsn, file.size(), 0), problem


def _id_from_frames(file: File, first_lsn: int) -> bytes | None:
    """The segment id that the first sound frame names."""
    size = file.size()
    step = 1 << 20
    for start in range(SEGMENT_HEADER_BYTES, size, step):
        data = file.pread(step + FRAME_HEADER_BYTES, start)
        at = data.find(FRAME_MAGIC)
        while 0 <= at < step:
            candidate = data[at + 24 : at + 40]
            try:
                header = parse_frame_header(data, segment_salt(candidate), at)
            except FormatError:
                pass  # not a frame: look on
            else:
                if header.lsn == first_lsn + start + at:
                    return candidate
            at = data.find(FRAME_MAGIC, at + 1)
    return None


def told_by_index(damages: list[Damage], said: SegmentIndex, found: SegmentIndex) -> list[Damage]:
    """Damages of one segment, with the batches that its index ``said`` and nobody ``found``.

    There may be others: an index that was made again after the damage does not know them.
    """
    lost = sorted(_not_found(said, found))
    known = {one for damage in damages for one in damage.lost}
    told = []
    for damage in damages:
        more = [
            batch
            for position, batch in lost
            if damage.position <= position < damage.end and not any(map(batch.lies_in, known))
        ]
        told.append(replace(damage, lost=damage.lost + more))
    return told


def _not_found(said: SegmentIndex, found: SegmentIndex) -> Iterator[tuple[int, LostRange]]:
    """The batches that only one index has: (position of the entry, offsets)."""
    for topic_id, partition, *_ in said.spans():
        rows = said.rows(topic_id, partition)
        other = found.rows(topic_id, partition)
        positions = set(other.position if other is not None else ())
        assert rows is not None, "an index has rows for what its directory names"
        for base, count, position in zip(rows.base_offset, rows.count, rows.position, strict=True):
            if position not in positions:
                yield position, LostRange(topic_id, partition, base, base + count)


class SegmentReplay:
    """Replays one segment: builds its index, gathers damage, finds a torn tail.

    ``expected_end`` is the position where the next segment says this one ends; None for the last.
    Everything below ``reached_lsn`` is known to have been synced: no tear begins there.
    """

    def __init__(
        self,
        file: File,
        segment: Segment,
        report: RecoveryReport,
        expected_end: int | None,
        reached_lsn: int = 0,
    ) -> None:
        self._file = file
        self._segment = segment
        self._report = report
        self._expected_end = expected_end
        self._reached = reached_lsn - segment.first_lsn
        self._size = file.size()
        self._claim: int | None = None
        stop = self._size if expected_end is None else min(self._size, expected_end)
        self._scanner = SegmentScanner(file, segment.header, segment.name, stop)
        self.index = segment.growing = GrowingIndex()
        self.end = SEGMENT_HEADER_BYTES
        """Position after the last thing that counts."""
        self.synced = 0
        """Highest last synced position found."""

    def frames(self) -> Iterator[Frame]:
        """Sound frames, and the sound entries of damaged ones, in order."""
        for found in self._finds():
            if isinstance(found, Unreadable):
                if self._is_end(found):
                    break
                yield from self._salvage(self._up_to_tear(found))
                continue
            if found.problem is not None:
                if self._is_torn(found.position, found.problem):
                    break
                end = found.position + found.header.length
                is_counted = len(found.entries) == found.header.entry_count
                lost = _lost(found.entries)
                self._damaged(found.position, end, found.problem, lost, is_counted)
            yield self._accept(found)
        self._segment.position = self.end
        if self._expected_end is not None and self.end < self._expected_end:
            self._missing_end(self._expected_end)

    def _finds(self) -> Iterator[FoundFrame | Unreadable]:
        """What the scanner finds.

        A broker that runs may write to the last segment after we looked at a place, and before we
        read further on that the place was synced. So what that makes damage is looked at again.
        """
        position, sure = SEGMENT_HEADER_BYTES, -1
        while True:
            for found in self._scanner.scan(position):
                if found.position != sure and self._would_be_damage(found):
                    position = sure = found.position
                    self._scanner.forget()
                    break
                yield found
            else:
                return

    def _would_be_damage(self, found: FoundFrame | Unreadable) -> bool:
        """Whether it is wrong where something says that it was right; in the last segment only."""
        if self._expected_end is not None:
            return False
        if isinstance(found, Unreadable):
            is_wrong = not (found.zeros and found.end == self._size)
        else:
            is_wrong = found.problem is not None
        return is_wrong and self._was_synced(found.position)

    def _salvage(self, stretch: Unreadable) -> Iterator[Frame]:
        """Report a damaged stretch, and use what entries of it are sound, each as a frame.

        They were in frames that counted, or nothing after them would. An entry takes the place of
        its frame, and the time of the frame that follows: what it delays comes late, never early.
        """
        next_entry = stretch.position + FRAME_HEADER_BYTES
        lost: list[LostRange] = []
        for entry in self._scanner.entries(stretch.position, stretch.end):
            lost += _lost([entry])
            if entry.position == next_entry:
                next_entry += entry_size(entry.header.body_bytes)
        is_counted = next_entry == stretch.end
        self._damaged(stretch.position, stretch.end, stretch.problem, lost, is_counted)
        time_us = stretch.time_us or self.index.last_time_us
        for entry in self._scanner.entries(stretch.position, stretch.end):
            lsn = self._segment.first_lsn + entry.position
            end = lsn + entry_size(entry.header.body_bytes)
            yield Frame(lsn, end, time_us, self._take([entry], time_us), _lost([entry]))
        self.end = stretch.end

    def _is_end(self, found: Unreadable) -> bool:
        """Whether nothing that counts follows an unreadable stretch."""
        if self._expected_end is None:
            if found.zeros and found.end == self._size:
                return True
            return self._is_torn(found.position, found.problem)
        return found.zeros and found.end == min(self._size, self._expected_end)

    def _is_torn(self, position: int, problem: str) -> bool:
        if self._expected_end is not None or self._was_synced(position):
            return False
        lsn = self._segment.first_lsn + position
        self._report.cut = Cut(self._segment.name, position, lsn, problem)
        return True

    def _was_synced(self, position: int) -> bool:
        """Whether something says that a place, and all before it, was synced once."""
        if self._claim is None:
            self._claim = self._scanner.synced_claim(position)
        return self._claim > self._segment.first_lsn + position or self._reached > position

    def _up_to_tear(self, found: Unreadable) -> Unreadable:
        """The part of a stretch that was synced, and the rest cut off, where no frame follows."""
        if self._expected_end is not None or found.end < self._size:
            return found
        if not self._scanner.is_zero(self._reached, found.end):
            lsn = self._segment.first_lsn + self._reached
            self._report.cut = Cut(self._segment.name, self._reached, lsn, found.problem)
        return found._replace(end=self._reached)

    def _damaged(
        self,
        position: int,
        end: int,
        problem: str,
        lost: list[LostRange],
        is_counted: bool = False,
    ) -> None:
        damage = Damage(self._segment.name, position, end, problem, lost, is_counted)
        self._report.damages.append(damage)

    def _missing_end(self, expected: int) -> None:
        problem = (
            f"the file ends at {self._size}; a segment after it is missing, or its tail"
            if self._size < expected
            else "zeros where frames should be"
        )
        self._damaged(self.end, expected, problem, [])
        self._segment.position = self.end = expected

    def _accept(self, found: FoundFrame) -> Frame:
        header = found.header
        self.end = found.position + header.length
        self.synced = max(self.synced, header.last_synced)
        self.index.last_time_us = header.time_us
        entries = self._take(found.entries, header.time_us)
        end = header.lsn + header.length
        return Frame(header.lsn, end, header.time_us, entries, _lost(found.entries))

    def _take(self, found: Iterable[FoundEntry], time_us: int) -> list[Entry]:
        """Index the batches among entries, and pick those whose bodies are sound."""
        entries = []
        for position, head, entry in found:
            self._report.last_topic_id = max(self._report.last_topic_id, head.topic_id)
            if head.kind == EntryKind.RECORDS:
                end = head.base_offset + head.count
                self._report.follow(head.topic_id, head.partition, head.base_offset, end)
                self.index.add(
                    head.topic_id,
                    head.partition,
                    head.base_offset,
                    time_us,
                    head.count,
                    position,
                    head.body_bytes,
                )
            if entry is not None:
                entries.append(entry)
                if head.kind == EntryKind.LOST:
                    self._report.loss_entries.append(entry)
        return entries


def _lost(entries: Iterable[FoundEntry]) -> list[LostRange]:
    """The records of batches whose header is sound and whose body is not."""
    return [
        LostRange(head.topic_id, head.partition, head.base_offset, head.base_offset + head.count)
        for _, head, entry in entries
        if entry is None and head.kind == EntryKind.RECORDS
    ]


def rewrite(file: File, start: int, end: int) -> None:
    """Write bytes that may exist in the page cache only once more; the caller syncs.

    A sync that failed in an earlier process may have left them there without anybody being told.
    """
    for position in range(start, end, REWRITE_BYTES):
        length = min(REWRITE_BYTES, end - position)
        file.pwrite(file.pread(length, position), position)
