# Tests: tests/spark/test_query_plan.py
"""The end of a log, and the end of a micro-batch of a stream. No pyspark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from brokerd.archive.contract.bounds import FILE_NAME, decode_bounds_head
from brokerd.archive.journal.segment_list import first_lsns, is_deleted
from brokerd.spark.location import STATE, WAL, Location
from brokerd.spark.plan.archive_files import read_archive
from brokerd.spark.plan.end_proofs import read_end_proofs
from brokerd.spark.plan.journal import end_of_file
from brokerd.spark.plan.log_snapshot import (
    TRIES,
    files_deleted_error,
    read_bounds,
    readable,
    take_snapshot,
)


class LogEnd(NamedTuple):
    """The id of a log and its end LSN."""

    log_id: str
    lsn: int


def log_end(location: Location, tail: bool = True) -> LogEnd:
    """Return the end of a log. It reads less than `take_snapshot`, and raises the same errors.

    :param tail: whether to read the open journal file.
    """
    if location.data_dir is None:
        snapshot = take_snapshot(location)
        return LogEnd(snapshot.log_id, snapshot.stable_lsn)
    root = Path(location.data_dir)
    with readable(root):
        for _ in range(TRIES):
            bounds = read_bounds(root / STATE / FILE_NAME, decode_bounds_head)
            archive = read_archive(location.archive, bounds.log_id)
            archived_lsn = 0 if archive is None else archive.records_lsn
            proofs = read_end_proofs(root, bounds)
            with suppress(FileNotFoundError):
                lsn = max(archived_lsn, _journal_end(root / WAL, tail))
                ends = [one.end_lsn for one in proofs if tail or one.first_lsn is not None]
                if is_deleted(root / WAL, lsn) or lsn < max(ends, default=0):
                    # A deletion since the reading of the archive, known damage, or an error.
                    lsn = take_snapshot(location, tail).end_lsn
                return LogEnd(bounds.log_id, lsn)
    raise files_deleted_error(location)


def _journal_end(wal: Path, tail: bool) -> int:
    """Return the last journal file's end LSN; its first LSN if it is open and ``tail`` is false."""
    for lsn in first_lsns(wal)[-1:]:
        path = wal / f"{lsn:020d}.wal"
        if not tail and not path.with_suffix(".idx").exists():
            return lsn
        return end_of_file(path)
    return 0


def batch_end(location: Location, first_lsn: int, max_bytes: int, tail: bool = True) -> LogEnd:
    """Return the end of a micro-batch of about ``max_bytes`` of the log from an LSN on.

    Deleted parts of the log count as empty. Raises the errors of `take_snapshot`.
    """
    snapshot = take_snapshot(location, tail)
    spans = []
    if snapshot.archive is not None:
        files = snapshot.archive.files
        columns = [files[name].to_pylist() for name in ("first_lsn", "last_lsn", "content")]
        spans += [row for row in zip(*columns, strict=True) if row[0] >= 0]
    spans += [
        (file.first_lsn, file.end_lsn - 1, file.end_lsn - file.first_lsn)
        for file in snapshot.journal.files
        if file.first_lsn >= snapshot.archived_lsn
    ]
    lsn = lsn_after_bytes(spans, first_lsn, snapshot.stable_lsn, max_bytes)
    return LogEnd(snapshot.log_id, lsn)


def lsn_after_bytes(
    spans: Sequence[tuple[int, int, int]], first: int, end: int, max_bytes: int
) -> int:
    """Return the LSN above ``first`` at which spans reach ``max_bytes``; ``end`` at most.

    :param spans: smallest LSN, largest LSN, and bytes, which count as evenly spread between them.
    """
    slopes: dict[int, float] = {}
    for low, high, size in spans:
        if high >= first:
            slope = max(1, size) / (high + 1 - low)
            low = max(low, first)
            slopes[low] = slopes.get(low, 0.0) + slope
            slopes[high + 1] = slopes.get(high + 1, 0.0) - slope
    lsn, slope, total = first, 0.0, 0.0
    for at in sorted(slopes):
        more = slope * (at - lsn)
        if total + more >= max_bytes and slope > 0:
            lsn += int((max_bytes - total) / slope)
            break
        total, lsn, slope = total + more, at, slope + slopes[at]
    else:
        return end
    return min(max(lsn, first + 1), end)
