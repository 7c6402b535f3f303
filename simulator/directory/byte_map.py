# Tests: tests/simulator/test_flips.py
"""Map every byte of a sound data directory to its field of docs/wal-format.rst.

Sizes and names of fields are written by hand from that page, so that the map can disagree with the
code.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from brokerd.wal.damage.log_scan import scan_log
from brokerd.wal.read.scanner import ScanEntry, ScanFrame
from brokerd.walformat import Entry, EntryKind, decode_group_events
from simulator.machine.bare import STATE_DIR, WAL_DIR
from simulator.machine.disk import SimDisk

Fields = tuple[tuple[int, str], ...]
"""(size in bytes, name) of the fields of a structure, in order."""

SEGMENT_HEADER: Fields = (
    (8, "magic"),
    (2, "version"),
    (2, "flags"),
    (4, "header size"),
    (16, "segment id"),
    (8, "first LSN"),
    (8, "file size"),
    (8, "created"),
    (8, "checksum"),
    (4032, "zeros"),
)
FRAME_HEADER: Fields = (
    (4, "magic"),
    (2, "version"),
    (2, "flags"),
    (4, "length"),
    (4, "entries"),
    (8, "LSN"),
    (16, "segment id"),
    (8, "last synced"),
    (8, "time"),
    (8, "checksum"),
)
ENTRY_HEADER: Fields = (
    (1, "kind"),
    (1, "version"),
    (2, "flags"),
    (4, "body length"),
    (8, "topic id"),
    (4, "partition"),
    (4, "count"),
    (8, "base offset"),
    (8, "checksum"),
    (8, "body checksum"),
)
INDEX_HEADER: Fields = (
    (8, "magic"),
    (2, "version"),
    (2, "flags"),
    (4, "partitions"),
    (16, "segment id"),
    (8, "first LSN"),
    (8, "end LSN"),
    (8, "batches"),
    (8, "time"),
    (8, "directory checksum"),
    (8, "columns checksum"),
    (8, "checksum"),
)
SNAPSHOT_HEADER: Fields = (
    (8, "magic"),
    (2, "version"),
    (2, "flags"),
    (4, "reserved"),
    (16, "snapshot id"),
    (8, "start LSN"),
    (8, "time"),
    (8, "checksum"),
)
CHUNK_HEADER: Fields = (
    (4, "magic"),
    (2, "kind"),
    (2, "flags"),
    (4, "key length"),
    (4, "body length"),
    (8, "LSN"),
    (8, "position"),
    (8, "checksum"),
    (8, "content checksum"),
)

Batch = tuple[int, int, int, int]
"""Topic id, partition, first offset, end offset."""
GroupPartitionName = tuple[int, int, str]
"""Topic id, partition, group."""


class Unit(NamedTuple):
    """The largest loss that a byte may cause: an entry, or the frame of a header."""

    batches: tuple[Batch, ...] = ()
    group_partitions: tuple[GroupPartitionName, ...] = ()
    topics: tuple[int, ...] = ()
    """Topics whose creation is in the entry."""


class Region(NamedTuple):
    """The bytes of one field."""

    start: int
    end: int
    area: str
    field: str
    unit: Unit
    entries: int = 0
    """The most entries that are lost with these bytes."""
    is_last_commit: bool = False
    """Whether it is in the last frame of the log: no later frame proves that it was synced."""


NOTHING = Unit()


def _regions(
    start: int,
    fields: Fields,
    area: str,
    unit: Unit = NOTHING,
    entries: int = 0,
    is_last: bool = False,
) -> list[Region]:
    found = []
    for size, name in fields:
        found.append(Region(start, start + size, area, name, unit, entries, is_last))
        start += size
    return found


def _unit(entries: Iterable[Entry]) -> Unit:
    batches, group_partitions, topics = [], [], []
    for kind, topic_id, partition, base, count, body in entries:
        if kind == EntryKind.RECORDS:
            batches.append((topic_id, partition, base, base + count))
        elif kind == EntryKind.GROUP_EVENTS:
            group, _ = decode_group_events(bytes(body), count)
            group_partitions.append((topic_id, partition, group))
        elif kind == EntryKind.TOPIC:
            topics.append(topic_id)
    return Unit(tuple(batches), tuple(group_partitions), tuple(topics))


def _entry_regions(found: ScanEntry, end: int, is_last: bool) -> list[Region]:
    assert found.entry is not None, "the log is sound"
    kind = EntryKind(found.header.kind).name
    unit = _unit([found.entry])
    body = found.position + 48
    stop = body + found.header.body_bytes
    return [
        *_regions(found.position, ENTRY_HEADER, f"entry header {kind}", unit, 1, is_last),
        Region(body, stop, f"entry body {kind}", "body", unit, 1, is_last),
        Region(stop, end, "entry padding", "padding", NOTHING, 0, is_last),
    ]


def _frame_regions(found: ScanFrame, is_last: bool) -> list[Region]:
    unit = _unit([entry.entry for entry in found.entries if entry.entry is not None])
    count = len(found.entries)
    regions = _regions(found.position, FRAME_HEADER, "frame header", unit, count, is_last)
    ends = [entry.position for entry in found.entries[1:]] + [found.position + found.header.length]
    for entry, end in zip(found.entries, ends, strict=True):
        regions += _entry_regions(entry, end, is_last)
    return regions


def _segments(disk: SimDisk) -> dict[str, list[Region]]:
    found: dict[str, list[Region]] = {}
    frames = list(scan_log(disk, WAL_DIR))
    for name, frame in frames:
        assert isinstance(frame, ScanFrame) and frame.problem is None, "the log is sound"
        path = f"{WAL_DIR}/{name}"
        regions = found.setdefault(path, _regions(0, SEGMENT_HEADER, "segment header"))
        regions += _frame_regions(frame, frame is frames[-1][1])
    return found


def _u32(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "little")


def _index(data: bytes) -> list[Region]:
    directory = 88 + 40 * _u32(data, 12)
    return [
        *_regions(0, INDEX_HEADER, "index header"),
        Region(88, directory, "index directory", "directory", NOTHING),
        Region(directory, len(data), "index columns", "columns", NOTHING),
    ]


def _snapshot(data: bytes) -> list[Region]:
    found = _regions(0, SNAPSHOT_HEADER, "snapshot header")
    position = 56
    while position < len(data):
        content = position + 48
        stop = content + _u32(data, position + 8) + _u32(data, position + 12)
        end = stop + -stop % 8
        found += _regions(position, CHUNK_HEADER, "chunk header")
        found.append(Region(content, stop, "chunk content", "content", NOTHING))
        found.append(Region(stop, end, "chunk padding", "padding", NOTHING))
        position = end
    return found


class ByteMap:
    """The fields of all files of a directory, and the number of live bytes of each file."""

    def __init__(self, disk: SimDisk) -> None:
        self._regions = _segments(disk)
        for directory in (WAL_DIR, STATE_DIR):
            for name in disk.list(directory):
                path = f"{directory}/{name}"
                if name.endswith(".idx"):
                    self._regions[path] = _index(bytes(disk.content(path)))
                elif name.endswith(".snap"):
                    self._regions[path] = _snapshot(bytes(disk.content(path)))
        self._starts = {
            path: [region.start for region in regions] for path, regions in self._regions.items()
        }

        last = next(
            region
            for regions in self._regions.values()
            for region in regions
            if region.is_last_commit
        )
        self.last_commit = last.unit
        self.last_entries = last.entries
        """Number of entries in the last frame."""

    @property
    def live_bytes(self) -> dict[str, int]:
        """Live bytes by file: fields and padding, without the zeros allocated after them."""
        return {path: regions[-1].end for path, regions in self._regions.items()}

    def at(self, path: str, position: int) -> Region:
        """Return the region of a live byte."""
        return self._regions[path][bisect_right(self._starts[path], position) - 1]
