# Tests: tests/archive/test_job.py, tests/spark/test_log_snapshot.py
"""Compares the log of a data directory with its archive, for programs other than the broker."""

from __future__ import annotations

import os
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path

from brokerd.archive.contract.pairing import RESTORE_LOG, SegmentEnd, TableState, log_problem
from brokerd.archive.contract.pin import FILE_BYTES_MAX, FILE_NAME, Pin, decode_pin
from brokerd.archive.contract.view import ForeignArchive
from brokerd.archive.journal.sealed import DamagedSegment, read_header
from brokerd.archive.journal.segment_list import first_lsns
from brokerd.archive.storage.regular_file import open_regular, read_regular
from brokerd.errors import DamagedData, NewerFormat


def read_pin(data_dir: Path) -> Pin | None:
    """Read the pin of a log. Return None if it has none. Raises DamagedData and OSError."""
    path = data_dir / "state" / FILE_NAME
    try:
        return decode_pin(read_regular(path, FILE_BYTES_MAX))
    except FileNotFoundError:
        return None
    except DamagedData as error:
        raise DamagedData(f"{path}: {error}; restart the broker, which removes it") from None


def check_log(wal: Path, end_lsn: int, table: TableState, where: str) -> None:
    """Refuse a log that contradicts its archive: `brokerd.archive.contract.pairing.log_problem`.

    :param end_lsn: the end of the log.
    :param where: the archive's address, for error texts.
    :raises ForeignArchive: the log and the archive do not belong together.
    :raises OSError: the log cannot be read.
    """
    problem = log_problem(table, end_lsn, lambda lsn: _segment_at(wal, lsn))
    if problem:
        raise ForeignArchive(f"{wal} and {where}: {problem}: {RESTORE_LOG}")


def _segment_at(wal: Path, lsn: int) -> SegmentEnd | None:
    """Return the segment that holds the byte before an LSN, or None."""
    firsts = first_lsns(wal)
    at = bisect_left(firsts, lsn) - 1
    if at < 0:
        return None
    # The broker may have deleted the segment. Damage is reported when the job archives the segment.
    path = wal / f"{firsts[at]:020d}.wal"
    with suppress(FileNotFoundError, DamagedSegment, NewerFormat):
        with open(open_regular(path), "rb") as file:
            header = read_header(file.fileno(), path)
            end_lsn = firsts[at] + os.fstat(file.fileno()).st_size
        return SegmentEnd(end_lsn, header.segment_id) if lsn <= end_lsn else None
    return None
