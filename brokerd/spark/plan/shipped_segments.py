# Tests: tests/spark/test_shipped_segments.py
"""Copies of journal files below an archive, for queries that have only the archive.

The rollup ships copies and removes them after the ingest (docs/archive-format.rst, section "Copies
for readers of the archive alone"). A query reads a copy in a directory like any journal file. From
a bucket, a task fetches the necessary part into an unnamed temporary file.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping

from brokerd.archive.journal.copies import PIECE_BYTES, WAL
from brokerd.archive.journal.frame_scan import JournalFile, open_journal
from brokerd.archive.journal.sealed import DamagedSegment, SealedSegment, open_sealed
from brokerd.archive.storage.address import ObjectAddress, place_of
from brokerd.archive.storage.store import Place, open_store
from brokerd.errors import NewerFormat
from brokerd.spark.plan.journal import SegmentFile
from brokerd.walformat import (
    SEGMENT_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    FormatError,
    SegmentHeader,
    UnsupportedFormat,
    decode_segment_header,
)
from brokerd.walformat.index import INDEX_HEADER_BYTES, FileIndex, decode_index_header

_NAME = re.compile(r"([0-9]{20})-([0-9a-f]{32})\.idx")


Copies = Mapping[int, str]
"""The names of the indexes of copies, by the first LSN."""


def list_copies(address: str) -> Copies:
    """List the copies beside an archive, before reading the archive.

    The rollup deletes a copy once the archive has its records. So the archive, read later, has the
    records of each copy that is missing by then.

    :raises ArchiveUnavailable: the archive cannot be read.
    """
    names = open_store(place_of(address)).names(WAL)
    matches = (_NAME.fullmatch(name) for name in names)
    return {int(match[1]): match[0] for match in matches if match is not None}


def open_copies(address: str, copies: Copies, lsn: int, end_lsn: int) -> Iterator[SegmentFile]:
    """Yield the copies that follow an LSN without a gap and end at ``end_lsn`` or before.

    :raises FileNotFoundError: a copy was deleted since the list.
    :raises ArchiveUnavailable: the archive cannot be read.
    """
    place = place_of(address)
    store = open_store(place)
    while lsn in copies:
        index = copies[lsn]
        segment_id = bytes.fromhex(index.removesuffix(".idx").partition("-")[2])
        ((data),) = store.read_ranges(f"{WAL}/{index}", [(0, INDEX_HEADER_BYTES)])
        path = place / WAL / index.replace(".idx", ".wal")
        try:
            header = decode_index_header(data)
        except UnsupportedFormat as error:
            raise _newer(str(path), error) from None
        except FormatError as error:
            raise DamagedSegment(str(path), 0, f"its index is damaged: {error}") from None
        if (header.segment_id, header.first_lsn) != (segment_id, lsn) or header.end_lsn > end_lsn:
            return
        yield SegmentFile(str(path), segment_id, lsn, header.end_lsn, True)
        lsn = header.end_lsn


def open_index(path: str) -> SealedSegment:
    """Open a journal file or a copy in a bucket, and its index.

    Raises ArchiveUnavailable and the errors of `brokerd.archive.journal.sealed.open_sealed`.
    """
    place = place_of(path)
    if not isinstance(place, ObjectAddress):
        return open_sealed(path)
    store, name = open_store(_parent(place)), place.name
    header = _header(path, store.read_ranges(name, [(0, SEGMENT_HEADER_BYTES)])[0])
    end_lsn = header.first_lsn + store.stat(name).size
    data = store.read(name.replace(".wal", ".idx"), SEGMENT_BYTES_MAX)
    try:
        index = FileIndex(data, header.segment_id, header.first_lsn, end_lsn)
    except UnsupportedFormat as error:
        raise _newer(path, error) from None
    except FormatError as error:
        raise DamagedSegment(path, 0, f"its index is damaged: {error}") from None
    return SealedSegment(path, header.segment_id, header.first_lsn, end_lsn, index)


def open_segment_part(path: str, first: int, end: int) -> tuple[int, JournalFile]:
    """Open a journal file or a copy in a bucket for reading. Return the descriptor and the file.

    For a copy in a bucket, fetch only the bytes from ``first`` to ``end``. Raises
    ArchiveUnavailable and the errors of `brokerd.archive.journal.frame_scan.open_journal`.
    """
    place = place_of(path)
    if not isinstance(place, ObjectAddress):
        return open_journal(path)
    file = open_store(_parent(place)).open(place.name)
    header = _header(path, file.read(0, SEGMENT_HEADER_BYTES))
    with tempfile.TemporaryFile() as local:
        for position in range(first, end, PIECE_BYTES):
            piece = file.read(position, min(PIECE_BYTES, end - position))
            os.pwrite(local.fileno(), piece, position)
        descriptor = os.dup(local.fileno())
    return descriptor, JournalFile(path, header.segment_id, header.first_lsn)


def _parent(place: ObjectAddress) -> Place:
    return place._replace(key=place.key.rpartition("/")[0])


def _header(path: str, block: bytes) -> SegmentHeader:
    try:
        return decode_segment_header(block)
    except UnsupportedFormat as error:
        raise _newer(path, error) from None
    except FormatError as error:
        raise DamagedSegment(path, 0, str(error)) from None


def _newer(path: str, error: UnsupportedFormat) -> NewerFormat:
    return NewerFormat(f"{path}: {error}; upgrade brokerd to read it")
