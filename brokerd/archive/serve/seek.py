# Tests: tests/archive/test_seek.py
"""Finds offsets of one partition by time and by size.

Both searches use the map of files first. They open the file with the answer, and the shared files
of the partition.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Protocol

from brokerd.archive.contract.layout import Range
from brokerd.archive.contract.view import ArchivedRows
from brokerd.archive.parquet.reader import ArchiveFile
from brokerd.archive.serve.file_map import Piece
from brokerd.archive.storage.lru import LruCache

_ALL = 1 << 62


class Files(Protocol):
    """The files of one version of the table ``records``."""

    @property
    def sizes(self) -> LruCache[int]:
        """Return the cache of counted bytes."""

    def pieces(self, topic_id: int, partition: int) -> Sequence[Piece]:
        """Return the covered pieces of a partition by offset. No piece lies within another."""

    def open(self, piece: Piece) -> ArchiveFile:
        """Open the file of a piece."""

    def path(self, row: int) -> str:
        """Return the path of a file, which is never used again."""

    def content(self, row: int) -> int:
        """Return the bytes of keys, values and metadata in a file."""

    def last_time_us(self, row: int) -> int:
        """Return the largest append time in a file; -1 if it has no rows."""


def offset_at_time(files: Files, topic_id: int, partition: int, time_us: int) -> int | None:
    """Return the first offset appended at or after a time, or None."""
    for piece in files.pieces(topic_id, partition):
        if files.last_time_us(piece.row) >= time_us:
            found = files.open(piece).offset_at_time(topic_id, partition, time_us)
            if found is not None:
                return found
    return None


def offset_of_size(
    files: Files, topic_id: int, partition: int, below: int, max_bytes: int
) -> int | None:
    """Return the first offset from which records up to ``below`` take at most ``max_bytes``.

    :return: the offset; ``below`` if the last record is larger; None if no record is below it.
    """
    pieces = [one for one in files.pieces(topic_id, partition) if one.first < below]
    found, left = below, max_bytes
    for piece in reversed(pieces):
        stop = min(found, piece.end)
        if stop == piece.end:
            size = _size(files, piece, topic_id, partition)
            if size <= left:
                found, left = piece.first, left - size
                continue
        span = Range(topic_id, partition, piece.first, stop)
        for offset, size in _backwards(files.open(piece), span, left):
            if size > left:
                return found
            found, left = offset, left - size
        found = piece.first
    return found if pieces else None


def _size(files: Files, piece: Piece, topic_id: int, partition: int) -> int:
    """Return the bytes of all records of a piece."""
    if not piece.is_shared:
        return files.content(piece.row)
    key = files.path(piece.row), topic_id, partition, piece.first
    size = files.sizes.get(key)
    if size is None:
        span = Range(topic_id, partition, piece.first, piece.end)
        size = sum(sum(_sizes(rows)) for rows in _rows(files.open(piece), span))
        files.sizes.put(key, size, 1)
    return size


def _backwards(file: ArchiveFile, span: Range, left: int) -> Iterator[tuple[int, int]]:
    """Yield offsets and sizes of records in a part of a file, the last record first.

    A whole row group in the part that still fits ``left`` is yielded as one item.
    """
    key = span[:2]
    for group in reversed(file.groups_of(*key)):
        low, high = file.groups["first"][group].item(), file.groups["last"][group].item()
        first = max(span.first, low[2]) if low[:2] == key else span.first
        end = min(span.end, high[2] + 1) if high[:2] == key else span.end
        is_whole = low[:2] == high[:2] == key and (first, end) == (low[2], high[2] + 1)
        content = int(file.groups["content"][group])
        if is_whole and content <= left:
            left -= content
            yield first, content
            continue
        for rows in reversed(list(_rows(file, Range(*key, first, end)))):
            for offset, size in zip(reversed(rows.offsets), reversed(_sizes(rows)), strict=True):
                left -= size
                yield offset, size


def _rows(file: ArchiveFile, span: Range) -> Iterator[ArchivedRows]:
    """Yield all records in a part of a file."""
    offset = span.first
    while offset < span.end:
        rows = file.read(span.topic_id, span.partition, offset, _ALL)
        if rows is None:
            return
        count = bisect_left(rows.offsets, span.end)
        if count:
            yield rows._replace(offsets=rows.offsets[:count])
        offset = rows.end


def _sizes(rows: ArchivedRows) -> list[int]:
    """Return the bytes of key, value and metadata of each record."""
    columns = rows.columns
    sizes = [len(value) for value in columns.values[: len(rows.offsets)]]
    for optional in (columns.keys, columns.metadata):
        if optional is not None:
            sizes = [size + len(value or b"") for size, value in zip(sizes, optional, strict=False)]
    return sizes
