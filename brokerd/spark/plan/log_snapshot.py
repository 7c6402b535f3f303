# Tests: tests/spark/test_log_snapshot.py
"""Looks at a log, archive and journal, at one moment: no record is in both, or in neither.

The archive is looked at before the journal. What the archive's version holds, all below some LSN,
is read from it; what follows, from the journal. If a file of the journal went meanwhile, there is a
newer version of the archive that has it, or its records were removed: then all is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from brokerd.archive.contract.bounds import (
    FILE_BYTES_MAX,
    FILE_NAME,
    Bounds,
    Said,
    decode_bounds,
    decode_bounds_head,
)
from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.contract.pairing import check_pin
from brokerd.archive.delta.log_files import COMMITS
from brokerd.archive.journal.pairing import check_log, read_pin
from brokerd.archive.journal.pending import (
    end_of_damage,
    end_of_known_lack,
    end_of_log,
    first_lsns,
)
from brokerd.archive.storage.address import place_of
from brokerd.archive.storage.regular_file import read_regular
from brokerd.archive.storage.store import open_store
from brokerd.errors import BrokerdError, DamagedData
from brokerd.spark.location import STATE, WAL, Location, NoPlace
from brokerd.spark.plan.journal import Journal, UnreadableJournal, end_of_file, read_journal
from brokerd.spark.plan.topic_state import TopicState
from brokerd.spark.read.archive_files import Archive, log_id_of, read_archive
from brokerd.spark.read.shipped_segments import copied_files
from brokerd.walformat import ALIGNMENT

TRIES = 8
"""How often a log is looked at whose files go meanwhile."""


class LogSnapshot(NamedTuple):
    """A log at one moment."""

    log_id: str
    bounds: Bounds
    known: TopicState
    archive: Archive | None
    journal: Journal
    """From where the archive ends, or the bounds if that is less."""
    is_whole: bool = True
    """Whether there is a data directory."""

    @property
    def has_bounds(self) -> bool:
        """Whether it is known which topics there are; else rows tell their names."""
        return self.bounds.next_topic_id > 1 or self.is_whole

    @property
    def archived_lsn(self) -> int:
        """Records below are in the archive."""
        return 0 if self.archive is None else self.archive.records_lsn

    @property
    def end_lsn(self) -> int:
        """Records from there on come later."""
        return max(self.archived_lsn, self.journal.end_lsn)

    @property
    def lasting_lsn(self) -> int:
        """Records below it are there for good: copies beside an archive may go again."""
        return self.end_lsn if self.is_whole else self.archived_lsn


def look(place: Location, tail: bool = True) -> LogSnapshot:
    """See what there is. Raises BrokerdError: it cannot be read, or is not what it should be."""
    if place.data_dir is None:
        for _ in range(TRIES):
            with suppress(FileNotFoundError):
                return _look_at_archive(place)
        raise too_quick(place)
    root = Path(place.data_dir)
    before: object = None
    try:
        for _ in range(TRIES):
            bounds = read_bounds(root / STATE / FILE_NAME, _decoded)
            pin = read_pin(root)
            archive = read_archive(place.archive, bounds.log_id)
            check_pin(pin, None if archive is None else archive.state, place.archive)
            if archive is not None:
                check_log(root / WAL, _most(root / WAL, bounds), archive.state, place.archive)
            since = min(bounds.lsn, 0 if archive is None else archive.records_lsn)
            try:
                journal = read_journal(root / WAL, bounds, since, tail)
            except FileNotFoundError:
                continue
            state = bounds.lsn, bounds.time_us, -1 if archive is None else archive.version
            lack = _lack(root, bounds, journal, tail)
            if (journal.gaps or lack) and state != before:
                before = state
                continue
            if lack:
                raise UnreadableJournal(lack)
            known = TopicState(bounds)
            known.apply(journal.changes)
            return LogSnapshot(bounds.log_id, bounds, known, archive, journal)
    except OSError as error:
        raise _unreadable(error, root) from error
    raise too_quick(place)


def end_lsn_of(place: Location, tail: bool = True) -> tuple[str, int]:
    """Id of a log, and how far it has got: as `look`, without looking at more than the end."""
    if place.data_dir is None:
        seen = look(place)
        return seen.log_id, seen.lasting_lsn
    root = Path(place.data_dir)
    try:
        for _ in range(TRIES):
            bounds = read_bounds(root / STATE / FILE_NAME, decode_bounds_head)
            archive = read_archive(place.archive, bounds.log_id)
            archived = 0 if archive is None else archive.records_lsn
            with suppress(FileNotFoundError):
                lsn = max(archived, _last_lsn(root / WAL, tail))
                if tail and lsn < bounds.lsn:  # which has a reason, or is an error
                    lsn = look(place).end_lsn
                return bounds.log_id, lsn
    except OSError as error:
        raise _unreadable(error, root) from error
    raise too_quick(place)


def _lack(root: Path, bounds: Bounds, journal: Journal, tail: bool) -> str:
    """What is not there of a journal, or not told of it, that has to be; "" if nothing is amiss."""
    for first, end in journal.gaps:
        if end > bounds.lsn and end_of_damage(bounds, max(first, bounds.lsn)) < end:
            return (
                f"{root / STATE / FILE_NAME} says what was so at LSN {bounds.lsn}, and the journal "
                f"up to {end} was deleted since: topics that were deleted, and records that were "
                "removed, cannot be told. Run the query again, and if it says so again, see why "
                "the broker cannot write that file"
            )
    lsn = end_of_known_lack(root / WAL, bounds, journal.end_lsn)
    if tail and lsn + ALIGNMENT <= bounds.lsn:
        last = journal.files[-1].path if journal.files else root / WAL
        return (
            f"{last}, where the journal ends, ends at LSN {lsn}, and it was on the disk up to "
            f"{bounds.lsn}, says {root / STATE / FILE_NAME}: the file was damaged or cut, or those "
            "after it are gone; bring them back, or start the broker, which finds out what is lost"
        )
    return ""


def _last_lsn(wal: Path, tail: bool) -> int:
    """Where the last file of a journal ends, that is not written to if ``tail`` is not wanted."""
    for lsn in first_lsns(wal)[-1:]:
        path = wal / f"{lsn:020d}.wal"
        if not tail and not path.with_suffix(".idx").exists():
            return lsn
        return end_of_file(path)
    return 0


def too_quick(place: Location) -> BrokerdError:
    """What to say when files went each time that they were looked at."""
    where, what = place.archive, "files of the archive"
    if place.data_dir is not None:
        where, what = place.data_dir, "journal files"
    return BrokerdError(f"{where}: {what} go as fast as they are looked at; run the query again")


def _unreadable(error: OSError, root: Path) -> BrokerdError:
    where = error.filename or root
    return BrokerdError(
        f"{where} cannot be read: {error.strerror or error}; who runs the query must be allowed to "
        "read the journal, state/ and the archive"
    )


def read_bounds(path: Path, decode: Callable[[bytes], Said]) -> Said:
    """The bounds that a broker wrote, or their head. Raises BrokerdError, OSError."""
    try:
        return decode(_read_bounds(path))
    except DamagedData as error:
        raise DamagedData(
            f"{path} is damaged: {error}; start the broker, which writes it"
        ) from None


@lru_cache(maxsize=1)
def _decoded(data: bytes) -> Bounds:
    """As `decode_bounds`, which takes a while where there are many topics: a stream looks often."""
    return decode_bounds(data)


def _read_bounds(path: Path) -> bytes:
    try:
        return read_regular(path, FILE_BYTES_MAX)
    except FileNotFoundError:
        raise NoPlace(
            f"{path} is not there: a broker writes it when it starts; start it on this directory"
        ) from None


def _look_at_archive(place: Location) -> LogSnapshot:
    """An archive by itself, with the bounds that the job left there; older ones left none."""
    bounds: Bounds | None
    try:
        bounds = decode_bounds(open_store(place_of(place.archive)).read(FILE_NAME, FILE_BYTES_MAX))
    except FileNotFoundError:
        log_id = log_id_of(place.archive)
        bounds = None if log_id is None else Bounds(log_id, 0, 0, False, 1, [])
    except DamagedData as error:
        raise DamagedData(
            f"{place_of(place.archive) / FILE_NAME} is damaged: {error}; brokerd-rollup writes it "
            "each time that it runs"
        ) from None
    archive = None if bounds is None else read_archive(place.archive, bounds.log_id)
    if bounds is None or archive is None:
        raise NoPlace(
            f"{place.archive} is no archive: it lacks {RECORDS.name}/{COMMITS}/, which is there as "
            "soon as brokerd-rollup ran"
        )
    files = list(copied_files(place.archive, archive.records_lsn, bounds.lsn))
    end_lsn = files[-1].end_lsn if files else archive.records_lsn
    return LogSnapshot(
        bounds.log_id,
        bounds,
        TopicState(bounds),
        archive,
        Journal(files, [], end_lsn, {}, ()),
        False,
    )


def _most(wal: Path, bounds: Bounds) -> int:
    """An LSN that the log has got no further than. Raises OSError."""
    ends = [end_of_log(wal, bounds)]
    for lsn in first_lsns(wal)[-1:]:
        with suppress(FileNotFoundError):  # then its end is in the bounds, if anything is in it
            ends.append(lsn + (wal / f"{lsn:020d}.wal").stat().st_size)
    return max(ends)
