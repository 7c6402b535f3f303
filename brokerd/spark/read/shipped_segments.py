# Tests: tests/spark/test_shipped_segments.py
"""Copies of journal files below an archive, for who reads the archive alone.

They are there while a run takes them into the tables (docs/archive-format.rst, section "Copies for
readers of the archive alone"). In a directory they are files of the journal like others; from a
bucket, a task fetches the piece that it reads into a temporary file without a name.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator

from brokerd.archive.journal.copies import PIECE_BYTES, WAL
from brokerd.archive.journal.frame_scan import JournalFile, open_journal
from brokerd.archive.journal.sealed import DamagedSegment, SealedSegment, open_sealed
from brokerd.archive.storage.address import ObjectAddress, place_of
from brokerd.archive.storage.store import Place, open_store
from brokerd.errors import DamagedData, NewerFormat
from brokerd.spark.plan.journal import File
from brokerd.walformat import (
    SEGMENT_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    FormatError,
    SegmentHeader,
    UnsupportedFormat,
    decode_segment_header,
)
from brokerd.walformat.index import INDEX_HEADER_BYTES, LoadedIndex, decode_index_header

_NAME = re.compile(r"([0-9]{20})-([0-9a-f]{32})\.idx")


def copied_files(address: str, lsn: int, end_lsn: int) -> Iterator[File]:
    """Copies that go on from an LSN without a gap, up to another at most.

    Raises ArchiveUnavailable, and FileNotFoundError when one went meanwhile.
    """
    place = place_of(address)
    store = open_store(place)
    names = (_NAME.fullmatch(name) for name in store.names(WAL))
    copies = {int(name[1]): name for name in names if name is not None}
    while lsn in copies:
        index, segment_id = copies[lsn][0], bytes.fromhex(copies[lsn][2])
        ((data),) = store.read_ranges(f"{WAL}/{index}", [(0, INDEX_HEADER_BYTES)])
        path = place / WAL / index.replace(".idx", ".wal")
        try:
            header = decode_index_header(data)
        except DamagedData as error:
            raise DamagedSegment(str(path), 0, f"its index is of no use: {error}") from None
        if (header.segment_id, header.first_lsn) != (segment_id, lsn) or header.end_lsn > end_lsn:
            return
        yield File(str(path), segment_id, lsn, header.end_lsn, True)
        lsn = header.end_lsn


def open_index(path: str) -> SealedSegment:
    """As `brokerd.archive.journal.sealed.open_sealed`, also of a copy in a bucket.

    Raises ArchiveUnavailable, too.
    """
    place = place_of(path)
    if not isinstance(place, ObjectAddress):
        return open_sealed(path)
    store, name = open_store(_above(place)), place.name
    header = _header(path, store.read_ranges(name, [(0, SEGMENT_HEADER_BYTES)])[0])
    end_lsn = header.first_lsn + store.stat(name).size
    data = store.read(name.replace(".wal", ".idx"), SEGMENT_BYTES_MAX)
    try:
        index = LoadedIndex(data, header.segment_id, header.first_lsn, end_lsn)
    except DamagedData as error:
        raise DamagedSegment(path, 0, f"its index is of no use: {error}") from None
    return SealedSegment(path, header.segment_id, header.first_lsn, end_lsn, index)


def open_piece(path: str, first: int, end: int) -> tuple[int, JournalFile]:
    """As `brokerd.archive.journal.frame_scan.open_journal`, also of a copy in a bucket.

    Of that, only what stands between two positions can be read.
    """
    place = place_of(path)
    if not isinstance(place, ObjectAddress):
        return open_journal(path)
    file = open_store(_above(place)).open(place.name)
    header = _header(path, file.read(0, SEGMENT_HEADER_BYTES))
    with tempfile.TemporaryFile() as local:
        for position in range(first, end, PIECE_BYTES):
            piece = file.read(position, min(PIECE_BYTES, end - position))
            os.pwrite(local.fileno(), piece, position)
        descriptor = os.dup(local.fileno())
    return descriptor, JournalFile(path, header.segment_id, header.first_lsn)


def _above(place: ObjectAddress) -> Place:
    return place._replace(key=place.key.rpartition("/")[0])


def _header(path: str, block: bytes) -> SegmentHeader:
    try:
        return decode_segment_header(block)
    except UnsupportedFormat as error:
        raise NewerFormat(f"{path}: {error}; upgrade brokerd to read it") from None
    except FormatError as error:
        raise DamagedSegment(path, 0, str(error)) from None
