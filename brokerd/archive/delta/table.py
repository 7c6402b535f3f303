# Tests: tests/archive/test_table.py
"""The tables of an archive as the job has them: made, committed to, vacuumed. No Spark.

Nothing is done to a directory that holds anything else, to the archive of another log, or to one of
a later version: opening it raises ForeignArchive or NewerFormat. A commit is on the disk before
anybody sees it, happens once however often it is tried, and never loses what somebody else
committed meanwhile. What a disk refuses raises ArchiveUnavailable, naming the path.

The layout is docs/archive-log.rst.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pyarrow as pa

from brokerd.archive.contract.layout import (
    ARCHIVE_APP,
    LAYOUTS,
    LOG_ID_PROPERTY,
    RECORDS,
    VERSION,
    VERSION_PROPERTY,
    Layout,
)
from brokerd.archive.contract.pairing import TableState
from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive
from brokerd.archive.delta.checkpoints import checkpoint_if_due
from brokerd.archive.delta.log_files import (
    COMMITS,
    READER_VERSION,
    TAG,
    WRITER_VERSION,
    FileStats,
    Snapshot,
    commit_name,
    encode_commit,
    encode_stats,
)
from brokerd.archive.delta.log_reader import DeltaLog
from brokerd.archive.delta.vacuum import vacuum
from brokerd.archive.parquet.writer import FileInfo
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import Store, open_store
from brokerd.errors import BrokerdError

BESIDE_TABLES = ("bounds", "compaction", "lost+found", "wal")
"""What may stand beside the tables before any of them is there."""
TRIES = 100
"""How often a commit looks at what others committed before it gives up."""

_YEAR_9999_US = 253_370_764_800_000_000
"""Times from here on are in no calendar that others have."""
_STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
"""Without it deltalake's data set takes a column without statistics for one that is never right."""
_PROPERTIES = {
    VERSION_PROPERTY: str(VERSION),
    "delta.checkpointInterval": "1000000",
    "delta.enableExpiredLogCleanup": "false",
}


class TableConflict(BrokerdError):
    """Somebody else changed the table in a way that a commit cannot follow; open it again."""

    retryable = True


class AddFile(NamedTuple):
    """A file for a commit to add. It is on the disk already, with its directory."""

    path: str
    """Relative to the table; directories ``column=value`` are the values of partition columns."""
    size: int
    stats: FileStats
    minimum: Mapping[str, int | str] = {}
    """The smallest value of some columns; times in microseconds."""
    maximum: Mapping[str, int | str] = {}


def add_file(file: FileInfo) -> AddFile:
    """A file as `brokerd.archive.parquet.writer.FileWriter` wrote it."""
    time = "append_time" if "append_time" in file.minimum else "time"
    stats = FileStats(
        rows=file.rows,
        content=file.content,
        first_time_us=file.minimum.get(time, -1),
        last_time_us=file.maximum.get(time, -1),
        first_lsn=file.minimum.get("lsn", -1),
        last_lsn=file.maximum.get("lsn", -1),
        keyed=file.keyed,
        tombstones=file.tombstones,
        expiring=file.expiring,
    )
    return AddFile(file.path, file.size, stats, file.minimum, file.maximum)


class Table:
    """One table, at the version that it had when it was opened, or that its last commit made."""

    def __init__(self, root: Place, layout: Layout, log_id: str) -> None:
        self.path = root / layout.name
        self.layout = layout
        self._store = open_store(self.path)
        self._log = DeltaLog(self.path, log_id)
        self._snapshot = self._read()

    def _read(self) -> Snapshot:
        snapshot = self._log.read()
        if snapshot is None:
            raise ArchiveUnavailable(f"{self.path} is gone; bring it back")
        return snapshot

    def refresh(self) -> None:
        """Go on to the newest version."""
        self._snapshot = self._read()

    @property
    def version(self) -> int:
        return self._snapshot.version

    def transaction(self, app_id: str) -> int:
        """The version of an app transaction, 0 if there was none."""
        return self._snapshot.transactions.get(app_id, 0)

    @property
    def state(self) -> TableState:
        """How far the table holds the log."""
        return self._snapshot.state

    @property
    def files(self) -> pa.Table:
        """The live files: `brokerd.archive.delta.log_files.Snapshot.files`."""
        return self._snapshot.files

    def paths(self) -> list[str]:
        """Paths of the live files, relative to the table."""
        found: list[str] = self.files["path"].to_pylist()
        return found

    def commit(
        self,
        files: Sequence[AddFile],
        removed: Sequence[str] = (),
        transactions: Mapping[str, int] | None = None,
        *,
        marks: Mapping[str, int] | None = None,
        now_ms: int,
        operation: str = "WRITE",
    ) -> bool:
        """Add files, remove files and raise app transactions, all at once and durably.

        :param files: to be added.
        :param removed: paths of live files, relative to the table.
        :param transactions: by app id; none goes back.
        :param marks: versions of app transactions that go along with those, and may be any.
        :param now_ms: wall clock in milliseconds, for the history of the table.
        :param operation: what it is, for the history of the table.
        :return: False if nothing was done, because a commit with these transactions, or later ones,
            was there already.
        :raises TableConflict: somebody else raised one of the transactions since this object looked
            at the table last, removed one of the files, or added one. Nothing was done.
        :raises ArchiveUnavailable: the disk is full, say. Nothing was done.
        """
        transactions = transactions or {}
        raised = {**transactions, **(marks or {})}
        with _disk(self.path):
            checkpoint_if_due(self.path, self._read())
        for _ in range(TRIES):
            newest = self._read()
            if transactions and _is_done(transactions, newest):
                self._snapshot = newest
                return False
            self._compare(newest, transactions)
            _check_files(newest.files, [one.path for one in files], removed)
            actions = [
                *(_remove(path, now_ms) for path in removed),
                *(_add(one, self.layout, now_ms) for one in files),
                *(_transaction(app, version, now_ms) for app, version in raised.items()),
            ]
            data = encode_commit(actions, operation, now_ms)
            if self._store.put_if_absent(f"{COMMITS}/{commit_name(newest.version + 1)}", data):
                self.refresh()
                return True
        raise TableConflict(f"{self.path}: somebody else commits all the time; try again later")

    def _compare(self, newest: Snapshot, transactions: Mapping[str, int]) -> None:
        for app_id in transactions:
            was, now = self.transaction(app_id), newest.transactions.get(app_id, 0)
            if was != now:
                raise TableConflict(
                    f"{self.path}: somebody else raised {app_id} from {was} to {now}; start again"
                )

    def vacuum(self, hours: int, now_ms: int) -> list[str]:
        """Delete files that no version needs that was the newest one in the last ``hours``.

        So do files that no commit names and that are older than that, and old parts of the log.

        :return: paths of the deleted files, relative to the table.
        """
        self.refresh()
        with _disk(self.path):
            return vacuum(self.path, set(self.paths()), hours, now_ms)


def ensure_tables(root: Place, log_id: str, now_ms: int) -> dict[str, Table]:
    """Open all tables of the archive of a log, by name, and make those that are not there yet.

    :param root: directory of the archive; it is made if it is not there.
    :raises ForeignArchive: it holds something else, or the archive of another log. Nothing is made.
    :raises NewerFormat: a later version of brokerd made it.
    :raises ArchiveUnavailable: the disk refuses.
    """
    tables = open_tables(root, log_id)
    if not tables and not open_store(root).supports_put_if_absent(f"{RECORDS.name}/{COMMITS}"):
        raise ArchiveUnavailable(
            f"{root}: the server writes over what is there although it is asked not to "
            "(If-None-Match), so commits might be lost; no archive can be there"
        )
    for layout in LAYOUTS.values():
        if layout.name not in tables:
            _create(root, layout, log_id, now_ms)
            tables[layout.name] = Table(root, layout, log_id)
    return tables


def open_tables(root: Place, log_id: str) -> dict[str, Table]:
    """Open the tables that are there, by name; make nothing. Raises as `ensure_tables`.

    Raises also where the others could not be made, or these not be written to.
    """
    store = open_store(root)
    with _disk(root):
        _check_root(store)
        missing = [layout for layout in LAYOUTS.values() if not _is_table(store, layout.name)]
        for layout in missing:
            _check_empty(store, layout.name)
    present = [layout for layout in LAYOUTS.values() if layout not in missing]
    tables = {layout.name: Table(root, layout, log_id) for layout in present}
    written = [layout.name for layout in present]
    written += [f"{name}/{COMMITS}" for name in written]
    store.check_writable([*written, *([""] if missing else [])])
    return tables


# -- Making tables -------------------------------------------------------------------------------


def _check_root(store: Store) -> None:
    root = store.place
    if store.is_file(""):
        raise ForeignArchive(f"{root} is no directory; set archive.uri to one")
    names = store.names("")
    if COMMITS in names:
        raise ForeignArchive(f"{root} is a Delta table itself; set archive.uri to a directory")
    strange = sorted(names - set(LAYOUTS) - set(BESIDE_TABLES))
    if strange and not any(_is_table(store, name) for name in LAYOUTS):
        raise ForeignArchive(
            f"{root} holds something else already, such as {strange[0]!r}; set archive.uri to an "
            "empty directory, or to one that is not there yet"
        )


def _is_table(store: Store, name: str) -> bool:
    return any(found.endswith((".json", ".parquet")) for found in store.names(f"{name}/{COMMITS}"))


def _check_empty(store: Store, name: str) -> None:
    """Look whether a table may be made here; a creation that was stopped leaves no more."""
    path = store.place / name
    if store.is_file(name):
        raise ForeignArchive(f"{path} is no directory; remove it")
    strange = sorted(store.names(name) - {COMMITS})
    if strange:
        raise ForeignArchive(
            f"{path} holds {strange[0]!r}, but no Delta log: bring {COMMITS} back, or set "
            "archive.uri to an empty directory"
        )


def _create(root: Place, layout: Layout, log_id: str, now_ms: int) -> None:
    """Make a table, unless somebody else just did."""
    columns = [
        {"name": c.name, "type": c.type, "nullable": c.nullable, "metadata": {}}
        for c in layout.columns
    ]
    metadata = {
        "id": str(uuid4()),
        "name": layout.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": msgspec.json.encode({"type": "struct", "fields": columns}).decode(),
        "partitionColumns": list(layout.partition_by),
        "configuration": {
            **_PROPERTIES,
            _STATISTICS_PROPERTY: ",".join(layout.statistics),
            LOG_ID_PROPERTY: log_id,
        },
        "createdTime": now_ms,
    }
    protocol = {"minReaderVersion": READER_VERSION, "minWriterVersion": WRITER_VERSION}
    drawn = _transaction(ARCHIVE_APP, 1 + secrets.randbelow((1 << 62) - 1), now_ms)
    actions: list[dict[str, Any]] = [{"protocol": protocol}, {"metaData": metadata}, drawn]
    data = encode_commit(actions, "CREATE TABLE", now_ms)
    store = open_store(root)
    store.make_directory(f"{layout.name}/{COMMITS}")
    store.put_if_absent(f"{layout.name}/{COMMITS}/{commit_name(0)}", data)


# -- Commits -------------------------------------------------------------------------------------


def _is_done(transactions: Mapping[str, int], newest: Snapshot) -> bool:
    return all(newest.transactions.get(app, 0) >= lsn for app, lsn in transactions.items())


def _check_files(files: pa.Table, added: Sequence[str], removed: Sequence[str]) -> None:
    live = set(files["path"].to_pylist()) if added or removed else set()
    for path in removed:
        if path not in live:
            raise TableConflict(f"somebody else removed {path!r} from the table; start again")
    for path in added:
        if path in live:
            raise TableConflict(f"{path!r} is in the table already; start again")


def _add(file: AddFile, layout: Layout, now_ms: int) -> dict[str, Any]:
    statistics = {
        "numRecords": file.stats.rows,
        "minValues": dict(_statistics(file.minimum, layout, 0)),
        "maxValues": dict(_statistics(file.maximum, layout, 999)),
        "nullCount": {},
    }
    return {
        "add": {
            "path": quote(file.path, safe="/=-._"),
            "partitionValues": _partition_values(file.path),
            "size": file.size,
            "modificationTime": now_ms,
            "dataChange": True,
            "stats": msgspec.json.encode(statistics).decode(),
            "tags": {TAG: encode_stats(file.stats)},
        }
    }


def _statistics(
    values: Mapping[str, int | str], layout: Layout, round_us: int
) -> Iterator[tuple[str, int | str]]:
    """As Delta has them: times are cut to milliseconds, so the largest has to be rounded up."""
    times = {column.name for column in layout.columns if column.type == "timestamp"}
    for name, value in values.items():
        if name not in times or isinstance(value, str):
            yield name, value
        elif 0 <= value < _YEAR_9999_US:
            since = timedelta(milliseconds=(value + round_us) // 1000)
            moment = datetime.fromtimestamp(0, UTC) + since
            yield name, moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _partition_values(path: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)


def _remove(path: str, now_ms: int) -> dict[str, Any]:
    return {
        "remove": {
            "path": quote(path, safe="/=-._"),
            "deletionTimestamp": now_ms,
            "dataChange": True,
            "extendedFileMetadata": False,
        }
    }


def _transaction(app_id: str, version: int, now_ms: int) -> dict[str, Any]:
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": now_ms}}


@contextmanager
def _disk(path: Place) -> Iterator[None]:
    """Say which path it was that a disk refused."""
    try:
        yield
    except OSError as error:
        raise ArchiveUnavailable(
            f"{error.filename or path} cannot be written: {error.strerror}"
        ) from error
