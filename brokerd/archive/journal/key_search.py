# Tests: tests/archive/test_erase.py
"""Finds the records of one key in the journal, in sealed and in open files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.journal.frame_scan import JournalFile, open_journal, scan_closed, scan_tail
from brokerd.archive.journal.records import lost_batches, read_records_of
from brokerd.archive.journal.sealed import (
    Batches,
    DamagedBatch,
    DamagedSegment,
    batches_of,
    open_sealed,
)
from brokerd.archive.journal.segment_list import damaged_places, first_lsns
from brokerd.errors import NewerFormat

_COLUMNS = ("topic_id", "partition", "offset", "key")


class SegmentRecords(NamedTuple):
    """The records of the key in a journal file."""

    file: str
    """The name of the file."""
    first_lsn: int
    end_lsn: int
    """The end of the file, or of its last frame if it is open."""
    is_sealed: bool
    records: int


class JournalSearch(NamedTuple):
    """The result of `search_journal`."""

    segments: tuple[SegmentRecords, ...]
    """The files with records of the key, in order."""
    problems: tuple[str, ...]
    """Places that cannot be read, and may hold records of the key."""


def search_journal(
    wal: Path, bounds: Bounds, topic_ids: Collection[int], key: bytes
) -> JournalSearch:
    """Find the records of a key of some topics in all files of a journal.

    A file that the broker deletes meanwhile counts as deleted. Raises OSError.
    """
    segments: list[SegmentRecords] = []
    problems: list[str] = []
    damage = damaged_places(bounds)
    lsns = first_lsns(wal)
    for first_lsn, next_lsn in zip(lsns, [*lsns[1:], None], strict=False):
        path = wal / f"{first_lsn:020d}.wal"
        try:
            found = _search(path, next_lsn, topic_ids, key, damage.get(path.name, []), problems)
        except FileNotFoundError:
            continue
        except (DamagedBatch, DamagedSegment, NewerFormat) as error:
            problems.append(str(error))
            continue
        if found.records:
            segments.append(found)
    return JournalSearch(tuple(segments), tuple(problems))


def _search(
    path: Path,
    next_lsn: int | None,
    topic_ids: Collection[int],
    key: bytes,
    damage: Collection[tuple[int, int]],
    problems: list[str],
) -> SegmentRecords:
    fd, file = open_journal(path)
    try:
        try:
            sealed = open_sealed(path)
            batches, end_lsn, is_sealed = batches_of(sealed.index), sealed.end_lsn, True
        except FileNotFoundError:
            if next_lsn is None:
                scan = scan_tail(fd, file)
            else:
                scan = scan_closed(fd, file, next_lsn - file.first_lsn)
            batches, end_lsn, is_sealed = scan.batches, file.first_lsn + scan.end, False
        batches = batches.select(np.isin(batches.topic_id, list(topic_ids)))
        lost = lost_batches(
            batches, damage, lambda some: read_records_of(fd, file, some, {}, _COLUMNS)
        )
        if lost.any():
            problems.append(
                f"{path} has {int(lost.sum())} unreadable batches of the topic in known damage"
            )
        records = sum(_counts(fd, file, batches.select(~lost), key))
    finally:
        os.close(fd)
    return SegmentRecords(os.path.basename(path), file.first_lsn, end_lsn, is_sealed, records)


def _counts(fd: int, file: JournalFile, batches: Batches, key: bytes) -> Iterator[int]:
    """Yield the number of records with a key in each part of some batches."""
    if not len(batches.position):
        return
    for rows in read_records_of(fd, file, batches, {}, _COLUMNS):
        is_key = pc.equal(rows["key"], pa.scalar(key, pa.binary()))
        yield pc.sum(pc.fill_null(is_key, False)).as_py() or 0
