# Tests: tests/spark/test_tables.py
"""The archive's other tables as a query reads them: ``events``, ``deliveries`` and ``hourly``.

Rows are those of the files that the newest version names (docs/archive-format.rst), in no order. No
pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from brokerd.archive.address import place_of
from brokerd.archive.layout import DELIVERIES, EVENTS, HOURLY, Layout, arrow_schema
from brokerd.archive.logreader import DeltaLog
from brokerd.archive.reading import open_file
from brokerd.archive.store import open_store
from brokerd.archive.view import ArchiveUnavailable
from brokerd.errors import BrokerdError, DamagedData
from brokerd.spark.archived import log_id_of

TABLES = {layout.name: layout for layout in (EVENTS, DELIVERIES, HOURLY)}
FILE_BYTES_MAX = 1 << 30
"""No file of these tables is larger."""
BATCH_ROWS = 64 << 10


class NoTable(BrokerdError):
    """There is no archive yet that has the table."""


class TableSplit(NamedTuple):
    """What one task reads; goes to other processes."""

    archive: str
    """Its address."""
    table: str
    files: tuple[tuple[str, int], ...]
    """Path, relative to the table, and size."""
    columns: tuple[str, ...]
    """That the rows have, in this order."""


def plan_table(
    archive: str, table: str, columns: Sequence[str], partition_bytes: int
) -> list[TableSplit]:
    """Divide the newest version of a table into splits of about a size.

    :param archive: its address.
    :raises NoTable: there is none.
    :raises BrokerdError: it cannot be read, or is not brokerd's.
    """
    place = place_of(archive) / table
    log_id = log_id_of(archive)
    snapshot = None if log_id is None else DeltaLog(place, log_id).read()
    if snapshot is None:
        raise NoTable(
            f"{place} is not there: brokerd-rollup makes the table as soon as it runs; or is the "
            "option archive right?"
        )
    splits: list[list[tuple[str, int]]] = []
    room = 0
    for file in snapshot.files.sort_by("path").select(["path", "size"]).to_pylist():
        if file["size"] > room:
            splits.append([])
            room = partition_bytes
        splits[-1].append((file["path"], file["size"]))
        room -= file["size"]
    return [TableSplit(archive, table, tuple(files), tuple(columns)) for files in splits]


def read_table(split: TableSplit) -> Iterator[pa.RecordBatch]:
    """The rows of a split, with the types of the table.

    :raises ArchiveUnavailable: a file cannot be read; :raises DamagedData: it is damaged.
    """
    layout = TABLES[split.table]
    types = arrow_schema(layout)
    schema = pa.schema([types.field(name) for name in split.columns])
    read = _read_events if layout is EVENTS else _read_whole
    for path, size in split.files:
        for rows in read(split, layout, path, size):
            yield from rows.cast(schema).to_batches(max_chunksize=BATCH_ROWS)


def _read_events(split: TableSplit, layout: Layout, path: str, size: int) -> Iterator[pa.Table]:
    file = open_file(place_of(split.archive) / layout.name, path, size)
    for group in range(len(file.groups)):
        yield file.read_table([group], split.columns)


def _read_whole(split: TableSplit, layout: Layout, path: str, size: int) -> Iterator[pa.Table]:
    """A file that Spark wrote, which has no checksum but those of Parquet's pages."""
    place = place_of(split.archive) / layout.name
    try:
        data = open_store(place).read(path, FILE_BYTES_MAX)
    except FileNotFoundError:
        raise ArchiveUnavailable(
            f"{place / path} is gone: it was merged and removed since the query began; run it again"
        ) from None
    if len(data) != size:
        raise DamagedData(f"{place / path} has {len(data)} bytes, not {size}; bring it back")
    try:
        source: Any = pa.BufferReader(data)
        file = pq.ParquetFile(source, page_checksum_verification=True)
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, list(split.columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DamagedData(f"{place / path} is damaged: {error}; bring it back") from None
