# Tests: tests/archive/test_job.py
"""Runs the job that maintains an archive: ingest, derive, clean, vacuum. It needs Spark.

`run_job` holds the lock, checks that log and archive belong together, and calls the steps in order.
`brokerd.rollup` is its command line. Each step gets a `brokerd.archive.run.Run`.

The job runs with or without a broker, and reads only ``state`` and ``wal`` of a data directory. One
job at a time works on the archive of a data directory. Each step commits its own work and starts
from the content of the archive, so the next job continues a stopped job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from brokerd.archive.cluster.progress import NoProgress, Progress
from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.contract.bounds import FILE_NAME, Bounds
from brokerd.archive.contract.layout import EVENTS, LAYOUTS, RECORDS, ROLLUP_APP
from brokerd.archive.contract.pairing import check_pin
from brokerd.archive.contract.pin import Pin
from brokerd.archive.contract.schemas import FILE_NAME as SCHEMAS_NAME
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.data_dir import (
    WAL,
    archive_lock,
    check_data_dir,
    read_bounds,
    rollup_lock,
)
from brokerd.archive.delta.table import Table, TableConflict
from brokerd.archive.delta.tables import Tables, ensure_tables, open_tables
from brokerd.archive.delta.vacuum import remove_temporaries
from brokerd.archive.errors import JobFailed
from brokerd.archive.ingest.ingest import IngestReport, ingest_log
from brokerd.archive.ingest.plan import Lot, LotLimits, plan_lot
from brokerd.archive.journal.log_check import check_log, read_pin
from brokerd.archive.journal.segment_list import end_of_log
from brokerd.archive.maintain.merge_policy import SMALL_ROUND_GROWTH
from brokerd.archive.run import Run, Settings, StepReport, count_text
from brokerd.archive.storage.access import FileAccess, apply_access
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import Store
from brokerd.archive.typed.derive import derive_typed, publish_schemas
from brokerd.archive.typed.layouts import typed_layouts
from brokerd.errors import BrokerdError, install_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_LIMIT = 1 << 62
CONFLICT = (
    "the run has stopped. If no other brokerd-rollup uses this archive, a copy of the data "
    "directory does: give each copy an archive of its own"
)


class Job(NamedTuple):
    """The configuration of a job."""

    data_dir: Path
    root: Place
    """The archive."""
    settings: Settings
    open_spark: Callable[[], AbstractContextManager[SparkSession]]
    """Starts Spark. It is called when a step needs Spark."""
    now_ms: Callable[[], int]
    """The wall clock in milliseconds."""
    free_bytes: Callable[[Path], int]
    """Returns the free space of the disk that holds an existing directory."""
    only: Sequence[str] = ()
    """Names of the topics to clean; empty for all."""
    failpoint: Callable[[str], None] = lambda name: None
    """Is called at named points, where tests stop the process."""
    progress: Progress = NoProgress()
    access: FileAccess = FileAccess()
    """The access of other users to the archive's files, if it is a directory."""
    is_small: bool = False
    """Only ingest, and merge small files in this process. The other steps wait for another run."""
    tables: Tables | None = None
    """The tables that an earlier run opened, which this run continues to read; empty for none."""


@dataclass
class JobReport:
    """The report of a job."""

    ingest: IngestReport = field(default_factory=IngestReport)
    steps: list[StepReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Errors that an operator must handle."""

    @property
    def has_committed(self) -> bool:
        """Return whether the job changed the archive."""
        return bool(self.ingest.lots or any(step.lines for step in self.steps))

    @property
    def stop_reason(self) -> str:
        """Return the reason why the ingest stopped; "" if it reached the end of the log."""
        return self.ingest.stop.reason if self.ingest.stop is not None else ""

    @contextmanager
    def collect_problems(self, root: Place) -> Iterator[None]:
        """Catch an error, and add it to the problems. Raises TableConflict, which ends the run.

        :param root: the text begins with it if the error names no file.
        """
        problem = ""
        try:
            yield
        except TableConflict:
            raise
        except BrokerdError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename or root}: {error.strerror or error}"
        if problem and problem not in self.problems:
            self.problems.append(problem)


def run_job(job: Job) -> JobReport:
    """Run all steps, and return the report, which has the errors of the steps.

    The other steps also run after a failed ingest. They need only the archive, and may free the
    space that the ingest lacks. A conflict with another job ends the run.

    :raises RollupLocked: another job works on the data directory or the archive.
    :raises BrokerdError: the data directory or its bounds are missing. Or the archive is foreign,
        or does not belong to the present log.
    """
    report = JobReport()
    check_data_dir(job.data_dir)
    with rollup_lock(job.data_dir), SparkRunner(job.open_spark, job.progress) as spark:
        # The bounds are read under the lock: before it, another job may have ingested more.
        bounds, data = read_bounds(job.data_dir)
        only = _topic_ids(job.only, bounds)
        if job.tables:
            tables = job.tables
        else:
            tables = open_paired_tables(job.data_dir, job.root, bounds)
        with archive_lock(job.root):
            if isinstance(job.root, Path):
                apply_access(job.root, job.access)
            check_pairing(job.data_dir, job.root, bounds, tables)  # another job may have just ended
            run = Run(
                root=job.root,
                bounds=bounds,
                settings=job.settings,
                tables=ensure_tables(job.root, bounds.log_id, job.now_ms(), tables),
                spark=spark,
                now_ms=job.now_ms,
                only=only,
                failpoint=job.failpoint,
            )
            if not job.is_small:
                for table in run.tables.values():
                    table.keep_out_writers(job.now_ms())
            if job.tables is not None:
                job.tables.update(run.tables)
            try:
                _run_steps(job, run, data, report)
            except TableConflict as error:
                report.problems.append(f"{error}; {CONFLICT}")
    stop = report.ingest.stop
    if stop is not None and stop.is_problem:
        report.problems.append(stop.reason)
    return report


def _run_steps(job: Job, run: Run, bounds: bytes, report: JobReport) -> None:
    """Ingest the log, maintain the archive, and fill the report. Raises TableConflict."""
    with report.collect_problems(job.root):
        publish_bounds(run.store, bounds)
        ingest_log(run, job.data_dir / WAL, partial(_free_bytes, job), report.ingest)
    if not job.settings.typed and not job.is_small:
        with report.collect_problems(job.root):
            publish_schemas(run, job.data_dir / "state" / SCHEMAS_NAME)
    if job.settings.typed and (report.ingest.lots or not job.is_small):
        with report.collect_problems(job.root):
            check_pairing(job.data_dir, job.root, run.bounds, run.tables)
            schemas = publish_schemas(run, job.data_dir / "state" / SCHEMAS_NAME)
            collect = partial(report.collect_problems, job.root)
            report.steps.append(derive_typed(run, schemas, job.is_small, collect))
    if job.is_small:
        if report.ingest.lots:
            with report.collect_problems(job.root), run.spark.here():
                _merge(job, run, report)
            _write_iceberg(job, run, report)
        return
    with report.collect_problems(job.root):
        for step in steps(job.settings):
            check_pairing(job.data_dir, job.root, run.bounds, run.tables)
            report.steps.append(step(run))
    with report.collect_problems(job.root):
        step_report = describe(run)
        if step_report.lines:
            report.steps.append(step_report)
    _write_iceberg(job, run, report)
    if job.settings.vacuum:
        with report.collect_problems(job.root):
            check_pairing(job.data_dir, job.root, run.bounds, run.tables)
            collect = partial(report.collect_problems, job.root)
            report.steps.append(vacuum(run, collect))


def _write_iceberg(job: Job, run: Run, report: JobReport) -> None:
    """Write Iceberg metadata if the option is set, also after a failed step."""
    if job.settings.iceberg:
        with report.collect_problems(job.root):
            check_pairing(job.data_dir, job.root, run.bounds, run.tables)
            report.steps.append(iceberg(run, cleans=not job.is_small))


def _merge(job: Job, run: Run, report: JobReport) -> None:
    """Merge small files, and remove nothing: what a run removes has to be counted before."""
    settings = run.settings._replace(
        derived=False, retention=False, compaction=False, events_days=0
    )
    merging = replace(run, settings=settings, merge_growth=SMALL_ROUND_GROWTH)
    for step in steps(settings):
        check_pairing(job.data_dir, job.root, run.bounds, run.tables)
        report.steps.append(step(merging))


def steps(settings: Settings) -> list[Callable[[Run], StepReport]]:
    """Return the steps after the ingest, in order. If a step fails, the later steps are skipped.

    Derived tables come first, because they need records that later steps remove.
    """
    from brokerd.archive.derive.deliveries import derive_deliveries
    from brokerd.archive.derive.hourly import derive_hourly
    from brokerd.archive.maintain.clean import clean
    from brokerd.archive.maintain.history import maintain_history

    selected: list[Callable[[Run], StepReport]] = []
    if settings.derived:
        selected += [derive_deliveries, derive_hourly]
    if settings.retention or settings.compaction or settings.merge:
        selected.append(clean)
    if settings.merge or settings.events_days:
        selected.append(maintain_history)
    return selected


def describe(run: Run) -> StepReport:
    """Add statistics to files of older versions."""
    from brokerd.archive.maintain.describe import describe_files

    return describe_files(run)


def iceberg(run: Run, *, cleans: bool, keeps_older: bool = True) -> StepReport:
    """Add the new versions of the tables to their Iceberg metadata. Return the counts.

    :param cleans: delete unused metadata files.
    :param keeps_older: False: only the newest snapshots stay.
    """
    try:
        from brokerd.archive.iceberg.export import write_iceberg
    except ModuleNotFoundError as missing:
        raise JobFailed(
            f"archive.iceberg needs a library that is not installed ({missing.name}): "
            f"{install_text('iceberg')}"
        ) from missing
    return write_iceberg(run, cleans=cleans, keeps_older=keeps_older)


def vacuum(
    run: Run, collect: Callable[[], AbstractContextManager[None]] = nullcontext
) -> StepReport:
    """Delete the files that no recent version of the tables needs. Return the counts.

    The present time is the wall clock's, but never later than the broker's time for removal, which
    does not follow a clock that jumped.

    :param collect: makes a context for each typed table. It collects the errors of the table, so
        that the other tables go on.
    """
    files, hours = 0, run.settings.vacuum_hours
    now_ms = min(run.now_ms(), run.bounds.time_us // 1000)
    for layout in LAYOUTS.values():
        run.failpoint(f"before vacuum of {layout.name}")
        files += len(run.tables[layout.name].vacuum(hours, now_ms))
    for layout in typed_layouts(run.store):
        with collect():
            table = Table(run.root, layout, run.bounds.log_id)
            files += len(table.vacuum(hours, now_ms))
    remove_temporaries(run.root, hours, now_ms)
    lines = [f"deleted {count_text(files, 'file')} that no version needs"] if files else []
    return StepReport("vacuum", {"files": files}, lines)


def plan_job(job: Job) -> Iterator[Lot]:
    """Yield the planned lots of a job, without any change. Needs neither Spark nor the lock.

    :raises BrokerdError: for the reasons of `run_job`.
    """
    bounds, _ = read_bounds(job.data_dir)
    _topic_ids(job.only, bounds)
    tables = open_paired_tables(job.data_dir, job.root, bounds)
    records_lsn, events_lsn = (
        tables[layout.name].transaction(ROLLUP_APP) if layout.name in tables else 0
        for layout in (RECORDS, EVENTS)
    )
    limits = LotLimits(job.settings.lot_bytes, job.settings.file_bytes, NO_LIMIT)
    while True:
        lot = plan_lot(job.data_dir / WAL, bounds, records_lsn, events_lsn, limits)
        yield lot
        if lot.stop is not None:
            return
        records_lsn, events_lsn = max(records_lsn, lot.end_lsn), max(events_lsn, lot.end_lsn)


# -- Inputs --------------------------------------------------------------------------------------


def open_paired_tables(data_dir: Path, root: Place, bounds: Bounds) -> Tables:
    """Open the existing tables, and check that they belong to the present log. Change nothing.

    :raises BrokerdError: a table belongs to another log, or cannot be read.
    """
    pin = read_pin(data_dir)  # before the tables: the broker may raise the pin at any time
    tables = open_tables(root, bounds.log_id)
    _check_tables(data_dir, root, bounds, tables, pin)
    return tables


def check_pairing(data_dir: Path, root: Place, bounds: Bounds, tables: Tables) -> None:
    """Read the newest version of the open tables, and check again that they belong to the log.

    :raises BrokerdError: another log has changed a table, or a table cannot be read.
    """
    pin = read_pin(data_dir)
    for layout in (RECORDS, EVENTS):
        if layout.name in tables:
            tables.newest(layout)
    _check_tables(data_dir, root, bounds, tables, pin)


def _check_tables(
    data_dir: Path, root: Place, bounds: Bounds, tables: Tables, pin: Pin | None
) -> None:
    end_lsn = end_of_log(data_dir / WAL, bounds)
    states = {name: tables[name].state for name in (RECORDS.name, EVENTS.name) if name in tables}
    archive_id = states[RECORDS.name].archive_id if RECORDS.name in states else ""
    for layout in (RECORDS, EVENTS):
        where, state = str(root / layout.name), states.get(layout.name)
        if state is not None:  # the number of the table of records is the archive's id
            state = state._replace(archive_id=archive_id)
            check_log(data_dir / WAL, end_lsn, state, where)
        check_pin(pin, state, where)


def publish_bounds(store: Store, data: bytes) -> None:
    """Copy the bounds beside the tables, for readers that have only the archive."""
    with suppress(FileNotFoundError, ArchiveUnavailable):  # missing, longer or unreadable: write it
        if store.read(FILE_NAME, len(data)) == data:
            return
    store.put(FILE_NAME, data)


def _free_bytes(job: Job) -> int:
    """Return the free bytes of the archive's disk. A bucket has no limit."""
    return job.free_bytes(job.root) if isinstance(job.root, Path) else NO_LIMIT


def _topic_ids(names: Sequence[str], bounds: Bounds) -> frozenset[int] | None:
    if not names:
        return None
    ids = {topic.name: topic.id for topic in bounds.topics if not topic.internal_of}
    for name in names:
        if name not in ids:
            raise JobFailed(f"there is no topic {name!r}; `brokerctl topic list` lists them")
    return frozenset(ids[name] for name in names)
