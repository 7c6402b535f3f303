# Tests: tests/archive/test_table.py
"""A table of an archive for the job: commits and vacuum, without Spark.

A commit is durable before a reader sees it. It is applied once, even after retries, and keeps the
commits of other processes. docs/archive-log.rst has the layout.

This module writes commits itself: deltalake syncs no file, and its JSON has no checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from brokerd.archive.contract.layout import ERASE_APP, Layout
from brokerd.archive.contract.pairing import TableState
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.actions import (
    STATISTICS_PROPERTY,
    Action,
    AddFile,
    add_action,
    metadata_action,
    protocol_action,
    remove_action,
    statistics_of,
    transaction_action,
)
from brokerd.archive.delta.checkpoints import checkpoint_if_due
from brokerd.archive.delta.log_files import (
    COMMITS,
    PROTOCOL,
    Snapshot,
    commit_name,
    encode_commit,
)
from brokerd.archive.delta.log_reader import DeltaLog
from brokerd.archive.delta.vacuum import vacuum
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.bucket import problem_of
from brokerd.archive.storage.store import open_store
from brokerd.errors import BrokerdError

COMMIT_ATTEMPTS = 100


class TableConflict(BrokerdError):
    """Another process committed a conflicting change. The caller opens the table again."""

    retryable = True


class Table:
    """One table, at the version of its opening or of its last commit.

    :raises ForeignArchive: the table belongs to another log or another program.
    :raises NewerFormat: a later version of brokerd wrote the table.
    :raises ArchiveUnavailable: the disk or the server reports an error.
    """

    def __init__(self, root: Place, layout: Layout, log_id: str) -> None:
        self.path = root / layout.name
        self.layout = layout
        self._store = open_store(self.path)
        self._log = DeltaLog(self.path, log_id)
        self._snapshot = self._read()
        self._erasures = self.transaction(ERASE_APP)

    def _read(self) -> Snapshot:
        snapshot = self._log.read()
        if snapshot is None:
            raise ArchiveUnavailable(f"{self.path} is gone; restore it")
        return snapshot

    def refresh(self) -> None:
        """Read the newest version."""
        self._snapshot = self._read()

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    def version(self) -> int:
        return self._snapshot.version

    def transaction(self, app_id: str) -> int:
        """Return the version of an app transaction; 0 if the table has none of this id."""
        return self._snapshot.transactions.get(app_id, 0)

    @property
    def state(self) -> TableState:
        """Return the part of the log that the table holds."""
        return self._snapshot.state

    @property
    def files(self) -> pa.Table:
        """Return the live files: `brokerd.archive.delta.log_files.Snapshot.files`."""
        return self._snapshot.files

    def paths(self) -> list[str]:
        """Return the paths of the live files, relative to the table."""
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
        data_change: bool = True,
        properties: Mapping[str, str] | None = None,
    ) -> bool:
        """Add files, remove files and raise app transactions in one durable commit.

        An error leaves the table unchanged.

        :param removed: paths of live files, relative to the table.
        :param transactions: versions by app id, which only grow.
        :param marks: versions of further app transactions, which may also shrink.
        :param now_ms: wall clock in milliseconds, for the history of the table.
        :param operation: a name for the history of the table.
        :param data_change: False if the added files have exactly the rows of the removed files.
            Streams over the Delta log pass over such a commit.
        :param properties: the table also gets the columns of its layout, and these properties.
        :return: False, without a change, if the table already has these or later transactions.
        :raises TableConflict: since the last read, another process changed one of these app
            transactions, removed one of the files, or added one. Or the files may be gone, because
            another process called `keep_out_earlier_files` since the table was opened.
        :raises ArchiveUnavailable: the disk or the server reports an error.
        """
        transactions = transactions or {}
        actions = [
            *(remove_action(path, now_ms, data_change=data_change) for path in removed),
            *(add_action(file, self.layout, now_ms, data_change=data_change) for file in files),
            *(
                transaction_action(app, version, now_ms)
                for app, version in {**transactions, **(marks or {})}.items()
            ),
        ]
        if properties is not None:
            actions.insert(0, self._metadata(properties))
        data = encode_commit(actions, operation, now_ms)
        with _unavailable(self.path):
            checkpoint_if_due(self.path, self._read())
        for _ in range(COMMIT_ATTEMPTS):
            newest = self._read()
            if transactions and _has_reached(newest, transactions):
                self._snapshot = newest
                return False
            self._check_transactions(newest, (*transactions, *(marks or ())))
            _check_files(newest, [file.path for file in files], removed)
            if files and newest.transactions.get(ERASE_APP, 0) != self._erasures:
                raise TableConflict(
                    f"{self.path}: `brokerctl archive erase` of another machine deleted files that "
                    "no commit had; start again"
                )
            if self._store.put_if_absent(f"{COMMITS}/{commit_name(newest.version + 1)}", data):
                self.refresh()
                return True
        raise TableConflict(
            f"{self.path}: other processes committed first {COMMIT_ATTEMPTS} times; try again later"
        )

    def keep_out_earlier_files(self, *, now_ms: int) -> None:
        """Let no other process commit files that it wrote before, and read the newest version.

        After that, a file that the newest version does not have can be deleted: each `Table` that
        another process has open refuses to add files. A bucket needs this, because it has no lock.

        :raises ArchiveUnavailable: the disk or the server reports an error.
        """
        self.refresh()
        is_done = False
        while not is_done:
            self._erasures = self.transaction(ERASE_APP) + 1
            action = transaction_action(ERASE_APP, self._erasures, now_ms)
            is_done = self._put_next([action], "ERASE", now_ms)

    # -- Tables of older versions ----------------------------------------------------------------

    def keep_out_writers(self, now_ms: int) -> bool:
        """Raise the protocol of a table of an older version, so that no other program writes.

        :return: False if the table has the protocol already.
        :raises ArchiveUnavailable: the disk or the server reports an error.
        """
        while self._snapshot.protocol != PROTOCOL:
            if self._put_next([protocol_action()], "UPGRADE PROTOCOL", now_ms):
                return True
        return False

    def describe(self, files: Sequence[AddFile], *, now_ms: int) -> None:
        """Replace the statistics of live files in one durable commit.

        :raises TableConflict: another process removed one of the files.
        :raises ArchiveUnavailable: the disk or the server reports an error.
        """
        actions = [add_action(file, self.layout, now_ms, data_change=False) for file in files]
        paths = [file.path for file in files]
        for _ in range(COMMIT_ATTEMPTS):
            self.refresh()
            _check_files(self._snapshot, [], paths)
            if self._put_next(actions, "COMPUTE STATS", now_ms):
                return
        raise TableConflict(f"{self.path}: other processes committed first; try again later")

    def name_statistics(self, *, now_ms: int) -> bool:
        """Name the columns with statistics in the properties. All files must have them.

        :return: False if the properties name them already.
        :raises ArchiveUnavailable: the disk or the server reports an error.
        """
        wanted = statistics_of(self.layout)
        while self._snapshot.configuration.get(STATISTICS_PROPERTY) != wanted:
            action = self._metadata({STATISTICS_PROPERTY: wanted})
            if self._put_next([action], "SET TBLPROPERTIES", now_ms):
                return True
        return False

    def set_columns(self, properties: Mapping[str, str], *, now_ms: int) -> None:
        """Give the table the columns of its layout, and further properties.

        New columns are null in the rows of existing files.

        :raises ArchiveUnavailable: the disk or the server reports an error.
        """
        while any(
            self._snapshot.configuration.get(name) != text for name, text in properties.items()
        ):
            self._put_next([self._metadata(properties)], "CHANGE COLUMNS", now_ms)

    def _metadata(self, properties: Mapping[str, str]) -> Action:
        """Return the action with the columns of the layout, and with further properties.

        :raises ArchiveUnavailable: the disk or the server reports an error.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        options = self._store.deltalake_options
        try:
            found = DeltaTable(str(self.path), storage_options=options).metadata()
        except (DeltaError, OSError) as error:
            text = problem_of(error)
            raise ArchiveUnavailable(f"{self.path} cannot be read: {text}") from error
        merged = {**self._snapshot.configuration, **properties}
        return metadata_action(self.layout, str(found.id), merged, int(found.created_time or 0))

    def _put_next(self, actions: Sequence[Action], operation: str, now_ms: int) -> bool:
        """Try to commit as the version after the snapshot, and read the newest version."""
        data = encode_commit(actions, operation, now_ms)
        path = f"{COMMITS}/{commit_name(self._snapshot.version + 1)}"
        is_done = self._store.put_if_absent(path, data)
        self.refresh()
        return is_done

    def _check_transactions(self, newest: Snapshot, app_ids: Iterable[str]) -> None:
        for app_id in app_ids:
            was, now = self.transaction(app_id), newest.transactions.get(app_id, 0)
            if was != now:
                raise TableConflict(
                    f"{self.path}: another process raised {app_id} from {was} to {now}; start again"
                )

    def vacuum(self, hours: int, now_ms: int) -> list[str]:
        """Delete files that no version of the last ``hours`` needs, and old parts of the log.

        Files without a commit are deleted at the same age.

        :return: paths of the deleted files, relative to the table.
        """
        self.refresh()
        with _unavailable(self.path):
            return vacuum(self.path, set(self.paths()), hours, now_ms)


def _has_reached(newest: Snapshot, transactions: Mapping[str, int]) -> bool:
    return all(newest.transactions.get(app, 0) >= lsn for app, lsn in transactions.items())


def _check_files(newest: Snapshot, added: Sequence[str], removed: Sequence[str]) -> None:
    live = set(newest.files["path"].to_pylist()) if added or removed else set()
    for path in removed:
        if path not in live:
            raise TableConflict(f"another process removed {path!r} from the table; start again")
    for path in added:
        if path in live:
            raise TableConflict(f"{path!r} is in the table already; start again")


@contextmanager
def _unavailable(path: Place) -> Iterator[None]:
    """Convert an OSError to an ArchiveUnavailable that names the file."""
    try:
        yield
    except OSError as error:
        raise ArchiveUnavailable(
            f"{error.filename or path} cannot be written: {error.strerror}"
        ) from error
