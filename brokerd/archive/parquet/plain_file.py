# Tests: tests/archive/test_plain_file.py
"""Reads and writes plain Parquet files: files of derived tables, and files that a run stages.

They lack brokerd's part of the footer. Memory holds a row group or two. Pages have checksums, which
each read verifies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from brokerd.archive.parquet.column_facts import ColumnFacts
from brokerd.archive.parquet.file_objects import FileReader, FileSink
from brokerd.archive.storage.store import Store
from brokerd.errors import DamagedData

GROUP_ROWS = 128 << 10
"""The number of rows of a row group."""
GROUP_BYTES = 64 << 20
"""The size in memory at which a row group has fewer rows."""


class PlainFileReader:
    """Reads a file. Raises DamagedData and the errors of the store."""

    def __init__(self, store: Store, path: str) -> None:
        self.path = path
        self._where = f"{store.place / path}"
        with _damage(self._where):
            stream = pa.PythonFile(FileReader(store.open(path)), "r")
            self._file = pq.ParquetFile(stream, page_checksum_verification=True)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return int(self._file.metadata.num_rows)

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        names: list[str] = self.schema.names
        return names

    @property
    def schema(self) -> pa.Schema:
        """Return the columns."""
        return self._file.schema_arrow.remove_metadata()

    def read(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield a table for each row group, with the columns and types of a schema."""
        for group in range(self._file.num_row_groups):
            with _damage(self._where):
                rows = self._file.read_row_group(group, schema.names, use_threads=False)
                rows = rows.select(schema.names).cast(schema)
            yield rows


class PlainFileInfo(NamedTuple):
    """A written file."""

    path: str
    size: int
    rows: int
    minimum: dict[str, int]
    """The smallest value of each column with statistics; times in microseconds."""
    maximum: dict[str, int]
    texts: dict[str, tuple[str, str]]
    """The smallest and the largest value of each column of text with statistics."""
    nulls: dict[str, int]
    """The number of nulls of each column."""


class StagedFile(NamedTuple):
    """A file that a step wrote for one of its later stages."""

    path: str
    """The path relative to the archive."""
    rows: int
    value: str = ""
    """The value, in all rows, of the column that divides the rows into files."""


class PlainFileWriter:
    """Writes a file into a directory. The context manager deletes it unless `close` succeeded.

    Raises the errors of the store.
    """

    def __init__(
        self,
        store: Store,
        directory: str,
        schema: pa.Schema,
        statistics: Sequence[str] = (),
        texts: Sequence[str] = (),
    ) -> None:
        self._schema = schema
        self._sink = FileSink(store.create(directory))
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            write_page_checksum=True,
            write_statistics=_columns_with_limits(schema),
        )
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._rows = 0
        self._minimum: dict[str, int] = {}
        self._maximum: dict[str, int] = {}
        self._statistics = statistics
        self._facts = ColumnFacts(schema.names, texts)

    def __enter__(self) -> PlainFileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sink.ignore_writes()
        self._writer.close()
        self._sink.close()

    def write(self, rows: pa.Table) -> None:
        """Append rows with the columns of the schema."""
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def close(self, path: str) -> PlainFileInfo:
        """Complete the file, give it a path in its directory, and return its statistics."""
        self._flush()
        self._writer.close()
        self._sink.publish(path)
        return PlainFileInfo(
            path,
            self._sink.position,
            self._rows,
            self._minimum,
            self._maximum,
            self._facts.texts,
            self._facts.nulls,
        )

    def _flush(self) -> None:
        if not self._waiting_rows:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        self._writer.write_table(rows, row_group_size=len(rows))
        self._rows += len(rows)
        self._facts.update(rows)
        for name in self._statistics:
            found = pc.min_max(rows[name].cast(pa.int64())).as_py()
            if found["min"] is not None:
                self._minimum[name] = min(found["min"], self._minimum.get(name, found["min"]))
                self._maximum[name] = max(found["max"], self._maximum.get(name, found["max"]))


def _columns_with_limits(schema: pa.Schema) -> list[str]:
    """Return the columns whose row groups get a smallest and a largest value: all but double.

    Arrow leaves NaN out of both. For Spark and DuckDB NaN is the largest number, so they would skip
    row groups with NaN.
    """
    columns = [one for field in schema for one in _leaves(field.name, field.type)]
    # Parquet's writer knows a column by its path alone, and a name may have dots.
    doubles = {path for path, kind in columns if pa.types.is_floating(kind)}
    return [path for path, _ in columns if path not in doubles]


def _leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the columns without nested columns, by their paths in the file."""
    if pa.types.is_struct(kind):
        for field in kind.fields:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    else:
        yield path, kind


@contextmanager
def _damage(where: str) -> Iterator[None]:
    """Convert errors of pyarrow to a DamagedData that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        KeyError,
    ) as error:  # a damaged footer
        text = str(error).partition("\n")[0]
        raise DamagedData(f"{where} is damaged: {text}") from error
