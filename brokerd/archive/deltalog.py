# Tests: tests/archive/test_deltalog.py
"""The log of a Delta table as brokerd writes and reads it: docs/archive-log.rst.

`DeltaLog.read` gives a `Snapshot`: what the newest version of a table holds. It is what was written
or an error: every byte that it is made of is proved by a checksum before it is believed. What it
keeps of a file are numbers and the path, in Arrow's columns: about 0.2 KB.

Rules of others: the actions and the names of files are those of the Delta protocol,
https://github.com/delta-io/delta/blob/master/PROTOCOL.md, sections "Actions" and "Checkpoints".
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from xxhash import xxh3_64_hexdigest

from brokerd.archive.layout import LOG_ID_PROPERTY, VERSION, VERSION_PROPERTY
from brokerd.archive.view import ArchiveUnavailable, ForeignArchive
from brokerd.errors import NewerFormat

COMMITS = "_delta_log"
"""The directory of the log, below the table's."""
SUMS = "_brokerd"
"""The directory of what proves checkpoints."""
TAG = "brokerd"
"""The tag of an added file that holds its `Facts`."""
FILE_BYTES_MAX = 1 << 30
"""No commit and no checkpoint is larger; what is, is no such thing."""
NEVER_WRITTEN = (errno.EROFS, errno.EINVAL)
"""What file systems say that are read-only: there is nothing to sync."""
READER_VERSION = 1
WRITER_VERSION = 2
_SUM_MAGIC = "brokerd checkpoint 1"


class Facts(NamedTuple):
    """What the log says of a file besides its path and size; -1 where there is nothing to say."""

    rows: int = 0
    content: int = 0
    """Bytes of keys, values and metadata."""
    first_time_us: int = -1
    """The smallest time of a row, by broker time."""
    last_time_us: int = -1
    first_lsn: int = -1
    """The smallest LSN of a row."""
    last_lsn: int = -1
    keyed: int = 0
    """Rows with a key."""
    tombstones: int = 0
    """Rows with a key and an empty value."""
    expiring: int = 0
    """Rows that expire."""


class Snapshot(NamedTuple):
    """One version of a table."""

    version: int
    transactions: Mapping[str, int]
    """Versions of app transactions, by app id."""
    files: pa.Table
    """The live files: ``path``, relative to the table, ``size``, and the fields of `Facts`."""


def commit_name(version: int) -> str:
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def sum_name(version: int) -> str:
    return f"{version:020d}.sum"


# -- Commits -------------------------------------------------------------------------------------


class _Add(Struct, rename="camel"):
    path: str
    size: int
    tags: dict[str, str] | None = None


class _Remove(Struct):
    path: str


class _Transaction(Struct, rename="camel"):
    app_id: str
    version: int


class _MetaData(Struct):
    configuration: dict[str, str] = {}


class _Protocol(Struct, rename="camel"):
    min_reader_version: int
    min_writer_version: int


class _CommitInfo(Struct, rename="camel"):
    brokerd: str | None = None
    engine_info: str = "another program"


class _Line(Struct, rename="camel"):
    """One line of a commit; exactly one of these, or an action that means nothing to brokerd."""

    commit_info: _CommitInfo | None = None
    add: _Add | None = None
    remove: _Remove | None = None
    txn: _Transaction | None = None
    meta_data: _MetaData | None = None
    protocol: _Protocol | None = None


class Change(NamedTuple):
    """What a commit, or a checkpoint, says."""

    files: pa.Table
    removed: Sequence[str] = ()
    transactions: Mapping[str, int] = {}
    configuration: Mapping[str, str] | None = None
    protocol: tuple[int, int] | None = None


_LINES = msgspec.json.Decoder(_Line)


def encode_commit(actions: Iterable[Mapping[str, Any]], operation: str, now_ms: int) -> bytes:
    """The bytes of a commit.

    :param actions: as the Delta protocol has them: ``{"add": {...}}``.
    :param operation: what it is, for people who look at the table's history.
    """
    rest = b"".join(msgspec.json.encode(action) + b"\n" for action in actions)
    info = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": {},
        "engineInfo": "brokerd",
        "brokerd": xxh3_64_hexdigest(rest),
    }
    return msgspec.json.encode({"commitInfo": info}) + b"\n" + rest


def decode_commit(data: bytes, path: Path) -> Change:
    """Read a commit.

    :param path: where it is, for what errors say.
    :raises ArchiveUnavailable: it is damaged.
    :raises ForeignArchive: it changes what the table holds, and brokerd did not write it.
    """
    try:
        lines = _LINES.decode_lines(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(path, f"it is no commit: {error}") from None
    infos = [line.commit_info for line in lines if line.commit_info is not None]
    adds = [line.add for line in lines if line.add is not None]
    removed = [unquote(line.remove.path) for line in lines if line.remove is not None]
    transactions = {line.txn.app_id: line.txn.version for line in lines if line.txn is not None}
    signature = infos[0].brokerd if infos else None
    if not infos or (signature and signature != xxh3_64_hexdigest(data.partition(b"\n")[2])):
        raise _damaged(path, "its checksum does not match")
    if not signature and (adds or removed or transactions):
        raise ForeignArchive(
            f"{path} was written by {infos[0].engine_info}, which changed what the table holds; "
            "use another archive, or bring back the version before it (docs/operations.rst)"
        )
    metadata = [line.meta_data.configuration for line in lines if line.meta_data is not None]
    protocols = [line.protocol for line in lines if line.protocol is not None]
    protocol = [(one.min_reader_version, one.min_writer_version) for one in protocols]
    return Change(
        _files_of(adds),
        removed,
        transactions,
        metadata[-1] if metadata else None,
        protocol[-1] if protocol else None,
    )


def encode_facts(facts: Facts) -> str:
    """The text of the tag."""
    return ",".join(map(str, facts))


def _files_of(adds: Sequence[_Add]) -> pa.Table:
    return _file_table(
        pa.array([unquote(add.path) for add in adds], pa.string()),
        pa.array([add.size for add in adds], pa.int64()),
        pa.array([(add.tags or {}).get(TAG) for add in adds], pa.string()),
    )


def _file_table(paths: Any, sizes: Any, tags: Any) -> pa.Table:
    """Columns of files. Raises ValueError for a tag that holds no numbers."""
    columns = {"path": paths, "size": sizes}
    numbers = pc.split_pattern(pc.fill_null(tags, encode_facts(Facts())), ",")
    for place, name in enumerate(Facts._fields):
        columns[name] = pc.cast(pc.list_element(numbers, place), pa.int64())
    return pa.table(columns)


def apply(change: Change, version: int, before: Snapshot | None) -> Snapshot:
    """The version that a commit makes of the one before it."""
    if before is None:
        return Snapshot(version, dict(change.transactions), change.files)
    files = before.files
    gone = [*change.removed, *change.files["path"].to_pylist()]
    if gone and len(files):
        is_gone = pc.is_in(files["path"], value_set=pa.array(gone, pa.string()))
        files = files.filter(pc.invert(is_gone))
    if len(change.files):
        files = pa.concat_tables([files, change.files])
    return Snapshot(version, {**before.transactions, **change.transactions}, files)


# -- Checkpoints ---------------------------------------------------------------------------------


def encode_sum(version: int, checkpoint: bytes) -> bytes:
    """The file that proves a checkpoint."""
    digest = xxh3_64_hexdigest(checkpoint)
    return f"{_SUM_MAGIC} {version} {len(checkpoint)} {digest}\n".encode()


def proved_checkpoint(table: Path, version: int) -> bytes | None:
    """The bytes of a checkpoint if its sum is right. Raises OSError."""
    checkpoint = _bytes_of(table / COMMITS / checkpoint_name(version))
    found = _bytes_of(table / SUMS / sum_name(version))
    return checkpoint if found == encode_sum(version, checkpoint) else None


def decode_checkpoint(data: bytes) -> Change:
    """Read a checkpoint that its sum has proved."""
    names = ["add.path", "add.size", "add.tags", "txn", "metaData.configuration", "protocol"]
    table = pq.ParquetFile(pa.BufferReader(data)).read(names, use_threads=False)

    def rows(action: str) -> Any:
        column = table[action].combine_chunks()
        return column.filter(pc.is_valid(column))

    adds = rows("add")
    metadata = rows("metaData").to_pylist()[0]["configuration"]
    protocol = rows("protocol").to_pylist()[0]
    files = _file_table(
        pa.array(map(unquote, adds.field("path").to_pylist()), pa.string())
        if pc.any(pc.match_substring(adds.field("path"), "%")).as_py()
        else adds.field("path"),
        adds.field("size"),
        pc.map_lookup(adds.field("tags"), TAG, "first"),
    )
    return Change(
        files,
        (),
        {txn["appId"]: txn["version"] for txn in rows("txn").to_pylist()},
        dict(metadata),
        (protocol["minReaderVersion"], protocol["minWriterVersion"]),
    )


# -- Reading a log -------------------------------------------------------------------------------


class Names(NamedTuple):
    """The versions of which a log has files."""

    commits: frozenset[int]
    checkpoints: frozenset[int]
    sums: frozenset[int]

    @property
    def proofs(self) -> frozenset[int]:
        """The checkpoints that have a sum; whether it is theirs, `proved_checkpoint` tells."""
        return self.checkpoints & self.sums


def list_log(table: Path) -> Names:
    """What there is. Raises OSError."""
    names = os.listdir(table / COMMITS)
    try:
        sums = os.listdir(table / SUMS)
    except FileNotFoundError:
        sums = []
    return Names(
        _versions(names, ".json"),
        _versions(names, ".checkpoint.parquet"),
        _versions(sums, ".sum"),
    )


def _versions(names: Iterable[str], suffix: str) -> frozenset[int]:
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return frozenset(int(s) for s in stems if len(s) == 20 and s.isascii() and s.isdigit())


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NEVER_WRITTEN:
            raise
    finally:
        os.close(descriptor)


class DeltaLog:
    """Reads the log of one table, again and again. For one thread at a time."""

    def __init__(self, table: Path, log_id: str) -> None:
        self.table = table
        self._log_id = log_id
        self._snapshot: Snapshot | None = None
        self._directory: tuple[int, ...] = ()
        """How the directory of commits was when the snapshot was made."""
        self._commit: tuple[int, ...] = ()
        """How the file of its commit was."""

    def read(self) -> Snapshot | None:
        """The newest version, the same object as before if that is it. None: there is no table.

        :raises ArchiveUnavailable: a file cannot be read, is missing, or is damaged.
        :raises ForeignArchive: it is not the table of a brokerd, or that of another log.
        :raises NewerFormat: a later version of brokerd wrote it.
        """
        try:
            return self._read()
        except OSError as error:
            where = error.filename or self.table
            raise ArchiveUnavailable(f"{where} cannot be read: {error.strerror}") from error

    def _read(self) -> Snapshot | None:
        directory = _identity(self.table / COMMITS)
        if directory is None:
            self._snapshot = None
            return None
        known = self._snapshot
        if known is not None and directory == self._directory and not self._has(known.version + 1):
            return known
        names = list_log(self.table)
        newest = max(names.commits | names.proofs, default=None)
        if newest is None:
            self._snapshot = None
            return None
        sync_directory(self.table / COMMITS)
        if known is not None and not self._goes_on(known, names, newest):
            known = None
        if known is None or known.version < newest:
            known = self._follow(known or self._base(names), newest)
        commit = _identity(self._path(known.version))
        self._snapshot, self._directory, self._commit = known, directory, commit or ()
        return known

    def _has(self, version: int) -> bool:
        return self._path(version).exists()

    def _path(self, version: int) -> Path:
        return self.table / COMMITS / commit_name(version)

    def _goes_on(self, known: Snapshot, names: Names, newest: int) -> bool:
        """Whether the log goes on from a version of it that was read."""
        is_same = _identity(self._path(known.version)) == self._commit
        return is_same and (newest == known.version or known.version + 1 in names.commits)

    def _base(self, names: Names) -> Snapshot | None:
        """The newest version that a checkpoint gives."""
        for version in sorted(names.proofs, reverse=True):
            checkpoint = proved_checkpoint(self.table, version)
            if checkpoint is not None:
                change = decode_checkpoint(checkpoint)
                self._check(change)
                return apply(change, version, None)
        return None

    def _follow(self, base: Snapshot | None, newest: int) -> Snapshot:
        """Apply the commits after a version, up to the newest."""
        for version in range(0 if base is None else base.version + 1, newest + 1):
            path = self._path(version)
            try:
                data = _bytes_of(path)
            except FileNotFoundError:
                raise ArchiveUnavailable(
                    f"{path} is missing, and no checkpoint takes its place; bring it back"
                ) from None
            change = decode_commit(data, path)
            self._check(change)
            base = apply(change, version, base)
        assert base is not None
        return base._replace(files=base.files.combine_chunks())

    def _check(self, change: Change) -> None:
        """Look at whose table it is, and of which version."""
        if change.configuration is not None:
            check_properties(change.configuration, self._log_id, self.table)
        if change.protocol is not None and change.protocol != (READER_VERSION, WRITER_VERSION):
            raise ForeignArchive(
                f"{self.table}: somebody raised the table's Delta protocol to reader "
                f"{change.protocol[0]}, writer {change.protocol[1]}, which brokerd does not know; "
                "use another archive, or bring back the version before it (docs/operations.rst)"
            )


def check_properties(properties: Mapping[str, str], log_id: str, table: Path) -> None:
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


def _bytes_of(path: Path) -> bytes:
    size = path.stat().st_size
    if size > FILE_BYTES_MAX:
        raise _damaged(path, f"it has {size} bytes")
    return path.read_bytes()


def _identity(path: Path) -> tuple[int, ...] | None:
    """What changes when another file, or another state of a directory, takes its place."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _damaged(path: Path, problem: str) -> ArchiveUnavailable:
    return ArchiveUnavailable(f"{path} is damaged: {problem}; bring it back from a backup")
