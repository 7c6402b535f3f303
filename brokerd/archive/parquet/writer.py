# Tests: tests/archive/test_writer.py
"""Writes the files of ``records`` and ``events``, and verifies them.

A file is immutable and holds its own checksums (docs/archive-format.rst, section "Files").
`FileWriter` takes sorted rows. It leaves one durable file under its final name, or no file. It
returns a `FileInfo` for the commit. `verify_written` compares the rows of the file with the input.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from brokerd.archive.contract.layout import (
    BUCKET,
    RECORDS,
    Layout,
    Range,
    arrow_schema,
    bucket_of,
    events_name,
    records_name,
)
from brokerd.archive.contract.ranges import merge_ranges
from brokerd.archive.parquet.column_facts import ColumnFacts, Text, text_of
from brokerd.archive.parquet.digest import RowsDigest, byte_lengths
from brokerd.archive.parquet.file_objects import FileSink
from brokerd.archive.parquet.footer import (
    FOOTER_VERSION,
    GROUP,
    METADATA_KEY,
    Footer,
    encode_footer,
    pack_ranges,
)
from brokerd.archive.parquet.reader import AHEAD_BYTES, FOOTER_BYTES_MAX, open_file
from brokerd.archive.parquet.row_groups import GROUP_ROWS, OrderChecker, RowGroup, RowGroupBuilder
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store
from brokerd.errors import DamagedData


class FileInfo(NamedTuple):
    """A written file. It can be pickled."""

    path: str
    """The path relative to the table's directory."""
    size: int
    rows: int
    content: int
    """Bytes of keys, values and metadata."""
    ranges: tuple[Range, ...]
    minimum: dict[str, int]
    """The smallest value of each column with statistics; empty if the file has no rows.

    Times are in microseconds."""
    maximum: dict[str, int]
    keyed: int
    tombstones: int
    expiring: int
    digest: str
    """The digest of the input rows."""
    texts: dict[str, tuple[str, str]]
    """The smallest and the largest value of each column of text with statistics."""
    nulls: dict[str, int]
    """The number of nulls of each column."""
    text: Text = Text.UNKNOWN
    """What all values of the records are."""

    @property
    def bucket(self) -> int:
        """Return the value of the partition column; undefined for a file of events."""
        return bucket_of(self.ranges[0].topic_id)


class FileWriter:
    """Writes one file of a table below ``directory``, and makes the directory if it is absent.

    The context manager deletes the file unless `close` succeeded.

    :param ranges: the covered ranges, sorted and disjoint. Ranges of ``records`` belong to one
        bucket.
    :raises ValueError: ``ranges`` is empty, or rows are unsorted or outside the ranges.
    :raises OSError: a write failed, for example on a full disk (ENOSPC).
    :raises ArchiveUnavailable: a write to a bucket failed.
    """

    def __init__(
        self, directory: Place | str, layout: Layout, log_id: str, ranges: Iterable[Range]
    ) -> None:
        self._ranges = _merged(ranges, layout)
        self._layout = layout
        self._log_id = log_id
        is_records = layout is RECORDS
        below = f"{BUCKET}={bucket_of(self._ranges[0].topic_id)}" if is_records else ""
        self._schema = arrow_schema(layout)
        self._rows = RowGroupBuilder(self._schema, layout)
        self._order = OrderChecker(self._ranges, layout)
        self._groups: list[tuple[Any, ...]] = []
        self._digest = RowsDigest()
        self._totals = dict.fromkeys(("rows", "content", "keyed", "tombstones", "expiring"), 0)
        self._minimum: dict[str, int] = {}
        self._maximum: dict[str, int] = {}
        self._facts = ColumnFacts(self._schema.names, layout.texts)
        self._text = Text.UTF8 if layout is RECORDS else Text.UNKNOWN
        self._sink = FileSink(open_store(directory).create(below))
        self._writer = pq.ParquetWriter(self._sink, self._schema, **parquet_options(layout))

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abandon()

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Append rows, in the order of the table."""
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        if table.schema != self._schema:
            table = table.select(self._schema.names).cast(self._schema)
        for batch in table.to_batches():
            for group in self._rows.add(batch):
                self._write_group(group)

    def close(self) -> FileInfo:
        """Write the footer, make the file durable under its final name, and return its facts."""
        group = self._rows.finish()
        if group is not None:
            self._write_group(group)
        footer = Footer(
            version=FOOTER_VERSION,
            table=self._layout.name,
            log_id=self._log_id,
            minimum=self._minimum,
            maximum=self._maximum,
            digest=self._digest.hexdigest(),
            ranges=pack_ranges(self._ranges),
            row_groups=np.array(self._groups, GROUP).tobytes(),
            **self._totals,
        )
        start = self._sink.begin()
        self._writer.add_key_value_metadata({METADATA_KEY: encode_footer(footer)})
        self._writer.close()
        size = self._sink.position
        if size - start > FOOTER_BYTES_MAX:
            raise ValueError(
                f"{len(self._ranges)} ranges and {len(self._groups)} row groups make a footer of "
                f"{size - start} bytes, over the limit of {FOOTER_BYTES_MAX}"
            )
        tail = f"{os.urandom(4).hex()}-{self._sink.checksum():016x}"
        path = self._name(tail)
        self._sink.publish(path)
        return FileInfo(
            path=path,
            size=size,
            ranges=self._ranges,
            minimum=self._minimum,
            maximum=self._maximum,
            digest=footer.digest,
            texts=self._facts.texts,
            nulls=self._facts.nulls,
            text=self._text,
            **self._totals,
        )

    def abandon(self) -> None:
        """Delete the file unless it is complete."""
        if not self._sink.closed:
            self._sink.ignore_writes()
            self._writer.close()
            self._sink.close()

    def _name(self, tail: str) -> str:
        first, last = self._ranges[0], self._ranges[-1]
        if self._layout is RECORDS:
            return records_name(bucket_of(first.topic_id), first, last, tail)
        return events_name(first.first, last.end, tail)

    def _write_group(self, group: RowGroup) -> None:
        table = group.table
        first, last = self._order.check(table)
        start = self._sink.begin()
        self._writer.write_table(table, row_group_size=len(table))
        self._digest.update(table)
        self._count(group)
        times = table["append_time" if self._layout is RECORDS else "time"].chunk(0)
        times = times.view(pa.int64()).to_numpy()
        size = self._sink.position - start
        self._groups.append(
            (
                *(start, size, self._sink.checksum(), len(table), first, last),
                *(int(times.min()), int(times.max()), group.content),
            )
        )

    def _count(self, group: RowGroup) -> None:
        """Add a row group to the totals."""
        table, totals = group.table, self._totals
        self._facts.update(table)
        for name in self._layout.statistics:
            column = table[name].chunk(0)
            numbers = column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column
            low, high = int(numbers.to_numpy().min()), int(numbers.to_numpy().max())
            self._minimum[name] = min(low, self._minimum.get(name, low))
            self._maximum[name] = max(high, self._maximum.get(name, high))
        totals["rows"] += len(table)
        totals["content"] += group.content
        if self._layout is RECORDS:
            if self._text:
                found = text_of(table["value"].chunk(0), table["encoding"].chunk(0))
                self._text = min(self._text, found)
            keys = table["key"].chunk(0)
            totals["keyed"] += len(keys) - keys.null_count
            totals["expiring"] += int(np.count_nonzero(table["expires_at"].chunk(0).to_numpy()))
            if keys.null_count < len(keys):
                is_empty = byte_lengths(table["value"].chunk(0)) == 0
                is_keyed = keys.is_valid().to_numpy(zero_copy_only=False)
                totals["tombstones"] += int((is_keyed & is_empty).sum())


def parquet_options(layout: Layout) -> dict[str, Any]:
    """Return the options of the Parquet writer for a table."""
    columns = layout.file_columns()
    texts = {c.name for c in columns if c.type in ("string", "binary")}
    deltas = [c.name for c in columns if c.type in ("long", "timestamp")]
    return {
        "compression": {c.name: "zstd" if c.name in texts else "none" for c in columns},
        "compression_level": dict.fromkeys(texts, 1),
        "use_dictionary": list(layout.dictionary),
        "column_encoding": {
            name: "DELTA_BINARY_PACKED" for name in deltas if name not in layout.dictionary
        },
        "write_statistics": list(layout.skipping),
        "write_page_checksum": True,
        "write_batch_size": GROUP_ROWS,  # one page per column, which is faster
        "store_schema": False,
    }


def _merged(ranges: Iterable[Range], layout: Layout) -> tuple[Range, ...]:
    """Check the covered ranges, and merge touching ranges. Raises ValueError."""
    found = list(ranges)
    for one in found:
        if one.first >= one.end or one.first < 0:
            raise ValueError(f"{one} is not a range")
    for before, after in pairwise(found):
        if (before[:2], before.end) > (after[:2], after.first):
            raise ValueError(f"the ranges are not sorted, or overlap: {before}, {after}")
    if not found:
        raise ValueError("a file needs a covered range")
    if layout is RECORDS and len({bucket_of(one.topic_id) for one in found}) > 1:
        raise ValueError("a file of records belongs to one bucket")
    return tuple(merge_ranges(found))


def verify_written(directory: Place | str, info: FileInfo) -> None:
    """Read a file from the disk, and compare its rows with the input.

    :raises DamagedData: the rows differ, so the file must not be committed.
    :raises ArchiveUnavailable: the file cannot be read.
    """
    store = open_store(directory)
    store.drop_cached(info.path)
    digest = RowsDigest()
    with_rows = open_file(directory, info.path, info.size, ahead_bytes=AHEAD_BYTES)
    for group in range(len(with_rows.groups)):
        digest.update(with_rows.read_table([group]))
    if digest.hexdigest() != info.digest:
        path = store.place / info.path
        raise DamagedData(f"{path} does not return the rows that were written; it is not used")
