# Tests: tests/spark/test_log_snapshot.py
"""A snapshot of a log: archive and journal at one moment, so that each record counts once.

The archive is read before the journal. Records below the LSN of the archive's version come from the
archive, later records from the journal. If the broker deletes a journal file in between, a newer
version of the archive has the file, or its records were removed. Then the snapshot is taken again.

Copies of journal files beside an archive alone leave no record of their deletion. They are listed
before the archive is read: it has the records of each copy that is missing later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from brokerd.archive.contract.bounds import (
    FILE_BYTES_MAX,
    FILE_NAME,
    Bounds,
    Decoded,
    decode_bounds,
)
from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.contract.pairing import check_pin
from brokerd.archive.delta.log_files import COMMITS
from brokerd.archive.journal.log_check import check_log, read_pin
from brokerd.archive.journal.segment_list import (
    end_of_damage,
    end_of_known_gap,
    end_of_log,
    first_lsns,
)
from brokerd.archive.storage.address import place_of
from brokerd.archive.storage.regular_file import read_regular
from brokerd.archive.storage.store import open_store
from brokerd.errors import BrokerdError, DamagedData
from brokerd.spark.location import STATE, WAL, BadLocation, Location
from brokerd.spark.plan.archive_files import ArchiveVersion, read_archive, read_archive_log_id
from brokerd.spark.plan.end_proofs import EndProof, broken_proof, read_end_proofs
from brokerd.spark.plan.journal import Journal, UnreadableJournal, read_journal
from brokerd.spark.plan.shipped_segments import list_copies, open_copies
from brokerd.spark.plan.topic_state import TopicState

TRIES = 8
"""How often a snapshot is tried again because files were deleted during the reading."""


class LogSnapshot(NamedTuple):
    """A log at one moment."""

    log_id: str
    bounds: Bounds
    topics: TopicState
    archive: ArchiveVersion | None
    journal: Journal
    """The journal from the end of the archive on, or from the LSN of the bounds if lower."""
    has_data_dir: bool = True

    @property
    def has_bounds(self) -> bool:
        """Return whether the topics are known. If not, the rows give their names."""
        return self.bounds.next_topic_id > 1 or self.has_data_dir

    @property
    def archived_lsn(self) -> int:
        """Return the end LSN of the archive."""
        return 0 if self.archive is None else self.archive.records_lsn

    @property
    def end_lsn(self) -> int:
        """Return the end LSN of the log."""
        return max(self.archived_lsn, self.journal.end_lsn)

    @property
    def stable_lsn(self) -> int:
        """Return the LSN below which records stay readable. Copies beside an archive may vanish."""
        return self.end_lsn if self.has_data_dir else self.archived_lsn


def take_snapshot(location: Location, tail: bool = True) -> LogSnapshot:
    """Take a snapshot of a log.

    :param tail: whether to read the open journal file.
    :raises BrokerdError: the log cannot be read, or archive and journal do not belong together.
    """
    if location.data_dir is None:
        for _ in range(TRIES):
            with suppress(FileNotFoundError):
                return _snapshot_archive(location)
        raise files_deleted_error(location)
    root = Path(location.data_dir)
    with readable(root):
        return _snapshot_log(location, root, tail)


def _snapshot_log(location: Location, root: Path, tail: bool) -> LogSnapshot:
    before: object = None
    for _ in range(TRIES):
        bounds = read_bounds(root / STATE / FILE_NAME, _decode_bounds)
        pin = read_pin(root)
        archive = read_archive(location.archive, bounds.log_id)
        check_pin(pin, None if archive is None else archive.state, location.archive)
        if archive is not None:
            end_lsn = _end_lsn_max(root / WAL, bounds)
            check_log(root / WAL, end_lsn, archive.state, location.archive)
        proofs = read_end_proofs(root, bounds)
        since = min(bounds.lsn, 0 if archive is None else archive.records_lsn)
        try:
            journal = read_journal(root / WAL, bounds, since, tail)
        except FileNotFoundError:
            continue
        version = -1 if archive is None else archive.version
        state = bounds.lsn, bounds.time_us, version, journal.gaps
        problem = _problem(root, bounds, journal) or _lost_end(root, bounds, proofs, journal, tail)
        if (journal.gaps or problem) and state != before:
            before = state
            continue
        if problem:
            raise UnreadableJournal(problem)
        topics = TopicState(bounds)
        topics.apply(journal.changes)
        return LogSnapshot(bounds.log_id, bounds, topics, archive, journal)
    raise files_deleted_error(location)


def _problem(root: Path, bounds: Bounds, journal: Journal) -> str:
    """Describe the missing part of a journal's bounds; return "" if they are complete."""
    for first, end in journal.gaps:
        if end > bounds.lsn and end_of_damage(bounds, max(first, bounds.lsn)) < end:
            return (
                f"{root / STATE / FILE_NAME} gives the state at LSN {bounds.lsn}, and the journal "
                f"up to {end} was deleted since: deleted topics and removed records are unknown. "
                "Run the query again. If the error stays, find out why the broker cannot write "
                "that file"
            )
    return ""


def _lost_end(
    root: Path, bounds: Bounds, proofs: list[EndProof], journal: Journal, tail: bool
) -> str:
    """Describe the lost end of a journal; return "" if the end is complete."""
    proof = broken_proof(root, bounds, proofs, journal.end_lsn, tail)
    lsn = end_of_known_gap(root / WAL, bounds, journal.end_lsn)
    last = journal.files[-1].path if journal.files else root / WAL
    if proof is None:
        if journal.files and journal.files[-1].is_empty and lsn == journal.end_lsn:
            return (
                f"{last} holds no frame, and a broker gives a file its name when it has one: the "
                "file was cut; bring it back, or start the broker, which finds the loss"
            )
        return ""
    return (
        f"{last}, the end of the journal, ends at LSN {lsn}, but by {proof.path} the journal was "
        f"on the disk up to {proof.end_lsn}: the file was damaged or cut, or later files are gone; "
        "bring them back, or start the broker, which finds the loss"
    )


def files_deleted_error(location: Location) -> BrokerdError:
    """Return the error for files that were deleted during every attempt."""
    where, files = location.archive, "files of the archive"
    if location.data_dir is not None:
        where, files = location.data_dir, "journal files"
    return BrokerdError(f"{where}: {files} are deleted faster than they are read; run it again")


@contextmanager
def readable(root: Path) -> Iterator[None]:
    """Convert an OSError to a BrokerdError that names the file and the necessary access."""
    try:
        yield
    except OSError as error:
        raise BrokerdError(
            f"{error.filename or root} cannot be read: {error.strerror or error}; the user who "
            "runs the query needs read access to the journal, state/ and the archive"
        ) from error


def read_bounds(path: Path, decode: Callable[[bytes], Decoded]) -> Decoded:
    """Read the bounds of a broker, or their head. Raises BrokerdError and OSError."""
    try:
        return decode(read_regular(path, FILE_BYTES_MAX))
    except FileNotFoundError:
        raise BadLocation(
            f"{path} does not exist: start the broker on this directory, which writes it"
        ) from None
    except DamagedData as error:
        raise DamagedData(
            f"{path} is damaged: {error}; start the broker, which writes it again"
        ) from None


@lru_cache(maxsize=1)
def _decode_bounds(data: bytes) -> Bounds:
    """Decode the bounds, with a cache: decoding many topics is slow, and streams decode often."""
    return decode_bounds(data)


def _snapshot_archive(location: Location) -> LogSnapshot:
    """Take a snapshot of an archive without a journal. Archives of older versions lack bounds."""
    bounds: Bounds | None
    root = place_of(location.archive)
    try:
        bounds = decode_bounds(open_store(root).read(FILE_NAME, FILE_BYTES_MAX))
    except FileNotFoundError:
        log_id = read_archive_log_id(location.archive)
        bounds = None if log_id is None else Bounds(log_id, 0, 0, False, 1, [])
    except DamagedData as error:
        raise DamagedData(
            f"{root / FILE_NAME} is damaged: {error}; run brokerd-rollup, which writes it again"
        ) from None
    copies = list_copies(location.archive)
    archive = None if bounds is None else read_archive(location.archive, bounds.log_id)
    if bounds is None or archive is None:
        raise BadLocation(
            f"{location.archive} is not an archive: it lacks {RECORDS.name}/{COMMITS}/, which "
            "brokerd-rollup creates"
        )
    files = list(open_copies(location.archive, copies, archive.records_lsn, bounds.lsn))
    end_lsn = files[-1].end_lsn if files else archive.records_lsn
    journal = Journal(files, [], end_lsn, {}, ())
    return LogSnapshot(bounds.log_id, bounds, TopicState(bounds), archive, journal, False)


def _end_lsn_max(wal: Path, bounds: Bounds) -> int:
    """Return an upper bound of the log's end LSN. Raises OSError."""
    ends = [end_of_log(wal, bounds)]
    for lsn in first_lsns(wal)[-1:]:
        with suppress(FileNotFoundError):  # deleted: `end_of_log` has it if it was archived
            ends.append(lsn + (wal / f"{lsn:020d}.wal").stat().st_size)
    return max(ends)
