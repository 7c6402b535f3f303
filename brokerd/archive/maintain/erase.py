# Tests: tests/archive/test_erase.py
"""Erases the records of one key from the table of records: docs/archive-erase.rst. No Spark.

1. Each live file that may hold the topic is read, and every checksum is verified.
2. Files with records of the key are rewritten without them. Commits replace the files.
3. All live files that may hold the topic are read again, and must have no such record.

A commit replaces whole files, so the next run continues a stopped run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.archive.contract.layout import RECORDS, bucket_of, parse_records_name
from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.table import Table
from brokerd.archive.errors import JobFailed
from brokerd.archive.maintain.merge_sort import DroppedRows
from brokerd.archive.maintain.rewrite import RewriteResult, RewriteUnit, rewrite_without
from brokerd.archive.parquet.reader import AHEAD_BYTES, ArchiveFile, open_file
from brokerd.archive.run import Run
from brokerd.archive.storage.store import open_store
from brokerd.errors import DamagedData, NewerFormat

REASON = "erased"
COMMIT_BYTES = 256 << 20
"""Files of about this size are replaced in one commit."""
_COLUMNS = ("topic_id", "partition", "offset", "key")

Partition = tuple[int, int]
"""(topic id, partition)"""


class ReplacedFile(NamedTuple):
    """A rewritten file, and the file in its place."""

    removed: str
    """The path of the old file, relative to the table."""
    rows: int
    erased: int
    added: str
    added_rows: int
    digest: str
    """The digest of the rows of the new file, which was read back: docs/archive-format.rst."""


class HeldRecords(NamedTuple):
    """Records of the key that a group still uses. They stay."""

    topic_id: int
    partition: int
    first: int
    """The smallest offset."""
    records: int


class Census(NamedTuple):
    """The counts of one reading of the live files that may hold the topic."""

    files: int
    rows: int
    """All rows of these files, also of other topics and keys."""
    erasable: int
    """Records of the key that may be erased."""
    held: tuple[HeldRecords, ...]
    problems: tuple[str, ...]
    """Files that cannot be read."""


class Erasure(NamedTuple):
    """The result of `erase_key`."""

    version_before: int
    version_after: int
    before: Census
    after: Census
    replaced: tuple[ReplacedFile, ...]


class _Found(NamedTuple):
    """The records of the key in a file."""

    drops: DroppedRows
    held: dict[Partition, tuple[int, int]]
    """The smallest offset and the number of the records that stay, by partition."""


class KeySearch(NamedTuple):
    """The records to erase."""

    topic_ids: frozenset[int]
    key: bytes
    below: Mapping[Partition, int]
    """The offset of each partition below which no group uses a record."""

    def may_be_in(self, path: str) -> bool:
        """Return whether a file of this path may hold the topics. Raises ForeignArchive."""
        name = parse_records_name(path)
        return any(
            name.bucket == bucket_of(one) and name.first_topic_id <= one <= name.last_topic_id
            for one in self.topic_ids
        )

    def matches(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows of the key."""
        is_key = pc.fill_null(pc.equal(rows["key"], pa.scalar(self.key, rows["key"].type)), False)
        is_topic = np.isin(rows["topic_id"].to_numpy(), list(self.topic_ids))
        found: npt.NDArray[np.bool_] = is_key.to_numpy() & is_topic
        return found

    def find(self, file: ArchiveFile) -> _Found:
        """Return the records of the key in a file. Raises DamagedData, ArchiveUnavailable."""
        rows_of: list[npt.NDArray[np.int64]] = []
        offsets_of: list[npt.NDArray[np.int64]] = []
        held: dict[Partition, tuple[int, int]] = {}
        start = 0
        for group in range(len(file.groups)):
            first, last = file.groups["first"][group].item(), file.groups["last"][group].item()
            if any(first[0] <= one <= last[0] for one in self.topic_ids):
                rows = file.read_table([group], _COLUMNS)
                at = np.flatnonzero(self.matches(rows))
                topic_ids, partitions, offsets = (
                    rows[name].to_numpy()[at] for name in ("topic_id", "partition", "offset")
                )
                goes = np.zeros(len(at), bool)
                for partition in _unique(topic_ids, partitions):
                    here = (topic_ids == partition[0]) & (partitions == partition[1])
                    below = self.below.get(partition, 0)
                    goes |= here & (offsets < below)
                    stays = offsets[here & (offsets >= below)]
                    if len(stays):
                        low, count = held.get(partition, (int(stays[0]), 0))
                        held[partition] = min(low, int(stays[0])), count + len(stays)
                rows_of.append((at[goes] + start).astype(np.int64))
                offsets_of.append(offsets[goes].astype(np.int64))
            start += int(file.groups["rows"][group])
        numbers = np.concatenate([np.zeros(0, np.int64), *rows_of])
        return _Found(
            DroppedRows(
                numbers,
                np.concatenate([np.zeros(0, np.int64), *offsets_of]),
                np.full(len(numbers), REASON, object),
            ),
            held,
        )


def _unique(topic_ids: npt.NDArray[np.int64], partitions: npt.NDArray[np.int32]) -> list[Partition]:
    return sorted(set(zip(topic_ids.tolist(), partitions.tolist(), strict=True)))


def erase_key(run: Run, search: KeySearch) -> Erasure:
    """Rewrite all files with records of a key, prove it, and return the counts.

    Files that cannot be read stay, and are among the problems.

    :raises JobFailed: the archive does not have the expected rows afterwards.
    :raises TableConflict: another job changed the table.
    :raises ArchiveUnavailable: the disk or the server reports an error.
    :raises OSError: a write failed. Earlier commits stay.
    """
    table = run.tables.newest(RECORDS)
    version = table.version
    found: dict[str, _Found] = {}
    before = _count(run, table, search, found)
    dirty = [path for path, one in found.items() if len(one.drops.rows)]
    replaced: list[ReplacedFile] = []
    for paths in _portions(table, dirty):
        run.failpoint("before erase rewrites")
        results = [_rewrite(run, path, found[path].drops) for path in paths]
        run.failpoint("before erase commit")
        table.commit(
            [add_file(info) for result in results for info in result.added],
            paths,
            now_ms=run.now_ms(),
            operation="ERASE",
        )
        run.failpoint("after erase commit")
        replaced += [_replaced(table, path, one) for path, one in zip(paths, results, strict=True)]
    after = _count(run, run.tables.newest(RECORDS), search, {})
    erased = sum(one.erased for one in replaced)
    if not before.problems and (after.erasable or after.rows != before.rows - erased):
        raise JobFailed(
            f"{table.path} has {after.rows:,} rows and {after.erasable:,} records of the key, "
            f"instead of {before.rows - erased:,} and none; run it again"
        )
    return Erasure(version, table.version, before, after, tuple(replaced))


def _count(run: Run, table: Table, search: KeySearch, found: dict[str, _Found]) -> Census:
    """Read the live files that may hold the topics. Fill ``found`` by path."""
    rows = erasable = files = 0
    held: dict[Partition, tuple[int, int]] = {}
    problems: list[str] = []
    for path, size in zip(table.paths(), table.files["size"].to_pylist(), strict=True):
        if not search.may_be_in(path):
            continue
        run.failpoint("erase reads a file")
        files += 1
        try:
            file = open_file(table.path, path, size, ahead_bytes=AHEAD_BYTES)
            one = search.find(file)
        except (DamagedData, ArchiveUnavailable, NewerFormat) as error:
            problems.append(str(error))
            continue
        rows += file.footer.rows
        erasable += len(one.drops.rows)
        for partition, (first, count) in one.held.items():
            low, total = held.get(partition, (first, 0))
            held[partition] = min(low, first), total + count
        found[path] = one
    stays = (HeldRecords(*place, first, count) for place, (first, count) in sorted(held.items()))
    return Census(files, rows, erasable, tuple(stays), tuple(problems))


def _portions(table: Table, paths: Sequence[str]) -> Iterator[list[str]]:
    """Yield files in portions of about `COMMIT_BYTES`."""
    sizes = dict(zip(table.paths(), table.files["size"].to_pylist(), strict=True))
    portion: list[str] = []
    total = 0
    for path in paths:
        if portion and total + sizes[path] > COMMIT_BYTES:
            yield portion
            portion, total = [], 0
        portion.append(path)
        total += sizes[path]
    if portion:
        yield portion


def _rewrite(run: Run, path: str, drops: DroppedRows) -> RewriteResult:
    unit = RewriteUnit(run.root, RECORDS.name, run.bounds.log_id, (path,))
    result = rewrite_without(unit, [drops])
    if result.removed != Counter({REASON: len(drops.rows)}) or len(result.added) != 1:
        raise DamagedData(f"{run.root / RECORDS.name / path} changed during the run")
    return result


def _replaced(table: Table, path: str, result: RewriteResult) -> ReplacedFile:
    (info,) = result.added
    erased = result.removed[REASON]
    return ReplacedFile(path, info.rows + erased, erased, info.path, info.rows, info.digest)


# -- Old files -----------------------------------------------------------------------------------


def old_files(table: Table, search: KeySearch) -> list[str]:
    """Return the files that may hold the topics and that the newest version does not need.

    They belong to older versions and to stopped runs. The caller holds the locks of the archive.
    Raises ArchiveUnavailable.
    """
    live = set(table.paths())
    buckets = {f"bucket={bucket_of(one)}" for one in search.topic_ids}
    found = []
    for bucket in sorted(buckets):
        for entry in open_store(table.path).list(bucket):
            if entry.path not in live and entry.path.endswith(".parquet"):
                if _is_named(entry.path) and not search.may_be_in(entry.path):
                    continue
                found.append(entry.path)
    return sorted(found)


def delete_old_files(table: Table, paths: Collection[str]) -> None:
    """Delete files, and check that they are gone. Raises JobFailed, ArchiveUnavailable."""
    store = open_store(table.path)
    store.delete(paths)
    left = [path for path in paths if store.exists(path)]
    if left:
        raise JobFailed(f"{store.place / left[0]} is still there after its deletion")


def _is_named(path: str) -> bool:
    """Return whether a path is that of a complete file. Files of stopped runs have other names."""
    try:
        parse_records_name(path)
    except ForeignArchive:
        return False
    return True
