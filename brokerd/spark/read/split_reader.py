# Tests: tests/spark/test_split_reader.py
"""Reads the records of a split. No pyspark.

All files of a split are opened before its first row is returned. Journal files are closed when the
last row is returned, or when the caller closes the iterator. The newest version of the archive
replaces a file that was deleted since the plan. It replaces a part of a journal file by the same
LSNs, and a part of a file of one partition by the same offsets. Nothing replaces a file of an
earlier version that a query names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from brokerd.archive.contract.layout import parse_records_name
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.journal.frame_scan import JournalFile, scan_closed
from brokerd.archive.journal.records import lost_batches, read_records_of
from brokerd.archive.journal.sealed import Batches
from brokerd.archive.journal.segment_list import is_deleted
from brokerd.errors import BrokerdError
from brokerd.spark.location import WAL
from brokerd.spark.plan.archive_files import FilePart, match_files, read_archive, split_files
from brokerd.spark.plan.predicate import UNBOUNDED, Interval, Predicate
from brokerd.spark.plan.query_plan import Split
from brokerd.spark.plan.segment_parts import (
    SegmentPart,
    TimedBatches,
    match_batches,
    read_batches,
)
from brokerd.spark.plan.shipped_segments import open_index, open_segment_part
from brokerd.spark.read.archive_rows import RowChecks, match_rows, open_file_part, read_rows

TRIES = 4
"""How often a deleted file is replaced from a newer version of the archive."""
WHOLE_FILE = 1 << 62
"""A part size so large that no file is divided."""

Reader = Callable[[], Iterator[pa.RecordBatch]]
"""A function that reads the rows of an open file."""


def read_split(split: Split) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of a split: its columns, with the types of the table ``records``.

    :raises BrokerdError: a file cannot be read, or is damaged.
    """
    try:
        with ExitStack() as files:
            for read in _open_all(split, files):
                yield from read()
    except OSError as error:
        where = error.filename or split.location.data_dir or split.location.archive
        raise BrokerdError(f"{where} cannot be read: {error.strerror or error}") from error


def _open_all(split: Split, files: ExitStack) -> list[Reader]:
    """Open the files; ``files`` closes those of the journal."""
    readers = []
    for segment in split.segments:
        readers += _open_segment(split, segment, files)
    for file in split.files:
        readers += _open_file(split, file, split.predicate, TRIES)
    return readers


# -- Archive -------------------------------------------------------------------------------------


def _open_file(split: Split, part: FilePart, predicate: Predicate, tries: int) -> list[Reader]:
    try:
        file = open_file_part(split.location.archive, part)
    except ArchiveUnavailable as error:
        if not isinstance(error.__cause__, FileNotFoundError) or not tries:
            raise
        return _open_replacement(split, part, predicate, tries)
    return [lambda: read_rows(file, part, predicate, split.columns)]


def _open_replacement(
    split: Split, part: FilePart, predicate: Predicate, tries: int
) -> list[Reader]:
    """Open the files of the newest version that have the rows of a deleted file."""
    if split.version is not None:
        raise ArchiveUnavailable(
            f"{part.path} of {split.location.archive}, which version {split.version} needs, was "
            "deleted since the query was planned: newer versions may lack its records, so name a "
            "newer version"
        )
    only = parse_records_name(part.path).only
    if only is None:
        raise ArchiveUnavailable(
            f"{part.path} of {split.location.archive} was merged, and deleted by vacuum since the "
            "query was planned: run the query again; a query may take archive.vacuum_hours"
        )
    key = only.topic_id, only.partition
    offsets = predicate.offsets_of(*key)
    if offsets is None:
        return []
    offsets = offsets.intersect(Interval(only.first, only.end)).intersect(part.offsets)
    predicate = predicate.of_topics(only.topic_id, only.topic_id)._replace(
        partitions=frozenset([only.partition]),
        partition_offsets={key: offsets},
        # The newest version may have topics that the query did not know. They are not of this file.
        first_unknown_id=max(predicate.first_unknown_id, only.topic_id),
        last_unknown_id=only.topic_id,
    )
    return _open_archive(split, predicate, 0, tries - 1)


def _open_archive(split: Split, predicate: Predicate, lsn: int, tries: int) -> list[Reader]:
    """Open the matching files of the newest version, which must hold the log up to an LSN."""
    archive = read_archive(split.location.archive, split.log_id)
    if archive is None and not lsn:
        return []
    if archive is None or archive.records_lsn < lsn:
        state = "is empty" if archive is None else f"ends at LSN {archive.records_lsn}"
        raise ArchiveUnavailable(
            f"a journal file up to LSN {lsn} is gone, and the archive {split.location.archive} "
            f"{state}: bring the file or the archive back"
        )
    readers = []
    for part in split_files(match_files(archive.files, predicate), WHOLE_FILE):
        readers += _open_file(split, part, predicate, tries)
    return readers


# -- Journal -------------------------------------------------------------------------------------


class _OpenPart(NamedTuple):
    """A part of an open journal file."""

    file: JournalFile
    fd: int
    batches: Batches
    """The matching batches."""


def _open_segment(split: Split, part: SegmentPart, files: ExitStack) -> list[Reader]:
    try:
        opened = _open_part(split, part, files)
    except FileNotFoundError:
        opened = None
    if opened is not None:
        found = opened
        return [lambda: _read_part(split, found)]
    first, end = part.lsns
    lsns = split.predicate.lsns.intersect(Interval(first, end))
    archive_lsn = end
    if split.location.data_dir is not None:
        wal = Path(split.location.data_dir, WAL)
        if not wal.is_dir():
            raise BrokerdError(
                f"{wal} does not exist on a machine where tasks run, and a part of it is not "
                "archived yet: run the query on the machine of the data directory, or load the "
                "archive alone"
            )
        if is_deleted(wal, part.file.first_lsn):
            archive_lsn = 0  # the records that the archive lacks were removed
    return _open_archive(split, split.predicate._replace(lsns=lsns), archive_lsn, TRIES)


def _open_part(split: Split, part: SegmentPart, files: ExitStack) -> _OpenPart | None:
    """Open a part, or return None if another file has its name. Raises FileNotFoundError."""
    fd, file = open_segment_part(part.file.path, part.first, part.end)
    files.callback(os.close, fd)
    if (file.segment_id, file.first_lsn) != part.file[1:3]:
        return None
    if part.file.has_index:
        timed = read_batches(open_index(part.file.path))
    else:
        scan = scan_closed(fd, file, part.end, part.first)
        timed = TimedBatches(scan.batches, scan.times_us)
    position = timed.batches.position
    mask = match_batches(timed, file.first_lsn, split.predicate)
    batches = timed.batches.select(mask & (position >= part.first) & (position < part.end))
    return _OpenPart(file, fd, _undamaged(split, fd, file, part.name, batches))


def _undamaged(split: Split, fd: int, file: JournalFile, name: str, batches: Batches) -> Batches:
    """Return the batches that known damage did not destroy."""

    def read(some: Batches) -> Iterator[pa.RecordBatch]:
        return read_records_of(fd, file, some, split.names)

    return batches.select(~lost_batches(batches, split.damage.get(name, ()), read))


def _read_part(split: Split, part: _OpenPart) -> Iterator[pa.RecordBatch]:
    predicate, batches = split.predicate, part.batches
    low, high = predicate.offset_bounds(batches.topic_id, batches.partition, lambda row: "")
    is_whole = (batches.base_offset >= low) & (batches.base_offset + batches.count <= high)
    checks = RowChecks(
        keys=not bool(is_whole.all()),
        names=False,
        times=predicate.times_us != UNBOUNDED,
        lsns=False,
        expiry=True,
    )
    columns = list(dict.fromkeys([*split.columns, *checks.columns()]))
    for rows in read_records_of(part.fd, part.file, batches, split.names, columns):
        mask = match_rows(rows, predicate, UNBOUNDED, checks)
        matching = rows if mask is None else rows.filter(pa.array(mask))
        if len(matching):
            yield matching.select(list(split.columns))
