# Tests: tests/archive/test_erase.py
"""The job of ``brokerctl archive erase``: docs/archive-erase.rst.

It holds the locks of a rollup. It rewrites files (`brokerd.archive.maintain.erase`), also those of
typed tables, lets the broker read the new version, deletes the old files, and searches typed tables
and journal.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.contract.bounds import Bounds, TopicBounds
from brokerd.archive.contract.layout import RECORDS, ROLLUP_APP, STAGING, UNFINISHED
from brokerd.archive.data_dir import (
    SCRATCH,
    WAL,
    archive_lock,
    check_data_dir,
    read_bounds,
    rollup_lock,
)
from brokerd.archive.delta.vacuum import HOUR_MS, least_hours
from brokerd.archive.errors import JobFailed
from brokerd.archive.job import check_pairing, iceberg, open_paired_tables
from brokerd.archive.journal.copies import delete_copies
from brokerd.archive.journal.key_search import SegmentRecords, search_journal
from brokerd.archive.maintain.erase import (
    HeldRecords,
    KeySearch,
    ReplacedFile,
    delete_old_files,
    erase_key,
    old_files,
)
from brokerd.archive.run import Run, Settings
from brokerd.archive.storage.address import Place
from brokerd.archive.typed.erase import (
    TypedRows,
    delete_old_typed_files,
    erase_typed,
    typed_rows,
)
from brokerd.archive.typed.layouts import REJECTED, ROWS, table_name
from brokerd.errors import BrokerdError

END_LSN = 1 << 63
"""An LSN above all others."""


class EraseJob(NamedTuple):
    """The configuration of an erasure."""

    data_dir: Path
    root: Place
    """The archive."""
    settings: Settings
    now_ms: Callable[[], int]
    """The wall clock in milliseconds."""
    topic: str
    key: bytes
    deletes_now: bool = True
    """Whether to delete the old files at once. If not, a rollup does after ``vacuum_hours``."""
    notify: Callable[[], str] = lambda: ""
    """Lets the broker read the newest version. Returns a problem; "" for none."""
    failpoint: Callable[[str], None] = lambda name: None
    """Is called at named points, where tests stop the process."""


class JournalRecords(NamedTuple):
    """The records of the key in a journal file, and the event after which they are gone."""

    segment: SegmentRecords
    is_archived: bool
    """Whether the archive has the whole file, so that the broker may delete it."""


class EraseReport(NamedTuple):
    """The proof of an erasure."""

    archive: str
    topic_ids: tuple[int, ...]
    """The id of the topic, then those of its internal topics."""
    version_before: int
    """The versions of the table ``records``."""
    version_after: int
    files_read: int
    rows_before: int
    """All rows of the files that may hold the topic."""
    rows_after: int
    found_before: int
    """Records of the key in the archive."""
    found_after: int
    replaced: tuple[ReplacedFile, ...]
    held: tuple[HeldRecords, ...]
    """Records that stay in the archive, because a group still uses them."""
    deleted: tuple[str, ...]
    """Old files that were deleted; those of typed tables begin with ``typed/``."""
    old: tuple[str, ...]
    """Old files that stay until ``delete_after_ms``."""
    old_hours: int
    """For how long old files stay that are not deleted at once, also those of typed tables."""
    delete_after_ms: int | None
    """The first complete rollup after this time deletes the old files; None: they are deleted, or
    the rollup deletes none."""
    typed_erased: int
    """Rows that were removed from typed tables."""
    typed: tuple[TypedRows, ...]
    """Files of typed tables that still have rows of the key: live ones and older ones."""
    journal: tuple[JournalRecords, ...]
    problems: tuple[str, ...]
    """Files that could not be read, and may hold records of the key."""

    @property
    def erased(self) -> int:
        """Return the number of erased records."""
        return sum(one.erased for one in self.replaced)

    @property
    def is_complete(self) -> bool:
        """Return whether neither archive, typed tables nor journal have a record of the key."""
        left = self.found_after or self.held or self.old or self.typed or self.journal
        return not (left or self.problems)


def run_erase(job: EraseJob) -> EraseReport:
    """Erase the records of a key, and return the proof.

    :raises RollupLocked: a rollup is at work.
    :raises JobFailed: there is no such topic, or the archive does not have the expected rows.
    :raises BrokerdError: the archive is foreign, does not belong to the log, or cannot be read.
    :raises OSError: a write failed. Commits before it stay, and the next run goes on there.
    """
    check_data_dir(job.data_dir)
    with rollup_lock(job.data_dir), SparkRunner(_no_spark) as spark:
        bounds, _ = read_bounds(job.data_dir)
        topic_ids = _topic_ids(bounds, job.topic)
        tables = open_paired_tables(job.data_dir, job.root, bounds)
        if RECORDS.name not in tables:
            raise JobFailed(f"{job.root} has no table {RECORDS.name}: nothing was archived yet")
        with archive_lock(job.root):
            check_pairing(job.data_dir, job.root, bounds, tables)
            run = Run(
                root=job.root,
                bounds=bounds,
                settings=job.settings,
                tables=tables,
                spark=spark,
                now_ms=job.now_ms,
                failpoint=job.failpoint,
            )
            return _erase(job, run, topic_ids)


def _erase(job: EraseJob, run: Run, topic_ids: tuple[int, ...]) -> EraseReport:
    below = {
        (topic.id, index): partition.compact_below
        for topic, index, partition in run.bounds.partitions()
        if topic.id in topic_ids
    }
    search = KeySearch(frozenset(topic_ids), job.key, below)
    done = erase_key(run, search)
    problems = list(done.after.problems)
    typed_erased = 0
    if not problems:  # a record in an unreadable file would count as gone
        typed_erased = erase_typed(run, topic_ids[0], job.key, problems)
    table = run.tables[RECORDS.name]
    if problem := job.notify():
        problems.append(problem)
    with suppress(FileNotFoundError):
        shutil.rmtree(job.data_dir / SCRATCH)  # Spark's rows of a killed rollup
    old, deleted = old_files(table, search), list[str]()
    if job.deletes_now and old and not run.store.is_local:
        table.keep_out_earlier_files(now_ms=run.now_ms())
        live = set(table.paths())
        old = [path for path in old if path not in live]
    if job.settings.iceberg:
        try:
            iceberg(run, cleans=False, keeps_older=not job.deletes_now)
        except BrokerdError as error:
            problems.append(str(error))
    if job.deletes_now:
        run.failpoint("before erase deletes")
        delete_old_files(table, old)
        _delete_leftovers(run, topic_ids[0])
        old, deleted = [], [*old, *delete_old_typed_files(run, topic_ids[0], problems)]
    typed = typed_rows(run, topic_ids[0], job.key, problems)
    found = search_journal(job.data_dir / WAL, run.bounds, topic_ids, job.key)
    taken_lsn = table.transaction(ROLLUP_APP)
    old_hours = least_hours(run.store, job.settings.vacuum_hours)
    return EraseReport(
        archive=str(job.root),
        topic_ids=topic_ids,
        version_before=done.version_before,
        version_after=table.version,
        files_read=done.before.files + done.after.files,
        rows_before=done.before.rows,
        rows_after=done.after.rows,
        found_before=done.before.erasable + sum(one.records for one in done.before.held),
        found_after=done.after.erasable + sum(one.records for one in done.after.held),
        replaced=done.replaced,
        held=done.after.held,
        deleted=tuple(deleted),
        old=tuple(old),
        old_hours=old_hours,
        delete_after_ms=(
            job.now_ms() + old_hours * HOUR_MS if old and job.settings.vacuum else None
        ),
        typed_erased=typed_erased,
        typed=typed,
        journal=tuple(JournalRecords(one, one.end_lsn <= taken_lsn) for one in found.segments),
        problems=(*problems, *found.problems),
    )


def _delete_leftovers(run: Run, topic_id: int) -> None:
    """Delete unfinished work of stopped rollups. The locks are held, so none is at work."""
    run.store.delete([one.path for one in run.store.list(STAGING, hidden=True)])
    for part in (ROWS, REJECTED):
        paths = [one.path for one in run.store.list(table_name(topic_id, part))]
        run.store.delete([one for one in paths if one.rpartition("/")[2].startswith(UNFINISHED)])
    if not run.store.is_local:  # an archive in a directory has no copies of the journal
        delete_copies(run.store, END_LSN)


def _topic_ids(bounds: Bounds, name: str) -> tuple[int, ...]:
    """Return the id of a topic and of the internal topics that serve it. Raises JobFailed."""
    found: TopicBounds | None = next(
        (one for one in bounds.topics if one.name == name and not one.internal_of), None
    )
    if found is None:
        raise JobFailed(
            f"there is no topic {name!r}; `brokerctl topic list` lists them. The records of a "
            "deleted topic go with the next complete run of brokerd-rollup"
        )
    return (found.id, *(one.id for one in bounds.topics if one.internal_of == found.id))


def _no_spark() -> NoReturn:
    raise JobFailed("an erasure starts no Spark")
