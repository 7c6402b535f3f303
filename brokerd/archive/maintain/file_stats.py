# Tests: tests/archive/test_clean.py
"""Statistics of the files of records, from the Delta log, file names and footers.

Spark tasks read footers only for shared files and for files that are new since the last run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from brokerd.archive.cluster.attempts import retry_later
from brokerd.archive.cluster.file_check import FileTask, file_tasks
from brokerd.archive.contract.layout import (
    BUCKETS,
    Range,
    RecordsName,
    bucket_of,
    parse_records_name,
)
from brokerd.archive.contract.view import ArchiveUnavailable, DamagedArchive
from brokerd.archive.delta.table import Table
from brokerd.archive.maintain.retention_bounds import RetentionBounds
from brokerd.archive.maintain.rewrite import ranges_of
from brokerd.archive.parquet.reader import ArchiveFile, open_file
from brokerd.archive.run import Run
from brokerd.errors import NewerFormat

NO_EXPIRY = 0
"""Replaces an expiry time if no record of a file expires."""
EXPIRY_UNKNOWN = 1
"""Replaces an expiry time if a record expires at an unknown time."""
LOCAL_FILES_MAX = 32
"""Up to this many footers are read without Spark, which takes longer to start."""


class FileExtent(NamedTuple):
    """The offsets of one partition in a file, and its approximate number of rows."""

    topic_id: int
    partition: int
    first: int
    end: int
    rows: int


@dataclass
class RecordsFile:
    """A live file of records."""

    path: str
    size: int
    rows: int
    first_lsn: int
    name: RecordsName
    removable: float = 0.0
    """The share of its offsets below start offsets or of deleted topics."""
    has_deleted: bool = False
    """Whether it holds records of a deleted topic."""
    expires_us: int = EXPIRY_UNKNOWN
    """The time at which the next record expires."""
    extents: list[FileExtent] = field(default_factory=list)
    """Its extents of compacted partitions."""


def read_file_stats(
    run: Run,
    table: Table,
    bounds: Sequence[RetentionBounds],
    compacted: Collection[tuple[int, int]],
    expiry: Mapping[int, int],
) -> tuple[dict[str, RecordsFile], dict[str, str]]:
    """Return the live files of records by path, and the problems of unreadable files by path.

    A run that removes nothing needs no footer.

    :param bounds: the retention bounds by bucket.
    :param compacted: the partitions whose extents are needed.
    :param expiry: known expiry times, by the checksum of the file's footer.
    """
    files: dict[str, RecordsFile] = {}
    unread: list[dict[str, int]] = [{} for _ in range(BUCKETS)]
    for row in table.files.select(["path", "size", "rows", "first_lsn"]).to_pylist():
        file = RecordsFile(**row, name=parse_records_name(row["path"]))
        files[file.path] = file
        file.expires_us = expiry.get(file.name.footer_hash, EXPIRY_UNKNOWN)
        if file.name.only is not None:
            _add_ranges(file, [file.name.only], bounds[file.name.bucket], compacted)
        if file.name.only is None or file.name.footer_hash not in expiry:
            unread[file.name.bucket][file.path] = file.size
    problems: dict[str, str] = {}
    if not (run.settings.retention or run.settings.compaction):
        return files, problems
    for footer in _read_footers(run, table, unread, bounds, compacted):
        if footer.problem:
            problems[footer.path] = footer.problem
            del files[footer.path]
            continue
        file = files[footer.path]
        file.removable, file.has_deleted = footer.removable, footer.has_deleted
        file.extents = footer.extents
        file.expires_us = expiry.get(file.name.footer_hash, footer.expires_us)
    return files, problems


class _FooterTask(NamedTuple):
    """Files of a bucket, for one task."""

    files: FileTask
    bounds: RetentionBounds
    compacted: frozenset[tuple[int, int]]


@dataclass
class _Footer:
    """The statistics in a file's footer."""

    path: str
    rows: int = 0
    removable: float = 0.0
    has_deleted: bool = False
    extents: list[FileExtent] = field(default_factory=list)
    expires_us: int = EXPIRY_UNKNOWN
    problem: str = ""


def _read_footers(
    run: Run,
    table: Table,
    unread: Sequence[dict[str, int]],
    bounds: Sequence[RetentionBounds],
    compacted: Collection[tuple[int, int]],
) -> list[_Footer]:
    tasks = []
    for bucket in range(BUCKETS):
        own = frozenset(one for one in compacted if bucket_of(one[0]) == bucket)
        tasks += [
            _FooterTask(files, bounds[bucket], own)
            for files in file_tasks(table.path, unread[bucket])
        ]
    if sum(map(len, unread)) <= LOCAL_FILES_MAX:
        results = [_read_task(task) for task in tasks]
    else:
        results = run.spark.map("read footers", _read_task, tasks)
    return list(chain.from_iterable(results))


def _read_task(task: _FooterTask) -> list[_Footer]:
    footers = []
    for path in task.files.paths:
        try:
            file = open_file(task.files.table, path)
        except (DamagedArchive, ArchiveUnavailable, NewerFormat) as error:
            retry_later(error)
            footers.append(_Footer(path, problem=str(error)))
            continue
        footer = _Footer(path, file.footer.rows, expires_us=_expires_us(file))
        _add_ranges(footer, ranges_of(file), task.bounds, task.compacted)
        footers.append(footer)
    return footers


def _expires_us(file: ArchiveFile) -> int:
    if not file.footer.expiring:
        return NO_EXPIRY
    return max(EXPIRY_UNKNOWN, file.footer.minimum["expires_at"])


def _add_ranges(
    file: RecordsFile | _Footer,
    ranges: Sequence[Range],
    bounds: RetentionBounds,
    compacted: Collection[tuple[int, int]],
) -> None:
    """Set the statistics of a file that its ranges determine."""
    offsets = sum(one.end - one.first for one in ranges)
    retained = sum(one.end - one.first for one in bounds.retained(ranges))
    file.removable = (offsets - retained) / offsets
    file.has_deleted = any(bounds.is_deleted(one.topic_id) for one in ranges)
    file.extents = [
        FileExtent(*one, file.rows * (one.end - one.first) // offsets)
        for one in ranges
        if one[:2] in compacted
    ]
