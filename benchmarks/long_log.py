# Tests: tests/test_bench_archive.py
"""Write a log of any size at once: sealed segments, their indexes, bounds.

No broker takes part. Topics ``bench0`` to ``bench7`` have four partitions each. Each frame is one
batch of one partition; the partitions take turns. Half of a value is random and half is text, so it
compresses to slightly more than half.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgpack

from brokerd.archive.contract.bounds import Bounds, PartitionBounds, TopicBounds, encode_bounds
from brokerd.walformat import (
    FRAME_HEADER_BYTES,
    RECORDS_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryKind,
    RecordColumns,
    SegmentHeader,
    encode_frame,
    encode_records,
    encode_segment_header,
    frame_size,
)
from brokerd.walformat.index import MemoryIndex

TOPICS = 8
PARTITIONS = 4
SEGMENT_BYTES = 64 << 20
LOG_ID = "b" * 32
BEGAN_US = 1_700_000_000_000_000
FRAME_US = 1_000
"""Broker time between two frames, in microseconds."""
_TEXT = (
    b"The quick brown fox jumps over the lazy dog and runs away through tall grass by the river; "
)


@dataclass(frozen=True)
class Shape:
    """The dimensions of a log."""

    records: int
    frame_records: int
    value_bytes: int = 200
    is_json: bool = False
    """Whether values are JSON objects: a number ``n``, and text."""
    segment_records: int = 0
    """Records of a segment; 0: as many as have room."""

    @property
    def frames(self) -> int:
        return -(-self.records // self.frame_records)

    @property
    def frame_bytes(self) -> int:
        body = bytes(RECORDS_HEADER_BYTES + self.frame_records * self.value_bytes)
        return frame_size([Entry(EntryKind.RECORDS, 1, 0, 0, self.frame_records, body)])


@dataclass(frozen=True)
class _Part:
    """One segment with the frames ``first`` to ``end``, exclusive."""

    shape: Shape
    lsn: int
    first: int
    end: int


def make_log(data_dir: Path, shape: Shape) -> int:
    """Write the log into a new data directory and return the bytes of its segments."""
    (data_dir / "wal").mkdir(parents=True)
    (data_dir / "state").mkdir()
    parts = list(_parts(shape))
    with ProcessPoolExecutor() as pool:
        ends = list(pool.map(_write, [data_dir / "wal"] * len(parts), parts))
    bounds = Bounds(
        log_id=LOG_ID,
        lsn=ends[-1],
        time_us=BEGAN_US + shape.frames * FRAME_US,
        time_settled=True,
        next_topic_id=TOPICS + 1,
        topics=[
            TopicBounds(
                topic + 1,
                f"bench{topic}",
                0,
                False,
                [
                    PartitionBounds(0, 0, _frames_of(shape, topic, index) * shape.frame_records)
                    for index in range(PARTITIONS)
                ],
            )
            for topic in range(TOPICS)
        ],
    )
    (data_dir / "state" / "bounds").write_bytes(encode_bounds(bounds))
    return ends[-1]


def _parts(shape: Shape) -> Iterator[_Part]:
    room = SEGMENT_BYTES - SEGMENT_HEADER_BYTES - len(_first_frame(0, bytes(16)))
    each = max(1, room // shape.frame_bytes)
    if shape.segment_records:
        each = min(each, max(1, shape.segment_records // shape.frame_records))
    lsn = 0
    for first in range(0, shape.frames, each):
        end = min(first + each, shape.frames)
        yield _Part(shape, lsn, first, end)
        lsn += SEGMENT_HEADER_BYTES + (end - first) * shape.frame_bytes
        if not first:
            lsn += len(_first_frame(0, bytes(16)))


def _frames_of(shape: Shape, topic: int, partition: int) -> int:
    """Return the number of frames of a partition."""
    number, group_partitions = topic * PARTITIONS + partition, TOPICS * PARTITIONS
    return (shape.frames - number + group_partitions - 1) // group_partitions


def _first_frame(lsn: int, segment_id: bytes) -> bytes:
    """Return the first frame, which creates the topics."""
    entries = [
        Entry(
            EntryKind.TOPIC,
            topic + 1,
            0,
            0,
            0,
            msgpack.packb({"op": "created", "name": f"bench{topic}", "partitions": PARTITIONS}),
        )
        for topic in range(TOPICS)
    ]
    return encode_frame(entries, lsn, segment_id, lsn, BEGAN_US)


def _write(directory: Path, part: _Part) -> int:
    """Write a segment and its index and return the segment's end LSN."""
    shape, segment_id = part.shape, blake2b(b"%d" % part.lsn, digest_size=16).digest()
    index = MemoryIndex()
    position = SEGMENT_HEADER_BYTES
    frames = []
    if not part.first:
        frames.append(_first_frame(part.lsn + position, segment_id))
        position += len(frames[0])
    for number in range(part.first, part.end):
        group_partition, row = number % (TOPICS * PARTITIONS), number // (TOPICS * PARTITIONS)
        topic_id, partition = group_partition // PARTITIONS + 1, group_partition % PARTITIONS
        base, time_us = row * shape.frame_records, BEGAN_US + number * FRAME_US
        body = encode_records(RecordColumns(_values(shape), append_time_us=time_us))
        entry = Entry(EntryKind.RECORDS, topic_id, partition, base, shape.frame_records, body)
        lsn = part.lsn + position
        frames.append(encode_frame([entry], lsn, segment_id, lsn, time_us))
        index.add(
            topic_id,
            partition,
            base,
            time_us,
            shape.frame_records,
            position + FRAME_HEADER_BYTES,
            len(body),
        )
        index.last_time_us = time_us
        position += len(frames[-1])
    header = encode_segment_header(SegmentHeader(segment_id, part.lsn, position, BEGAN_US))
    path = directory / f"{part.lsn:020}.wal"
    path.write_bytes(b"".join([header, *frames]))
    end = part.lsn + position
    path.with_suffix(".idx").write_bytes(index.encode(segment_id, part.lsn, end))
    return end


def _values(shape: Shape) -> list[bytes]:
    size = shape.value_bytes
    if shape.is_json:
        return _json_values(shape)
    half = size // 2
    text = (_TEXT * (half // len(_TEXT) + 1))[: size - half]
    noise = os.urandom(half * shape.frame_records)
    return [noise[at : at + half] + text for at in range(0, len(noise), half)]


def _json_values(shape: Shape) -> list[bytes]:
    """Return JSON of the right size. ``n`` is below 1,000, and half of the text is random."""
    size = shape.value_bytes
    noise = os.urandom(size // 4 * shape.frame_records).hex()
    values = []
    for number in range(shape.frame_records):
        at = number * (size // 2)
        word = noise[at : at + size // 2]
        value = b'{"n": %3d, "id": "%b", "text": "' % (int(word[:8], 16) % 1_000, word.encode())
        values.append(value + _TEXT[: size - len(value) - 2] + b'"}')
    return values
