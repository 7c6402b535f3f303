# Tests: tests/archive/test_file_map.py
"""Maps offsets to files of one version of the table ``records``.

The map is built from the Delta log without opening files. It takes about 0.3 KB per file. The name
of a file of one partition has its covered range. A shared file has its ranges only in the footer,
so the map returns shared files as candidates.

If two files cover an offset, both are correct, and the map returns the file that ends later.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.archive.contract.layout import BUCKETS, bucket_of, parse_records_name

Numbers = npt.NDArray[np.int64]

_N = "0|[1-9][0-9]{0,17}"
_ONE_PARTITION = (
    f"^bucket=(?P<bucket>{_N})/p-(?P<topic_id>{_N})-(?P<partition>{_N})"
    f"-(?P<first>{_N})-(?P<end>{_N})-[0-9a-f]{{8}}-[0-9a-f]{{16}}\\.parquet$"
)
"""The pattern of `brokerd.archive.contract.layout`, with which Arrow matches all names at once."""


class Piece(NamedTuple):
    """Offsets ``first`` to ``end`` (exclusive) of one partition, and a file that covers them."""

    first: int
    end: int
    row: int
    """The file's row in the map."""
    is_shared: bool = False
    """Whether the file holds several partitions."""


class SharedFile(NamedTuple):
    """A file of several partitions, from (topic id, partition) ``low`` to ``high``."""

    row: int
    low: tuple[int, int]
    high: tuple[int, int]
    first_lsn: int


class FileMap:
    """The live files of one version of the table ``records``. Immutable.

    :param files: `brokerd.archive.delta.log_files.Snapshot.files`.
    :raises ForeignArchive: a file has a name that brokerd does not write.
    """

    def __init__(self, files: pa.Table) -> None:
        files = files.combine_chunks()
        self.files = len(files)
        self.bytes: int = pc.sum(files["size"]).as_py() or 0
        self._paths = pa.concat_arrays(files["path"].chunks) if len(files) else []
        self._sizes = _column(files, "size")
        self._content = _column(files, "content")
        self._last_time_us = _column(files, "last_time_us")
        parsed = pc.extract_regex(files["path"].combine_chunks(), _ONE_PARTITION)
        is_own = parsed.is_valid().to_numpy(zero_copy_only=False)
        self._shared = self._read_shared(is_own, _column(files, "first_lsn"))
        self._index(parsed, is_own)
        topics = [self._topics[-1]] if self._topics else []
        topics += [shared.high[0] for one in self._shared for shared in one]
        self.max_topic_id = max(topics, default=0)

    # -- Construction ------------------------------------------------------------------------

    def _read_shared(self, is_own: Any, first_lsn: array[int]) -> list[list[SharedFile]]:
        """Return the files of several partitions by bucket, each in the order of writing."""
        found: list[list[SharedFile]] = [[] for _ in range(BUCKETS)]
        for row in (~is_own).nonzero()[0].tolist():
            name = parse_records_name(self.path(row))
            low = (name.first_topic_id, name.first_partition)
            high = (name.last_topic_id, name.last_partition)
            found[name.bucket].append(SharedFile(row, low, high, first_lsn[row]))
        for bucket in found:
            bucket.sort(key=lambda shared: shared.first_lsn)
        return found

    def _index(self, parsed: Any, is_own: Any) -> None:
        """Sort the files of one partition each for lookups."""
        rows = is_own.nonzero()[0]
        names = ("bucket", "topic_id", "partition", "first", "end")
        bucket, topic_id, partition, first, end = (
            parsed.field(name).filter(parsed.is_valid()).cast("int64").to_numpy() for name in names
        )
        wrong = (bucket != bucket_of(topic_id)) | (first >= end)
        for row in rows[wrong].tolist():
            parse_records_name(self.path(row))  # raises ForeignArchive
        order = np.lexsort((-end, first, partition, topic_id))
        topic_id, partition, first, end = (
            column[order] for column in (topic_id, partition, first, end)
        )
        is_new = _differs(topic_id) | _differs(partition)
        is_needed = _not_within_earlier(first, end, is_new)
        is_new = _differs(topic_id[is_needed]) | _differs(partition[is_needed])
        begins = is_new.nonzero()[0]
        self._topics = _array(topic_id[is_needed][begins])
        """The topic ids of partitions that have unshared files."""
        self._partitions = _array(partition[is_needed][begins])
        """The numbers of these partitions in their topics."""
        self._begins = _array(np.append(begins, is_needed.sum()))
        """The row of each partition's first file in the columns below."""
        self._first = _array(first[is_needed])
        self._end = _array(end[is_needed])
        self._row = _array(rows[order][is_needed])

    # -- Lookups -----------------------------------------------------------------------------

    def path(self, row: int) -> str:
        """Return the path of a file, relative to the table."""
        found: str = self._paths[row].as_py()
        return found

    def size(self, row: int) -> int:
        """Return the bytes of a file."""
        return self._sizes[row]

    def content(self, row: int) -> int:
        """Return the bytes of keys, values and metadata in a file."""
        return self._content[row]

    def last_time_us(self, row: int) -> int:
        """Return the largest append time in a file; -1 if it has no rows."""
        return self._last_time_us[row]

    def find(self, topic_id: int, partition: int, offset: int) -> Piece | None:
        """Return the unshared file of a partition that covers an offset, or None."""
        low, high = self._span(topic_id, partition)
        at = bisect_right(self._first, offset, low, high) - 1
        if at < low or offset >= self._end[at]:
            return None
        return Piece(self._first[at], self._end[at], self._row[at])

    def pieces(self, topic_id: int, partition: int) -> Sequence[Piece]:
        """Return the unshared files of a partition by offset. No file lies within another."""
        return _Pieces(self, *self._span(topic_id, partition))

    def shared(self, topic_id: int, partition: int) -> list[SharedFile]:
        """Return the shared files that may cover offsets of a partition, oldest first."""
        key = topic_id, partition
        return [one for one in self._shared[bucket_of(topic_id)] if one.low <= key <= one.high]

    def _span(self, topic_id: int, partition: int) -> tuple[int, int]:
        """Return the first row and the end of a partition's unshared files."""
        low = bisect_left(self._topics, topic_id)
        high = bisect_right(self._topics, topic_id, low)
        at = bisect_left(self._partitions, partition, low, high)
        if at == high or self._partitions[at] != partition:
            return 0, 0
        return self._begins[at], self._begins[at + 1]


class _Pieces(Sequence[Piece]):
    """The files of one partition in a map."""

    def __init__(self, files: FileMap, low: int, high: int) -> None:
        self._files = files
        self._low = low
        self._high = high

    def __len__(self) -> int:
        return self._high - self._low

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        at = self._low + place % len(self)
        columns = self._files
        return Piece(columns._first[at], columns._end[at], columns._row[at])

    def __iter__(self) -> Iterator[Piece]:
        return (self[at] for at in range(len(self)))


def _column(files: pa.Table, name: str) -> array[int]:
    return _array(files[name].to_numpy())


def _array(numbers: Numbers) -> array[int]:
    """Convert numbers to an array of the standard library, whose items are read faster."""
    found = array("q")
    found.frombytes(numbers.astype("int64", copy=False).tobytes())
    return found


def _differs(numbers: Numbers) -> npt.NDArray[np.bool_]:
    """Return a mask of the numbers that differ from the number before; true for the first."""
    found = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=found[1:])
    return found


def _not_within_earlier(
    first: Numbers, end: Numbers, is_new: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return a mask of the ranges that end after all earlier ranges of their partition.

    :param is_new: marks the first range of each partition.
    """
    found = np.ones(len(first), bool)
    for begin, stop in _overlapping(first, end, is_new):
        reach = np.maximum.accumulate(end[begin:stop])
        found[begin + 1 : stop] = end[begin + 1 : stop] > reach[:-1]
    return found


def _overlapping(
    first: Numbers, end: Numbers, is_new: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of each partition with overlapping ranges. These are rare."""
    overlaps = (~is_new[1:]) & (first[1:] < end[:-1])
    begins = np.append(is_new.nonzero()[0], len(first))
    numbers = np.unique(np.searchsorted(begins, overlaps.nonzero()[0], side="right") - 1)
    for number in numbers.tolist():
        yield int(begins[number]), int(begins[number + 1])
