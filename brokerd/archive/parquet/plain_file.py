# Tests: tests/archive/test_plain_file.py
"""Parquet files that say nothing of themselves: of the derived tables, and what a run stages.

They are read and written by `brokerd.archive.storage.store`, wherever the archive is, and bit by
bit: in memory is a row group or two. Pages carry checksums, which are compared when they are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from brokerd.archive.storage.store import InputFile, OutputFile, Store
from brokerd.errors import DamagedData

GROUP_ROWS = 128 << 10
"""Rows of a row group."""


class PlainFileReader:
    """A file, open. Raises as the store does, and DamagedData."""

    def __init__(self, store: Store, path: str) -> None:
        self.path = path
        self._where = f"{store.place / path}"
        with _told(self._where):
            stream = pa.PythonFile(_Stream(store.open(path)), "r")
            self._file = pq.ParquetFile(stream, page_checksum_verification=True)

    @property
    def rows(self) -> int:
        """How many there are."""
        return int(self._file.metadata.num_rows)

    def read(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """The columns of a schema, in its types, row group by row group."""
        for group in range(self._file.num_row_groups):
            with _told(self._where):
                rows = self._file.read_row_group(group, schema.names, use_threads=False)
                rows = rows.select(schema.names).cast(schema)
            yield rows


class PlainFileInfo(NamedTuple):
    """A file as it was written."""

    path: str
    size: int
    rows: int
    minimum: dict[str, int]
    """Smallest value of each column that was asked for; times in microseconds."""
    maximum: dict[str, int]


class StagedFile(NamedTuple):
    """A file that a step wrote for itself, or for tasks of its own."""

    path: str
    """Relative to the archive."""
    rows: int
    value: str = ""
    """What its rows have in the column by which they were divided."""


class PlainFileWriter:
    """Writes a file into a directory. As a context manager it leaves none unless it was closed.

    Raises as the store does.
    """

    def __init__(
        self, store: Store, directory: str, schema: pa.Schema, statistics: Sequence[str] = ()
    ) -> None:
        self._schema = schema
        self._draft = store.create(directory)
        self._sink = _Sink(self._draft)
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression="zstd", write_page_checksum=True
        )
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._rows = 0
        self._minimum: dict[str, int] = {}
        self._maximum: dict[str, int] = {}
        self._statistics = statistics

    def __enter__(self) -> PlainFileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sink.is_over = True
        self._writer.close()
        self._draft.discard()

    def write(self, rows: pa.Table) -> None:
        """Add rows, whose columns are those of the schema."""
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        if self._waiting_rows >= GROUP_ROWS:
            self._flush()

    def close(self, path: str) -> PlainFileInfo:
        """Complete the file under a path in its directory."""
        self._flush()
        self._writer.close()
        self._draft.publish(path)
        return PlainFileInfo(path, self._sink.position, self._rows, self._minimum, self._maximum)

    def _flush(self) -> None:
        if not self._waiting_rows:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        self._writer.write_table(rows, row_group_size=len(rows))
        self._rows += len(rows)
        for name in self._statistics:
            found = pc.min_max(rows[name].cast(pa.int64())).as_py()
            if found["min"] is not None:
                self._minimum[name] = min(found["min"], self._minimum.get(name, found["min"]))
                self._maximum[name] = max(found["max"], self._maximum.get(name, found["max"]))


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Say which file it is that Parquet cannot make sense of."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:  # a footer may say anything
        text = str(error).partition("\n")[0]
        raise DamagedData(f"{where} is damaged: {text}") from error


class _Stream:
    """A file of a store as what Parquet reads from."""

    closed = False

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self._position = 0

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}[whence]
        self._position = base + position
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.size - self._position)
        data = self._file.read(self._position, left if size < 0 else min(size, left))
        self._position += len(data)
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class _Sink:
    """A draft as what Parquet writes to."""

    closed = False

    def __init__(self, draft: OutputFile) -> None:
        self._draft = draft
        self.position = 0
        self.is_over = False
        """Whether nobody wants what still comes, such as a footer."""

    def write(self, data: bytes) -> int:
        if not self.is_over:
            self._draft.write(data)
        self.position += len(data)
        return len(data)

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        """Nothing is held back."""

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
