# Tests: tests/archive/test_log_files.py
"""Reads the log of a Delta table, again and again: docs/archive-log.rst, section "Reading".

`DeltaLog.read` gives a `Snapshot`: what the newest version of the table holds. It is what was
written, or an error that names the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from brokerd.archive.contract.layout import LOG_ID_PROPERTY, VERSION, VERSION_PROPERTY
from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive
from brokerd.archive.delta.log_files import (
    COMMITS,
    FILE_BYTES_MAX,
    READER_VERSION,
    SUMS,
    WRITER_VERSION,
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


class LogListing(NamedTuple):
    """The versions of which a log has files."""

    commits: frozenset[int]
    checkpoints: frozenset[int]
    sums: frozenset[int]

    @property
    def checksummed(self) -> frozenset[int]:
        """The checkpoints that have a sum; whether it is theirs, `read_checkpoint` tells."""
        return self.checkpoints & self.sums


def list_log(table: Place) -> LogListing:
    """What there is. Raises ArchiveUnavailable."""
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
    """The bytes of a checkpoint if its sum is right. Raises as `brokerd.archive.storage.store`."""
    store = open_store(table)
    checkpoint = store.read(f"{COMMITS}/{checkpoint_name(version)}", FILE_BYTES_MAX)
    found = store.read(f"{SUMS}/{sum_name(version)}", FILE_BYTES_MAX)
    return checkpoint if found == encode_sum(version, checkpoint) else None


class DeltaLog:
    """Reads the log of one table, again and again. For one thread at a time."""

    def __init__(self, table: Place, log_id: str) -> None:
        self.table = table
        self._store = open_store(table)
        self._log_id = log_id
        self._snapshot: Snapshot | None = None
        self._look = ""
        """How the directory of commits was when the snapshot was made."""
        self._tag = ""
        """That of the file of its commit; "": it is not there."""

    def read(self) -> Snapshot | None:
        """The newest version, the same object as before if that is it. None: there is no table.

        :raises ArchiveUnavailable: a file cannot be read, is missing, or is damaged.
        :raises ForeignArchive: it is not the table of a brokerd, or that of another log.
        :raises NewerFormat: a later version of brokerd wrote it.
        """
        with _told(self.table):
            return self._read()

    def _read(self) -> Snapshot | None:
        known = self._snapshot
        if known is not None and self._is_still(known.version):
            return known
        look = self._store.fingerprint(COMMITS)
        if look is None:
            self._snapshot = None
            return None
        names = list_log(self.table)
        newest = max(names.commits | names.checksummed, default=None)
        if newest is None:
            self._snapshot = None
            return None
        self._store.sync_directory(COMMITS)
        if known is not None and not self._goes_on(known, names, newest):
            known = None
        if known is None or known.version < newest:
            known = self._follow(known or self._base(names), newest)
        tag = self._store.tag(_commit_path(known.version))
        self._snapshot, self._look, self._tag = known, look, tag
        return known

    def _is_still(self, version: int) -> bool:
        """Whether it is plain that the newest version is still the one that was read."""
        last, following = commit_name(version), commit_name(version + 1)
        return self._store.is_unchanged(COMMITS, self._look, last, self._tag, following)

    def _goes_on(self, known: Snapshot, names: LogListing, newest: int) -> bool:
        """Whether the log goes on from a version of it that was read."""
        is_same = bool(self._tag) and self._store.tag(_commit_path(known.version)) == self._tag
        return is_same and (newest == known.version or known.version + 1 in names.commits)

    def _base(self, names: LogListing) -> Snapshot | None:
        """The newest version that a checkpoint gives."""
        for version in sorted(names.checksummed, reverse=True):
            checkpoint = read_checkpoint(self.table, version)
            if checkpoint is not None:
                change = decode_checkpoint(checkpoint)
                self._check(change)
                return apply(change, version, None)
        return None

    def _follow(self, base: Snapshot | None, newest: int) -> Snapshot:
        """Apply the commits after a version, up to the newest."""
        for version in range(0 if base is None else base.version + 1, newest + 1):
            path = self.table / COMMITS / commit_name(version)
            try:
                data = self._store.read(_commit_path(version), FILE_BYTES_MAX)
            except FileNotFoundError:
                raise ArchiveUnavailable(
                    f"{path} is missing, and no checkpoint takes its place; bring it back"
                ) from None
            change = decode_commit(data, path)
            self._check(change)
            base = apply(change, version, base)
        assert base is not None
        return base._replace(files=base.files.combine_chunks())

    def _check(self, change: Actions) -> None:
        """Look at whose table it is, and of which version."""
        if change.configuration is not None:
            check_properties(change.configuration, self._log_id, self.table)
        if change.protocol is not None and change.protocol != (READER_VERSION, WRITER_VERSION):
            raise ForeignArchive(
                f"{self.table}: somebody raised the table's Delta protocol to reader "
                f"{change.protocol[0]}, writer {change.protocol[1]}, which brokerd does not know; "
                "use another archive, or bring back the version before it (docs/archive-log.rst)"
            )


def read_log_id(table: Place) -> str | None:
    """Of which log a table is, by what it says itself; None: there is no table.

    Raises ArchiveUnavailable and ForeignArchive.
    """
    with _told(table):
        for version in sorted(list_log(table).checksummed, reverse=True):
            checkpoint = read_checkpoint(table, version)
            if checkpoint is not None:
                return _log_id(decode_checkpoint(checkpoint), table)
        path = _commit_path(0)
        try:
            commit = open_store(table).read(path, FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        return _log_id(decode_commit(commit, table / path), table)


def _log_id(change: Actions, table: Place) -> str:
    found = (change.configuration or {}).get(LOG_ID_PROPERTY)
    if found is None:
        raise ForeignArchive(f"{table} is a Delta table, but not one of brokerd's")
    return found


@contextmanager
def _told(table: Place) -> Iterator[None]:
    """Have a file that cannot be read told as such; vacuum may have removed it since the look."""
    try:
        yield
    except OSError as error:
        where = error.filename or table
        raise ArchiveUnavailable(f"{where} cannot be read: {error.strerror}") from error


def check_properties(properties: Mapping[str, str], log_id: str, table: Place) -> None:
    """Look at whose table it is. Raises ForeignArchive, NewerFormat."""
    version = properties.get(VERSION_PROPERTY, "")
    if not (version.isascii() and version.isdigit() and LOG_ID_PROPERTY in properties):
        raise ForeignArchive(f"{table} is a Delta table, but not one of brokerd's; use another URI")
    if int(version) > VERSION:
        raise NewerFormat(
            f"{table} is of version {version}, and this brokerd knows {VERSION}; upgrade brokerd"
        )
    if properties[LOG_ID_PROPERTY] != log_id:
        raise ForeignArchive(
            f"{table} is the archive of log {properties[LOG_ID_PROPERTY]!r}, not of {log_id!r}; "
            "set archive.uri to the archive of this log, or to an empty directory"
        )


def _commit_path(version: int) -> str:
    return f"{COMMITS}/{commit_name(version)}"
