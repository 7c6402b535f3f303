"""A whole job: on Spark, one at a time, and nothing that is not its business is touched."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from textwrap import dedent
from threading import Timer
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from brokerd.archive.cluster.session import NoSpark
from brokerd.archive.contract.bounds import FILE_NAME, MAGIC, encode_bounds
from brokerd.archive.contract.pin import Pin, archive_id, encode_pin
from brokerd.archive.contract.view import ForeignArchive
from brokerd.archive.data_dir import RollupLocked, rollup_lock
from brokerd.archive.delta.tables import ensure_tables
from brokerd.archive.errors import JobFailed
from brokerd.archive.job import CONFLICT, Job, JobReport, plan_job, run_job
from brokerd.archive.run import Run, Settings, StepReport
from brokerd.errors import BrokerdError, NewerFormat
from brokerd.walformat import (
    SEGMENT_HEADER_BYTES,
    decode_segment_header,
    encode_segment_header,
)
from tests.archive.data import MIB, NO_LIMIT, NOW_MS, Data
from tests.archive.eventlog import jobs_with_tasks
from tests.archive.making import body_position, damage, make_no_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
ALL_STEPS = Settings(file_bytes=MIB)
TAKE_ONLY = ALL_STEPS._replace(
    derived=False, retention=False, compaction=False, merge=False, vacuum=False
)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


def no_spark() -> AbstractContextManager[SparkSession]:
    raise NoSpark("Spark is started for nothing")


def job_of(data: Data, spark: SparkSession | None = None, **changes: Any) -> Job:
    given = {
        "data_dir": data.path,
        "root": data.root,
        "settings": TAKE_ONLY,
        "open_spark": no_spark if spark is None else lambda: nullcontext(spark),
        "now_ms": lambda: NOW_MS,
        "free_bytes": lambda path: NO_LIMIT,
        **changes,
    }
    return Job(**given)


def run(data: Data, spark: SparkSession | None = None, **changes: Any) -> JobReport:
    data.publish()
    return run_job(job_of(data, spark, **changes))


def files_of(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_job_takes_the_log_and_derives(data: Data, spark: SparkSession) -> None:
    """All of it, on Spark; a second one has nothing to do, and starts none."""
    data.fill()
    report = run(data, spark, settings=ALL_STEPS)
    assert report.problems == []
    assert report.has_committed
    assert report.ingest.records == len(data.appended)
    names = [step.name for step in report.steps]
    assert names == ["deliveries", "hourly", "clean", "history", "vacuum"]
    data.check()
    again = run(data, settings=ALL_STEPS)
    assert (again.problems, again.has_committed) == ([], False)
    assert [step.name for step in run(data).steps] == []
    assert again.stop_reason == ""


@pytest.mark.spark_tasks
@pytest.mark.slow
def test_each_step_is_tasks_of_spark(data: Data, spark: SparkSession, event_log: Path) -> None:
    """Spark's event log names them: rollup, deliveries, hourly, retention, compaction."""
    data.fill()
    run(data, spark, settings=ALL_STEPS)
    for turn in range(3):
        data.append(5, 0, *(b"%d of this key" % turn for _ in range(40)), keys=[b"key"] * 40)
    data.append(6, 0, *(b"record %d" % at for at in range(40)))
    data.log.seal()
    run(data, spark, settings=ALL_STEPS)
    data.starts[6] = 20
    data.compacted = {5}
    report = run(data, spark, settings=ALL_STEPS._replace(rewrite_percent=1))
    assert report.problems == []
    left = [record for record in data.records() if record[0] in (5, 6)]
    assert left == [
        (5, 0, 119, b"2 of this key"),
        *((6, 0, at, b"record %d" % at) for at in range(20, 40)),
    ]
    steps = {"rollup records", "rollup events", "deliveries", "hourly", "retention", "compaction"}
    assert steps <= jobs_with_tasks(event_log)


def test_readers_of_the_archive_alone_have_the_bounds(data: Data, spark: SparkSession) -> None:
    """As the last run used them; while there is nothing new, they are left as they are."""
    data.fill()
    for _ in range(2):
        run(data, spark)
        copy = data.root / "bounds"
        assert copy.read_bytes() == (data.path / "state" / "bounds").read_bytes()
        before = copy.stat().st_ino
        run(data)
        assert copy.stat().st_ino == before
        data.starts[1] = 2
        data.fill(1)


@pytest.mark.slow
def test_bounds_that_cannot_be_written_end_no_more_than_the_rollup(
    data: Data, spark: SparkSession
) -> None:
    """The steps after it are done; they may free the space that was lacking."""
    data.fill()
    run(data, spark)
    (data.root / "bounds").unlink()
    (data.root / "bounds").mkdir()
    data.fill(1)
    report = run(data, spark, settings=ALL_STEPS)
    (problem,) = report.problems
    assert problem.startswith(f"{data.root / 'bounds'}") and "cannot be written: " in problem
    assert report.ingest.lots == 0
    assert [step.name for step in report.steps][-1] == "vacuum"


def test_the_log_is_left_as_it_was(data: Data, spark: SparkSession) -> None:
    """Nothing but the archive and ``run`` is written to."""
    data.fill()
    data.publish()
    before = {path: path.read_bytes() for path in files_of(data.path)}
    run_job(job_of(data, spark))
    own = (data.root, data.path / "run")
    after = [path for path in files_of(data.path) if not any(map(path.is_relative_to, own))]
    assert {path: path.read_bytes() for path in after} == before


@pytest.mark.slow
def test_a_problem_of_the_log_is_told_and_the_rest_is_done(data: Data, spark: SparkSession) -> None:
    """What comes before the damage is archived."""
    paths = data.fill(3)
    damage(paths[2], body_position(paths[2], b"value 24"))
    report = run(data, spark, settings=ALL_STEPS)
    assert report.ingest.segments == 2
    (problem,) = report.problems
    assert str(paths[2]) in problem
    assert "deliveries" in [step.name for step in report.steps]


@contextmanager
def locked(lock: str) -> Iterator[int]:
    """Hold a lock of `brokerd.archive.data_dir` in another process, and return its id."""
    script = f"""
        import sys
        from pathlib import Path
        from brokerd.archive.data_dir import archive_lock, rollup_lock
        with {lock}:
            print("locked", flush=True)
            sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        yield other.pid
        other.send_signal(signal.SIGKILL)


def test_two_at_once_is_one(data: Data) -> None:
    """The second one leaves at once, and names the first."""
    data.fill()
    data.publish()
    with locked(f"rollup_lock(Path({str(data.path)!r}))") as pid:
        with pytest.raises(RollupLocked, match=f"process {pid}$") as caught:
            run_job(job_of(data))
        assert caught.value.retryable
    assert not data.root.exists()
    with rollup_lock(data.path):
        pass


def test_a_full_disk_does_not_keep_a_run_from_freeing_space(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock has no process id then."""

    def fail(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fail)
        with rollup_lock(data.path):
            assert (data.path / "run" / "rollup.lock").read_bytes() == b""


def copy_of(data: Data) -> Path:
    """A copy of the data directory, which uses the same archive. Its broker lets all records go."""
    copy = data.path.with_name("copy")
    shutil.copytree(data.path, copy, ignore=shutil.ignore_patterns("archive"))
    kept, data.starts = data.starts, dict.fromkeys(data.starts, 1 << 30)
    (copy / "state" / FILE_NAME).write_bytes(encode_bounds(data.bounds()))
    data.starts = kept
    return copy


def test_a_job_of_a_copy_stops_when_another_one_is_faster(data: Data, spark: SparkSession) -> None:
    """The copy's bounds remove nothing from the archive."""
    data.fill()
    copy = copy_of(data)

    def meanwhile(point: str) -> None:
        if point == "before records commit":
            data.roll_up()

    job = job_of(data, spark, data_dir=copy, settings=ALL_STEPS, failpoint=meanwhile)
    report = run_job(job)
    (problem,) = report.problems
    assert problem.endswith(f"another job ingested this log first; {CONFLICT}")
    assert report.steps == []
    data.check()


def test_a_job_of_a_copy_stops_when_the_archive_goes_ahead(data: Data) -> None:
    """Nothing conflicts, for the copy has nothing to ingest. It removes nothing all the same."""
    data.fill()
    data.roll_up()
    copy = copy_of(data)

    def meanwhile(point: str) -> None:
        if point == "planned":
            data.fill(1)
            data.roll_up()

    settings = ALL_STEPS._replace(derived=False, vacuum_hours=0)
    report = run_job(job_of(data, data_dir=copy, settings=settings, failpoint=meanwhile))
    (problem,) = report.problems
    assert "but the log ends at" in problem
    assert report.steps == []
    data.check()


def test_a_copy_and_its_original_do_not_use_the_archive_at_once(data: Data) -> None:
    """The archive has a lock of its own."""
    data.fill()
    copy = copy_of(data)
    with (
        locked(f"archive_lock(Path({str(data.root)!r}))") as pid,
        pytest.raises(RollupLocked, match=f"at work in {data.root}, process {pid}$"),
    ):
        run_job(job_of(data, data_dir=copy))


def test_a_log_that_ends_with_a_sealed_segment_is_no_older_copy(
    data: Data, spark: SparkSession
) -> None:
    """The broker ended after it sealed a segment, and before it wrote the bounds."""
    data.fill(1)
    data.publish()
    data.fill(1)
    assert run_job(job_of(data, spark)).problems == []
    data.check()
    again = run_job(job_of(data))
    assert (again.problems, again.has_committed) == ([], False)


def test_a_plan_changes_nothing(data: Data, spark: SparkSession) -> None:
    """It says what would be taken, before there is an archive and afterwards."""
    data.fill()
    data.publish()
    before = files_of(data.path)
    (lot,) = plan_job(job_of(data))
    assert len(lot.segments) == 3
    assert files_of(data.path) == before
    run_job(job_of(data, spark))
    (lot,) = plan_job(job_of(data))
    assert lot.segments == ()
    data.fill(2)
    data.publish()
    before = files_of(data.path)
    lots = list(plan_job(job_of(data, settings=Settings(lot_bytes=1))))
    assert [len(lot.segments) for lot in lots] == [1, 1]
    assert files_of(data.path) == before


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (None, r"state/bounds does not exist: start a broker of this version once"),
        (b"", "state/bounds is damaged: the first line is not that of a bounds file; start"),
        (
            MAGIC + b"1 0123456789abcdef\n{}\n",
            "state/bounds is damaged: the checksum does not match",
        ),
    ],
)
def test_without_bounds_nothing_is_done(data: Data, bounds: bytes | None, expected: str) -> None:
    """It says what is missing, and what to do."""
    data.fill()
    if bounds is not None:
        (data.path / "state" / "bounds").write_bytes(bounds)
    for attempt in (run_job, lambda job: list(plan_job(job))):
        with pytest.raises(JobFailed, match=expected):
            attempt(job_of(data))
    assert not data.root.exists()
    (data.path / "state" / "bounds").write_bytes(MAGIC + b"2 0123456789abcdef\n{}\n")
    with pytest.raises(NewerFormat, match="upgrade brokerd"):
        run_job(job_of(data))


@pytest.mark.parametrize("name", ["bounds", "archived"])
def test_a_pipe_in_place_of_what_the_broker_tells_holds_nobody_up(data: Data, name: str) -> None:
    """Nobody would ever write to it."""
    data.publish()
    path = data.path / "state" / name
    make_no_file(path, "pipe")
    with pytest.raises(OSError, match="not a regular file") as raised:
        run_job(job_of(data))
    assert raised.value.filename == str(path)


def test_a_data_directory_without_a_log_is_refused(data: Data) -> None:
    """Whatever else is in it."""
    data.publish()
    data.wal.rmdir()
    with pytest.raises(JobFailed, match="is not a broker's data directory"):
        run_job(job_of(data))


def test_a_directory_that_is_no_brokers_is_refused(tmp_path: Path, data: Data) -> None:
    """Nothing is made in it."""
    (tmp_path / "other").mkdir()
    with pytest.raises(JobFailed, match="other is not a broker's data directory"):
        run_job(job_of(data, data_dir=tmp_path / "other"))
    assert list((tmp_path / "other").iterdir()) == []


def test_somebody_elses_directory_is_no_archive(data: Data) -> None:
    """It is refused before anything is read or written."""
    data.fill()
    data.publish()
    data.root.mkdir()
    (data.root / "photo.jpg").touch()
    with pytest.raises(ForeignArchive, match=r"already holds other files, such as 'photo.jpg'"):
        run_job(job_of(data))
    assert files_of(data.root) == {data.root / "photo.jpg"}


def test_only_names_topics_that_there_are(data: Data) -> None:
    """A wrong name is refused before anything is done."""
    data.fill()
    data.publish()
    with pytest.raises(JobFailed, match="there is no topic 'topic-3'"):
        run_job(job_of(data, only=["topic-1", "topic-3"]))
    assert not data.root.exists()


@pytest.mark.parametrize("jumped", ["wall clock", "broker"])
def test_what_nobody_committed_is_deleted_when_it_is_old(data: Data, jumped: str) -> None:
    """By the wall clock and by the broker's time; a clock that jumped deletes nothing early."""
    data.fill()
    data.roll_up()
    orphan = data.root / "records" / "bucket=1" / "p-1-0-0-9-00000000-0000000000000000.parquet"
    orphan.touch()
    touched_ms = int(orphan.stat().st_mtime * 1000)
    only = TAKE_ONLY._replace(vacuum=True, vacuum_hours=24)
    for hours, lines in ((23, []), (25, ["deleted 1 file that no version needs"])):
        now_ms, jumped_ms = (touched_ms + some * 3_600_000 for some in (hours, 10_000))
        data.log.time_us = 1000 * (now_ms if jumped == "wall clock" else jumped_ms)
        wall_ms = now_ms if jumped == "broker" else jumped_ms
        report = run(data, settings=only, now_ms=lambda wall_ms=wall_ms: wall_ms)
        assert [line for step in report.steps for line in step.lines] == lines
    assert not orphan.exists()
    data.check()


def relied(data: Data, lsn: int) -> None:
    """The broker let go of segments that the archive has."""
    drawn = DeltaTable(str(data.root / "records")).transaction_version("brokerd-archive")
    said = encode_pin(Pin(archive_id(drawn or 0), lsn))
    (data.path / "state" / "archived").write_bytes(said)


def refused(data: Data, match: str) -> None:
    """Both a run and a look at what it would do; nothing is made, changed or deleted."""
    before = files_of(data.root)
    everything = ALL_STEPS._replace(vacuum_hours=0)
    with pytest.raises(BrokerdError, match=match):
        run_job(job_of(data, settings=everything, now_ms=lambda: NOW_MS * 2))
    with pytest.raises(BrokerdError, match=match):
        list(plan_job(job_of(data)))
    assert files_of(data.root) == before


def test_bounds_are_those_of_when_the_job_has_the_lock(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job before it may have taken what came after older ones."""
    data.publish()

    @contextmanager
    def held_by_another(data_dir: Path) -> Iterator[None]:
        with rollup_lock(data_dir):
            data.starts[1] = 2
            data.publish()
            yield

    monkeypatch.setattr("brokerd.archive.job.rollup_lock", held_by_another)
    run_job(job_of(data))
    assert (data.root / "bounds").read_bytes() == (data.path / "state" / "bounds").read_bytes()


def test_no_archive_is_made_in_place_of_one_that_is_not_mounted(data: Data) -> None:
    """Nor is another taken for it; the right one is gone on with."""
    data.fill()
    data.roll_up()
    relied(data, data.log.first_lsn)
    data.fill(1)
    data.publish()
    data.root.rename(data.path / "unmounted")
    data.root.mkdir()
    refused(data, "records does not exist, .* the disk is mounted")
    ensure_tables(data.root, data.bounds().log_id, NOW_MS)
    refused(data, "is another archive .*segments that the log has deleted")
    shutil.rmtree(data.root)
    (data.path / "unmounted").rename(data.root)
    data.roll_up()
    data.check()


@pytest.mark.parametrize("table", ["records", "events"])
def test_an_archive_that_lost_commits_is_not_gone_on_with(data: Data, table: str) -> None:
    """What no commit names any more is not vacuumed."""
    data.fill()
    data.roll_up()
    relied(data, data.log.first_lsn)
    data.publish()
    commits = sorted((data.root / table / "_delta_log").glob("*.json"))
    kept = commits[-1].rename(data.path / "lost")
    refused(data, "holds the log up to LSN 0 only, .*commits were lost")
    kept.rename(commits[-1])
    data.roll_up()
    data.check()


def test_a_damaged_word_of_what_the_log_relies_on_stops_it(data: Data) -> None:
    """The broker has to see it first."""
    data.fill()
    data.roll_up()
    data.publish()
    (data.path / "state" / "archived").write_bytes(b"brokerd archived\n")
    refused(data, "archived is not as a broker wrote it; restart the broker")


def test_another_log_than_was_archived_is_not_taken(data: Data) -> None:
    """An older copy was brought back, and is as long by now as the archive knows the log."""
    paths = data.fill(2)
    data.roll_up()
    data.publish()
    header = bytearray(paths[-1].read_bytes())
    block = decode_segment_header(bytes(header[:SEGMENT_HEADER_BYTES]))
    other = block._replace(segment_id=bytes(16))
    header[:SEGMENT_HEADER_BYTES] = encode_segment_header(other)
    paths[-1].write_bytes(header)
    refused(data, "the log has another segment: an older copy of the log")


def test_without_spark_it_says_so_in_the_summary(data: Data) -> None:
    """Nothing is committed."""
    data.fill()
    assert run(data).problems == ["Spark is started for nothing"]
    assert data.records() == []


def workers() -> list[int]:
    """Process ids of this process's Python workers, and of what makes them."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                names[int(entry.name)] = (entry / "cmdline").read_bytes()
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(status[1])

    def is_ours(pid: int) -> bool:
        while pid not in (0, os.getpid()):
            pid = parents.get(pid, 0)
        return pid != 0

    return [pid for pid, name in names.items() if b"pyspark.daemon" in name and is_ours(pid)]


@pytest.mark.slow
@pytest.mark.spark_tasks
@pytest.mark.parametrize("delay_seconds", [0.0, 0.1, 0.3])
def test_workers_that_are_killed_are_made_again(
    data: Data, spark: SparkSession, delay_seconds: float
) -> None:
    """All of them, before their tasks or among them: nothing is lost or twice there."""
    data.fill(20)
    spark.sparkContext.parallelize(range(2), 2).map(str).collect()
    assert workers()
    killed: list[int] = []
    timers: list[Timer] = []

    def kill() -> None:
        for pid in workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    def at(point: str) -> None:
        if point == "planned" and not timers:  # once, though each lot is planned
            timers.append(Timer(delay_seconds, kill))
            timers[0].start() if delay_seconds else kill()

    report = run(data, spark, failpoint=at, settings=TAKE_ONLY._replace(lot_bytes=1))
    assert report.problems == []
    if delay_seconds:
        timers[0].join()
    assert killed
    data.check()


def test_a_disk_that_fails_is_told_in_the_summary(data: Data) -> None:
    """With the path."""
    data.fill()

    def fail(path: Path) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    report = run(data, free_bytes=fail)
    assert report.problems == [f"{data.root}: Input/output error"]
    assert report.steps == []


def test_a_full_disk_is_cleaned_all_the_same(data: Data, spark: SparkSession) -> None:
    """What nobody needs goes, so that the next run has room."""
    data.append(1, 0, *(b"record %d" % at for at in range(10)))
    data.log.seal()
    run(data, spark)
    data.starts[1] = 10
    data.fill(1)
    report = run(data, spark, settings=ALL_STEPS, free_bytes=lambda path: 100)
    (problem,) = report.problems
    assert problem.startswith("the archive has 100 bytes of free space")
    assert {step.name: step.numbers for step in report.steps}["clean"]["trimmed"] == 10
    assert data.records() == []


def test_a_step_that_fails_leaves_out_those_after_it(
    data: Data, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for vacuum: nothing is removed that is not counted yet."""

    def fail(run: Run) -> StepReport:
        raise JobFailed("deliveries: no good")

    monkeypatch.setattr("brokerd.archive.derive.deliveries.derive_deliveries", fail)
    data.fill(1)
    report = run(data, spark, settings=ALL_STEPS)
    assert report.problems == ["deliveries: no good"]
    assert [step.name for step in report.steps] == ["vacuum"]


@pytest.mark.slow
def test_a_job_that_is_killed_is_gone_on_with(data: Data, spark: SparkSession) -> None:
    """SIGKILL of the driver, wherever it is: each record is in the archive once afterwards."""
    script = f"""
        import os, signal, sys
        from functools import partial
        from pathlib import Path
        from brokerd.archive.job import Job, run_job
        from brokerd.archive.run import Settings
        from brokerd.archive.cluster.session import SparkOptions, spark_session

        def at(point):
            if point == sys.argv[1]:
                os.kill(os.getpid(), signal.SIGKILL)

        data = Path({str(data.path)!r})
        open_spark = partial(
            spark_session, "killed", SparkOptions("local[2]"), data / "run" / "rollup", os.environ
        )
        job = Job(
            data, Path({str(data.root)!r}), Settings(file_bytes={MIB}), open_spark,
            lambda: {NOW_MS}, lambda path: {NO_LIMIT}, failpoint=at,
        )
        run_job(job)
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for point in ("records written", "before records commit", "after records commit"):
        data.fill(2)
        data.publish()
        done = subprocess.run(
            [sys.executable, "-c", dedent(script), point], env=environment, timeout=300
        )
        assert done.returncode == -signal.SIGKILL
    report = run(data, spark)
    assert report.problems == []
    data.check()
