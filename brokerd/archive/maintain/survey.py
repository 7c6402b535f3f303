# Tests: tests/archive/test_clean.py
"""What cleaning has to know of the files of records before it looks at any row.

The Delta log and the names tell most. Footers of shared files, and of files that no run has seen
yet, are read in tasks of Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from brokerd.archive.cluster.file_check import Files, parted
from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.contract.layout import (
    BUCKETS,
    RECORDS,
    Range,
    RecordsName,
    bucket_of,
    parse_records_name,
)
from brokerd.archive.contract.view import ArchiveUnavailable, DamagedArchive
from brokerd.archive.delta.table import Table
from brokerd.archive.maintain.rewrite import Trims, ranges_of
from brokerd.archive.parquet.reader import ArchiveFile, open_file
from brokerd.archive.run import Run
from brokerd.errors import NewerFormat

NEVER = 0
"""In place of a time: no record of a file expires."""
FEW = 32
"""So many footers are read without Spark, which takes longer to start."""
AT_ONCE = 1
"""Some record expires, and nobody knows when the first one does."""


class Held(NamedTuple):
    """Offsets of one partition in a file, and about how many records."""

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
    share: float = 0.0
    """Which part of its offsets nobody has to know of any more."""
    has_deleted: bool = False
    """Whether it holds records of a deleted topic."""
    expires_us: int = AT_ONCE
    """When the next record expires."""
    held: list[Held] = field(default_factory=list)
    """What it holds of the partitions that are compacted."""


class Survey(NamedTuple):
    """The files of records, and those that cannot be read."""

    files: dict[str, RecordsFile]
    """By path; without those that cannot be read."""
    problems: list[str]


def trims_by_bucket(bounds: Bounds, only: Collection[int] | None = None) -> list[Trims]:
    """What nobody has to know of any more, for the files of each bucket.

    :param only: ids of the topics that it is about; None: all, and deleted ones.
    """
    live: list[set[int]] = [set() for _ in range(BUCKETS)]
    starts: list[dict[tuple[int, int], int]] = [{} for _ in range(BUCKETS)]
    for topic in bounds.topics:
        bucket = bucket_of(topic.id)
        live[bucket].add(topic.id)
        for index, partition in enumerate(topic.partitions):
            if partition.start > 0 and (only is None or topic.id in only):
                starts[bucket][topic.id, index] = partition.start
    next_topic_id = bounds.next_topic_id if only is None else 0
    return [
        Trims(next_topic_id, frozenset(live[bucket]), starts[bucket]) for bucket in range(BUCKETS)
    ]


def survey(
    run: Run,
    table: Table,
    trims: list[Trims],
    compacted: Collection[tuple[int, int]],
    expiry: Mapping[int, int],
) -> Survey:
    """What is known of each live file of records.

    :param trims: by bucket.
    :param compacted: the partitions of which it is to be known where their records are.
    :param expiry: when a record of a file expires, by the checksum of its footer, as far as known.
    """
    files: dict[str, RecordsFile] = {}
    asked: list[dict[str, int]] = [{} for _ in range(BUCKETS)]
    for row in table.files.select(["path", "size", "rows", "first_lsn"]).to_pylist():
        file = RecordsFile(**row, name=parse_records_name(row["path"]))
        files[file.path] = file
        file.expires_us = expiry.get(file.name.footer_hash, AT_ONCE)
        if file.name.only is not None:
            _fill(file, [file.name.only], trims[file.name.bucket], compacted)
        if file.name.only is None or file.name.footer_hash not in expiry:
            asked[file.name.bucket][file.path] = file.size
    tasks = [
        _Asked(
            part, trims[bucket], frozenset(one for one in compacted if bucket_of(one[0]) == bucket)
        )
        for bucket in range(BUCKETS)
        for part in parted(run, RECORDS, asked[bucket])
    ]
    if sum(map(len, asked)) <= FEW:
        answers = [_tell(task) for task in tasks]
    else:
        answers = run.map("read footers", _tell, tasks)
    problems = []
    for told in chain.from_iterable(answers):
        if told.problem:
            problems.append(told.problem)
            del files[told.path]
            continue
        file = files[told.path]
        file.share, file.has_deleted, file.held = told.share, told.has_deleted, told.held
        file.expires_us = expiry.get(file.name.footer_hash, told.expires_us)
    return Survey(files, problems)


class _Asked(NamedTuple):
    """Files of a bucket, for one task."""

    files: Files
    trims: Trims
    compacted: frozenset[tuple[int, int]]


@dataclass
class _Told:
    """What a footer says."""

    path: str
    rows: int = 0
    share: float = 0.0
    has_deleted: bool = False
    held: list[Held] = field(default_factory=list)
    expires_us: int = AT_ONCE
    problem: str = ""


def _tell(asked: _Asked) -> list[_Told]:
    found = []
    for path in asked.files.paths:
        try:
            file = open_file(asked.files.table, path)
        except (DamagedArchive, ArchiveUnavailable, NewerFormat) as error:
            found.append(_Told(path, problem=str(error)))
            continue
        told = _Told(path, file.footer.rows, expires_us=_expires_us(file))
        _fill(told, ranges_of(file), asked.trims, asked.compacted)
        found.append(told)
    return found


def _expires_us(file: ArchiveFile) -> int:
    if not file.footer.expiring:
        return NEVER
    return max(AT_ONCE, file.footer.minimum["expires_at"])


def _fill(
    file: RecordsFile | _Told,
    ranges: Sequence[Range],
    trims: Trims,
    compacted: Collection[tuple[int, int]],
) -> None:
    """Say of a file what follows from what it covers."""
    offsets = sum(one.end - one.first for one in ranges)
    kept = sum(one.end - one.first for one in trims.kept(ranges))
    file.share = (offsets - kept) / offsets
    file.has_deleted = any(trims.is_deleted(one.topic_id) for one in ranges)
    file.held = [
        Held(*one, file.rows * (one.end - one.first) // offsets)
        for one in ranges
        if one[:2] in compacted
    ]
