# Tests: tests/archive/test_log_files.py
"""Encodes and decodes the files of a table's Delta log (docs/archive-log.rst).

`decode_commit` verifies the checksum of a commit. The caller of `decode_checkpoint` verifies the
checkpoint by its sum. In memory a file of the table is a row of numbers and a path: 0.2 KB.

Actions and file names follow the Delta protocol, sections "Actions" and "Checkpoints":
https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
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
"""The directory of the sums, which prove checkpoints."""
TAG = "brokerd"
"""The tag of an ``add`` action that holds the file's `FileStats`."""
FILE_BYTES_MAX = 1 << 30
"""The largest size of a commit or checkpoint."""
WRITER_FEATURE = "brokerd"
"""A writer feature that no other program knows. So none of them writes, and all may read."""
_SUM_MAGIC = "brokerd checkpoint 1"


class Protocol(NamedTuple):
    """The Delta protocol of a table."""

    reader: int
    writer: int
    features: tuple[str, ...] = ()
    """The writer features, in order."""


PROTOCOL = Protocol(1, 7, (WRITER_FEATURE, "invariants"))
"""Columns that are not nullable are invariants: Delta Spark reads no such table without it."""
OPEN_PROTOCOL = Protocol(1, 2)
"""The protocol of the oldest tables of brokerd, which other programs may write."""
OLDER_PROTOCOLS = (OPEN_PROTOCOL, Protocol(1, 7, (WRITER_FEATURE,)))
"""Protocols of tables of older versions of brokerd."""


class FileStats(NamedTuple):
    """The statistics of a file, in a tag of its ``add`` action. -1 stands for no rows."""

    rows: int = 0
    content: int = 0
    """Bytes of keys, values and metadata."""
    first_time_us: int = -1
    """The smallest broker time of a row."""
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
    described: int = 0
    """1 if the ``add`` has null counts and the smallest and largest texts."""
    text: int = 0
    """A `Text`: what all values of records are."""


class Snapshot(NamedTuple):
    """One version of a table."""

    version: int
    transactions: Mapping[str, int]
    """The versions of app transactions, by app id."""
    files: pa.Table
    """The live files: ``path`` relative to the table, ``size``, and the fields of `FileStats`."""
    protocol: Protocol = PROTOCOL
    configuration: Mapping[str, str] = MappingProxyType({})
    """The properties of the table."""

    @property
    def state(self) -> TableState:
        """Return the part of the log that the table holds."""
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
    writer_features: list[str] | None = None


class _CommitInfo(Struct, rename="camel"):
    brokerd: str | None = None
    engine_info: str = "another program"


class _Line(Struct, rename="camel"):
    """A line of a commit: one of these actions, or an action that brokerd ignores."""

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
    protocol: Protocol | None = None


_LINES = msgspec.json.Decoder(_Line)


def encode_commit(actions: Iterable[Mapping[str, Any]], operation: str, now_ms: int) -> bytes:
    """Encode a commit.

    :param actions: actions of the Delta protocol: ``{"add": {...}}``.
    :param operation: for the history of the table.
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
    """Decode a commit, and verify its checksum.

    :param path: for error texts.
    :raises ArchiveUnavailable: the commit is damaged.
    :raises ForeignArchive: another program changed the content of the table.
    """
    try:
        lines = _LINES.decode_lines(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(path, f"it is not a commit: {error}") from None
    infos = [line.commit_info for line in lines if line.commit_info is not None]
    adds = [line.add for line in lines if line.add is not None]
    removed = [unquote(line.remove.path) for line in lines if line.remove is not None]
    transactions = {line.txn.app_id: line.txn.version for line in lines if line.txn is not None}
    signature = infos[0].brokerd if infos else None
    if not infos or (signature and signature != xxh3_64_hexdigest(data.partition(b"\n")[2])):
        raise damaged(path, "its checksum does not match")
    if not signature and (adds or removed or transactions):
        raise ForeignArchive(
            f"{path} was written by {infos[0].engine_info}, which changed the content of the "
            "table; `brokerctl archive recover` restores the version before it "
            "(docs/archive-log.rst)"
        )
    metadata = [line.meta_data.configuration for line in lines if line.meta_data is not None]
    protocols = [line.protocol for line in lines if line.protocol is not None]
    protocol = [
        Protocol(
            one.min_reader_version,
            one.min_writer_version,
            tuple(sorted(one.writer_features or ())),
        )
        for one in protocols
    ]
    return Actions(
        _files_of(adds),
        removed,
        transactions,
        metadata[-1] if metadata else None,
        protocol[-1] if protocol else None,
    )


def encode_stats(stats: FileStats) -> str:
    """Encode statistics as the text of the tag."""
    return ",".join(map(str, stats))


def _files_of(adds: Sequence[_Add]) -> pa.Table:
    return _file_table(
        pa.array([unquote(add.path) for add in adds], pa.string()),
        pa.array([add.size for add in adds], pa.int64()),
        pa.array([(add.tags or {}).get(TAG) for add in adds], pa.string()),
    )


def _file_table(paths: Any, sizes: Any, tags: Any) -> pa.Table:
    """Return a table as `Snapshot.files`. Raises ValueError for a tag without numbers."""
    columns = {"path": paths, "size": sizes}
    tags = pc.fill_null(tags, encode_stats(FileStats()))
    # Tags of older versions lack the last two numbers, or one.
    numbers = pc.split_pattern(pc.binary_join_element_wise(tags, "0,0", ","), ",")
    for place, name in enumerate(FileStats._fields):
        columns[name] = pc.cast(pc.list_element(numbers, place), pa.int64())
    return pa.table(columns)


def apply(actions: Actions, version: int, before: Snapshot | None) -> Snapshot:
    """Return the version after the actions of a commit or a checkpoint."""
    if before is None:
        protocol, properties = actions.protocol or PROTOCOL, actions.configuration or {}
        transactions = dict(actions.transactions)
        return Snapshot(version, transactions, actions.files, protocol, properties)
    files = before.files
    replaced = [*actions.removed, *actions.files["path"].to_pylist()]
    if replaced and len(files):
        is_replaced = pc.is_in(files["path"], value_set=pa.array(replaced, pa.string()))
        files = files.filter(pc.invert(is_replaced))
    if len(actions.files):
        files = pa.concat_tables([files, actions.files])
    transactions = {**before.transactions, **actions.transactions}
    return Snapshot(
        version,
        transactions,
        files,
        actions.protocol or before.protocol,
        before.configuration if actions.configuration is None else actions.configuration,
    )


def damaged(path: Place, problem: str) -> ArchiveUnavailable:
    """Return the error for a damaged file of the log."""
    return ArchiveUnavailable(f"{path} is damaged: {problem}; restore it from a backup")


# -- Checkpoints ---------------------------------------------------------------------------------


def encode_sum(version: int, checkpoint: bytes) -> bytes:
    """Encode the sum of a checkpoint."""
    digest = xxh3_64_hexdigest(checkpoint)
    return f"{_SUM_MAGIC} {version} {len(checkpoint)} {digest}\n".encode()


def decode_checkpoint(data: bytes) -> Actions:
    """Decode a checkpoint. The caller has verified it by its sum."""
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
        Protocol(
            protocol["minReaderVersion"],
            protocol["minWriterVersion"],
            tuple(sorted(protocol.get("writerFeatures") or ())),
        ),
    )
