# Tests: tests/spark/test_archive_files.py
"""Files of an archive's table of records as a query has them: which it reads, and their rows.

Names of files and what the Delta log says of them leave out most that is not wanted, footers leave
out row groups, and only then are rows looked at (docs/archive-format.rst).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.archive.contract.layout import (
    BUCKETS,
    RECORDS,
    RecordsName,
    arrow_schema,
    bucket_of,
    parse_records_name,
)
from brokerd.archive.contract.pairing import TableState
from brokerd.archive.delta.log_reader import DeltaLog, read_log_id
from brokerd.archive.parquet.reader import ArchiveFile, open_file
from brokerd.archive.storage.address import Place, place_of
from brokerd.spark.plan.predicate import MOST, Integers, Mask, Predicate, Within

SPLIT_ABOVE = 1.5
"""A file larger than so many splits is divided."""
_SCHEMA = arrow_schema(RECORDS)
_READING = threading.Lock()
"""A `DeltaLog` is for one thread at a time."""


class Archive(NamedTuple):
    """One version of an archive's table of records."""

    state: TableState
    version: int
    files: pa.Table
    """As `brokerd.archive.delta.log_files.Snapshot.files`."""

    @property
    def records_lsn(self) -> int:
        """The table holds everything that the log had below this LSN."""
        return self.state.lsn


def read_archive(address: str, log_id: str) -> Archive | None:
    """The newest version; None: nothing was ever archived there.

    Raises ArchiveUnavailable, ForeignArchive and NewerFormat.
    """
    with _READING:
        snapshot = _log(address, log_id).read()
    return None if snapshot is None else Archive(snapshot.state, snapshot.version, snapshot.files)


@lru_cache(maxsize=4)
def _log(address: str, log_id: str) -> DeltaLog:
    """The log of a table, of which only what is new has to be read each time."""
    return DeltaLog(table_of(address), log_id)


def table_of(address: str) -> Place:
    """Where the table of records is, in an archive with some address."""
    return place_of(address) / RECORDS.name


def log_id_of(address: str) -> str | None:
    """Of which log an archive is, by what it says itself; None: there is no archive.

    Raises ArchiveUnavailable and ForeignArchive.
    """
    return read_log_id(table_of(address))


# -- Which files ---------------------------------------------------------------------------------


class FilePart(NamedTuple):
    """A file, or a piece of one; goes to other processes."""

    path: str
    """Relative to the table."""
    size: int
    """Of the file."""
    bytes: int
    """Of this piece of it, about."""
    records: int
    """Rows of it, about."""
    topic_ids: tuple[int, int]
    """The smallest and the largest that it may hold."""
    offsets: Within
    """What is read of a file of one partition."""
    lsns: tuple[int, int]
    """The smallest and the largest LSN of a row of the file."""


def files_wanted(files: pa.Table, sieve: Predicate) -> pa.Table:
    """Those that may hold a row that is wanted. Raises ForeignArchive for one that is not ours."""
    mask = (
        (files["rows"].to_numpy() > 0)
        & _overlaps(files, "first_time_us", "last_time_us", sieve.times_us)
        & _overlaps(files, "first_lsn", "last_lsn", sieve.lsns)
    )
    rows = np.flatnonzero(mask)
    topics = _Topics(sieve)
    paths = files["path"].take(pa.array(rows)).to_pylist()
    chosen = [row for row, path in zip(rows, paths, strict=True) if topics.may_be_in(path)]
    return files.take(pa.array(chosen, pa.int64()))


def _overlaps(files: pa.Table, first: str, last: str, within: Within) -> Mask:
    mask: Mask = (files[first].to_numpy() < within.end) & (files[last].to_numpy() >= within.first)
    return mask


class _Topics:
    """Tells from the names of files whether they may hold what is wanted."""

    def __init__(self, sieve: Predicate) -> None:
        self._sieve = sieve
        self._ids: list[list[int]] = [[] for _ in range(BUCKETS)]
        for topic_id in sieve.topic_ids:
            self._ids[bucket_of(topic_id)].append(topic_id)

    def may_be_in(self, path: str) -> bool:
        name = parse_records_name(path)
        if name.only is not None:
            within = self._sieve.of(name.only.topic_id, name.only.partition)
            return within is not None and within.has_some(name.only.first, name.only.end - 1)
        return self._may_be_in_shared(name)

    def _may_be_in_shared(self, name: RecordsName) -> bool:
        if name.last_topic_id >= self._sieve.doubtful_from:
            return True
        ids = self._ids[name.bucket]
        at = bisect_left(ids, name.first_topic_id)
        if at == len(ids) or ids[at] > name.last_topic_id:
            return False
        partitions = self._sieve.partitions
        if partitions is None or name.first_topic_id != name.last_topic_id:
            return True
        return any(name.first_partition <= one <= name.last_partition for one in partitions)


def parts_of_files(files: pa.Table, part_bytes: int) -> list[FilePart]:
    """Files as pieces of at most about a size, ordered by what they hold.

    Only a file of one partition is cut: between offsets, so that it does not matter in which
    version of the table a piece is found.
    """
    columns = [
        files[name].to_pylist() for name in ("path", "size", "rows", "first_lsn", "last_lsn")
    ]
    found: list[tuple[tuple[int, ...], FilePart]] = []
    for path, size, rows, first_lsn, last_lsn in zip(*columns, strict=True):
        name = parse_records_name(path)
        key = name.bucket, name.first_topic_id, name.first_partition, first_lsn
        ids = name.first_topic_id, name.last_topic_id
        pieces = [Within(0, MOST)]
        if name.only is not None:
            count = 1 if size <= SPLIT_ABOVE * part_bytes else -(-size // part_bytes)
            pieces = _cut(name.only.first, name.only.end, count)
        for piece in pieces:
            part = FilePart(
                path,
                size,
                size // len(pieces),
                -(-rows // len(pieces)),
                ids,
                piece,
                (first_lsn, last_lsn),
            )
            found.append(((*key, piece.first), part))
    return [part for _, part in sorted(found)]


def _cut(first: int, end: int, count: int) -> list[Within]:
    count = min(count, end - first)
    edges = [first + (end - first) * at // count for at in range(count + 1)]
    return [Within(low, high) for low, high in pairwise(edges)]


# -- Rows ----------------------------------------------------------------------------------------


def open_part(address: str, part: FilePart) -> ArchiveFile:
    """Open a file and prove its footer. Raises as `brokerd.archive.parquet.reader.open_file`."""
    return open_file(table_of(address), part.path, part.size)


class Check(NamedTuple):
    """What has to be looked at of each row of a row group."""

    keys: bool
    names: bool
    times: bool
    lsns: bool
    expiry: bool

    def columns(self) -> Iterator[str]:
        """What has to be read for it."""
        if self.keys:
            yield from ("topic_id", "partition", "offset")
        if self.names:
            yield "topic"
        if self.times:
            yield "append_time"
        if self.lsns:
            yield "lsn"
        if self.expiry:
            yield "expires_at"


def rows_of(
    file: ArchiveFile, part: FilePart, sieve: Predicate, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of a part of an open file, a row group at a time.

    Raises DamagedArchive and ArchiveUnavailable.
    """
    for group in range(len(file.groups)):
        check = _check(file, group, part, sieve)
        if check is None:
            continue
        wanted = list(dict.fromkeys([*columns, *check.columns()]))
        table = file.read_table([group], wanted)
        mask = sift(table, sieve, part.offsets, check)
        yield from _batches(table.select(list(columns)), mask)


def _check(file: ArchiveFile, group: int, part: FilePart, sieve: Predicate) -> Check | None:
    """What has to be looked at in a row group, None if nothing of it is wanted."""
    facts = file.groups[group]
    first, last = facts["first"].item(), facts["last"].item()
    times = int(facts["time_min"]), int(facts["time_max"])
    if not sieve.times_us.has_some(*times):
        return None
    keys = True
    if first[:2] == last[:2]:
        within = sieve.of(first[0], first[1])
        if within is None:
            return None
        within = within.and_within(part.offsets)
        if not within.has_some(first[2], last[2]):
            return None
        keys = not within.has_all(first[2], last[2])
    lsns = sieve.lsns.has_all(*part.lsns)
    if not lsns:
        own = file.lsns(group)
        if not sieve.lsns.has_some(*own):
            return None
        lsns = sieve.lsns.has_all(*own)
    names = last[0] >= sieve.doubtful_from
    return Check(
        keys=keys or names,
        names=names,
        times=not sieve.times_us.has_all(*times),
        lsns=not lsns,
        expiry=file.footer.expiring > 0,
    )


def sift(rows: Any, sieve: Predicate, offsets: Within, check: Check) -> Mask | None:
    """Which rows are wanted; None: all are.

    :param rows: a table or batch with the columns that ``check`` asks for; topics and partitions
        are sorted as far as possible.
    """
    masks = []
    if check.keys:
        topic_id, partition, offset = (
            rows[name].to_numpy() for name in ("topic_id", "partition", "offset")
        )
        low, high = sieve.spans(topic_id, partition, lambda row: str(rows["topic"][row]))
        masks.append((offset >= low) & (offset < high) & offsets.mask(offset))
    if check.times:
        masks.append(sieve.times_us.mask(_microseconds(rows["append_time"])))
    if check.lsns:
        masks.append(sieve.lsns.mask(rows["lsn"].to_numpy()))
    if check.expiry:
        expires = rows["expires_at"].to_numpy()
        masks.append((expires == 0) | (expires > sieve.now_us))
    if not masks:
        return None
    mask: Mask = np.logical_and.reduce(masks)
    return None if mask.all() else mask


def _microseconds(times: Any) -> Integers:
    found: Integers = pc.cast(times, pa.int64()).to_numpy()
    return found


def _batches(table: pa.Table, mask: Mask | None) -> Iterator[pa.RecordBatch]:
    """Some rows of a table, in the types of the table of records."""
    if mask is not None:
        table = table.filter(pa.array(mask))
    schema = pa.schema([_SCHEMA.field(name) for name in table.column_names])
    if table.schema != schema:
        table = table.cast(schema)
    table = table.replace_schema_metadata()  # a footer has some
    yield from (batch for batch in table.to_batches() if len(batch))
