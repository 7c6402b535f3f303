# Tests: tests/spark/test_tables.py
"""The archive's other tables as a query reads them: ``events``, ``deliveries`` and ``hourly``.

Rows are those of the files that the newest version names (docs/archive-format.rst), in no order. No
pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from brokerd.archive.contract.layout import DELIVERIES, EVENTS, HOURLY, arrow_schema
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.log_reader import DeltaLog
from brokerd.archive.parquet.plain_file import PlainFile
from brokerd.archive.parquet.reader import open_file
from brokerd.archive.storage.address import place_of
from brokerd.archive.storage.store import open_store
from brokerd.errors import BrokerdError, DamagedData
from brokerd.spark.read.archive_files import log_id_of

TABLES = {layout.name: layout for layout in (EVENTS, DELIVERIES, HOURLY)}
BATCH_ROWS = 64 << 10


class NoTable(BrokerdError):
    """There is no archive yet that has the table."""


class TableSplit(NamedTuple):
    """What one task reads; goes to other processes."""

    archive: str
    """Its address."""
    table: str
    files: tuple[tuple[str, int, int], ...]
    """Path, relative to the table, size and rows."""
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
            f"{place} is not there: brokerd-rollup makes the table as soon as it runs; if the "
            "archive is elsewhere (archive.uri), name it in the option archive"
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
    """The rows of a split, with the types of the table. In memory is a row group or two.

    :raises ArchiveUnavailable: a file cannot be read; :raises DamagedData: it is damaged.
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
                f"{place_of(split.archive) / split.table / path} has not the {count} rows that the "
                "Delta log says; bring it back"
            )


def _read_events(split: TableSplit, schema: pa.Schema, path: str, size: int) -> Iterator[pa.Table]:
    file = open_file(place_of(split.archive) / split.table, path, size)
    for group in range(len(file.groups)):
        yield file.read_table([group], schema.names)


def _read_plain(split: TableSplit, schema: pa.Schema, path: str, size: int) -> Iterator[pa.Table]:
    """A file of which only its pages have checksums."""
    place = place_of(split.archive) / split.table
    store = open_store(place)
    try:
        found = store.stat(path).size
        if found != size:
            raise DamagedData(f"{place / path} has {found} bytes, not {size}; bring it back")
        yield from PlainFile(store, path).read(schema)
    except FileNotFoundError:
        raise ArchiveUnavailable(
            f"{place / path} is gone: it was merged and removed since the query began; run it again"
        ) from None
