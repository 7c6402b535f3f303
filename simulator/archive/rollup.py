# Tests: tests/simulator/test_archive.py
"""The simulated rollup: another process on the broker's machine.

It works in the order of brokerd-rollup, without its code: it reads ``state/bounds`` and the sealed
segments by docs/wal-format.rst, commits records and then events, removes records that the bounds
release, and deletes replaced files. Between two steps the broker goes on, and the job may be
killed: committed data stays, all else is gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from brokerd.archive.contract.bounds import (
    FILE_NAME,
    Bounds,
    PartitionBounds,
    TopicBounds,
    damaged_lsns,
    decode_bounds,
)
from brokerd.archive.contract.ranges import DisjointRanges
from brokerd.broker.model.chunks import MutableChunk
from brokerd.errors import BrokerdError, DamagedData
from brokerd.values import Record
from brokerd.walformat import (
    SEGMENT_HEADER_BYTES,
    EntryKind,
    FormatError,
    decode_records,
    decode_segment_header,
    iter_entries,
    parse_frame_header,
    segment_salt,
)
from brokerd.walformat.index import FileIndex
from simulator.archive.view import NOTHING, Held, Key, SimArchive
from simulator.history.operations import Compacted
from simulator.machine.bare import STATE_DIR, WAL_DIR
from simulator.machine.disk import SimDisk
from simulator.machine.world import Event, World
from simulator.plan import Rollup

_SEGMENT = re.compile(r"([0-9]{20})\.wal")
_DELETED = re.compile(r"([0-9]{20})-([0-9]{20})\.deleted")

_RELIED = re.compile(rb"brokerd archived [0-9a-f]{16} ([0-9]{20}) ")

Steps = Iterator[str]
"""Yields the text of each finished step, for the trace."""


class RollupFailed(BrokerdError):
    """The job cannot continue without an operator."""


class Sealed(NamedTuple):
    """A sealed segment, read completely."""

    first_lsn: int
    end_lsn: int
    ranges: dict[Key, list[tuple[int, int]]]
    """Offsets (first, end) of its batches."""
    records: dict[Key, list[Record]]
    mark: int


class Archiver:
    """Runs the job, once at a time. ``failed(reason)`` is called when it gives up.

    ``compacted`` are the records removed because later ones have their keys.
    """

    def __init__(
        self, world: World, disk: SimDisk, archive: SimArchive, failed: Callable[[str], None]
    ) -> None:
        self._world = world
        self._disk = disk
        self._archive = archive
        self._failed = failed
        self._due: Event | None = None
        self.compacted: list[Compacted] = []
        self.runs = 0
        self.lots = 0

    @property
    def is_running(self) -> bool:
        return self._due is not None

    def let_go_lsn(self) -> int:
        """Return the LSN below which the archive may have data that the log has lost."""
        archived_lsn = self._archive.lsn()
        deleted = [found for name in self._names() if (found := _DELETED.fullmatch(name))]
        let_go = (min(int(one[2]), archived_lsn) for one in deleted)
        return max(self._relied_lsn(), *let_go, 0)

    def _relied_lsn(self) -> int:
        """Return the LSN below which the broker relies on the archive; 0 if none is written."""
        path = f"{STATE_DIR}/archived"
        if path not in self._disk.paths(STATE_DIR):
            return 0
        found = _RELIED.match(self._disk.read(path))
        return 0 if found is None else int(found[1])

    def start(self, how: Rollup) -> None:
        """Run the job unless it is running."""
        if self.is_running:
            self._world.trace("rollup: another one is at work")
            return
        self.runs += 1
        self._go_on(how, self._work(how), how.steps_max)

    def kill(self) -> None:
        """End the job at once: SIGKILL, or the end of the machine."""
        if self._due is not None:
            self._world.trace("rollup killed")
            self._due.cancel()
            self._due = None

    def _go_on(self, how: Rollup, steps: Steps, left: int | None) -> None:
        self._due = None
        try:
            done = next(steps)
        except StopIteration:
            self._world.trace("rollup done")
            return
        except RollupFailed as error:
            self._world.trace(f"rollup failed: {error}")
            self._failed(str(error))
            return
        self._world.trace(f"rollup {done}")
        if left is not None:
            left -= 1
        self._due = self._world.call_after(how.step_us, self._go_on, how, steps, left)
        if left == 0:
            self.kill()

    # -- the job --------------------------------------------------------------------------------

    def _work(self, how: Rollup) -> Steps:
        bounds = self._read_bounds()
        if bounds is None:
            yield "began before there are bounds"
            return
        yield "began"
        if not self._archive.log_id:
            self._archive.log_id = bounds.log_id
        if self._archive.log_id != bounds.log_id:
            raise RollupFailed(f"the archive is of log {self._archive.log_id}, not {bounds.log_id}")
        while True:
            lot: list[Sealed] = []
            for segment in self._segments(bounds):
                lot.append(segment)
                yield f"read {segment.first_lsn}"
                if len(lot) == how.lot_segments:
                    break
            if not lot:
                break
            yield from self._commit(bounds, lot)
        if how.cleans:
            yield from self._clean(bounds)
        if how.vacuums:
            self._archive.vacuum()
            yield "vacuumed"

    def _read_bounds(self) -> Bounds | None:
        """Return the bounds that the broker wrote last; None before the first."""
        path = f"{STATE_DIR}/{FILE_NAME}"
        if path not in self._disk.paths(STATE_DIR):
            return None
        try:
            return decode_bounds(self._disk.read(path))
        except DamagedData as error:
            raise RollupFailed(f"bounds: {error}") from error

    def _commit(self, bounds: Bounds, lot: list[Sealed]) -> Steps:
        """Commit a lot: records, then events; of a lot begun before, only the missing part."""
        end_lsn, records_lsn = lot[-1].end_lsn, self._archive.newest.records_lsn
        changed: dict[Key, Held] = {}
        for segment in lot:
            if segment.first_lsn < records_lsn:
                continue
            for key, ranges in segment.ranges.items():
                wanted = [one for one in ranges if is_wanted(bounds, key, one[1])]
                offsets = {offset for one in wanted for offset in range(*one)}
                records = [one for one in segment.records[key] if one.offset in offsets]
                held = changed.get(key, self._archive.newest.held.get(key, NOTHING))
                changed[key] = held.with_more(wanted, records)
        yield "wrote files"
        if end_lsn > records_lsn:
            self._archive.commit(changed, records_lsn=end_lsn, segment_hash=lot[-1].mark)
            yield f"committed records to {end_lsn}"
        self._archive.commit({}, events_lsn=end_lsn)
        self.lots += 1
        yield f"committed events to {end_lsn}"

    # -- the log
    # ------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self._disk.paths(WAL_DIR)]

    def _segments(self, bounds: Bounds) -> Iterator[Sealed]:
        """Yield the sealed, unarchived segments in order; list the directory after each.

        Deleted segments and known damage are no gaps.
        """
        newest = self._archive.newest
        lsn = min(newest.records_lsn, newest.events_lsn)
        while True:
            names = self._names()
            segments = [int(found[1]) for name in names if (found := _SEGMENT.fullmatch(name))]
            deleted = [found for name in names if (found := _DELETED.fullmatch(name))]
            gone = [*((int(one[1]), int(one[2])) for one in deleted), *damaged_lsns(bounds.damage)]
            if lsn not in segments:
                lsn = DisjointRanges(gone).end_of(lsn)
            above = sorted(one for one in segments if one >= lsn)
            if not above:
                return
            if above[0] > lsn:
                raise RollupFailed(f"the log from LSN {lsn} to {above[0]} is missing")
            found_segment = self._read(lsn)
            if found_segment is None:
                return
            yield found_segment
            lsn = found_segment.end_lsn

    def _read(self, lsn: int) -> Sealed | None:
        """Return a segment, None if it is not sealed. Raises RollupFailed for a damaged one."""
        name = f"{lsn:020d}"
        data = self._disk.read(f"{WAL_DIR}/{name}.wal")
        if f"{name}.idx" not in self._names():
            return None
        index = self._disk.read(f"{WAL_DIR}/{name}.idx")
        try:
            segment_id = decode_segment_header(data).segment_id
            spans = {
                span[:2] for span in FileIndex(index, segment_id, lsn, lsn + len(data)).spans()
            }
            sealed = _decode(data, segment_id, lsn)
        except FormatError as error:
            raise RollupFailed(f"{name}: {error}") from error
        if spans != sealed.records.keys():
            raise RollupFailed(f"the index of {name} tells of {spans}")
        return sealed

    # -- removal
    # ------------------------------------------------------------------------------------

    def _clean(self, bounds: Bounds) -> Steps:
        """Commit once without the records that the bounds release."""
        topics = {topic.id: topic for topic in bounds.topics}
        changed: dict[Key, Held] = {}
        compacted: list[Compacted] = []
        for key, held in self._archive.newest.held.items():
            topic = topics.get(key[0])
            if topic is None:
                if key[0] < bounds.next_topic_id:
                    changed[key] = NOTHING
                continue
            gone = _gone(bounds, topic.partitions[key[1]], held)
            superseded = _superseded(topic, topic.partitions[key[1]], held)
            if gone or superseded:
                changed[key] = held.without(gone | superseded)
            compacted += (
                Compacted(self._world.now_us, topic.name, key[1], offset)
                for offset in sorted(superseded)
            )
        yield "rewrote files"
        if changed:
            now_us = self._world.now_us
            self.compacted += (one._replace(at_us=now_us) for one in compacted)
            self._archive.commit(changed, is_rewrite=True)
            yield f"committed without {len(compacted)} that were compacted"


def is_wanted(bounds: Bounds, key: Key, end: int) -> bool:
    """Return whether a batch with this end offset belongs in the archive: a client may read it."""
    topic_id, partition = key
    if topic_id >= bounds.next_topic_id:
        return True
    for topic in bounds.topics:
        if topic.id == topic_id:
            return end > topic.partitions[partition].start
    return False


def _gone(bounds: Bounds, partition: PartitionBounds, held: Held) -> frozenset[int]:
    """Return the offsets of removed or expired records."""
    now_us = bounds.time_us if bounds.time_settled else 0
    return frozenset(
        one.offset
        for one in held.records
        if one.offset < partition.start
        or (0 < one.expires_at_us <= now_us and one.offset < partition.compact_below)
    )


def _superseded(topic: TopicBounds, partition: PartitionBounds, held: Held) -> frozenset[int]:
    """Return the offsets that compaction may remove, because a later record has their key."""
    if not topic.compact:
        return frozenset()
    latest = {one.key: one.offset for one in held.records}
    return frozenset(
        one.offset
        for one in held.records
        if one.key is not None and one.offset < min(partition.compact_below, latest[one.key])
    )


def _decode(data: bytes, segment_id: bytes, lsn: int) -> Sealed:
    """Return all batches of a segment. Raises FormatError."""
    ranges: dict[Key, list[tuple[int, int]]] = {}
    records: dict[Key, list[Record]] = {}
    for key, chunk in _batches(data, segment_id):
        ranges.setdefault(key, []).append((chunk.base, chunk.end))
        records.setdefault(key, []).extend(chunk.records(chunk.base, chunk.end))
    return Sealed(lsn, lsn + len(data), ranges, records, segment_salt(segment_id) >> 2)


def _batches(data: bytes, segment_id: bytes) -> Iterator[tuple[Key, MutableChunk]]:
    """Yield the batches of a segment in order. Raises FormatError after the last frame."""
    salt = segment_salt(segment_id)
    position = SEGMENT_HEADER_BYTES
    while position < len(data):
        length = parse_frame_header(data, salt, position).length
        for entry in iter_entries(data[position : position + length], salt):
            if entry.kind == EntryKind.RECORDS:
                chunk = MutableChunk(entry.base_offset)
                chunk.extend(entry.count, decode_records(bytes(entry.body), entry.count))
                yield (entry.topic_id, entry.partition), chunk
        position += length


def offsets_in_log(disk: SimDisk) -> dict[Key, set[int]]:
    """Return the offsets of all records in a disk's log, sealed or not."""
    found: dict[Key, set[int]] = {}
    for path in disk.paths(WAL_DIR):
        if path.endswith(".wal"):
            data = disk.read(path)
            with suppress(FormatError):
                for key, chunk in _batches(data, decode_segment_header(data).segment_id):
                    found.setdefault(key, set()).update(range(chunk.base, chunk.end))
    return found
