# Tests: tests/archive/test_delta_archive.py
"""Caches open files of the table ``records`` for the readers of an archive.

Limits: 64 open files, 32 MiB of footers, 32 MiB of decoded row groups, and 16 MiB of covered ranges
of shared files. Objects of a bucket have no descriptor, so only the footers limit their number.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.archive.contract.layout import Range
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.parquet.reader import ArchiveFile, RowGroupCache, open_file
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.lru import LruCache
from brokerd.archive.storage.store import open_store

OPEN_FILES_MAX = 64
OBJECTS_MAX = 1 << 16
OPEN_FOOTER_BYTES = 32 << 20
ROW_GROUPS_MAX = 1 << 16
ROW_GROUP_BYTES = 32 << 20
RANGES_BYTES = 16 << 20
RANGES_FILES_MAX = 1 << 16
SIZES_MAX = 1 << 16


class CoveredRanges:
    """The covered ranges of one file."""

    def __init__(self, ranges: npt.NDArray[np.int64]) -> None:
        """Take the ranges of `brokerd.archive.parquet.reader.ArchiveFile.ranges`."""
        columns = [array("q", column.tobytes()) for column in ranges.T]
        self._topics, self._partitions, self._first, self._end = columns
        self.size = 400 + 32 * len(self._first)
        """The approximate number of bytes in memory."""

    def of(self, topic_id: int, partition: int) -> list[Range]:
        """Return the ranges of a partition, in order."""
        return [self._at(at) for at in range(*self._span(topic_id, partition))]

    def find(self, topic_id: int, partition: int, offset: int) -> Range | None:
        """Return the range that holds an offset, or None."""
        low, high = self._span(topic_id, partition)
        at = bisect_right(self._first, offset, low, high) - 1
        return self._at(at) if at >= low and offset < self._end[at] else None

    def side(self, topic_id: int, partition: int, offset: int) -> int:
        """Return -1 if all ranges of a partition are above an offset, 1 if below, else 0."""
        low, high = self._span(topic_id, partition)
        if low == high:
            return 0
        return int(offset >= self._end[high - 1]) - int(offset < self._first[low])

    def _span(self, topic_id: int, partition: int) -> tuple[int, int]:
        low = bisect_left(self._topics, topic_id)
        high = bisect_right(self._topics, topic_id, low)
        first = bisect_left(self._partitions, partition, low, high)
        return first, bisect_right(self._partitions, partition, first, high)

    def _at(self, at: int) -> Range:
        return Range(self._topics[at], self._partitions[at], self._first[at], self._end[at])


class FileCache:
    """Opens files of one table, for any number of threads.

    Raises the errors of `brokerd.archive.parquet.reader.open_file`.
    """

    def __init__(self, table: Place) -> None:
        self._table = table
        self._store = open_store(table)
        files_max = OPEN_FILES_MAX if self._store.is_local else OBJECTS_MAX
        self._files: LruCache[ArchiveFile] = LruCache(files_max, OPEN_FOOTER_BYTES)
        self._ranges: LruCache[CoveredRanges] = LruCache(RANGES_FILES_MAX, RANGES_BYTES)
        self._groups = RowGroupCache(ROW_GROUPS_MAX, ROW_GROUP_BYTES)
        self.sizes: LruCache[int] = LruCache(SIZES_MAX, SIZES_MAX)
        """The bytes of a partition's records in a shared file, counted by `seek`."""

    def open(self, path: str, size: int) -> ArchiveFile:
        """Open a file by its path relative to the table. ``size`` is the expected size in bytes."""
        return self._files.get(path) or self._open(path, size)

    def _open(self, path: str, size: int) -> ArchiveFile:
        file = open_file(self._table, path, size, self._groups)
        self._files.put(path, file, file.memory_bytes)
        return file

    def ranges(self, path: str, size: int) -> CoveredRanges:
        """Return the covered ranges of a file."""
        ranges = self._ranges.get(path)
        if ranges is None:
            ranges = CoveredRanges(self.open(path, size).ranges)
            self._ranges.put(path, ranges, ranges.size)
        return ranges

    def retain(self, live: pa.ChunkedArray) -> None:
        """Forget all files but those of the newest version.

        An open file keeps its space on the disk after its deletion, and the other caches its rows.

        :param live: the paths of these files.
        """
        caches: tuple[LruCache[Any], ...] = (self._files, self._ranges, self._groups, self.sizes)
        keys = [one.all_keys() for one in caches]
        paths = sorted({_path_of(key) for some in keys for key in some})
        is_live = pc.is_in(pa.array(paths, pa.string()), value_set=live.combine_chunks())
        gone = {path for path, stays in zip(paths, is_live.to_pylist(), strict=True) if not stays}
        for cache, some in zip(caches, keys, strict=True):
            cache.drop(key for key in some if _path_of(key) in gone)

    def check(self, path: str, size: int) -> None:
        """Check that a file exists with the expected size and a sound footer."""
        if self._files.get(path) is None:
            self._open(path, size)
            if not self._store.is_local:
                return  # it was requested just now
        full = self._table / path
        try:
            found = self._store.stat(path).size
        except FileNotFoundError as error:
            raise ArchiveUnavailable(f"{full} cannot be read: {error.strerror}") from error
        if found != size:
            raise ArchiveUnavailable(f"{full} has {found} bytes, not {size}; restore it")


def _path_of(key: Any) -> str:
    """Return the path in the key of a cache."""
    path: str = key if isinstance(key, str) else key[0]
    return path
