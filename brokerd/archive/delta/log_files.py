# Tests: tests/archive/test_log_files.py
"""Files of the log of a Delta table, both directions: docs/archive-log.rst.

Of what `decode_commit` reads nothing is believed that a checksum does not prove; a checkpoint must
have been proved by its sum before `decode_checkpoint` sees it. What is kept of a file of the table
are numbers and the path, in Arrow's columns: about 0.2 KB.

Rules of others: the actions and the names of files are those of the Delta protocol,
https://github.com/delta-io/delta/blob/master/PROTOCOL.md, sections "Actions" and "Checkpoints".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from xxhash import xxh3_64_hexdigest

from brokerd.archive.contract.layout import ARCHIVE_APP, ROLLUP_APP, SEGMENT_APP
from brokerd.archive.contract.pairing import TableState
from brokerd.archive.contract.pin import archive_id
from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive
from brokerd.archive.storage.address import Place

COMMITS = "_delta_log"
"""The directory of the log, below the table's."""
SUMS = "_brokerd"
"""The directory of what proves checkpoints."""
TAG = "brokerd"
"""The tag of an ``add`` action that holds the file's `FileStats`."""
FILE_BYTES_MAX = 1 << 30
"""No commit and no checkpoint is larger; what is, is no such thing."""
READER_VERSION = 1
WRITER_VERSION = 2
_SUM_MAGIC = "brokerd checkpoint 1"


class FileStats(NamedTuple):
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
    """The live files: ``path``, relative to the table, ``size``, the fields of `FileStats`."""

    @property
    def state(self) -> TableState:
        """How far the table holds the log."""
        archive, lsn, mark = (
            self.transactions.get(app, 0) for app in (ARCHIVE_APP, ROLLUP_APP, SEGMENT_APP)
        )
        return TableState(archive_id(archive), lsn, mark)


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


class Actions(NamedTuple):
    """The actions of a commit or a checkpoint."""

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


def decode_commit(data: bytes, path: Place) -> Actions:
    """Read a commit.

    :param path: where it is, for what errors say.
    :raises ArchiveUnavailable: it is damaged.
    :raises ForeignArchive: it changes what the table holds, and brokerd did not write it.
    """
    try:
        lines = _LINES.decode_lines(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(path, f"it is no commit: {error}") from None
    infos = [line.commit_info for line in lines if line.commit_info is not None]
    adds = [line.add for line in lines if line.add is not None]
    removed = [unquote(line.remove.path) for line in lines if line.remove is not None]
    transactions = {line.txn.app_id: line.txn.version for line in lines if line.txn is not None}
    signature = infos[0].brokerd if infos else None
    if not infos or (signature and signature != xxh3_64_hexdigest(data.partition(b"\n")[2])):
        raise damaged(path, "its checksum does not match")
    if not signature and (adds or removed or transactions):
        raise ForeignArchive(
            f"{path} was written by {infos[0].engine_info}, which changed what the table holds; "
            "use another archive, or bring back the version before it (docs/archive-log.rst)"
        )
    metadata = [line.meta_data.configuration for line in lines if line.meta_data is not None]
    protocols = [line.protocol for line in lines if line.protocol is not None]
    protocol = [(one.min_reader_version, one.min_writer_version) for one in protocols]
    return Actions(
        _files_of(adds),
        removed,
        transactions,
        metadata[-1] if metadata else None,
        protocol[-1] if protocol else None,
    )


def encode_stats(stats: FileStats) -> str:
    """The text of the tag."""
    return ",".join(map(str, stats))


def _files_of(adds: Sequence[_Add]) -> pa.Table:
    return _file_table(
        pa.array([unquote(add.path) for add in adds], pa.string()),
        pa.array([add.size for add in adds], pa.int64()),
        pa.array([(add.tags or {}).get(TAG) for add in adds], pa.string()),
    )


def _file_table(paths: Any, sizes: Any, tags: Any) -> pa.Table:
    """Columns of files. Raises ValueError for a tag that holds no numbers."""
    columns = {"path": paths, "size": sizes}
    numbers = pc.split_pattern(pc.fill_null(tags, encode_stats(FileStats())), ",")
    for place, name in enumerate(FileStats._fields):
        columns[name] = pc.cast(pc.list_element(numbers, place), pa.int64())
    return pa.table(columns)


def apply(change: Actions, version: int, before: Snapshot | None) -> Snapshot:
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


def damaged(path: Place, problem: str) -> ArchiveUnavailable:
    """The error for a file of the log that is not what was written."""
    return ArchiveUnavailable(f"{path} is damaged: {problem}; bring it back from a backup")


# -- Checkpoints ---------------------------------------------------------------------------------


def encode_sum(version: int, checkpoint: bytes) -> bytes:
    """The file that proves a checkpoint."""
    digest = xxh3_64_hexdigest(checkpoint)
    return f"{_SUM_MAGIC} {version} {len(checkpoint)} {digest}\n".encode()


def decode_checkpoint(data: bytes) -> Actions:
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
    return Actions(
        files,
        (),
        {txn["appId"]: txn["version"] for txn in rows("txn").to_pylist()},
        dict(metadata),
        (protocol["minReaderVersion"], protocol["minWriterVersion"]),
    )
