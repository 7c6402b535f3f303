# Tests: tests/archive/test_pairing.py
"""Rules that decide whether an archive and a log belong together (docs/archive-format.rst).

An operator may have restored an older copy of log or archive, named another archive, or not mounted
it. Then the broker deletes no segment, and the job changes nothing. Broker, job and Spark source
apply the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from brokerd.archive.contract.pin import Pin, segment_hash
from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive

RESTORE_ARCHIVE = (
    "restore that archive, or give up its records (docs/archive.rst, section Giving an archive up)"
)
RESTORE_LOG = (
    "an older copy of the log was restored. Restore the newest log, or the archive of that time; "
    "or move the archive away, and the job makes a new one"
)


class TableState(NamedTuple):
    """The part of the log that a table of an archive holds."""

    archive_id: str
    """`brokerd.archive.contract.view.ArchiveView.archive_id`."""
    lsn: int
    """The table holds everything that the log held below this LSN."""
    segment_hash: int
    """`brokerd.archive.contract.pin.segment_hash` of the segment that ends there; 0: unknown."""


class SegmentEnd(NamedTuple):
    """A segment of the log."""

    end_lsn: int
    segment_id: bytes


def check_pin(pin: Pin | None, table: TableState | None, where: str) -> None:
    """Refuse an archive that lacks segments that the log has deleted.

    :param pin: read before the table, because the broker may raise it at any time.
    :param table: None if the table does not exist.
    :param where: the archive's address, for error texts.
    :raises ArchiveUnavailable: the table does not exist.
    :raises ForeignArchive: the table lacks a part of the log below the pin.
    """
    if pin is None:
        return
    if table is None:
        raise ArchiveUnavailable(
            f"{where} does not exist, but the log has deleted its segments below LSN {pin.lsn}, "
            f"which are there: check that the disk is mounted and archive.uri is right, or "
            f"{RESTORE_ARCHIVE}"
        )
    if table.archive_id != pin.archive_id:
        raise ForeignArchive(
            f"{where} is another archive (id {table.archive_id or '-'}) than the archive "
            f"with the segments that the log has deleted (id {pin.archive_id or '-'}): "
            f"{RESTORE_ARCHIVE}"
        )
    if table.lsn < pin.lsn:
        raise ForeignArchive(
            f"{where} holds the log up to LSN {table.lsn} only, but the log has deleted its "
            f"segments up to {pin.lsn}: an older copy of the archive was restored, or commits were "
            f"lost; {RESTORE_ARCHIVE}"
        )


def log_problem(
    table: TableState, end_lsn: int, segment_at: Callable[[int], SegmentEnd | None]
) -> str:
    """Describe how a log contradicts its archive; return "" if they agree.

    The log may be older than the archive, or may have gone on differently after a restore.

    :param end_lsn: the end of the log.
    :param segment_at: returns the segment that holds the byte before an LSN, or None.
    """
    if table.lsn > end_lsn:
        return f"the archive holds the log up to LSN {table.lsn}, but the log ends at {end_lsn}"
    segment = segment_at(table.lsn) if table.segment_hash else None
    if segment is None:
        return ""
    if segment.end_lsn == table.lsn and segment_hash(segment.segment_id) == table.segment_hash:
        return ""
    return f"the archive holds the log up to LSN {table.lsn}, where the log has another segment"
