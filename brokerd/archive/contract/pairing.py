# Tests: tests/archive/test_job.py
"""Whether an archive and a log belong together as they are now, before the job changes either.

The one or the other may be an older copy that was brought back, or the archive may be another one,
or not be mounted. Then nothing may be taken, removed or vacuumed, and no archive be made.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path

from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.contract.layout import ARCHIVE_APP, EVENTS, RECORDS, ROLLUP_APP, SEGMENT_APP
from brokerd.archive.contract.pin import (
    FILE_BYTES_MAX,
    FILE_NAME,
    GIVE_UP,
    Pin,
    archive_id,
    decode_pin,
    segment_mark,
)
from brokerd.archive.delta.table import Table, open_tables
from brokerd.archive.journal.pending import end_of_log, first_lsns
from brokerd.archive.run import JobFailed
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.regular_file import open_regular, read_regular
from brokerd.errors import DamagedData
from brokerd.walformat import SEGMENT_HEADER_BYTES, FormatError, decode_segment_header


def check_together(data_dir: Path, root: Place, bounds: Bounds) -> None:
    """Refuse an archive that is not that of the log as it is now. Changes nothing.

    :raises JobFailed: it is not; it says why, and what to do.
    :raises BrokerdError: the archive cannot be read.
    """
    relied = _read_relied(data_dir / "state" / FILE_NAME)
    opened = open_tables(root, bounds.log_id)
    tables = {name: opened[name] for name in (RECORDS.name, EVENTS.name) if name in opened}
    if relied is not None:
        _check_relied(relied, root, tables)
    _check_log(data_dir / "wal", bounds, tables)


def _read_relied(path: Path) -> Pin | None:
    try:
        return decode_pin(read_regular(path, FILE_BYTES_MAX))
    except FileNotFoundError:
        return None
    except DamagedData as error:
        raise JobFailed(f"{path}: {error}; restart the broker, which sees to it") from None


def _check_relied(relied: Pin, root: Place, tables: dict[str, Table]) -> None:
    for layout in (RECORDS, EVENTS):
        if layout.name not in tables:
            raise JobFailed(
                f"{root / layout.name} is not there, and the log let go of what it has below LSN "
                f"{relied.lsn}: is the disk mounted, is archive.uri right? Bring it back, {GIVE_UP}"
            )
    records, events = tables[RECORDS.name], tables[EVENTS.name]
    problem = relied.problem(
        archive_id(records.transaction(ARCHIVE_APP)),
        min(table.transaction(ROLLUP_APP) for table in (records, events)),
    )
    if problem:
        raise JobFailed(f"{root}: {problem}. Bring the right one back, {GIVE_UP}")


def _check_log(wal: Path, bounds: Bounds, tables: dict[str, Table]) -> None:
    """Refuse a log that is older than the archive: what it does next, the archive has not."""
    end = end_of_log(wal, bounds)
    for table in tables.values():
        lsn = table.transaction(ROLLUP_APP)
        if lsn > end:
            raise JobFailed(
                f"the archive has the log up to LSN {lsn}, and {wal} ends at {end}: an "
                "older copy of the log was brought back; bring back an archive that is not newer, "
                "or name another archive"
            )
        if not is_of(wal, lsn, table.transaction(SEGMENT_APP)):
            raise JobFailed(
                f"the archive has the log up to LSN {lsn}, and {wal} holds another segment there: "
                "an older copy of the log was brought back and has grown since; bring back the "
                "newest log, or an archive that is not newer than that copy, or name another one"
            )


def is_of(wal: Path, lsn: int, mark: int) -> bool:
    """Whether nothing in the log says that it was another one that was archived up to an LSN."""
    firsts = first_lsns(wal)
    at = bisect_left(firsts, lsn) - 1
    if not mark or at < 0:
        return True
    with suppress(FileNotFoundError, FormatError):  # it is deleted now; or damaged, told elsewhere
        with open(open_regular(wal / f"{firsts[at]:020d}.wal"), "rb") as file:
            header = decode_segment_header(file.read(SEGMENT_HEADER_BYTES))
            end_lsn = firsts[at] + os.fstat(file.fileno()).st_size
        return end_lsn < lsn or (end_lsn == lsn and segment_mark(header.segment_id) == mark)
    return True
