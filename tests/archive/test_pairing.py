"""An archive and a log that do not belong together are told from those that do."""

from __future__ import annotations

import pytest

from brokerd.archive.contract.pairing import SegmentEnd, TableState, check_pin, log_problem
from brokerd.archive.contract.pin import Pin, segment_hash
from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive

ONE, OTHER = b"1" * 16, b"2" * 16
PIN = Pin("a" * 16, 100)


def state(archive_id: str = "a" * 16, lsn: int = 100) -> TableState:
    return TableState(archive_id, lsn, segment_hash(ONE))


@pytest.mark.parametrize(("pin", "table"), [(PIN, state()), (PIN, state(lsn=300)), (None, None)])
def test_an_archive_with_all_that_the_log_deleted_passes(
    pin: Pin | None, table: TableState | None
) -> None:
    check_pin(pin, table, "/archive")


@pytest.mark.parametrize(
    ("table", "error", "match"),
    [
        (None, ArchiveUnavailable, "/archive does not exist.* the disk is mounted"),
        (state("b" * 16, 200), ForeignArchive, "/archive is another archive"),
        (state(lsn=99), ForeignArchive, "/archive holds the log up to LSN 99 only"),
    ],
)
def test_an_archive_that_lacks_what_the_log_deleted_is_refused(
    table: TableState | None, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        check_pin(PIN, table, "/archive")


@pytest.mark.parametrize(
    ("table", "end_lsn", "segment", "problem"),
    [
        (state(), 100, SegmentEnd(100, ONE), ""),
        (state(), 999, None, ""),
        (state()._replace(segment_hash=0), 999, SegmentEnd(100, OTHER), ""),
        (state(), 99, None, "but the log ends at 99"),
        (state(), 999, SegmentEnd(100, OTHER), "the log has another segment"),
        (state(), 999, SegmentEnd(101, ONE), "the log has another segment"),
    ],
)
def test_a_log_is_compared_at_the_place_that_the_archive_reaches(
    table: TableState, end_lsn: int, segment: SegmentEnd | None, problem: str
) -> None:
    """It has the same segment there, or none any more; an old archive does not say which."""
    found = log_problem(table, end_lsn, lambda lsn: segment if lsn == table.lsn else None)
    assert problem in found
    assert bool(problem) == bool(found)
