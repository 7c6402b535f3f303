# Tests: tests/wal/test_recover.py, tests/wal/test_reader.py
"""Index files in the directory of a log.

The layout is `brokerd.walformat.index`. Functions raise DamagedData for an index that does not
follow it or is of another segment, NewerFormat for one of a newer version, and OSError. A damaged
or missing index is made again from its segment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from brokerd.errors import DamagedData, NewerFormat
from brokerd.wal.disk import Disk, write_atomically
from brokerd.wal.segment import Segment, index_name
from brokerd.walformat import FormatError, UnsupportedFormat
from brokerd.walformat.index import (
    INDEX_HEADER_BYTES,
    FileIndex,
    IndexHeader,
    PartitionSpan,
    decode_index_header,
    decode_spans,
    iter_spans,
    require_segment,
)


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Turn errors of the format into errors of brokerd."""
    try:
        yield
    except UnsupportedFormat as error:
        raise NewerFormat(f"{name}: {error}; upgrade brokerd to read it") from None
    except FormatError as error:
        raise DamagedData(str(error)) from None


def load_index(disk: Disk, path: str, segment: Segment) -> FileIndex:
    """Load all of a sealed segment's index file."""
    name = index_name(segment.first_lsn)
    file = disk.open(os.path.join(path, name))
    data = file.pread(file.size(), 0)
    with _translated(name):
        return FileIndex(data, segment.header.segment_id, segment.first_lsn, segment.end_lsn)


def load_spans(
    disk: Disk, path: str, segment: Segment, end_lsn: int, at: int = 0
) -> Iterator[PartitionSpan]:
    """Load the directory of the index of a segment that ends at ``end_lsn``, from span ``at`` on.

    The directory is verified, the rows are not read.
    """
    name = index_name(segment.first_lsn)
    with _translated(name):
        header, directory = _read_directory(disk, path, name)
        require_segment(header, segment.header.segment_id, segment.first_lsn, end_lsn)
        return iter_spans(header, directory, at)


def load_any_spans(disk: Disk, path: str, name: str) -> tuple[IndexHeader, list[PartitionSpan]]:
    """Load the header and the directory of an index file of any segment."""
    with _translated(name):
        header, directory = _read_directory(disk, path, name)
        return header, decode_spans(header, directory)


def _read_directory(disk: Disk, path: str, name: str) -> tuple[IndexHeader, bytes]:
    file = disk.open(os.path.join(path, name))
    header = decode_index_header(file.pread(INDEX_HEADER_BYTES, 0))
    length = header.columns_position - INDEX_HEADER_BYTES
    return header, file.pread(length, INDEX_HEADER_BYTES)


def write_index(disk: Disk, path: str, segment: Segment) -> OSError | None:
    """Write the index file of a complete segment. Returns the error if that fails.

    The directory is not synced, since a start makes a lost index again. A failed sync may also have
    covered the name of a new segment, and the error would not reach its commit.
    """
    assert segment.memory_index is not None, "a segment without its index in memory has its file"
    data = segment.memory_index.encode(
        segment.header.segment_id, segment.first_lsn, segment.end_lsn
    )
    try:
        write_atomically(disk, path, index_name(segment.first_lsn), [data], sync_name=False)
    except OSError as error:
        return error
    return None
