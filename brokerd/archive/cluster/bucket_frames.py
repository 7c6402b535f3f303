# Tests: tests/archive/test_job_on_s3.py
"""Files of an archive on an object store as data frames of Spark, and data frames as files there.

Spark by itself knows no object store. So its tasks read and write files by
`brokerd.archive.storage.store`, and pass rows on as Arrow has them: a data source in Python
(https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html). For
`brokerd.archive.cluster.frames`, and nobody else.

Files of ``records`` and ``events`` are verified as they are read, every byte; of the others, the
checksums of Parquet's pages are. A file that is written is in the store as a whole or not at all.
Of an attempt of a task that was given up nothing is told, whatever it wrote.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from brokerd.archive.contract.layout import EVENTS, RECORDS, Layout
from brokerd.archive.parquet.plain_file import (
    PlainFileInfo,
    PlainFileReader,
    PlainFileWriter,
    StagedFile,
)
from brokerd.archive.parquet.reader import ArchiveFile, open_file
from brokerd.archive.storage.address import Place, place_of
from brokerd.archive.storage.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "brokerd-files"
FILE = "file"
ROW = "row"
"""Columns that are added when asked: the file's name without its directory, and the row's number
in the file."""
PARTS_A_TASK = 4
"""Files are dealt to so many parts for each task that runs at a time: some take longer."""
GROUPS_MIN = 8
"""A part of a file has at least so many row groups."""
MANIFEST = "_written"
MANIFEST_BYTES_MAX = 256 << 20

_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
"""By the names that Spark has for the types of its columns."""
_ASKED = "asked"
"""The option with what is asked for, as JSON."""


_registered: WeakSet[SparkSession] = WeakSet()
"""Sessions that know the source; telling them again would be told in their logs."""


class _Reading(Struct):
    """Rows of files."""

    place: str
    table: str
    """Of which they are if they are to be verified: ``records`` or ``events``."""
    paths: list[str]
    placed: bool
    parts: int
    """About so many tasks are to read them."""


class _Writing(Struct):
    """Files for rows."""

    place: str
    directory: str
    prefix: str
    columns: list[str]
    by: str
    """A column: each file is of rows that agree in it; they come together."""
    statistics: list[str]
    """Columns of which the smallest and largest values are to be known."""
    manifest: str
    """Path of the file for what tasks tell."""


class _Written(Struct):
    """A file that a task wrote."""

    info: PlainFileInfo
    value: str
    """What its rows have in the column by which they were divided."""


def ddl(layout: Layout, names: Sequence[str]) -> str:
    """Columns of a table as Spark's schemas have them."""
    columns = {column.name: column.type for column in layout.columns}
    return ", ".join(f"{name} {columns[name]}" for name in names)


class InStore:
    """`brokerd.archive.cluster.frames.FrameFiles`."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        self._spark = spark
        self._place = place
        if spark not in _registered:
            spark.dataSource.register(FileSource)
            _registered.add(spark)

    def read_table(
        self, layout: Layout, names: Sequence[str], paths: Sequence[str], placed: bool
    ) -> DataFrame:
        schema = ddl(layout, names) + (f", {FILE} string, {ROW} long" if placed else "")
        table = layout.name if layout in (RECORDS, EVENTS) else ""
        return self._read(schema, [f"{layout.name}/{path}" for path in paths], table, placed)

    def read_staged(self, schema: str, directory: str, paths: Sequence[str]) -> DataFrame:
        return self._read(schema, paths, "", False)

    def _read(self, schema: str, paths: Sequence[str], table: str, placed: bool) -> DataFrame:
        parts = PARTS_A_TASK * self._spark.sparkContext.defaultParallelism
        asked = _Reading(str(self._place), table, list(paths), placed, parts)
        reader = self._spark.read.format(FORMAT).schema(schema)
        return reader.option(_ASKED, _text(asked)).load()

    def stage(self, frame: DataFrame, directory: str, by: str) -> list[StagedFile]:
        written = self._write(frame, directory, directory, "part", frame.columns, by)
        return [StagedFile(one.info.path, one.info.rows, one.value) for one in written]

    def add(
        self, frame: DataFrame, staging: str, layout: Layout, prefix: str, by: str
    ) -> list[PlainFileInfo]:
        columns = [name for name in frame.columns if name != by]
        written = self._write(frame, staging, layout.name, prefix, columns, by, layout.statistics)
        return [
            one.info._replace(path=one.info.path.removeprefix(f"{layout.name}/"))
            for one in written
            if one.info.rows
        ]

    def _write(
        self,
        frame: DataFrame,
        staging: str,
        directory: str,
        prefix: str,
        columns: Sequence[str],
        by: str,
        statistics: Sequence[str] = (),
    ) -> list[_Written]:
        """Write files into a directory; what tasks tell of them comes by way of another."""
        manifest = f"{staging}/{MANIFEST}-{secrets.token_hex(8)}"
        asked = _Writing(
            str(self._place), directory, prefix, list(columns), by, list(statistics), manifest
        )
        rows = frame.sortWithinPartitions(by) if by else frame
        rows.write.format(FORMAT).mode("append").option(_ASKED, _text(asked)).save()
        data = open_store(self._place).read(manifest, MANIFEST_BYTES_MAX)
        return msgspec.msgpack.decode(data, type=list[_Written])


def _arrow(schema: StructType) -> pa.Schema:
    """A schema of Spark's in Arrow's terms."""
    return pa.schema([(field.name, _TYPES[field.dataType.typeName()]) for field in schema.fields])


def _text(asked: Struct) -> str:
    return msgspec.json.encode(asked).decode()


class FileSource(DataSource):
    """What Spark asks, in processes of its own."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(msgspec.json.decode(self.options[_ASKED], type=_Reading), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer(msgspec.json.decode(self.options[_ASKED], type=_Writing), schema)


# -- Reading -------------------------------------------------------------------------------------


class _Part(InputPartition):
    """Some files, or a part of each: which one, of how many."""

    def __init__(self, paths: list[str], at: int = 0, of: int = 1) -> None:
        super().__init__((paths, at, of))
        self.paths = paths
        self.at = at
        self.of = of


class _Reader(DataSourceReader):
    def __init__(self, asked: _Reading, schema: StructType) -> None:
        self._asked = asked
        self._schema = _arrow(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Files are dealt out; a few large ones that are verified by row groups are cut."""
        paths, parts = self._asked.paths, self._asked.parts
        if len(paths) >= parts or not self._asked.table:
            count = min(parts, len(paths))
            return [_Part(paths[at::count]) for at in range(count)]
        found = []
        for path in paths:
            groups = len(self._open(path).groups)
            of = max(1, min(parts // len(paths), groups // GROUPS_MIN))
            found += [_Part([path], at, of) for at in range(of)]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        for path in partition.paths:
            for row, rows in self._rows(path, partition.at, partition.of):
                yield from self._shaped(rows, path, row).to_batches()

    def _rows(self, path: str, at: int, of: int) -> Iterator[tuple[int, pa.Table]]:
        """Rows of a part of a file with the columns that are wanted of it, from which row on."""
        added = (FILE, ROW) if self._asked.placed else ()
        schema = pa.schema([field for field in self._schema if field.name not in added])
        row = 0
        if not self._asked.table:
            for rows in PlainFileReader(open_store(place_of(self._asked.place)), path).read(schema):
                yield row, rows
                row += len(rows)
            return
        file = self._open(path)
        first, end = (len(file.groups) * one // of for one in (at, at + 1))
        row = int(file.groups["rows"][:first].sum())
        for group in range(first, end):
            rows = file.read_table([group], schema.names)
            yield row, rows
            row += len(rows)

    def _open(self, path: str) -> ArchiveFile:
        table = self._asked.table
        return open_file(place_of(self._asked.place) / table, path.removeprefix(f"{table}/"))

    def _shaped(self, rows: pa.Table, path: str, row: int) -> pa.Table:
        """The same in the schema that Spark was told, with the place if it is wanted."""
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        if self._asked.placed:
            name = pa.scalar(path.rpartition("/")[2])
            columns[FILE] = pa.repeat(name, len(rows))
            columns[ROW] = pa.array(range(row, row + len(rows)), pa.int64())
        arrays = [columns[name] for name in self._schema.names]
        return pa.table(arrays, names=self._schema.names).cast(self._schema).combine_chunks()


# -- Writing -------------------------------------------------------------------------------------


@dataclass
class _Message(WriterCommitMessage):
    """What a task wrote."""

    files: list[_Written]


class _Writer(DataSourceArrowWriter):
    def __init__(self, asked: _Writing, schema: StructType) -> None:
        self._asked = asked
        every = _arrow(schema)
        self._schema = pa.schema([every.field(name) for name in asked.columns])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with _Files(self._asked, self._schema) as files:
            for batch in iterator:
                files.add(batch)
            return _Message(files.close())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Tell whoever asked, in a file: this is another process than theirs."""
        files = [one for told in messages if isinstance(told, _Message) for one in told.files]
        store = open_store(place_of(self._asked.place))
        store.put(self._asked.manifest, msgspec.msgpack.encode(files))


class _Files:
    """The files of one task. Leaves none that was not closed."""

    def __init__(self, asked: _Writing, schema: pa.Schema) -> None:
        self._asked = asked
        self._schema = schema
        self._store = open_store(place_of(asked.place))
        self._open: PlainFileWriter | None = None
        self._stack = ExitStack()
        self._value = ""
        self._done: list[_Written] = []

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows that follow those before."""
        rows = pa.Table.from_batches([batch])
        wanted = rows.select(self._schema.names).cast(self._schema)
        if not self._asked.by:
            self._writer().write(wanted)
            return
        first = 0
        runs = pc.run_end_encode(rows[self._asked.by].combine_chunks())
        values = runs.values.to_pylist()
        for value, end in zip(values, runs.run_ends.to_pylist(), strict=True):
            if self._open is None or str(value) != self._value:
                self._finish()
                self._value = str(value)
            self._writer().write(wanted.slice(first, end - first))
            first = end

    def close(self) -> list[_Written]:
        """Complete the last one."""
        if not self._asked.by:
            self._writer()
        self._finish()
        return self._done

    def _writer(self) -> PlainFileWriter:
        if self._open is None:
            asked = self._asked
            writer = PlainFileWriter(self._store, asked.directory, self._schema, asked.statistics)
            self._open = self._stack.enter_context(writer)
        return self._open

    def _finish(self) -> None:
        if self._open is None:
            return
        asked = self._asked
        path = f"{asked.directory}/{asked.prefix}-{secrets.token_hex(8)}.parquet"
        self._done.append(_Written(self._open.close(path), self._value))
        self._open = None
        self._stack.close()
