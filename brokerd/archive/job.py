# Tests: tests/archive/test_job.py
"""The job that keeps an archive: takes the log into it, derives, cleans, vacuums. Needs Spark.

It works beside a broker or without one, and reads no more of a data directory than ``state/bounds``
and ``wal``. One job at a time has a data directory's archive: ``run/rollup.lock`` is held by fcntl,
so that it is free as soon as the process is gone. Each step commits what it did by itself, and
looks at what is there before it begins; so a job that is stopped anywhere is gone on with by the
next one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from brokerd.archive.contract.bounds import FILE_BYTES_MAX, FILE_NAME, Bounds, decode_bounds
from brokerd.archive.contract.layout import EVENTS, LAYOUTS, RECORDS
from brokerd.archive.contract.pairing import check_pin
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import ensure_tables, open_tables
from brokerd.archive.delta.vacuum import remove_temporaries
from brokerd.archive.ingest.ingest import RolledUp, roll_up
from brokerd.archive.ingest.plan import Lot, plan_lot
from brokerd.archive.journal.pairing import check_log, read_pin
from brokerd.archive.journal.segment_list import end_of_log
from brokerd.archive.run import JobFailed, Progress, Quiet, Run, Settings, StepReport, counted
from brokerd.archive.serve.lazy import LazyArchive
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.regular_file import read_regular
from brokerd.archive.storage.store import Store
from brokerd.errors import BrokerdError, DamagedData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK_NAME = "rollup.lock"
NO_LIMIT = 1 << 62


class RollupLocked(BrokerdError):
    """Another job is at work."""

    retryable = True


class Job(NamedTuple):
    """What to do, and with what."""

    data_dir: Path
    root: Place
    """Where the archive is."""
    settings: Settings
    open_spark: Callable[[], AbstractContextManager[SparkSession]]
    """Starts Spark; called when there is something for it to do."""
    now_ms: Callable[[], int]
    """The wall clock in milliseconds."""
    free_bytes: Callable[[Path], int]
    """How much may be written to the disk that holds a directory, which is there."""
    only: Sequence[str] = ()
    """Names of the topics that removing and merging is limited to; none: all."""
    at: Callable[[str], None] = lambda point: None
    """Called at points with names, where tests stop the process."""
    progress: Progress = Quiet()


@dataclass
class Summary:
    """What a job did."""

    rolled_up: RolledUp = field(default_factory=RolledUp)
    steps: list[StepReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What somebody has to do something about."""

    @property
    def has_committed(self) -> bool:
        """Whether the archive is another than before."""
        return bool(self.rolled_up.lots or any(step.lines for step in self.steps))

    @property
    def left(self) -> str:
        """Why no more of the log was taken; "" if nothing is left, or nothing was looked at."""
        return self.rolled_up.stop.reason if self.rolled_up.stop is not None else ""

    @contextmanager
    def telling(self, root: Place) -> Iterator[None]:
        """Add what goes wrong to the problems; ``root`` is the place if nothing else is named."""
        problem = ""
        try:
            yield
        except BrokerdError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename or root}: {error.strerror or error}"
        if problem and problem not in self.problems:
            self.problems.append(problem)


def _free_bytes(job: Job) -> int:
    """How much may be written to the archive; a bucket has no limit."""
    return job.free_bytes(job.root) if isinstance(job.root, Path) else NO_LIMIT


def run_job(job: Job) -> Summary:
    """Do all of it. What goes wrong after the beginning is in the summary.

    The steps after a rollup that failed are done all the same: they need nothing that is not in the
    archive, and may free the space that the rollup lacks.

    :raises RollupLocked: another one is at work.
    :raises BrokerdError: there is nothing to begin with: no data directory, no bounds, an archive
        that is somebody else's, or is not that of the log as it is now.
    """
    summary = Summary()
    _check_data_dir(job.data_dir)
    with locked(job.data_dir), ExitStack() as stack:
        # Another job may have taken more of the log while this one waited to begin.
        told = _bounds_bytes(job.data_dir)
        bounds = _decoded(job.data_dir, told)
        only = _topic_ids(job.only, bounds)
        check_pairing(job.data_dir, job.root, bounds)
        tables = ensure_tables(job.root, bounds.log_id, job.now_ms())
        spark = _Session(job, stack)
        run = Run(
            root=job.root,
            bounds=bounds,
            settings=job.settings,
            spark=spark.get,
            now_ms=job.now_ms,
            only=only,
            at=job.at,
            progress=job.progress,
        )
        with summary.telling(job.root):
            publish_bounds(run.store, told)
            free_bytes = partial(_free_bytes, job)
            roll_up(run, job.data_dir / "wal", tables, free_bytes, summary.rolled_up)
        with summary.telling(job.root):
            for step in steps(job.settings):
                summary.steps.append(step(run))
        if job.settings.vacuum:
            with summary.telling(job.root):
                summary.steps.append(vacuum(run))
    stop = summary.rolled_up.stop
    if stop is not None and stop.is_problem:
        summary.problems.append(stop.reason)
    return summary


def steps(settings: Settings) -> list[Callable[[Run], StepReport]]:
    """What is done after the rollup, in order; if one fails, those after it are left out.

    Derived first, for it needs what is removed then.
    """
    from brokerd.archive.derive.deliveries import derive_deliveries
    from brokerd.archive.derive.hourly import derive_hourly
    from brokerd.archive.maintain.clean import clean
    from brokerd.archive.maintain.history import keep_history

    found: list[Callable[[Run], StepReport]] = []
    if settings.derived:
        found += [derive_deliveries, derive_hourly]
    if settings.retention or settings.compaction or settings.merge:
        found.append(clean)
    if settings.merge or settings.events_days:
        found.append(keep_history)
    return found


def vacuum(run: Run) -> StepReport:
    """Delete what no version of the tables needs that was the newest in the last hours."""
    files = 0
    for layout in LAYOUTS.values():
        run.at(f"before vacuum of {layout.name}")
        table = Table(run.root, layout, run.bounds.log_id)
        files += len(table.vacuum(run.settings.vacuum_hours, run.now_ms()))
    remove_temporaries(run.root, run.settings.vacuum_hours, run.now_ms())
    lines = [f"deleted {counted(files, 'file')} that no version needs"] if files else []
    return StepReport("vacuum", {"files": files}, lines)


def plan_job(job: Job) -> Iterator[Lot]:
    """What a job would take from the log, lot by lot. Changes nothing, needs no Spark and no lock.

    :raises BrokerdError: as `run_job` does.
    """
    bounds = read_bounds(job.data_dir)
    _topic_ids(job.only, bounds)
    open_tables(job.root, bounds.log_id)
    check_pairing(job.data_dir, job.root, bounds)
    view = LazyArchive(job.root, bounds.log_id).refresh()
    records_lsn, events_lsn = (view.records_lsn, view.events_lsn) if view is not None else (0, 0)
    while True:
        lot = plan_lot(
            job.data_dir / "wal",
            bounds,
            records_lsn,
            events_lsn,
            lot_bytes=job.settings.lot_bytes,
            file_bytes=job.settings.file_bytes,
            room_bytes=NO_LIMIT,
        )
        yield lot
        if lot.stop is not None:
            return
        records_lsn, events_lsn = max(records_lsn, lot.end_lsn), max(events_lsn, lot.end_lsn)


# -- What is there -------------------------------------------------------------------------------


def read_bounds(data_dir: Path) -> Bounds:
    """What the broker said last.

    :raises JobFailed: there is no such file, or it is damaged; it says what to do.
    :raises NewerFormat: a later version of brokerd wrote it.
    """
    return _decoded(data_dir, _bounds_bytes(data_dir))


def _check_data_dir(data_dir: Path) -> None:
    if not (data_dir / "wal").is_dir():
        raise JobFailed(f"{data_dir} is no data directory of a broker; name one with --data-dir")


def _bounds_bytes(data_dir: Path) -> bytes:
    _check_data_dir(data_dir)
    path = data_dir / "state" / FILE_NAME
    try:
        return read_regular(path, FILE_BYTES_MAX)
    except FileNotFoundError:
        raise JobFailed(
            f"{path} is not there: no broker that knows of archives has run here yet; start it once"
        ) from None


def _decoded(data_dir: Path, told: bytes) -> Bounds:
    try:
        return decode_bounds(told)
    except DamagedData as error:
        path = data_dir / "state" / FILE_NAME
        raise JobFailed(f"{path} is damaged: {error}; start the broker, which writes it") from None


def check_pairing(data_dir: Path, root: Place, bounds: Bounds) -> None:
    """Refuse an archive that does not belong to the log as it is now. Changes nothing.

    :raises BrokerdError: it does not, or cannot be read.
    """
    pin = read_pin(data_dir)
    tables = open_tables(root, bounds.log_id)
    end_lsn = end_of_log(data_dir / "wal", bounds)
    states = {name: tables[name].state for name in (RECORDS.name, EVENTS.name) if name in tables}
    archive_id = states[RECORDS.name].archive_id if RECORDS.name in states else ""
    for layout in (RECORDS, EVENTS):
        where, state = str(root / layout.name), states.get(layout.name)
        if state is not None:  # the number of the table of records is the archive's id
            state = state._replace(archive_id=archive_id)
            check_log(data_dir / "wal", end_lsn, state, where)
        check_pin(pin, state, where)


def publish_bounds(store: Store, told: bytes) -> None:
    """Have a copy of the bounds beside the tables, for those who read the archive alone."""
    with suppress(FileNotFoundError, ArchiveUnavailable):  # then it is written
        if store.read(FILE_NAME, len(told)) == told:
            return
    store.put(FILE_NAME, told)


def _topic_ids(names: Sequence[str], bounds: Bounds) -> frozenset[int] | None:
    if not names:
        return None
    known = {topic.name: topic.id for topic in bounds.topics if not topic.internal_of}
    for name in names:
        if name not in known:
            raise JobFailed(
                f"there is no topic {name!r}; `brokerctl topic list` shows those there are"
            )
    return frozenset(known[name] for name in names)


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Hold the lock on a data directory's archive.

    :raises RollupLocked: another process holds it; its id is named.
    """
    directory = data_dir / "run"
    directory.mkdir(exist_ok=True)
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            raise RollupLocked(
                f"another brokerd-rollup is at work in {data_dir}, process {owner}"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        yield
    finally:
        os.close(descriptor)


class _Session:
    """Spark, from when it is first needed to the end of the job."""

    def __init__(self, job: Job, stack: ExitStack) -> None:
        self._job = job
        self._stack = stack
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        if self._session is None:
            self._job.progress.begin("starting Spark", 0)
            try:
                self._session = self._stack.enter_context(self._job.open_spark())
            finally:
                self._job.progress.end()
        return self._session
