# Tests: tests/archive/test_job_on_s3.py
"""Data frames over an archive on an object store, as a Spark data source in Python.

Spark without extra libraries supports no object store. Its tasks read and write files through
`brokerd.archive.storage.store` and pass rows as Arrow batches
(https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html). Only
`brokerd.archive.cluster.frames` uses this module.

A reader verifies every byte of ``records`` and ``events``, and the checksums of Parquet pages of
other files. A written file appears in the store whole or not at all. The manifest leaves out files
of abandoned task attempts.
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
"""Optional columns: the file's name without its directory, and the row's number in the file."""
PARTS_A_TASK = 4
"""Parts of the input for each task slot. Several parts even out slow parts."""
GROUPS_MIN = 8
"""The least number of row groups in a part of a file."""
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
"""Arrow types by the names of Spark's types."""
_REQUEST = "request"
"""The option that holds the request, as JSON."""


_registered: WeakSet[SparkSession] = WeakSet()
"""Sessions that have the source. Spark logs a warning if it is registered twice."""


class _ReadRequest(Struct):
    """A request to read the rows of files."""

    place: str
    table: str
    """``records`` or ``events`` for verified files, else ""."""
    paths: list[str]
    row_ids: bool
    parts: int
    """The approximate number of tasks."""


class _WriteRequest(Struct):
    """A request to write rows into files."""

    place: str
    directory: str
    prefix: str
    columns: list[str]
    partition_by: str
    """A column or "". Each file has the rows of one value. These rows are neighbours."""
    statistics: list[str]
    """Columns whose smallest and largest values are reported."""
    texts: list[str]
    """Columns of text of which the same is reported."""
    manifest: str
    """The path of the file that lists the written files."""


class _OutputFile(Struct):
    """A file that a task wrote."""

    info: PlainFileInfo
    value: str
    """The value of the column ``partition_by`` in its rows."""


def table_ddl(layout: Layout, names: Sequence[str], row_ids: bool = False) -> str:
    """Return the schema of columns of a table in Spark's syntax."""
    columns = {column.name: column.type for column in layout.columns}
    ddl = ", ".join(f"{name} {columns[name]}" for name in names)
    return f"{ddl}, {FILE} string, {ROW} long" if row_ids else ddl


class BucketFrames:
    """The `brokerd.archive.cluster.frames.FrameStore` of an object store."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        self._spark = spark
        self._place = place
        if spark not in _registered:
            spark.dataSource.register(FileSource)
            _registered.add(spark)

    def read_table(
        self, layout: Layout, names: Sequence[str], paths: Sequence[str], row_ids: bool
    ) -> DataFrame:
        schema = table_ddl(layout, names, row_ids)
        table = layout.name if layout in (RECORDS, EVENTS) else ""
        return self._read(schema, [f"{layout.name}/{path}" for path in paths], table, row_ids)

    def read_staged(self, schema: str, directory: str, paths: Sequence[str]) -> DataFrame:
        return self._read(schema, paths, "", False)

    def _read(self, schema: str, paths: Sequence[str], table: str, row_ids: bool) -> DataFrame:
        parts = PARTS_A_TASK * self._spark.sparkContext.defaultParallelism
        request = _ReadRequest(str(self._place), table, list(paths), row_ids, parts)
        reader = self._spark.read.format(FORMAT).schema(schema)
        return reader.option(_REQUEST, _json(request)).load()

    def stage(self, frame: DataFrame, directory: str, partition_by: str) -> list[StagedFile]:
        files = self._write(frame, directory, directory, "part", frame.columns, partition_by)
        return [StagedFile(one.info.path, one.info.rows, one.value) for one in files]

    def add(
        self, frame: DataFrame, staging: str, layout: Layout, prefix: str, partition_by: str
    ) -> list[PlainFileInfo]:
        columns = [name for name in frame.columns if name != partition_by]
        files = self._write(
            frame,
            staging,
            layout.name,
            prefix,
            columns,
            partition_by,
            layout.statistics,
            layout.texts,
        )
        return [
            one.info._replace(path=one.info.path.removeprefix(f"{layout.name}/"))
            for one in files
            if one.info.rows
        ]

    def _write(
        self,
        frame: DataFrame,
        staging: str,
        directory: str,
        prefix: str,
        columns: Sequence[str],
        partition_by: str,
        statistics: Sequence[str] = (),
        texts: Sequence[str] = (),
    ) -> list[_OutputFile]:
        """Write files into a directory, and return them from a manifest in ``staging``."""
        manifest = f"{staging}/{MANIFEST}-{secrets.token_hex(8)}"
        request = _WriteRequest(
            str(self._place),
            directory,
            prefix,
            list(columns),
            partition_by,
            list(statistics),
            list(texts),
            manifest,
        )
        rows = frame.sortWithinPartitions(partition_by) if partition_by else frame
        rows.write.format(FORMAT).mode("append").option(_REQUEST, _json(request)).save()
        data = open_store(self._place).read(manifest, MANIFEST_BYTES_MAX)
        return msgspec.msgpack.decode(data, type=list[_OutputFile])


def _arrow(schema: StructType) -> pa.Schema:
    """Convert a schema of Spark to Arrow."""
    return pa.schema([(field.name, _TYPES[field.dataType.typeName()]) for field in schema.fields])


def _json(request: Struct) -> str:
    return msgspec.json.encode(request).decode()


class FileSource(DataSource):
    """The data source. Spark creates it in Python workers."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(msgspec.json.decode(self.options[_REQUEST], type=_ReadRequest), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer(msgspec.json.decode(self.options[_REQUEST], type=_WriteRequest), schema)


# -- Reading -------------------------------------------------------------------------------------


class _Part(InputPartition):
    """Some files, or part ``at`` of ``of`` parts of each file."""

    def __init__(self, paths: list[str], at: int = 0, of: int = 1) -> None:
        super().__init__((paths, at, of))
        self.paths = paths
        self.at = at
        self.of = of


class _Reader(DataSourceReader):
    def __init__(self, request: _ReadRequest, schema: StructType) -> None:
        self._request = request
        self._schema = _arrow(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of the input. If files are few, divide verified files by row groups."""
        paths, parts = self._request.paths, self._request.parts
        if len(paths) >= parts or not self._request.table:
            count = min(parts, len(paths))
            return [_Part(paths[at::count]) for at in range(count)]
        divided = []
        for path in paths:
            groups = len(self._open(path).groups)
            of = max(1, min(parts // len(paths), groups // GROUPS_MIN))
            divided += [_Part([path], at, of) for at in range(of)]
        return divided

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        for path in partition.paths:
            for row, rows in self._rows(path, partition.at, partition.of):
                yield from self._cast(rows, path, row).to_batches()

    def _rows(self, path: str, at: int, of: int) -> Iterator[tuple[int, pa.Table]]:
        """Read a part of a file. Yield tables, each with the number of its first row."""
        added = (FILE, ROW) if self._request.row_ids else ()
        schema = pa.schema([field for field in self._schema if field.name not in added])
        row = 0
        if not self._request.table:
            for rows in PlainFileReader(open_store(place_of(self._request.place)), path).read(
                schema
            ):
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
        table = self._request.table
        return open_file(place_of(self._request.place) / table, path.removeprefix(f"{table}/"))

    def _cast(self, rows: pa.Table, path: str, row: int) -> pa.Table:
        """Cast rows to the schema, and add the file and row numbers if requested."""
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        if self._request.row_ids:
            name = pa.scalar(path.rpartition("/")[2])
            columns[FILE] = pa.repeat(name, len(rows))
            columns[ROW] = pa.array(range(row, row + len(rows)), pa.int64())
        arrays = [columns[name] for name in self._schema.names]
        return pa.table(arrays, names=self._schema.names).cast(self._schema).combine_chunks()


# -- Writing -------------------------------------------------------------------------------------


@dataclass
class _Message(WriterCommitMessage):
    """The files that a task wrote."""

    files: list[_OutputFile]


class _Writer(DataSourceArrowWriter):
    def __init__(self, request: _WriteRequest, schema: StructType) -> None:
        self._request = request
        every = _arrow(schema)
        self._schema = pa.schema([every.field(name) for name in request.columns])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with _TaskFiles(self._request, self._schema) as files:
            for batch in iterator:
                files.add(batch)
            return _Message(files.close())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the manifest. The driver, another process, reads it."""
        files = [one for each in messages if isinstance(each, _Message) for one in each.files]
        store = open_store(place_of(self._request.place))
        store.put(self._request.manifest, msgspec.msgpack.encode(files))


class _TaskFiles:
    """Writes the files of one task. An incomplete file is discarded."""

    def __init__(self, request: _WriteRequest, schema: pa.Schema) -> None:
        self._request = request
        self._schema = schema
        self._store = open_store(place_of(request.place))
        self._open: PlainFileWriter | None = None
        self._stack = ExitStack()
        self._value = ""
        self._done: list[_OutputFile] = []

    def __enter__(self) -> _TaskFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        rows = pa.Table.from_batches([batch])
        output = rows.select(self._schema.names).cast(self._schema)
        if not self._request.partition_by:
            self._writer().write(output)
            return
        first = 0
        runs = pc.run_end_encode(rows[self._request.partition_by].combine_chunks())
        values = runs.values.to_pylist()
        for value, end in zip(values, runs.run_ends.to_pylist(), strict=True):
            if self._open is None or str(value) != self._value:
                self._finish()
                self._value = str(value)
            self._writer().write(output.slice(first, end - first))
            first = end

    def close(self) -> list[_OutputFile]:
        """Complete the last file, and return all files."""
        if not self._request.partition_by:
            self._writer()
        self._finish()
        return self._done

    def _writer(self) -> PlainFileWriter:
        if self._open is None:
            request = self._request
            writer = PlainFileWriter(
                self._store, request.directory, self._schema, request.statistics, request.texts
            )
            self._open = self._stack.enter_context(writer)
        return self._open

    def _finish(self) -> None:
        if self._open is None:
            return
        request = self._request
        path = f"{request.directory}/{request.prefix}-{secrets.token_hex(8)}.parquet"
        self._done.append(_OutputFile(self._open.close(path), self._value))
        self._open = None
        self._stack.close()
