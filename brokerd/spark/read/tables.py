# Tests: tests/spark/test_tables.py
"""Plans and reads queries of the archive's tables ``events``, ``deliveries`` and ``hourly``.

A query reads the files of the newest version (docs/archive-format.rst) in any order. No pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from brokerd.archive.contract.layout import DELIVERIES, EVENTS, HOURLY, arrow_schema
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.log_reader import DeltaLog
from brokerd.archive.parquet.plain_file import PlainFileReader
from brokerd.archive.parquet.reader import open_file
from brokerd.archive.storage.address import place_of
from brokerd.archive.storage.store import open_store
from brokerd.errors import BrokerdError, DamagedData
from brokerd.spark.plan.archive_files import read_archive_log_id

TABLES = {layout.name: layout for layout in (EVENTS, DELIVERIES, HOURLY)}
BATCH_ROWS = 64 << 10


class NoTable(BrokerdError):
    """The table does not exist yet."""


class TableSplit(NamedTuple):
    """The input of one task. It is pickled."""

    archive: str
    """The archive's address."""
    table: str
    files: tuple[tuple[str, int, int], ...]
    """For each file: path relative to the table, size in bytes, and number of rows."""
    columns: tuple[str, ...]
    """The columns in the order of the rows."""


def plan_table(
    archive: str, table: str, columns: Sequence[str], partition_bytes: int
) -> list[TableSplit]:
    """Divide the newest version of a table into splits of about ``partition_bytes``.

    :param archive: the archive's address.
    :raises NoTable: the table does not exist.
    :raises BrokerdError: the table cannot be read, or another program made it.
    """
    place = place_of(archive) / table
    log_id = read_archive_log_id(archive)
    snapshot = None if log_id is None else DeltaLog(place, log_id).read()
    if snapshot is None:
        raise NoTable(
            f"{place} does not exist: run brokerd-rollup, which creates the table; if the archive "
            "is elsewhere (archive.uri), give its address in the option archive"
        )
    splits: list[list[tuple[str, int, int]]] = []
    room = 0
    for file in snapshot.files.sort_by("path").select(["path", "size", "rows"]).to_pylist():
        if file["size"] > room:
            splits.append([])
            room = partition_bytes
        splits[-1].append((file["path"], file["size"], file["rows"]))
        room -= file["size"]
    return [TableSplit(archive, table, tuple(files), tuple(columns)) for files in splits]


def read_table(split: TableSplit) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split, with the types of the table. Memory holds a row group or two.

    :raises ArchiveUnavailable: a file cannot be read.
    :raises DamagedData: a file is damaged.
    """
    layout = TABLES[split.table]
    types = arrow_schema(layout)
    schema = pa.schema([types.field(name) for name in split.columns])
    read = _read_events if layout is EVENTS else _read_plain
    for path, size, count in split.files:
        left = count
        for rows in read(split, schema, path, size):
            left -= len(rows)
            yield from rows.cast(schema).to_batches(max_chunksize=BATCH_ROWS)
        if left:
            raise DamagedData(
                f"{place_of(split.archive) / split.table / path} lacks {left} of the {count} rows "
                "in the Delta log; restore it from a backup"
            )


def _read_events(split: TableSplit, schema: pa.Schema, path: str, size: int) -> Iterator[pa.Table]:
    file = open_file(place_of(split.archive) / split.table, path, size)
    for group in range(len(file.groups)):
        yield file.read_table([group], schema.names)


def _read_plain(split: TableSplit, schema: pa.Schema, path: str, size: int) -> Iterator[pa.Table]:
    """Yield the rows of a file in which only pages have checksums."""
    place = place_of(split.archive) / split.table
    store = open_store(place)
    try:
        actual = store.stat(path).size
        if actual != size:
            raise DamagedData(
                f"{place / path} has {actual} bytes, not {size}; restore it from a backup"
            )
        yield from PlainFileReader(store, path).read(schema)
    except FileNotFoundError:
        raise ArchiveUnavailable(
            f"{place / path} is gone: it was merged and deleted since the plan; run the query again"
        ) from None
