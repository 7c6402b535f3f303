# Tests: tests/archive/test_typed_tables.py
"""Keeps the typed tables of topics with a schema: docs/typed-tables.rst.

Each table has its own transaction, the LSN up to which it has the archived records of its topic.
So each record is in one of its two tables once, wherever a run stops. A new column changes the
table's columns first. A changed type makes the table anew from the archive, in one commit. So does
a table of an older version of brokerd in which two fields have one column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from brokerd.archive.contract.layout import RECORDS, ROLLUP_APP, Layout, parse_records_name
from brokerd.archive.contract.schemas import (
    FILE_BYTES_MAX,
    FILE_NAME,
    StoredSchema,
    StoredSchemas,
    decode_schemas,
    encode_schemas,
    merge_schemas,
)
from brokerd.archive.delta.actions import AddFile
from brokerd.archive.delta.log_files import COMMITS, commit_name
from brokerd.archive.delta.log_files import FILE_BYTES_MAX as COMMIT_BYTES_MAX
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import create_table, is_table
from brokerd.archive.maintain.merge_policy import SMALL_ROUND_GROWTH, neighbours_to_merge, pieces
from brokerd.archive.run import Run, StepReport
from brokerd.archive.storage.regular_file import read_regular
from brokerd.archive.typed.layouts import (
    DIRECTORY,
    RECORD_SCHEMA,
    REJECTED,
    REJECTED_SCHEMA,
    ROWS,
    TYPED_APP,
    layout_of,
    rows_schema,
    table_name,
)
from brokerd.archive.typed.task import (
    MergeTask,
    RemovalTask,
    TypedFiles,
    TypedTask,
    merge_typed,
    remove_rows,
    topic_schema,
    write_typed,
)
from brokerd.errors import DamagedData, escaped

SCHEMAS_PROPERTY = "brokerd.schemas"
"""A digest of the versions of the schema by which a table has its columns."""
REMOVAL_APP = "brokerd-typed-records"
"""Its version is that of ``records`` up to which removed records are gone from a typed table."""
NAMES_PROPERTY = "brokerd.column-names"
"""`NAMES_BY_FIELD` if each field has a column of its own. Older tables may have the values of two
fields in one column."""
NAMES_BY_FIELD = "field"
COLUMNS_PROPERTY = "brokerd.columns"
"""The types of the columns that come from the schema, by name, as JSON."""
MARK_COMMITS = 100
"""After so many commits of ``records`` without removal a typed table gets a new `REMOVAL_APP`."""
TASK_BYTES = 64 << 20
"""The approximate size of the files of ``records`` that a task reads."""


def publish_schemas(run: Run, path: Path) -> StoredSchemas:
    """Add the registered schemas to the archive's copy, and return it.

    :param path: the broker's file, which a broker without schemas does not write.
    :raises DamagedData: a file is damaged.
    """
    kept = StoredSchemas(run.bounds.log_id)
    newer = StoredSchemas(run.bounds.log_id)
    with suppress(FileNotFoundError):
        newer = _decode(read_regular(path, FILE_BYTES_MAX), str(path))
    if newer.log_id != kept.log_id or not (newer.versions or run.settings.typed):
        return kept
    with suppress(FileNotFoundError):
        kept = _decode(run.store.read(FILE_NAME, FILE_BYTES_MAX), f"{run.root / FILE_NAME}")
    merged = merge_schemas(kept, newer.versions)
    if merged != kept:
        run.failpoint("before schemas are published")
        run.store.put(FILE_NAME, encode_schemas(merged))
    return merged


def _decode(data: bytes, where: str) -> StoredSchemas:
    try:
        return decode_schemas(data)
    except DamagedData as error:
        raise DamagedData(f"{where} is damaged: {error}; start the broker, or restore it") from None


def derive_typed(
    run: Run,
    schemas: StoredSchemas,
    is_small: bool,
    collect: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> StepReport:
    """Add the new archived records to the typed tables, and return the counts.

    Only records below the LSN of the bounds are added: their schemas are known.

    :param is_small: whether rows of removed records may stay until the next complete run.
    :param collect: makes a context for each topic. It collects the errors of the topic, so that the
        other topics go on.
    :raises BrokerdError: a table is foreign, damaged or in conflict, or a task failed.
    """
    report = StepReport("typed", {"typed": 0, "rejected": 0, "removed_typed": 0, "merged_typed": 0})
    end = min(run.tables.newest(RECORDS).transaction(ROLLUP_APP), run.bounds.lsn)
    topics = {one.id: one.name for one in run.bounds.topics if not one.internal_of}
    names = {one.name for one in schemas.versions}
    removals = _Removals(run)
    for topic_id, name in topics.items():
        if name in names:
            versions = tuple(schemas.of_topic(name))
            with collect():
                _Topic(run, topic_id, name, versions, end, report, removals, is_small).update()
    _delete_tables(run, set(topics), report)
    return report


class _Removals:
    """Finds the commits of ``records`` that removed records. A run reads each commit once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._removes: dict[int, bool] = {}
        """By version; true also if the commit is gone."""

    def since(self, version: int) -> bool:
        """Return whether a commit after a version removed records, or may have."""
        newest = self._run.tables[RECORDS.name].version
        return any(self._is_removal(number) for number in range(version + 1, newest + 1))

    def _is_removal(self, version: int) -> bool:
        if version not in self._removes:
            path = f"{RECORDS.name}/{COMMITS}/{commit_name(version)}"
            try:
                lines = self._run.store.read(path, COMMIT_BYTES_MAX).splitlines()
            except FileNotFoundError:
                self._removes[version] = True
            else:
                self._removes[version] = any(
                    b'"remove":' in line and b'"dataChange":true' in line for line in lines
                )
        return self._removes[version]


class _Topic:
    """Updates the tables of one topic."""

    def __init__(
        self,
        run: Run,
        topic_id: int,
        name: str,
        versions: tuple[StoredSchema, ...],
        end: int,
        report: StepReport,
        removals: _Removals,
        is_small: bool,
    ) -> None:
        self._is_small = is_small
        self._run = run
        self._topic_id = topic_id
        self._name = name
        self._versions = versions
        self._end = end
        self._report = report
        self._removals = removals
        encoded = encode_schemas(StoredSchemas("", list(versions)))
        self._digest = xxh3_64_hexdigest(encoded)
        self._rejected = layout_of(table_name(topic_id, REJECTED), REJECTED_SCHEMA)

    def update(self) -> None:
        """Bring both tables up to date."""
        run = self._run
        rows = self._open(layout_of(table_name(self._topic_id, ROWS), RECORD_SCHEMA))
        if rows is None or not self._is_known(rows):
            rows, reason = self._set_columns(rows)
        else:
            reason = ""
        rejected = self._open(self._rejected) or self._create(self._rejected, {})
        if reason:
            self._make_anew(rows, rejected, reason)
        else:
            self._add(rows, rejected)
        if not self._is_small:
            self._remove_rows(rows)
            self._remove_rows(rejected)
        if run.settings.merge:
            self._merge(rows, self._versions)
            self._merge(rejected, None)

    # -- Tables ----------------------------------------------------------------------------------

    def _is_known(self, rows: Table) -> bool:
        """Return whether the table has the columns of the present versions."""
        found = rows.snapshot.configuration
        return (
            found.get(SCHEMAS_PROPERTY) == self._digest
            and found.get(NAMES_PROPERTY) == NAMES_BY_FIELD
        )

    def _properties(self, columns: dict[str, str]) -> dict[str, str]:
        """Return the properties of a table with some columns."""
        return {
            SCHEMAS_PROPERTY: self._digest,
            COLUMNS_PROPERTY: json.dumps(columns),
            NAMES_PROPERTY: NAMES_BY_FIELD,
        }

    def _open(self, layout: Layout) -> Table | None:
        run = self._run
        table = run.tables.typed.get(layout.name)
        if table is None:
            if not is_table(run.store, layout.name):
                return None
            table = run.tables.typed[layout.name] = Table(run.root, layout, run.bounds.log_id)
        table.refresh()
        return table

    def _create(self, layout: Layout, properties: dict[str, str]) -> Table:
        run = self._run
        run.failpoint("before a typed table is created")
        create_table(run.root, layout, run.bounds.log_id, run.now_ms(), properties)
        table = run.tables.typed[layout.name] = Table(run.root, layout, run.bounds.log_id)
        return table

    def _set_columns(self, rows: Table | None) -> tuple[Table, str]:
        """Create the table of rows, or give it the columns of new versions.

        :return: the table, and the reason why it must be made anew; "" if it need not.
        """
        topic = topic_schema(self._versions)
        schema = rows_schema(topic.stored_kind)
        layout = layout_of(table_name(self._topic_id, ROWS), schema)
        columns = {one.name: one.type for one in layout.columns}
        properties = self._properties(columns)
        where = f"typed table of {escaped(self._name)}"
        lines = [f"{where}: {one.text()}" for one in topic.conflicts]
        lines += [f"{where}: version {key}: {text}" for key, text in topic.problems.items()]
        self._report.lines += lines
        if rows is None:
            return self._create(layout, properties), ""
        rows.layout = layout
        before = json.loads(rows.snapshot.configuration.get(COLUMNS_PROPERTY, "{}"))
        if any(columns.get(name, kind) != kind for name, kind in before.items()):
            return rows, "the type of a column changed"
        if NAMES_PROPERTY not in rows.snapshot.configuration and topic.has_renamed:
            return rows, "two fields had one column"
        self._run.failpoint("before columns of a typed table")
        rows.set_columns(properties, now_ms=self._run.now_ms())
        added = [name for name in columns if name not in before]
        if added:
            self._report.lines.append(f"{where}: new columns {', '.join(added)}")
        return rows, ""

    # -- Rows ------------------------------------------------------------------------------------

    def _add(self, rows: Table, rejected: Table) -> None:
        """Add the records since the last run to both tables."""
        lsns = rows.transaction(TYPED_APP), rejected.transaction(TYPED_APP)
        if min(lsns) >= self._end:
            return
        written = self._write(*lsns)
        if written is None:
            return
        self._commit(rows, written, ROWS)
        self._commit(rejected, written, REJECTED)

    def _make_anew(self, rows: Table, rejected: Table, reason: str) -> None:
        """Make the table of rows anew, with all archived records, in one commit."""
        run = self._run
        lsn = rejected.transaction(TYPED_APP)
        written = self._write(0, lsn) or []
        topic = topic_schema(self._versions)
        layout = rows.layout
        columns = {one.name: one.type for one in layout.columns}
        properties = self._properties(columns)
        run.failpoint("before a typed table is made anew")
        rows.commit(
            [one.rows for one in written if one.rows is not None],
            rows.paths(),
            marks={TYPED_APP: self._end, REMOVAL_APP: run.tables[RECORDS.name].version},
            now_ms=run.now_ms(),
            operation="REPLACE TABLE",
            properties=properties,
        )
        run.failpoint("after a typed table is made anew")
        count = sum(one.rows.stats.rows for one in written if one.rows is not None)
        self._report.lines.append(
            f"typed table of {escaped(self._name)}: made anew with {len(topic.kind)} columns and "
            f"{count:,} rows, because {reason}"
        )
        self._commit(rejected, written, REJECTED)

    def _write(self, rows_lsn: int, rejected_lsn: int) -> list[TypedFiles] | None:
        """Write the files of both tables. Return None if the archive has no new file to read."""
        run = self._run
        first = min(rows_lsn, rejected_lsn)
        files = self._record_files(first)
        if not files:
            return None
        tasks = [
            TypedTask(
                run.root, self._topic_id, self._versions, paths, rows_lsn, rejected_lsn, self._end
            )
            for paths in _groups(files)
        ]
        size = sum(size for _, size in files)
        with run.spark.here(size <= run.settings.local_lot_bytes):
            written = run.spark.map("typed tables", write_typed, tasks)
        run.failpoint("typed rows written")
        return written

    def _record_files(self, lsn: int) -> list[tuple[str, int]]:
        """Return the files of ``records``, with sizes, that may have new records of the topic."""
        files = self._run.tables[RECORDS.name].files
        found = []
        for row in files.select(["path", "size", "last_lsn"]).to_pylist():
            if row["last_lsn"] < lsn:
                continue
            name = parse_records_name(row["path"])
            if name.first_topic_id <= self._topic_id <= name.last_topic_id:
                found.append((row["path"], row["size"]))
        return sorted(found)

    def _commit(self, table: Table, written: Sequence[TypedFiles], part: str) -> None:
        run = self._run
        added: list[AddFile] = []
        for one in written:
            file = one.rows if part == ROWS else one.rejected
            if file is not None:
                added.append(file)
        # Rows of an empty table are all of the present version of ``records``.
        marks = {} if len(table.files) else {REMOVAL_APP: run.tables[RECORDS.name].version}
        run.failpoint(f"before typed {part} commit")
        done = table.commit(
            added,
            (),
            {TYPED_APP: self._end},
            marks=marks,
            now_ms=run.now_ms(),
            operation="DERIVE",
        )
        run.failpoint(f"after typed {part} commit")
        if not done:
            return  # it had them already; vacuum deletes the files
        count = sum(file.stats.rows for file in added)
        self._report.numbers["typed" if part == ROWS else "rejected"] += count
        if count:
            what = "rows to the typed table" if part == ROWS else "rejected records to the table"
            self._report.lines.append(f"added {count:,} {what} of {escaped(self._name)}")

    # -- Removal ---------------------------------------------------------------------------------

    def _remove_rows(self, table: Table) -> None:
        """Remove the rows whose records were removed from the archive since the last look."""
        run = self._run
        records = run.tables[RECORDS.name]
        version = table.transaction(REMOVAL_APP)
        if version == records.version or not len(table.files):
            return
        if not self._removals.since(version):
            if records.version - version >= MARK_COMMITS:
                marks = {REMOVAL_APP: records.version}
                table.commit((), marks=marks, now_ms=run.now_ms(), operation="DERIVE")
            return
        every = tuple(path for path, _ in self._record_files(0))
        sizes = table.files.select(["path", "size"]).to_pylist()
        name = table.layout.name
        tasks = [RemovalTask(run.root, self._topic_id, name, row["path"], every) for row in sizes]
        size = sum(row["size"] for row in sizes)
        with run.spark.here(size <= run.settings.local_lot_bytes):
            found = run.spark.map("typed tables: removed records", remove_rows, tasks)
        removals = [one for one in found if one is not None]
        run.failpoint("before typed rows are removed")
        table.commit(
            [one.added for one in removals if one.added is not None],
            [one.path for one in removals],
            marks={REMOVAL_APP: records.version},
            now_ms=run.now_ms(),
            operation="DELETE",
        )
        rows = sum(one.rows for one in removals)
        self._report.numbers["removed_typed"] += rows
        if rows:
            self._report.lines.append(
                f"removed {rows:,} rows of removed records from {run.root / name}"
            )

    # -- Merging ---------------------------------------------------------------------------------

    def _merge(self, table: Table, versions: tuple[StoredSchema, ...] | None) -> None:
        """Merge small files."""
        run = self._run
        rows = table.files.select(["path", "size", "first_lsn"]).to_pylist()
        files = sorted(rows, key=lambda row: (row["first_lsn"], row["path"]))
        growth = SMALL_ROUND_GROWTH if self._is_small else run.merge_growth
        sizes = [file["size"] for file in files]
        runs = neighbours_to_merge(sizes, run.settings.file_bytes, growth)
        groups = [tuple(files[at]["path"] for at in piece) for piece in pieces(runs)]
        if not groups:
            return
        tasks = [MergeTask(run.root, table.layout.name, versions, paths) for paths in groups]
        size = sum(files[at]["size"] for piece in pieces(runs) for at in piece)
        with run.spark.here(size <= run.settings.local_lot_bytes):
            added = run.spark.map("merge typed tables", merge_typed, tasks)
        run.failpoint("before typed files are merged")
        merged = [path for paths in groups for path in paths]
        table.commit(added, merged, now_ms=run.now_ms(), operation="OPTIMIZE", data_change=False)
        self._report.numbers["merged_typed"] += len(merged)


def _groups(files: Sequence[tuple[str, int]]) -> list[tuple[str, ...]]:
    """Divide files into tasks of about `TASK_BYTES`."""
    groups: list[list[str]] = []
    room = 0
    for path, size in files:
        if not groups or size > room:
            groups.append([])
            room = TASK_BYTES
        groups[-1].append(path)
        room -= size
    return [tuple(group) for group in groups]


def _delete_tables(run: Run, live: set[int], report: StepReport) -> None:
    """Delete the tables of deleted topics."""
    for name in run.store.names(DIRECTORY):
        if not name.isdigit() or int(name) in live or int(name) >= run.bounds.next_topic_id:
            continue
        paths = [entry.path for entry in run.store.list(f"{DIRECTORY}/{name}", hidden=True)]
        if paths:
            run.failpoint("before a typed table is deleted")
            run.store.delete(paths)
            report.lines.append(f"deleted the typed table of topic id {name}, which is deleted")
