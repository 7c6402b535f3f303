# Tests: tests/archive/test_typed_tables.py
"""The task of a typed table: decode archived records of one topic, and write them to files.

It runs in Spark's workers or in the process of the job. A killed task leaves files without a
commit.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from brokerd.archive.contract.layout import RECORDS, parse_records_name
from brokerd.archive.contract.schemas import StoredSchema
from brokerd.archive.delta.actions import AddFile, add_plain_file
from brokerd.archive.parquet.plain_file import PlainFileReader, PlainFileWriter
from brokerd.archive.parquet.reader import open_file
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store
from brokerd.archive.typed.layouts import (
    REJECTED,
    REJECTED_SCHEMA,
    ROWS,
    STATISTICS,
    rows_schema,
    table_name,
)
from brokerd.archive.typed.topic_schema import TopicSchema, TypedRows

_COLUMNS = (
    *("topic_id", "partition", "offset", "append_time", "producer_time", "lsn"),
    *("key", "value", "encoding"),
)


class TypedTask(NamedTuple):
    """Files of ``records`` whose records of a topic are decoded."""

    root: Place
    topic_id: int
    versions: tuple[StoredSchema, ...]
    paths: tuple[str, ...]
    rows_lsn: int
    """Rows from this LSN on are written."""
    rejected_lsn: int
    """Rejected records from this LSN on are written."""
    end_lsn: int


class TypedFiles(NamedTuple):
    """The files that a task wrote; None if it has no rows."""

    rows: AddFile | None
    rejected: AddFile | None


@lru_cache(maxsize=16)
def topic_schema(versions: tuple[StoredSchema, ...]) -> TopicSchema:
    """Return the columns of a topic. Compiling the definitions takes time."""
    return TopicSchema(versions)


def write_typed(task: TypedTask) -> TypedFiles:
    """Write the typed rows and the rejected records of some files."""
    topic = topic_schema(task.versions)
    schema = rows_schema(topic.stored_kind)
    with ExitStack() as stack:
        rows = _Output(stack, task, ROWS, schema)
        rejected = _Output(stack, task, REJECTED, REJECTED_SCHEMA)
        for batch, found in _converted(topic, task):
            lsns = batch["lsn"].to_numpy()
            fits = found.versions.is_valid().to_numpy(zero_copy_only=False)
            columns = dict(zip(topic.stored_kind.names, found.columns.flatten(), strict=True))
            columns |= {"schema_version": found.versions, "schema_error": found.errors}
            rows.write(batch, columns, fits & (lsns >= task.rows_lsn))
            rejected.write(batch, columns, ~fits & (lsns >= task.rejected_lsn))
        return TypedFiles(rows.close(), rejected.close())


def _converted(topic: TopicSchema, task: TypedTask) -> Iterator[tuple[pa.Table, TypedRows]]:
    """Yield the records of a task in parts, with their typed columns."""
    for records in _records(task):
        batch = records.combine_chunks()
        times = batch["append_time"].chunk(0).view(pa.int64())
        values, encodings = (batch[name].chunk(0) for name in ("value", "encoding"))
        first = 0
        for found in topic.convert(values, encodings, times):
            yield batch.slice(first, len(found.versions)), found
            first += len(found.versions)


def _records(task: TypedTask) -> Iterator[pa.Table]:
    """Yield the records of the topic in the range of LSNs, a row group at a time."""
    first_lsn = min(task.rows_lsn, task.rejected_lsn)
    for path in task.paths:
        file = open_file(task.root / RECORDS.name, path)
        for group in range(len(file.groups)):
            facts = file.groups[group]
            low, high = int(facts["first"]["topic_id"]), int(facts["last"]["topic_id"])
            lsns = file.lsns(group)
            if not low <= task.topic_id <= high or lsns[1] < first_lsn or lsns[0] >= task.end_lsn:
                continue
            table = file.read_table([group], _COLUMNS)
            lsn, topic_id = table["lsn"].to_numpy(), table["topic_id"].to_numpy()
            mask = (topic_id == task.topic_id) & (lsn >= first_lsn) & (lsn < task.end_lsn)
            if mask.any():
                yield table if mask.all() else table.filter(pa.array(mask))


class _Output:
    """A file of one table. It is made when it gets its first row."""

    def __init__(self, stack: ExitStack, task: TypedTask, part: str, schema: pa.Schema) -> None:
        self._stack = stack
        self._store = open_store(task.root)
        self._directory = table_name(task.topic_id, part)
        self._schema = schema
        self._writer: PlainFileWriter | None = None

    def write(self, batch: pa.Table, columns: dict[str, pa.Array], mask: Any) -> None:
        """Append the rows of a mask."""
        if not mask.any():
            return
        if self._writer is None:
            writer = PlainFileWriter(self._store, self._directory, self._schema, STATISTICS)
            self._writer = self._stack.enter_context(writer)
        arrays = [columns[name] if name in columns else batch[name] for name in self._schema.names]
        self._writer.write(pa.table(arrays, schema=self._schema).filter(pa.array(mask)))

    def close(self) -> AddFile | None:
        """Complete the file, and return it for a commit."""
        return None if self._writer is None else close_file(self._writer, self._directory)


def close_file(writer: PlainFileWriter, directory: str) -> AddFile:
    """Complete a file of a typed table, and return it for a commit."""
    name = f"t-{secrets.token_hex(8)}.parquet"
    info = writer.close(f"{directory}/{name}")
    nulls = {column: info.nulls[column] for column in STATISTICS}
    return add_plain_file(info._replace(path=name, nulls=nulls), "append_time")


# -- Merging -------------------------------------------------------------------------------------


class MergeTask(NamedTuple):
    """Files of a typed table to merge into one."""

    root: Place
    table: str
    kind: tuple[StoredSchema, ...] | None
    """The versions of the schema; None for rejected records."""
    paths: tuple[str, ...]


def merge_typed(task: MergeTask) -> AddFile:
    """Write the rows of some files into one file, in their order. Absent columns are null."""
    store = open_store(task.root)
    schema = (
        REJECTED_SCHEMA if task.kind is None else rows_schema(topic_schema(task.kind).stored_kind)
    )
    with PlainFileWriter(store, task.table, schema, STATISTICS) as writer:
        for path in task.paths:
            reader = PlainFileReader(store, f"{task.table}/{path}")
            own = pa.schema([one for one in schema if one.name in reader.names])
            for rows in reader.read(own):
                writer.write(with_columns(rows, schema))
        return close_file(writer, task.table)


def with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema. Absent columns are null."""
    arrays = [
        rows[one.name] if one.name in rows.column_names else pa.nulls(len(rows), one.type)
        for one in schema
    ]
    return pa.table(arrays, schema=schema)


# -- Removal -------------------------------------------------------------------------------------


class RemovalTask(NamedTuple):
    """A file of a typed table whose records may be gone from the archive."""

    root: Place
    topic_id: int
    table: str
    path: str
    records: tuple[str, ...]
    """The files of ``records`` that may have records of the topic."""


class Removal(NamedTuple):
    """The result of removing rows from a file."""

    path: str
    """The file that is replaced."""
    added: AddFile | None
    """Its replacement; None if no row is left."""
    rows: int
    """The number of removed rows."""


def remove_rows(task: RemovalTask) -> Removal | None:
    """Write the rows of a file anew, without those that the archive has no record of any more.

    Return None if it has all of them.
    """
    store = open_store(task.root)
    reader = PlainFileReader(store, f"{task.table}/{task.path}")
    keys = pa.concat_tables(reader.read(_KEYS))
    partitions, offsets = (keys[name].to_numpy() for name in _KEYS.names)
    is_live = np.zeros(len(keys), bool)
    for partition in np.unique(partitions).tolist():
        own = partitions == partition
        low, high = int(offsets[own].min()), int(offsets[own].max())
        is_live[own] = np.isin(offsets[own], _live_offsets(task, partition, low, high))
    gone = len(keys) - int(is_live.sum())
    if not gone:
        return None
    if gone == len(keys):
        return Removal(task.path, None, gone)
    schema = reader.schema
    with PlainFileWriter(store, task.table, schema, STATISTICS) as writer:
        at = 0
        for rows in reader.read(schema):
            writer.write(rows.filter(pa.array(is_live[at : at + len(rows)])))
            at += len(rows)
        return Removal(task.path, close_file(writer, task.table), gone)


_KEYS = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])


def _live_offsets(task: RemovalTask, partition: int, low: int, high: int) -> Any:
    """Return the offsets that the archive has of a partition, in a range or more."""
    found = [np.empty(0, np.int64)]
    for path in task.records:
        name = parse_records_name(path)
        only = name.only
        if not name.may_hold(task.topic_id, partition):
            continue
        if only is not None and (only.first > high or only.end <= low):
            continue
        file = open_file(task.root / RECORDS.name, path)
        for group in file.groups_of(task.topic_id, partition):
            facts = file.groups[group]
            first, last = facts["first"].item(), facts["last"].item()
            is_one = first[:2] == last[:2]
            if is_one and (first[2] > high or last[2] < low):
                continue
            rows = file.read_table([group], ["topic_id", "partition", "offset"])
            own = (rows["topic_id"].to_numpy() == task.topic_id) & (
                rows["partition"].to_numpy() == partition
            )
            found.append(rows["offset"].to_numpy()[own])
    return np.concatenate(found)
