# Tests: tests/archive/test_records.py
"""Opens sealed segments, and reads batches of records from them as raw bytes.

A sealed segment has a sound index (docs/wal-format.rst, section "Index of a sealed segment").
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brokerd.archive.journal.columns import Integers, Mask, Octets
from brokerd.archive.storage.regular_file import open_regular
from brokerd.errors import DamagedData, NewerFormat
from brokerd.walformat import (
    SEGMENT_HEADER_BYTES,
    FormatError,
    SegmentHeader,
    UnsupportedFormat,
    decode_segment_header,
    segment_salt,
)
from brokerd.walformat.index import FileIndex

PIECE_GAP_BYTES = 64 << 10
"""Two pieces of a file with a smaller gap are read at once."""


class Batch(NamedTuple):
    """One batch of records and its position."""

    path: str
    position: int
    """The position of the entry's header, in bytes."""
    body_bytes: int
    topic_id: int
    partition: int
    base_offset: int
    count: int  # type: ignore[assignment]  # the field hides tuple.count()


class DamagedBatch(DamagedData):
    """A batch of records has wrong or missing bytes."""

    def __init__(self, batch: Batch, problem: str) -> None:
        super().__init__(batch, problem)
        self.batch = batch
        self.problem = problem

    def __str__(self) -> str:
        at = self.batch
        return (
            f"{at.path} at {at.position}: {self.problem}; topic id {at.topic_id} partition "
            f"{at.partition} offsets {at.base_offset} to {at.base_offset + at.count - 1} cannot "
            "be read: run brokerctl wal verify"
        )


class DamagedSegment(DamagedData):
    """A segment has wrong bytes at ``position``, outside batches of records."""

    def __init__(self, path: str, position: int, problem: str) -> None:
        super().__init__(path, position, problem)
        self.path = path
        self.position = position
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path} at {self.position}: {self.problem}: run brokerctl wal verify"


class Batches(NamedTuple):
    """Batches of one segment, as columns of equal length."""

    topic_id: Integers
    partition: Integers
    base_offset: Integers
    count: Integers  # type: ignore[assignment]  # the field hides tuple.count()
    position: Integers
    """The position of each entry's header, in bytes."""
    body_bytes: Integers

    def select(self, rows: slice | Mask | npt.NDArray[np.intp]) -> Batches:
        """Select batches by a slice, a mask, or row numbers."""
        return Batches(*(column[rows] for column in self))

    def batch(self, path: str, row: int) -> Batch:
        """Return one batch."""
        topic_id, partition, base, count, position, size = (int(column[row]) for column in self)
        return Batch(path, position, size, topic_id, partition, base, count)

    @property
    def records(self) -> int:
        """Return the number of records in all batches."""
        return int(self.count.sum())


def batches_of(index: FileIndex) -> Batches:
    """Return all batches of a segment, sorted by topic id, partition and base offset.

    A batch takes 48 bytes.
    """
    spans = np.array([(s[0], s[1], s[5]) for s in index.spans()], np.int64).reshape(-1, 3)
    base, _, count, position, size = (np.asarray(c, np.int64) for c in index.all_rows())
    return Batches(
        np.repeat(spans[:, 0], spans[:, 2]),
        np.repeat(spans[:, 1], spans[:, 2]),
        base,
        count,
        position,
        size,
    )


@dataclass(frozen=True)
class SealedSegment:
    """A sealed segment. ``end_lsn`` is exclusive."""

    path: str
    segment_id: bytes
    first_lsn: int
    end_lsn: int
    index: FileIndex

    @property
    def salt(self) -> int:
        """Return the seed of its checksums."""
        return segment_salt(self.segment_id)


class Segment(NamedTuple):
    """A sealed segment without its index, for tasks."""

    path: str
    segment_id: bytes
    first_lsn: int
    end_lsn: int

    @property
    def bytes(self) -> int:
        """Return the size of its file."""
        return self.end_lsn - self.first_lsn


def read_header(fd: int, path: str | Path) -> SegmentHeader:
    """Read the header block of a segment. Raises OSError, `DamagedSegment` and NewerFormat."""
    try:
        return decode_segment_header(os.pread(fd, SEGMENT_HEADER_BYTES, 0))
    except UnsupportedFormat as error:
        raise NewerFormat(f"{path}: {error}; upgrade brokerd to read it") from None
    except FormatError as error:
        raise DamagedSegment(str(path), 0, str(error)) from None


def open_sealed(path: str | Path) -> SealedSegment:
    """Read the header block of a segment, and its index file.

    :raises FileNotFoundError: the segment was deleted, or has no index yet.
    :raises OSError: a file cannot be read, or is not a regular file.
    :raises DamagedSegment: a file is damaged, or the two do not belong together.
    :raises NewerFormat: a later version of brokerd wrote a file.
    """
    path = Path(path)
    with open(open_regular(path), "rb") as file:
        header = read_header(file.fileno(), path)
        with open(open_regular(path.with_suffix(".idx")), "rb") as index_file:
            data = index_file.read()
        # The size comes last: the broker truncates the file before it writes the index.
        size = os.fstat(file.fileno()).st_size
    end_lsn = header.first_lsn + size
    try:
        index = FileIndex(data, header.segment_id, header.first_lsn, end_lsn)
    except UnsupportedFormat as error:
        raise NewerFormat(f"{path}: {error}; upgrade brokerd to read it") from None
    except FormatError as error:
        raise DamagedSegment(str(path), size, f"its index is unusable: {error}") from None
    return SealedSegment(str(path), header.segment_id, header.first_lsn, end_lsn, index)


# -- Reading pieces ------------------------------------------------------------------------------


class Pieces(NamedTuple):
    """Pieces of a file in memory, each at a multiple of 8."""

    rows: slice
    """The row numbers of these pieces in the request."""
    data: Octets
    position: Integers
    """The position of each piece in ``data``."""
    end: int
    """The end of the bytes that were read. It is below the size of ``data`` if the file ends."""


def gather(
    fd: int, position: Integers, size: Integers, cost: Integers, cost_max: int
) -> Iterator[Pieces]:
    """Yield pieces of a file in groups that cost about ``cost_max``, at least one piece each.

    Pieces are in order of position, begin at multiples of 8, and do not overlap. Neighbours are
    read at once, with the bytes between them, which cost 1 each. Raises OSError.
    """
    ends = position + size
    between = np.diff(position, prepend=position[:1]) - np.concatenate(([0], size[:-1]))
    apart = between > PIECE_GAP_BYTES
    costs = cost + np.where(apart, 0, between)
    turn = (np.cumsum(costs) - costs) // cost_max
    for first, last in _runs(np.diff(turn, prepend=-1) != 0):
        rows = slice(first, last)
        yield _read(fd, rows, position[rows], ends[rows], apart[rows])


def _runs(begins: Mask) -> Iterator[tuple[int, int]]:
    """Return the first row and the end of each run of rows. ``begins`` marks the first rows."""
    firsts = np.flatnonzero(begins).tolist()
    return pairwise([*firsts, len(begins)])


def _read(fd: int, rows: slice, position: Integers, ends: Integers, apart: Mask) -> Pieces:
    """Read pieces. A read begins at each piece that ``apart`` marks. Raises OSError."""
    apart = apart.copy()
    apart[0] = True
    runs = list(_runs(apart))
    start = position[[first for first, _ in runs]]
    length = ends[[last - 1 for _, last in runs]] - start
    place = np.cumsum(length + 7 & ~7)
    data = np.empty(int(place[-1]), np.uint8)
    place -= length + 7 & ~7
    view = data.data
    end = len(data)
    for at, begin, size in zip(place.tolist(), start.tolist(), length.tolist(), strict=True):
        done = os.preadv(fd, [view[at : at + size]], begin)
        if done < size:
            end = at + done
            break
    return Pieces(rows, data, position + (place - start)[np.cumsum(apart) - 1], end)
