# Tests: tests/archive/test_log_files.py
"""Follows the Delta log of a table (docs/archive-log.rst, section "Reading").

`DeltaLog.read` returns a verified `Snapshot` of the newest version, or raises an error that names
the damaged file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from brokerd.archive.contract.layout import LOG_ID_PROPERTY, VERSION, VERSION_PROPERTY
from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive
from brokerd.archive.delta.log_files import (
    COMMITS,
    FILE_BYTES_MAX,
    OLDER_PROTOCOLS,
    PROTOCOL,
    SUMS,
    Actions,
    Snapshot,
    apply,
    checkpoint_name,
    commit_name,
    decode_checkpoint,
    decode_commit,
    encode_sum,
    sum_name,
)
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store
from brokerd.errors import NewerFormat

_T = TypeVar("_T")


class _MissingCommit(ArchiveUnavailable):
    """A commit is missing, and no checkpoint replaces it."""


class LogListing(NamedTuple):
    """The versions in a log, by kind of file."""

    commits: frozenset[int]
    checkpoints: frozenset[int]
    sums: frozenset[int]

    @property
    def checksummed(self) -> frozenset[int]:
        """Return the checkpoints with a sum, which `read_checkpoint` verifies."""
        return self.checkpoints & self.sums


def list_log(table: Place) -> LogListing:
    """List a log. Raises ArchiveUnavailable."""
    store = open_store(table)
    names, sums = store.names(COMMITS), store.names(SUMS)
    return LogListing(
        _versions(names, ".json"),
        _versions(names, ".checkpoint.parquet"),
        _versions(sums, ".sum"),
    )


def _versions(names: Iterable[str], suffix: str) -> frozenset[int]:
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return frozenset(int(s) for s in stems if len(s) == 20 and s.isascii() and s.isdigit())


def read_checkpoint(table: Place, version: int) -> bytes | None:
    """Read a checkpoint. Return None if its sum differs. Raises the errors of the store."""
    store = open_store(table)
    checkpoint = store.read(f"{COMMITS}/{checkpoint_name(version)}", FILE_BYTES_MAX)
    found = store.read(f"{SUMS}/{sum_name(version)}", FILE_BYTES_MAX)
    return checkpoint if found == encode_sum(version, checkpoint) else None


class DeltaLog:
    """Follows the log of one table. It serves one thread at a time."""

    def __init__(self, table: Place, log_id: str) -> None:
        self.table = table
        self._store = open_store(table)
        self._log_id = log_id
        self._snapshot: Snapshot | None = None
        self._fingerprint = ""
        """The fingerprint of the directory of commits, from before the snapshot was read."""
        self._tag = ""
        """The tag of the newest commit; "" if the file is absent."""

    def read(self) -> Snapshot | None:
        """Return the newest version. If it has not changed, return the same object.

        :return: the version, or None if the table does not exist.
        :raises ArchiveUnavailable: a file cannot be read, is missing, or is damaged.
        :raises ForeignArchive: the table belongs to another program or another log.
        :raises NewerFormat: a later version of brokerd wrote it.
        """
        with _unavailable(self.table):
            return _with_new_listing(self._read)

    def _read(self) -> Snapshot | None:
        known = self._snapshot
        if known is not None and self._is_unchanged(known.version):
            return known
        fingerprint = self._store.fingerprint(COMMITS)
        if fingerprint is None:
            self._snapshot = None
            return None
        names = list_log(self.table)
        newest = max(names.commits | names.checksummed, default=None)
        if newest is None:
            self._snapshot = None
            return None
        self._store.sync_directory(COMMITS)
        if known is not None and not self._continues(known, names, newest):
            known = None
        if known is None or known.version < newest:
            known = self._follow(known or self._base(names), newest)
        tag = self._store.tag(_commit_path(known.version))
        self._snapshot, self._fingerprint, self._tag = known, fingerprint, tag
        return known

    def read_at(self, version: int) -> Snapshot:
        """Return an earlier version. The files of it may have been deleted.

        :raises ArchiveUnavailable: there is no such version, or its commits are gone.
        :raises ForeignArchive: the table belongs to another program or another log.
        :raises NewerFormat: a later version of brokerd wrote it.
        """
        with _unavailable(self.table):
            return _with_new_listing(lambda: self._read_at(version))

    def _read_at(self, version: int) -> Snapshot:
        names = list_log(self.table)
        newest = max(names.commits | names.checksummed, default=-1)
        if not 0 <= version <= newest:
            raise ArchiveUnavailable(
                f"{self.table} has no version {version}; the newest is {newest}"
            )
        checkpoints = frozenset(one for one in names.checkpoints if one <= version)
        base = self._base(names._replace(checkpoints=checkpoints))
        return self._follow(base, version)

    def _is_unchanged(self, version: int) -> bool:
        """Return True if the version is still the newest; False if unknown. The check is cheap."""
        last, following = commit_name(version), commit_name(version + 1)
        return self._store.is_unchanged(COMMITS, self._fingerprint, last, self._tag, following)

    def _continues(self, known: Snapshot, names: LogListing, newest: int) -> bool:
        """Return whether the log continues a version that was read."""
        is_same = bool(self._tag) and self._store.tag(_commit_path(known.version)) == self._tag
        return is_same and (newest == known.version or known.version + 1 in names.commits)

    def _base(self, names: LogListing) -> Snapshot | None:
        """Return the newest version with a sound checkpoint, or None."""
        for version in sorted(names.checksummed, reverse=True):
            checkpoint = read_checkpoint(self.table, version)
            if checkpoint is not None:
                actions = decode_checkpoint(checkpoint)
                check_actions(actions, self._log_id, self.table)
                return apply(actions, version, None)
        return None

    def _follow(self, base: Snapshot | None, newest: int) -> Snapshot:
        """Apply the commits after a version, and return the newest version."""
        for version in range(0 if base is None else base.version + 1, newest + 1):
            path = self.table / COMMITS / commit_name(version)
            try:
                data = self._store.read(_commit_path(version), FILE_BYTES_MAX)
            except FileNotFoundError:
                raise _MissingCommit(
                    f"{path} is missing, and no checkpoint replaces it; restore it from a backup"
                ) from None
            actions = decode_commit(data, path)
            check_actions(actions, self._log_id, self.table)
            base = apply(actions, version, base)
        assert base is not None
        return base._replace(files=base.files.combine_chunks())


def check_actions(actions: Actions, log_id: str, table: Place) -> None:
    """Check the properties and the Delta protocol. Raises ForeignArchive and NewerFormat."""
    if actions.configuration is not None:
        check_properties(actions.configuration, log_id, table)
    if actions.protocol not in (None, PROTOCOL, *OLDER_PROTOCOLS):
        raise ForeignArchive(
            f"{table}: another program raised the table's Delta protocol to reader "
            f"{actions.protocol.reader}, writer {actions.protocol.writer} "
            f"({', '.join(actions.protocol.features) or 'no features'}), which brokerd does "
            "not support; `brokerctl archive recover` restores the version before it "
            "(docs/archive-log.rst)"
        )


def read_log_id(table: Place) -> str | None:
    """Read the id of a table's log. Return None if the table does not exist.

    Raises ArchiveUnavailable and ForeignArchive.
    """
    with _unavailable(table):
        return _with_new_listing(lambda: _read_log_id(table))


def _read_log_id(table: Place) -> str | None:
    names = list_log(table)
    for version in sorted(names.checksummed, reverse=True):
        checkpoint = read_checkpoint(table, version)
        if checkpoint is not None:
            return _log_id(decode_checkpoint(checkpoint), table)
    if 0 not in names.commits:
        return None
    path = _commit_path(0)
    commit = open_store(table).read(path, FILE_BYTES_MAX)
    return _log_id(decode_commit(commit, table / path), table)


def _log_id(actions: Actions, table: Place) -> str:
    found = (actions.configuration or {}).get(LOG_ID_PROPERTY)
    if found is None:
        raise ForeignArchive(f"{table} is a Delta table, but not one of brokerd's")
    return found


def _with_new_listing(read: Callable[[], _T]) -> _T:
    """Call ``read``, and call it again if a listed file is gone.

    Vacuum deletes old commits and checkpoints, which a newer checkpoint replaces, also while a
    reader is between its listing and its reading.
    """
    try:
        return read()
    except (FileNotFoundError, _MissingCommit):
        return read()


@contextmanager
def _unavailable(table: Place) -> Iterator[None]:
    """Convert an OSError to an ArchiveUnavailable."""
    try:
        yield
    except OSError as error:
        where = error.filename or table
        raise ArchiveUnavailable(f"{where} cannot be read: {error.strerror}") from error


def check_properties(properties: Mapping[str, str], log_id: str, table: Place) -> None:
    """Check the properties of a table. Raises ForeignArchive and NewerFormat."""
    version = properties.get(VERSION_PROPERTY, "")
    if not (version.isascii() and version.isdigit() and LOG_ID_PROPERTY in properties):
        raise ForeignArchive(f"{table} is a Delta table, but not one of brokerd's; use another URI")
    if int(version) > VERSION:
        raise NewerFormat(
            f"{table} has version {version}, and this brokerd supports {VERSION}; upgrade brokerd"
        )
    if properties[LOG_ID_PROPERTY] != log_id:
        raise ForeignArchive(
            f"{table} is the archive of log {properties[LOG_ID_PROPERTY]!r}, not of {log_id!r}; "
            "set archive.uri to the archive of this log, or to an empty directory"
        )


def _commit_path(version: int) -> str:
    return f"{COMMITS}/{commit_name(version)}"
