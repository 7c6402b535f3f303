# Tests: tests/wal/test_recover.py
"""Replays one segment file: sound entries, damage, a torn tail. Read-only.

The rules are docs/wal-format.rst, section "Reading a log back".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from brokerd.errors import DamagedData, NewerFormat
from brokerd.wal.disk import File
from brokerd.wal.read.scanner import ScanEntry, ScanFrame, ScanGap, SegmentScanner
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
from brokerd.walformat.index import MemoryIndex, SegmentIndex

SEARCH_BYTES = 1 << 20


def read_segment_header(file: File, name: str) -> tuple[SegmentHeader, str | None]:
    """Return the header of a segment file, and the problem of its header block if it has one.

    The file's name and the first sound frame replace a damaged block. Raises DamagedData if there
    is no sound frame, and NewerFormat.
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
    """Return the segment id in the first sound frame, or None."""
    for start in range(SEGMENT_HEADER_BYTES, file.size(), SEARCH_BYTES):
        data = file.pread(SEARCH_BYTES + FRAME_HEADER_BYTES, start)
        at = data.find(FRAME_MAGIC)
        while 0 <= at < SEARCH_BYTES:
            candidate = data[at + 24 : at + 40]
            try:
                header = parse_frame_header(data, segment_salt(candidate), at)
            except FormatError:
                pass  # other bytes
            else:
                if header.lsn == first_lsn + start + at:
                    return candidate
            at = data.find(FRAME_MAGIC, at + 1)
    return None


def add_index_losses(
    damages: list[Damage], stored: SegmentIndex, scanned: SegmentIndex
) -> list[Damage]:
    """Return the damages of one segment with the batches that only the ``stored`` index has.

    More batches may be lost: an index that was made after the damage lacks them.
    """
    missing = sorted(_missing_batches(stored, scanned))
    known = {one for damage in damages for one in damage.lost}
    result = []
    for damage in damages:
        more = [
            batch
            for position, batch in missing
            if damage.position <= position < damage.end and not any(map(batch.lies_in, known))
        ]
        result.append(replace(damage, lost=damage.lost + more))
    return result


def _missing_batches(
    stored: SegmentIndex, scanned: SegmentIndex
) -> Iterator[tuple[int, LostRange]]:
    """Yield the batches that only ``stored`` has, as (position of the entry, offsets)."""
    for topic_id, partition, *_ in stored.spans():
        rows = stored.rows(topic_id, partition)
        other = scanned.rows(topic_id, partition)
        positions = set(other.position if other is not None else ())
        assert rows is not None, "an index has rows for what its directory names"
        for base, count, position in zip(rows.base_offset, rows.count, rows.position, strict=True):
            if position not in positions:
                yield position, LostRange(topic_id, partition, base, base + count)


class SegmentReplay:
    """Replays one segment. It builds the index, reports damage and finds a torn tail.

    ``expected_end`` is the position where the next segment, or an index, says that this one ends.
    It is None for the last segment. All below ``reached_lsn`` was synced, so no tear begins there.
    If the last segment ends before ``known_lsn``, its whole allocated size is damaged.
    """

    def __init__(
        self,
        file: File,
        segment: Segment,
        report: RecoveryReport,
        expected_end: int | None,
        reached_lsn: int = 0,
        known_lsn: int = 0,
    ) -> None:
        self._file = file
        self._segment = segment
        self._report = report
        self._reached = reached_lsn - segment.first_lsn
        self._known_lsn = known_lsn
        self._is_last = expected_end is None
        self._size = file.size()
        if expected_end is None and segment.first_lsn + self._size < known_lsn:
            expected_end = self._lost_end
        self._expected_end = expected_end
        self._claim: int | None = None
        stop = self._size if expected_end is None else min(self._size, expected_end)
        self._scanner = SegmentScanner(file, segment.header, segment.name, stop)
        self.index = segment.memory_index = MemoryIndex()
        self.end = SEGMENT_HEADER_BYTES
        """Position after the last frame or damage."""
        self.synced = 0
        """The highest last synced position in any frame."""

    def frames(self) -> Iterator[Frame]:
        """Yield sound frames, and the sound entries of damaged frames, in order."""
        for item in self._scan():
            if isinstance(item, ScanGap):
                if self._is_end(item):
                    break
                yield from self._salvage(self._synced_part(item))
                continue
            if item.problem is not None:
                if self._is_torn(item.position, item.problem):
                    break
                end = item.position + item.header.length
                is_counted = len(item.entries) == item.header.entry_count
                lost = _lost_batches(item.entries)
                self._add_damage(item.position, end, item.problem, lost, is_counted)
            yield self._accept(item)
        self._segment.position = self.end
        if self._expected_end is not None:
            if self.end < self._expected_end:
                self._add_missing_end(self._expected_end)
        elif self._segment.end_lsn < self._known_lsn:
            self._add_missing_end(self._lost_end)

    @property
    def _lost_end(self) -> int:
        """Where the lost part ends, if the last segment ends too early."""
        return max(self._known_lsn - self._segment.first_lsn, self._segment.header.size)

    def _scan(self) -> Iterator[ScanFrame | ScanGap]:
        """Scan the file.

        A running broker may write to the last segment after the scan read a place, and then sync
        it. So the scan reads a place again before that place counts as damage.
        """
        position, verified = SEGMENT_HEADER_BYTES, -1
        while True:
            for item in self._scanner.scan(position):
                if item.position != verified and self._may_be_stale(item):
                    position = verified = item.position
                    self._scanner.clear()
                    break
                yield item
            else:
                return

    def _may_be_stale(self, item: ScanFrame | ScanGap) -> bool:
        """Whether bad bytes of the last segment were synced, perhaps since they were read."""
        if self._expected_end is not None:
            return False
        if isinstance(item, ScanGap):
            is_bad = not (item.zeros and item.end == self._size)
        else:
            is_bad = item.problem is not None
        return is_bad and self._was_synced(item.position)

    def _salvage(self, gap: ScanGap) -> Iterator[Frame]:
        """Report a damaged gap, and yield its sound entries, each as a frame.

        They belong to frames that count, since sound frames follow. An entry takes its own position
        as LSN. It takes the time of the next frame, so that a delay ends late and never early.
        """
        next_position = gap.position + FRAME_HEADER_BYTES
        lost: list[LostRange] = []
        for entry in self._scanner.entries(gap.position, gap.end):
            lost += _lost_batches([entry])
            if entry.position == next_position:
                next_position += entry_size(entry.header.body_bytes)
        is_counted = next_position == gap.end
        self._add_damage(gap.position, gap.end, gap.problem, lost, is_counted)
        time_us = gap.time_us or self.index.last_time_us
        for entry in self._scanner.entries(gap.position, gap.end):  # again, to keep none in memory
            lsn = self._segment.first_lsn + entry.position
            end = lsn + entry_size(entry.header.body_bytes)
            entries = self._index_entries([entry], time_us)
            yield Frame(lsn, end, time_us, entries, _lost_batches([entry]))
        self.end = gap.end

    def _is_end(self, gap: ScanGap) -> bool:
        """Whether the log, or the segment, ends before a gap."""
        if self._expected_end is None:
            if gap.zeros and gap.end == self._size:
                return True
            return self._is_torn(gap.position, gap.problem)
        return gap.zeros and gap.end == min(self._size, self._expected_end)

    def _is_torn(self, position: int, problem: str) -> bool:
        """Whether a torn tail begins at a position. Reports the cut."""
        if self._expected_end is not None or self._was_synced(position):
            return False
        self._cut(position, problem)
        return True

    def _was_synced(self, position: int) -> bool:
        """Whether all bytes up to and at a position are known to have been synced."""
        if self._claim is None:
            self._claim = self._scanner.synced_claim(position)
        return self._claim > self._segment.first_lsn + position or self._reached > position

    def _synced_part(self, gap: ScanGap) -> ScanGap:
        """Return the part of a gap that was synced. Reports the cut of the rest at the end."""
        if self._expected_end is not None or gap.end < self._size:
            return gap
        if not self._scanner.is_zero(self._reached, gap.end):
            self._cut(self._reached, gap.problem)
        return gap._replace(end=self._reached)

    def _cut(self, position: int, problem: str) -> None:
        lsn = self._segment.first_lsn + position
        self._report.cut = Cut(self._segment.name, position, lsn, problem)

    def _add_damage(
        self,
        position: int,
        end: int,
        problem: str,
        lost: list[LostRange],
        is_counted: bool = False,
    ) -> None:
        damage = Damage(self._segment.name, position, end, problem, lost, is_counted)
        self._report.damages.append(damage)

    def _add_missing_end(self, expected: int) -> None:
        problem = (
            f"the file ends at {self._size}; a segment after it is missing, or its tail"
            if self._size < expected
            else "zeros where frames should be"
        )
        if self._is_last:
            problem += f": by state/bounds the log was on the disk up to LSN {self._known_lsn}"
        self._add_damage(self.end, expected, problem, [])
        self._segment.position = self.end = expected

    def _accept(self, item: ScanFrame) -> Frame:
        header = item.header
        self.end = item.position + header.length
        self.synced = max(self.synced, header.last_synced)
        self.index.last_time_us = header.time_us
        entries = self._index_entries(item.entries, header.time_us)
        end = header.lsn + header.length
        return Frame(header.lsn, end, header.time_us, entries, _lost_batches(item.entries))

    def _index_entries(self, found: Iterable[ScanEntry], time_us: int) -> list[Entry]:
        """Index the batches among entries. Returns the entries with sound bodies."""
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


def _lost_batches(entries: Iterable[ScanEntry]) -> list[LostRange]:
    """Return the records of batches with a sound header and a damaged body."""
    return [
        LostRange(head.topic_id, head.partition, head.base_offset, head.base_offset + head.count)
        for _, head, entry in entries
        if entry is None and head.kind == EntryKind.RECORDS
    ]
