# Tests: tests/archive/test_writer.py, tests/archive/test_flips.py
"""Reads the files of ``records`` and ``events``, and verifies each byte before decoding it.

The file's name has the footer's checksum, and the footer has the checksums of the row groups
(docs/archive-format.rst, section "How a file is read"). Any number of threads may use an
`ArchiveFile`. It keeps a local file open, so it stays readable after the file is deleted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_intdigest

from brokerd.archive.contract.layout import (
    EVENTS,
    RECORDS,
    Range,
    RecordsName,
    parse_events_name,
    parse_records_name,
)
from brokerd.archive.contract.view import ArchivedRows, ArchiveUnavailable, DamagedArchive
from brokerd.archive.parquet.file_objects import PieceReader
from brokerd.archive.parquet.footer import (
    Footer,
    Groups,
    decode_footer,
    unpack_groups,
    unpack_ranges,
)
from brokerd.archive.parquet.row_columns import KEY_COLUMNS, NO_RECORDS, READ_COLUMNS, RecordRows
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.lru import LruCache
from brokerd.archive.storage.store import InputFile, open_store
from brokerd.errors import DamagedData, NewerFormat

FOOTER_BYTES_MAX = 64 << 20
"""The largest size of a footer. A larger size is damage and allocates no memory."""
OFFSET_MAX = (1 << 63) - 1
AHEAD_BYTES = 4 << 20
"""A sequential reader fetches so many bytes at once: a few row groups."""


RowGroupCache = LruCache[RecordRows]
"""Decoded row groups, by path and number."""


def check_footer(directory: Place | str, path: str, size: int) -> None:
    """Verify the footer of a file: its size, and the checksum in its name.

    Raises the errors of `open_file`.
    """
    name = parse_records_name(path) if "/" in path else parse_events_name(path)
    store = open_store(directory)
    full = store.place / path
    try:
        _read_footer(store.open(path), name.footer_hash, size)
    except OSError as error:
        raise _unreadable(full, error) from error
    except DamagedData as error:
        raise DamagedArchive(f"{full} is damaged: {error}", 0, OFFSET_MAX) from None


def open_file(
    directory: Place | str,
    path: str,
    size: int | None = None,
    cache: RowGroupCache | None = None,
    ahead_bytes: int = 0,
) -> ArchiveFile:
    """Open a file by its path relative to its table's directory, and verify its footer.

    :param size: the expected size in bytes.
    :param ahead_bytes: for sequential reading: `brokerd.archive.storage.store.Store.open`.
    :raises ForeignArchive: brokerd does not write files of this name.
    :raises ArchiveUnavailable: the file cannot be read.
    :raises NewerFormat: a later version of brokerd wrote it.
    :raises DamagedArchive: with the covered range in the name, or all offsets of a shared file.
    """
    name = parse_records_name(path) if "/" in path else parse_events_name(path)
    only = name.only if isinstance(name, RecordsName) else None
    first, end = (only.first, only.end) if only is not None else (0, OFFSET_MAX)
    store = open_store(directory)
    full = store.place / path
    try:
        file = store.open(path, ahead_bytes)
        footer = _read_footer(file, name.footer_hash, size)
        return ArchiveFile(file, str(full), path, footer, cache)
    except OSError as error:
        raise _unreadable(full, error) from error
    except DamagedData as error:
        raise DamagedArchive(f"{full} is damaged: {error}", first, end) from None
    except NewerFormat as error:
        raise NewerFormat(f"{full}: {error}") from None


def _unreadable(path: Place | str, error: OSError) -> ArchiveUnavailable:
    return ArchiveUnavailable(f"{path} cannot be read: {error.strerror or error}")


def _read_footer(file: InputFile, footer_hash: int, size: int | None) -> bytes:
    """Read the bytes after the last row group. Raises DamagedData and `ArchiveUnavailable`."""
    found = file.size
    if size is not None and found != size:
        raise DamagedData(f"it has {found} bytes, not {size}")
    tail = file.read_tail(8)
    length = int.from_bytes(tail[:4], "little") + 8
    if len(tail) < 8 or length > min(found - 4, FOOTER_BYTES_MAX):
        raise DamagedData("it does not end like a Parquet file")
    footer = file.read_tail(length)
    file.drop_tail()
    if xxh3_64_intdigest(footer) != footer_hash:
        raise DamagedData("the checksum of its footer is not the one in its name")
    return footer


class ArchiveFile:
    """An open file with a verified footer. `open_file` makes it."""

    def __init__(
        self,
        file: InputFile,
        full_path: str,
        path: str,
        footer: bytes,
        cache: RowGroupCache | None = None,
    ) -> None:
        self._file = file
        self._full_path = full_path
        self._cache = cache
        self.path = path
        """The path relative to the table's directory."""
        self.size = file.size
        try:
            self._metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + footer))
        except (pa.ArrowException, OSError) as error:
            raise DamagedData(f"its footer cannot be parsed: {error}") from None
        self.footer: Footer = decode_footer(self._metadata.metadata)
        """Brokerd's part of the footer."""
        self.ranges = unpack_ranges(self.footer.ranges)
        """Covered ranges, sorted: rows of topic id, partition, first and end."""
        self.groups: Groups = unpack_groups(self.footer.row_groups, self.size - len(footer))
        """Row groups, in order: an array of `brokerd.archive.parquet.footer.GROUP`."""
        self.memory_bytes = 12 * len(footer)
        """Memory of an open file, by measurement. Most of it is pyarrow's metadata."""
        self._check_footer()

    def _check_footer(self) -> None:
        """Raise DamagedData unless the name, the footer and Parquet's metadata agree."""
        counts = (len(self.groups), int(self.groups["rows"].sum()))
        metadata = self._metadata
        if counts != (metadata.num_row_groups, self.footer.rows) or not len(self.ranges):
            raise DamagedData("its footer contradicts itself")
        first, last = (Range(*self.ranges[at].tolist()) for at in (0, -1))
        if self.footer.table == EVENTS.name:
            name = parse_events_name(self.path)
            agrees = (name.first, name.end) == (first.first, last.end)
        else:
            parts = parse_records_name(self.path)
            agrees = self.footer.table == RECORDS.name and (
                (parts.only or first) == first
                and (parts.only or last) == last
                and (parts.first_topic_id, parts.first_partition) == first[:2]
                and (parts.last_topic_id, parts.last_partition) == last[:2]
            )
        if not agrees:
            raise DamagedData("its name contradicts its covered ranges")

    # -- Covered ranges --------------------------------------------------------------------------

    def range_of(self, topic_id: int, partition: int, offset: int) -> Range | None:
        """Return the covered range that holds an offset, or None."""
        ranges, wanted = self.ranges, [topic_id, partition, offset]
        at = bisect_right(range(len(ranges)), wanted, key=lambda at: ranges[at, :3].tolist()) - 1
        if at < 0:
            return None
        found = Range(*ranges[at].tolist())
        return found if found[:2] == (topic_id, partition) and offset < found.end else None

    def covers(self, topic_id: int, partition: int, first: int, end: int) -> bool:
        """Return whether the file covers each offset from ``first`` to ``end`` (exclusive)."""
        found = self.range_of(topic_id, partition, first)
        return found is not None and end <= found.end

    def groups_of(self, topic_id: int, partition: int) -> range:
        """Return the row groups that may hold records of a partition."""
        every = range(len(self.groups))
        firsts, lasts = self.groups["first"], self.groups["last"]
        low = bisect_left(every, (topic_id, partition, 0), key=lambda at: lasts[at].item())
        wanted = (topic_id, partition, OFFSET_MAX)
        return range(low, bisect_right(every, wanted, key=lambda at: firsts[at].item()))

    # -- Records of one partition ----------------------------------------------------------------

    def read(
        self, topic_id: int, partition: int, offset: int, max_bytes: int
    ) -> ArchivedRows | None:
        """Read records from ``offset`` on, at most to the end of a row group.

        :param max_bytes: of keys, values and metadata; a larger record comes alone.
        :return: None if the file does not cover ``offset``.
        :raises DamagedArchive: a row group has wrong bytes.
        :raises ArchiveUnavailable: the file cannot be read.
        """
        covered = self.range_of(topic_id, partition, offset)
        if covered is None:
            return None
        key = (topic_id, partition, offset)
        group, end = self._group_at(key, covered)
        if group < 0 or self.groups["last"][group].item() < key:
            return ArchivedRows(offset, end, [], NO_RECORDS)
        rows = self._rows(group, topic_id, partition, covered.first, end)
        low, high = rows.rows_of(topic_id, partition)
        offsets = rows.offsets
        start, stop = (low + np.searchsorted(offsets[low:high], [offset, end])).tolist()
        if start == stop:
            return ArchivedRows(offset, end, [], NO_RECORDS)
        fitting = rows.fit(start, stop, max_bytes)
        if fitting < stop:
            stop, end = fitting, int(offsets[fitting])
        return ArchivedRows(offset, end, rows.offsets_of(start, stop), rows.columns(start, stop))

    def offset_at_time(self, topic_id: int, partition: int, time_us: int) -> int | None:
        """Return the first offset of a record appended at or after a time, or None.

        Raises the errors of `read`.
        """
        for group in self.groups_of(topic_id, partition):
            if self.groups["time_max"][group] < time_us:
                continue
            rows = self._rows(group, topic_id, partition, 0, OFFSET_MAX)
            low, high = rows.rows_of(topic_id, partition)
            (found,) = np.nonzero(rows.append_times[low:high] >= time_us)
            if len(found):
                return int(rows.offsets[low + found[0]])
        return None

    def _group_at(self, key: tuple[int, int, int], covered: Range) -> tuple[int, int]:
        """Return the last row group that begins at or below a key, or -1; and its end offset."""
        firsts = self.groups["first"]
        after = bisect_right(range(len(firsts)), key, key=lambda at: firsts[at].item())
        end = covered.end
        if after < len(firsts):
            topic_id, partition, offset = firsts[after].item()
            if (topic_id, partition) == key[:2]:
                end = min(end, offset)
        return after - 1, end

    def _rows(self, group: int, topic_id: int, partition: int, first: int, end: int) -> RecordRows:
        """Return a row group. ``first`` and ``end`` limit the offsets of a DamagedArchive."""
        rows = None if self._cache is None else self._cache.get((self.path, group))
        if rows is not None:
            return rows
        low, high = self.groups["first"][group].item(), self.groups["last"][group].item()
        is_shared = low[:2] != high[:2]
        try:
            columns = (*READ_COLUMNS, *KEY_COLUMNS) if is_shared else READ_COLUMNS
            rows = RecordRows(self._decode(group, columns))
        except DamagedData as error:
            if low[:2] == (topic_id, partition):
                first = max(first, low[2])
            raise DamagedArchive(f"{self._full_path} is damaged: {error}", first, end) from None
        if self._cache is not None:
            self._cache.put((self.path, group), rows, rows.size)
        return rows

    # -- Row groups ------------------------------------------------------------------------------

    def lsns(self, group: int) -> tuple[int, int]:
        """Return the smallest and the largest LSN in a row group of records."""
        return self.bounds(group, "lsn")

    def bounds(self, group: int, name: str) -> tuple[int, int]:
        """Return the smallest and the largest number of a column with statistics in a row group."""
        columns = self._metadata.row_group(group)
        for at in range(columns.num_columns):
            if columns.column(at).path_in_schema == name:
                found = columns.column(at).statistics
                return found.min, found.max
        raise DamagedArchive(
            f"{self._full_path} is damaged: it has no column {name}", 0, OFFSET_MAX
        )

    def lsn_before(self, topic_id: int, partition: int, offset: int) -> int:
        """Return the smallest LSN of the row group with a record; 0 if no row group may have it."""
        key = topic_id, partition, offset
        lasts = self.groups["last"]
        group = bisect_left(range(len(lasts)), key, key=lambda at: lasts[at].item())
        if group == len(lasts) or self.groups["first"][group].item() > key:
            return 0
        return self.lsns(group)[0]

    def read_table(
        self,
        groups: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        as_dictionary: Sequence[str] = (),
    ) -> pa.Table:
        """Read columns of row groups. None means all groups, or all columns.

        The columns ``as_dictionary`` stay dictionary encoded.

        A group has at most 8,192 rows and 8 MiB, or one larger row. Raises `DamagedArchive` and
        `ArchiveUnavailable`.
        """
        wanted = range(len(self.groups)) if groups is None else list(groups)
        tables = []
        for group in wanted:
            try:
                tables.append(self._decode(group, columns, as_dictionary))
            except DamagedData as error:
                low, high = self.groups["first"][group].item(), self.groups["last"][group].item()
                first, end = (low[2], high[2] + 1) if low[:2] == high[:2] else (0, OFFSET_MAX)
                text = f"{self._full_path} is damaged: {error}"
                raise DamagedArchive(text, first, end) from None
        schema = self._metadata.schema.to_arrow_schema().remove_metadata()
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def _decode(
        self, group: int, columns: Sequence[str] | None, as_dictionary: Sequence[str] = ()
    ) -> pa.Table:
        """Decode a row group to a table with one chunk per column.

        Raises DamagedData and `ArchiveUnavailable`.
        """
        found = self.groups[group]
        position, size = int(found["position"]), int(found["bytes"])
        try:
            data = self._file.read(position, size)
        except FileNotFoundError as error:
            raise _unreadable(self._full_path, error) from error
        if len(data) < size:
            raise DamagedData(f"row group {group} at {position} is truncated")
        if xxh3_64_intdigest(data) != int(found["checksum"]):
            raise DamagedData(f"row group {group} at {position}: its checksum does not match")
        source = pa.PythonFile(PieceReader(data, position), mode="r")
        wanted = None if columns is None else list(columns)
        try:
            # With pre_buffer, a thread of Arrow reads. It aborts the process if it holds Python
            # objects when the interpreter exits.
            file = pq.ParquetFile(
                source,
                metadata=self._metadata,
                pre_buffer=False,
                read_dictionary=list(as_dictionary) or None,
            )
            table = file.read_row_group(group, columns=wanted, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise DamagedData(f"row group {group} at {position}: {error}") from None
        return table.combine_chunks()
