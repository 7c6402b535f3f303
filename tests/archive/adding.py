"""Files for commits to a table: names of files that need not exist, or files of few records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from brokerd.archive.contract.layout import RECORDS, Range, arrow_schema, records_name
from brokerd.archive.delta.actions import AddFile
from brokerd.archive.delta.log_files import (
    COMMITS,
    OPEN_PROTOCOL,
    FileStats,
    Protocol,
    commit_name,
    encode_commit,
)
from brokerd.archive.delta.table import Table
from brokerd.archive.parquet.writer import FileInfo, FileWriter
from brokerd.archive.storage.address import Place

NOW_MS = 1_700_000_000_000
LOG_ID = "0123456789abcdef0123456789abcdef"
OTHER_LOG_ID = "f" * 32


def tail(number: int) -> str:
    """Return the end of a file's name, different for each number."""
    return f"{number % (1 << 32):08x}-{number:016x}"


def records_file(
    topic_id: int, first: int, end: int, *, number: int = 0, partition: int = 0, **facts: int
) -> AddFile:
    """Return a file of records of one partition. By default its times are its offsets."""
    only = Range(topic_id, partition, first, end)
    path = records_name(topic_id % 16, only, only, tail(number))
    known = FileStats(end - first, 100 * (end - first), first, end - 1, first, end - 1)
    low = {"topic_id": topic_id, "partition": partition, "offset": first, "append_time": first}
    high = {**low, "offset": end - 1, "append_time": end - 1}
    return AddFile(path, 1000 + end - first, known._replace(**facts), low, high)


def lower_protocol(table: Place, old: Protocol) -> None:
    """Make a new table one of an older version of brokerd."""
    path = Path(str(table)) / COMMITS / commit_name(0)
    _, _, *actions = map(json.loads, path.read_bytes().splitlines())
    protocol: dict[str, Any] = {"minReaderVersion": old.reader, "minWriterVersion": old.writer}
    if old.features:
        protocol["writerFeatures"] = list(old.features)
    path.write_bytes(encode_commit([{"protocol": protocol}, *actions], "CREATE TABLE", NOW_MS))


def open_to_writers(table: Place) -> None:
    """Make a new table one of the oldest brokerd, which other programs could write."""
    lower_protocol(table, OPEN_PROTOCOL)


def shared_file(
    low: tuple[int, int], high: tuple[int, int], *, number: int = 0, **facts: int
) -> AddFile:
    """Return a file of records of several partitions, from (topic id, partition) to another."""
    first, last = Range(*low, 0, 1), Range(*high, 1, 2)
    path = records_name(low[0] % 16, first, last, tail(number))
    return AddFile(path, 2000, FileStats(2, 200, 0, 1, 0, 1)._replace(**facts))


def files_of(added: Iterable[AddFile]) -> pa.Table:
    """Return the files as the snapshot of a table that has them."""
    rows = [{"path": file.path, "size": file.size, **file.stats._asdict()} for file in added]
    names = ("path", "size", *FileStats._fields)
    schema = pa.schema([(name, pa.string() if name == "path" else pa.int64()) for name in names])
    return pa.Table.from_pylist(rows, schema)


class Row(NamedTuple):
    """A record and its partition."""

    topic_id: int
    partition: int
    offset: int
    value: bytes = b"value"
    key: bytes | None = None
    time_us: int = 0


def write_records(table: Table, ranges: Sequence[Range], rows: Iterable[Row]) -> FileInfo:
    """Write a sorted file of records that no commit names yet."""
    rows = sorted(rows, key=lambda row: row[:3])
    columns = {
        "topic": [f"t{row.topic_id}" for row in rows],
        "topic_id": [row.topic_id for row in rows],
        "partition": [row.partition for row in rows],
        "offset": [row.offset for row in rows],
        "append_time": [row.time_us for row in rows],
        "producer_time": [None] * len(rows),
        "lsn": [row.time_us for row in rows],
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "encoding": [0] * len(rows),
        "metadata": [None] * len(rows),
        "expires_at": [0] * len(rows),
        "producer_format": [0] * len(rows),
    }
    with FileWriter(table.path, RECORDS, LOG_ID, ranges) as writer:
        writer.write(pa.table(columns, schema=arrow_schema(RECORDS)))
        return writer.close()
