"""Make logs by hand: sealed segments with their indexes, as a broker leaves them.

`make_segment` writes one from frames; `LogMaker` counts offsets and LSNs from segment to segment.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgpack
from xxhash import xxh3_128_digest

from brokerd.archive.contract.schemas import StoredSchema
from brokerd.walformat import (
    ENTRY_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryKind,
    GroupEvent,
    RecordColumns,
    SegmentHeader,
    encode_frame,
    encode_group_events,
    encode_records,
    encode_segment_header,
    entry_size,
)
from brokerd.walformat.index import MemoryIndex

LOG_ID = "0123456789abcdef0123456789abcdef"
TIME_US = 1_700_000_000_000_000
"""Broker time of the first frame."""

Frame = tuple[int, Sequence[Entry]]
"""(broker time in microseconds, entries)"""


def records_entry(topic_id: int, partition: int, base: int, columns: RecordColumns) -> Entry:
    """Return the entry of a batch of records; its first record has the offset ``base``."""
    count = len(columns.values)
    body = encode_records(columns)
    return Entry(EntryKind.RECORDS, topic_id, partition, base, count, body)


def events_entry(topic_id: int, partition: int, group: str, events: Sequence[GroupEvent]) -> Entry:
    """Return the entry of events of a group."""
    body = encode_group_events(group, events)
    return Entry(EntryKind.GROUP_EVENTS, topic_id, partition, 0, len(events), body)


def topic_entry(topic_id: int, op: str, partition: int = 0, **keys: object) -> Entry:
    """Return the entry of a change of a topic: for instance ``created`` with ``name``."""
    body = msgpack.packb({"op": op, **keys})
    return Entry(EntryKind.TOPIC, topic_id, partition, 0, 0, body)


def schema_entry(schema: StoredSchema) -> Entry:
    """Return the entry of the registration of a version."""
    fields = {
        "op": "registered",
        "name": schema.name,
        "version": schema.version,
        "type": schema.type,
        "definition": schema.text,
        "created_us": schema.created_us,
    }
    return Entry(EntryKind.SCHEMA, 0, 0, 0, 0, msgpack.packb(fields))


def mark_entry() -> Entry:
    """Return the entry that a broker writes after a quiet moment."""
    return Entry(EntryKind.MARK, 0, 0, 0, 0, b"")


def segment_id_of(first_lsn: int) -> bytes:
    """Return the id that `make_segment` gives to a segment."""
    return xxh3_128_digest(first_lsn.to_bytes(8, "little"))


def make_segment(
    directory: Path, first_lsn: int, frames: Sequence[Frame], *, indexed: bool = True
) -> Path:
    """Write ``<first LSN>.wal`` and, with ``indexed``, its ``.idx``; return the segment's path.

    Its end LSN is ``first_lsn`` plus the size of the file.
    """
    segment_id = segment_id_of(first_lsn)
    index = MemoryIndex()
    parts = []
    position = SEGMENT_HEADER_BYTES
    for time_us, entries in frames:
        parts.append(encode_frame(entries, first_lsn + position, segment_id, first_lsn, time_us))
        at = position + FRAME_HEADER_BYTES
        for entry in entries:
            if entry.kind == EntryKind.RECORDS:
                size = len(entry.body)
                index.add(*entry[1:4], time_us, entry.count, at, size)
            at += entry_size(len(entry.body))
        index.last_time_us = time_us
        position += len(parts[-1])
    header = SegmentHeader(segment_id, first_lsn, position, frames[0][0] if frames else 0)
    path = directory / f"{first_lsn:020}.wal"
    put_file(path, b"".join([encode_segment_header(header), *parts]))
    if indexed:
        encoded = index.encode(segment_id, first_lsn, first_lsn + position)
        put_file(path.with_suffix(".idx"), encoded)
    return path


def put_file(path: Path, data: bytes) -> None:
    """Write a journal file in place, as a broker does, and any other file at once."""
    if path.suffix == ".wal" and path.exists():
        with path.open("r+b", buffering=0) as file:
            file.write(data)
            file.truncate()
        return
    new = path.parent.with_name(f"{path.parent.name}.new")
    new.write_bytes(data)
    new.replace(path)


def damage(path: Path, position: int, bit: int = 0) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


KINDS = ["pipe", "device", "directory"]
"""Kinds that `make_no_file` makes."""


def make_no_file(path: Path, kind: str) -> None:
    """Put a directory entry that is not a regular file at a path."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


def body_position(path: Path, needle: bytes) -> int:
    """Return the position of bytes that are in a file exactly once."""
    data = path.read_bytes()
    assert data.count(needle) == 1
    return data.index(needle)


class LogMaker:
    """A log of any number of segments, the last of which is not sealed until `seal`.

    Every frame is a second later than the one before.
    """

    def __init__(self, directory: Path, first_lsn: int = 0) -> None:
        self.directory = directory
        self.first_lsn = first_lsn
        self.time_us = TIME_US
        self.next: dict[tuple[int, int], int] = {}
        """The next offset by topic id and partition."""
        self._frames: list[Frame] = []
        self._entries: list[Entry] = []

    def append(
        self, topic_id: int, partition: int, values: Sequence[bytes], **columns: object
    ) -> int:
        """Add a batch to the open frame; return its base offset."""
        base = self.next.get((topic_id, partition), 0)
        times = RecordColumns(values, append_time_us=self.time_us)
        filled = times._replace(**columns)
        self._entries.append(records_entry(topic_id, partition, base, filled))
        self.next[topic_id, partition] = base + len(values)
        return base

    def add(self, *entries: Entry) -> None:
        """Add other entries to the open frame."""
        self._entries += entries

    def frame(self) -> None:
        """End the open frame, unless it is empty."""
        if self._entries:
            self._frames.append((self.time_us, self._entries))
            self._entries = []
            self.time_us += 1_000_000

    def seal(self) -> Path:
        """End the segment and return its path. The next segment begins at its end."""
        self.frame()
        path = make_segment(self.directory, self.first_lsn, self._frames)
        self.first_lsn += path.stat().st_size
        self._frames = []
        return path


HEADERS = FRAME_HEADER_BYTES + ENTRY_HEADER_BYTES
"""Position of the body of a frame's first entry, in bytes from the begin of the frame."""
