# Tests: tests/wal/test_event_index.py
"""The event index of a sealed segment (docs/wal-format.rst, "Event index of a sealed segment").

It tells which chunks of a segment may hold events of groups about a record. `EventIndexBuilder`
makes it from the frames of the segment, `EventIndex` answers from it.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgpack
from xxhash import xxh3_64_intdigest

from brokerd.walformat.columns import ARRAY
from brokerd.walformat.entries import ENTRY_HEADER_BYTES, EntryKind
from brokerd.walformat.events import (
    EVENTS_HEADER_BYTES,
    EVENTS_PEEK,
    EVENTS_PEEK_AT,
    OWN_KINDS,
    EventKind,
    decode_group_events,
)
from brokerd.walformat.layout import FormatError, UnsupportedFormat
from brokerd.walformat.segments import segment_salt

EVENT_INDEX_MAGIC: Final = b"BRKDEVX\0"
EVENT_INDEX_HEADER_BYTES: Final = 64
CHUNK_BYTES: Final = 64 << 10
BLOCK_BITS: Final = 8
BLOCKS_MAX: Final = 1 << 19
"""Most rows of blocks in one index: 4 MiB."""

_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sHHI16sQQ")
_CHECKSUMS: Final = struct.Struct("<QQ")
_ENTRY: Final = struct.Struct("<4sIQI")
"""Kind, version and flags of an entry; bytes of its body; topic id; partition."""
_BEGIN: Final = bytes((EntryKind.GROUP_EVENTS, 1, 0, 0))
_COLUMNS_AT: Final = ENTRY_HEADER_BYTES + EVENTS_HEADER_BYTES
_CONSTANT: Final = 0x11
"""Of ``kinds``: the columns of event kind and offset are constant."""
_HEAD: Final = struct.Struct("<I12xB7xq")
"""From the start of a body: kinds of columns, constants of event kind and offset."""

_Packed = list[Any]


class _ChunkEvents:
    """The events of one partition in the chunk that is read now."""

    __slots__ = ("blocks", "commits", "end", "first", "is_other")

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.commits: dict[str, tuple[int, int]] = {}
        self.first = -1
        """Least first offset of its settled ranges; -1: it has none."""
        self.end = -1
        self.is_other = False


class _PartitionColumns:
    """The columns of one partition, up to the chunk before."""

    __slots__ = ("blocks", "chunks", "commits", "ends", "groups", "others", "ranges")

    def __init__(self) -> None:
        self.chunks = array("I")
        self.ends = array("I")
        self.blocks = array("q")
        self.ranges = array("q")
        self.others = array("I")
        self.groups: dict[str, int] = {}
        self.commits = array("q")

    def add(self, number: int, events: _ChunkEvents, has_room: bool) -> int:
        """Add the events of a chunk. Returns the number of blocks that were added."""
        if events.first >= 0:
            self.ranges.extend((number, events.first, events.end))
        for group, (least, greatest) in events.commits.items():
            place = self.groups.setdefault(group, len(self.groups))
            self.commits.extend((number, place, least, greatest))
        if events.is_other or (events.blocks and not has_room):
            self.others.append(number)
            return 0
        if not events.blocks:
            return 0
        self.blocks.extend(sorted(events.blocks))
        self.chunks.append(number)
        self.ends.append(len(self.blocks))
        return len(events.blocks)

    def pack(self, topic_id: int, partition: int) -> _Packed:
        groups = [name.encode("utf-8", "surrogatepass") for name in self.groups]
        columns = (self.chunks, self.ends, self.blocks, self.ranges, self.others)
        packed = [column.tobytes() for column in columns]
        return [topic_id, partition, *packed, groups, self.commits.tobytes()]


class EventIndexBuilder:
    """Makes the index of a segment from its frames, in order.

    Memory: 4 MiB of blocks at most, and the sets of one chunk.
    """

    def __init__(self) -> None:
        self._chunk_at = array("I")
        self._chunk = -1
        """The 64 KiB of the last frame."""
        self._now: dict[tuple[int, int], _ChunkEvents] = {}
        self._partitions: dict[tuple[int, int], _PartitionColumns] = {}
        self._room = BLOCKS_MAX

    def add_frame(self, position: int, data: bytes, start: int, end: int) -> None:
        """Add the entries from ``start`` to ``end`` in ``data`` of the frame at ``position``.

        Raises FormatError for entries that do not end there, or whose events cannot be read.
        """
        if position // CHUNK_BYTES != self._chunk:
            self._end_chunk()
            self._chunk = position // CHUNK_BYTES
            self._chunk_at.append(position)
        now, unpack, peek = self._now, _ENTRY.unpack_from, EVENTS_PEEK.unpack_from
        at, last = start, end - ENTRY_HEADER_BYTES
        while at <= last:
            begin, size, topic_id, partition = unpack(data, at)
            if begin == _BEGIN and at + _COLUMNS_AT <= end:
                events = now.get((topic_id, partition))
                if events is None:
                    events = now[topic_id, partition] = _ChunkEvents()
                count, kinds, kind, offset = peek(data, at + EVENTS_PEEK_AT)
                if kinds & 0xFF == _CONSTANT and kind <= 7:  # EventKind.DEAD
                    events.blocks.add(offset >> BLOCK_BITS)
                else:
                    body = at + ENTRY_HEADER_BYTES
                    _add_entry(events, data[body : body + size], count)
            at += (ENTRY_HEADER_BYTES + size + 7) & ~7
        if at != end:
            raise FormatError(f"the frame at {position} is damaged")

    def _end_chunk(self) -> None:
        number = len(self._chunk_at) - 1
        for key, events in self._now.items():
            columns = self._partitions.get(key)
            if columns is None:
                columns = self._partitions[key] = _PartitionColumns()
            has_room = len(events.blocks) <= self._room
            self._room -= columns.add(number, events, has_room)
        self._now.clear()

    def encode(self, segment_id: bytes, first_lsn: int, end_lsn: int) -> list[bytes]:
        """Return the parts of the index file of the complete segment."""
        self._end_chunk()
        partitions = [self._partitions[key].pack(*key) for key in sorted(self._partitions)]
        body: bytes = msgpack.packb([self._chunk_at.tobytes(), partitions])
        head = _HEADER.pack(
            EVENT_INDEX_MAGIC, _VERSION, 0, len(body), segment_id, first_lsn, end_lsn
        )
        seed = xxh3_64_intdigest(head, segment_salt(segment_id))
        return [head, _CHECKSUMS.pack(xxh3_64_intdigest(body, seed), seed), body]


def _add_entry(events: _ChunkEvents, body: bytes, count: int) -> None:
    """Add the events of one entry, of any kinds."""
    offsets = _own_offsets(body, count)
    if offsets is not None:
        events.blocks.update({offset >> BLOCK_BITS for offset in offsets})
        return
    group, rows = decode_group_events(body, count)
    for kind, first, end, *_ in rows:
        if kind <= EventKind.DEAD:
            events.blocks.add(first >> BLOCK_BITS)
        elif kind == EventKind.COMMITTED:
            least, greatest = events.commits.get(group, (first, first))
            events.commits[group] = min(least, first), max(greatest, first)
        elif kind == EventKind.SETTLED_RANGE:
            events.first = first if events.first < 0 else min(events.first, first)
            events.end = max(events.end, end)
        else:
            events.is_other = True


def _own_offsets(body: bytes, count: int) -> Sequence[int] | None:
    """Return the offsets of an entry whose events are all about one record each, else None."""
    at = EVENTS_HEADER_BYTES
    if len(body) < at:
        return None
    kinds, kind, offset = _HEAD.unpack_from(body)
    if kinds & 15 == ARRAY:
        if body[at : at + count].translate(None, OWN_KINDS):
            return None
        at += (count + 7) & ~7
    elif kind > EventKind.DEAD:
        return None
    if kinds >> 4 & 15 != ARRAY:
        return (offset,)
    if at + 8 * count > len(body):
        return None
    column: tuple[int, ...] = struct.unpack_from(f"<{count}q", body, at)
    return column


class _Columns(NamedTuple):
    """The columns of one partition of an index."""

    chunks: array[int]
    ends: array[int]
    blocks: array[int]
    ranges: array[int]
    others: array[int]
    groups: list[str]
    commits: array[int]


class EventIndex:
    """An index from its file. Raises FormatError, and UnsupportedFormat for a newer one."""

    def __init__(self, data: bytes, segment_id: bytes, first_lsn: int, end_lsn: int) -> None:
        if len(data) < EVENT_INDEX_HEADER_BYTES:
            raise FormatError(f"the header of the event index has {len(data)} bytes of 64")
        magic, version, flags, size, *place = _HEADER.unpack_from(data)
        checksum, seed = _CHECKSUMS.unpack_from(data, _HEADER.size)
        if magic != EVENT_INDEX_MAGIC:
            raise FormatError(f"not an event index: magic is {magic!r}")
        if seed != xxh3_64_intdigest(data[: _HEADER.size], segment_salt(segment_id)):
            raise FormatError("the header's checksum does not match the segment")
        if version > _VERSION or flags:
            raise UnsupportedFormat(f"event index version {version}, flags {flags:#x}")
        if place != [segment_id, first_lsn, end_lsn]:
            raise FormatError("it is the event index of another segment")
        body = data[EVENT_INDEX_HEADER_BYTES:]
        if len(body) != size or checksum != xxh3_64_intdigest(body, seed):
            raise FormatError("the checksum of the event index does not match")
        positions, partitions = msgpack.unpackb(body, strict_map_key=False)
        self.size = len(data)
        self._chunk_at = _column("I", positions)
        self._chunk_at.append(end_lsn - first_lsn)
        self._partitions: dict[tuple[int, int], _Packed] = {
            (one[0], one[1]): one[2:] for one in partitions
        }

    def parts(
        self, topic_id: int, partition: int, offset: int, is_above: Callable[[str], bool]
    ) -> Iterator[tuple[int, int]]:
        """Yield the parts of the segment, from and to which position, that concern a record.

        ``is_above(group)`` tells whether the group's last commit, in the parts yielded before and
        in earlier segments, is above the record.
        """
        packed = self._partitions.get((topic_id, partition))
        if packed is None:
            return
        columns = _Columns(
            chunks=_column("I", packed[0]),
            ends=_column("I", packed[1]),
            blocks=_column("q", packed[2]),
            ranges=_column("q", packed[3]),
            others=_column("I", packed[4]),
            groups=[name.decode("utf-8", "surrogatepass") for name in packed[5]],
            commits=_column("q", packed[6]),
        )
        wanted = set(columns.others)
        wanted.update(_with_block(columns, offset >> BLOCK_BITS))
        ranges = columns.ranges
        for at in range(0, len(ranges), 3):
            if ranges[at + 1] <= offset < ranges[at + 2]:
                wanted.add(ranges[at])
        commits, groups, at = columns.commits, columns.groups, 0
        for number in sorted(wanted.union(commits[::4])):
            is_wanted = number in wanted
            while at < len(commits) and commits[at] == number:
                _, group, least, greatest = commits[at : at + 4]
                if not is_wanted:
                    above = is_above(groups[group])
                    is_wanted = least <= offset if above else greatest > offset
                at += 4
            if is_wanted:
                yield self._chunk_at[number], self._chunk_at[number + 1]


def _with_block(columns: _Columns, block: int) -> Iterator[int]:
    """Yield the numbers of the chunks that have a block."""
    blocks, start = columns.blocks, 0
    for number, end in zip(columns.chunks, columns.ends, strict=True):
        found = bisect_left(blocks, block, start, end)
        if found < end and blocks[found] == block:
            yield number
        start = end


def _column(code: Any, data: bytes) -> array[int]:
    column: array[int] = array(code)
    column.frombytes(data)
    return column
