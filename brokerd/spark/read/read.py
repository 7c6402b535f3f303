# Tests: tests/spark/test_read.py
"""Reads what a split says. No pyspark.

All files of a split are opened before the first row of it is given. One that went since the plan
was made is read from the newest version of the archive instead: a part of the journal is what has
the same LSNs there, a part of a file with one partition what has the same offsets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from brokerd.archive.contract.layout import parse_records_name
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.journal.frame_scan import JournalFile, walk_closed
from brokerd.archive.journal.pending import is_deleted
from brokerd.archive.journal.records import lost_to_damage, read_records_of
from brokerd.archive.journal.sealed import Batches
from brokerd.errors import BrokerdError
from brokerd.spark.location import WAL
from brokerd.spark.plan.parts import Part, Times, batches_with_times, wanted
from brokerd.spark.plan.plan import Split
from brokerd.spark.plan.predicate import ALL, Predicate, Within
from brokerd.spark.read.archive_files import (
    Check,
    FilePart,
    files_wanted,
    open_part,
    parts_of_files,
    read_archive,
    rows_of,
    sift,
)
from brokerd.spark.read.shipped_segments import open_index, open_piece

TRIES = 4
"""How often files are looked for anew that go meanwhile."""

Rows = Callable[[], Iterator[pa.RecordBatch]]
"""Reads what is open."""


def read_split(split: Split) -> Iterator[pa.RecordBatch]:
    """The rows of a split: its columns, with the types of the table ``records``.

    :raises BrokerdError: something cannot be read, or is damaged.
    """
    try:
        for rows in _open_all(split):
            yield from rows()
    except OSError as error:
        where = error.filename or split.place.data_dir or split.place.archive
        raise BrokerdError(f"{where} cannot be read: {error.strerror or error}") from error


def _open_all(split: Split) -> list[Rows]:
    opened = []
    for part in split.parts:
        opened += _open_journal_part(split, part)
    for file in split.files:
        opened += _open_file(split, file, split.sieve, TRIES)
    return opened


# -- Archive -------------------------------------------------------------------------------------


def _open_file(split: Split, part: FilePart, sieve: Predicate, tries: int) -> list[Rows]:
    try:
        file = open_part(split.place.archive, part)
    except ArchiveUnavailable as error:
        if not isinstance(error.__cause__, FileNotFoundError) or not tries:
            raise
        return _open_instead(split, part, sieve, tries)
    return [lambda: rows_of(file, part, sieve, split.columns)]


def _open_instead(split: Split, part: FilePart, sieve: Predicate, tries: int) -> list[Rows]:
    """What the newest version has of a file that went."""
    only = parse_records_name(part.path).only
    if only is None:
        raise ArchiveUnavailable(
            f"{part.path} of {split.place.archive} was merged, and deleted by vacuum since the "
            "query was planned: run it again; archive.vacuum_hours says how long a query may take"
        )
    key = only.topic_id, only.partition
    within = sieve.of(*key)
    if within is None:
        return []
    within = within.and_within(Within(only.first, only.end)).and_within(part.offsets)
    partitions = frozenset([only.partition])
    sieve = sieve.between(*key[:1], *key[:1])._replace(partitions=partitions, limits={key: within})
    return _open_archived(split, sieve, 0, tries - 1)


def _open_archived(split: Split, sieve: Predicate, lsn: int, tries: int) -> list[Rows]:
    """What the newest version has, which must have the log up to an LSN."""
    archive = read_archive(split.place.archive, split.log_id)
    if archive is None and not lsn:
        return []
    if archive is None or archive.records_lsn < lsn:
        there = "nothing" if archive is None else f"the log up to LSN {archive.records_lsn} only"
        raise ArchiveUnavailable(
            f"a file of the journal up to LSN {lsn} is gone, and the archive "
            f"{split.place.archive} has {there}: bring the one or the other back"
        )
    opened = []
    for part in parts_of_files(files_wanted(archive.files, sieve), 1 << 62):
        opened += _open_file(split, part, sieve, tries)
    return opened


# -- Journal -------------------------------------------------------------------------------------


class _Open(NamedTuple):
    """An open file of the journal; closed when nobody refers to it."""

    file: JournalFile
    descriptor: Any
    batches: Batches
    """Those of a part that are wanted."""


def _open_journal_part(split: Split, part: Part) -> list[Rows]:
    try:
        opened = _open_part(split, part)
    except FileNotFoundError:
        opened = None
    if opened is not None:
        found = opened
        return [lambda: _journal_rows(split, found)]
    first, end = part.lsns
    lsns = split.sieve.lsns.and_within(Within(first, end))
    archive_lsn = end
    if split.place.data_dir is not None:
        wal = Path(split.place.data_dir, WAL)
        if not wal.is_dir():
            raise BrokerdError(
                f"{wal} is not there on a machine where tasks run, and what they are to read of it "
                "is not archived yet: run the query where the data directory is, or load the "
                "archive by itself"
            )
        if is_deleted(wal, part.file.first_lsn):
            archive_lsn = 0  # what the archive does not have, either, was removed
    return _open_archived(split, split.sieve._replace(lsns=lsns), archive_lsn, TRIES)


def _open_part(split: Split, part: Part) -> _Open | None:
    """Open what a part is of; None: another file took its place. Raises FileNotFoundError."""
    fd, file = open_piece(part.file.path, part.first, part.end)
    descriptor = os.fdopen(fd, "rb", buffering=0)
    if (file.segment_id, file.first_lsn) != part.file[1:3]:
        return None
    if part.file.has_index:
        found = batches_with_times(open_index(part.file.path))
    else:
        walked = walk_closed(fd, file, part.end, part.first)
        found = Times(walked.batches, walked.times_us)
    position = found.batches.position
    mask = wanted(found, file.first_lsn, split.sieve)
    batches = found.batches.select(mask & (position >= part.first) & (position < part.end))
    return _Open(file, descriptor, _readable(split, fd, file, part.name, batches))


def _readable(split: Split, fd: int, file: JournalFile, name: str, batches: Batches) -> Batches:
    """Batches without those that damage took which the broker knows."""

    def read(some: Batches) -> Iterator[pa.RecordBatch]:
        return read_records_of(fd, file, some, split.names)

    return batches.select(~lost_to_damage(batches, split.damage.get(name, ()), read))


def _journal_rows(split: Split, opened: _Open) -> Iterator[pa.RecordBatch]:
    sieve = split.sieve
    batches = opened.batches
    low, high = sieve.spans(batches.topic_id, batches.partition, lambda row: "")
    is_whole = (batches.base_offset >= low) & (batches.base_offset + batches.count <= high)
    check = Check(
        keys=not bool(is_whole.all()),
        names=False,
        times=sieve.times_us != ALL,
        lsns=False,
        expiry=True,
    )
    columns = list(dict.fromkeys([*split.columns, *check.columns()]))
    fd = opened.descriptor.fileno()
    for rows in read_records_of(fd, opened.file, batches, split.names, columns):
        mask = sift(rows, sieve, ALL, check)
        some = rows if mask is None else rows.filter(pa.array(mask))
        if len(some):
            yield some.select(list(split.columns))
