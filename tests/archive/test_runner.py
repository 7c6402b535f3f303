"""What steps do on Spark: named stages, results in order, and one line for what goes wrong."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokerd.archive.cluster.progress import Progress
from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.errors import JobFailed
from brokerd.archive.ingest import tasks
from brokerd.archive.ingest.plan import RecordsSplit
from brokerd.archive.ingest.tasks import Target
from brokerd.archive.parquet.writer import FileInfo
from brokerd.errors import DamagedData
from tests.archive.making import LogMaker
from tests.archive.test_tasks import bounds, plan, target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.slow, pytest.mark.spark_tasks]


def runner(spark: SparkSession, progress: Progress | None = None) -> SparkRunner:
    return SparkRunner(lambda: nullcontext(spark), progress)


def double(number: int) -> int:
    return number * 2


def refuse(number: int) -> int:
    if number == 2:
        raise DamagedData("00.wal at 40: no good")
    return number


def open_missing(path: str) -> bytes:
    return Path(path).read_bytes()


def stumble(number: int) -> float:
    return 1 / number


def die_once(path: str) -> int:
    if not os.path.exists(path):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 7


def die(path: str) -> int:
    with open(path, "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)
    return 7


def fail_twice(path: str) -> int:
    fail_often(path, 2)
    return 7


def fail_always(path: str) -> None:
    fail_often(path, 1000)


def fail_often(path: str, times: int) -> None:
    """Fail as a disk and a server do."""
    with open(path, "a") as file:
        file.write("x")
        attempts = file.tell()
    if attempts <= times:
        if attempts % 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "/disk")
        raise ArchiveUnavailable("s3://bucket/a cannot be read: 503")


def short_of_room_once(item: tuple[str, Target, RecordsSplit]) -> object:
    """Write records while the disk for temporary files is full, for one attempt."""
    path, target, split = item
    write = tasks._write

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/scratch")

    if not os.path.exists(path):
        Path(path).touch()
        tasks._write = full  # type: ignore[assignment]
    try:
        return tasks.write_records((target, split))
    finally:
        tasks._write = write


def spared(item: int) -> int:
    return gc.get_freeze_count()


def test_results_come_in_the_order_of_the_items(spark: SparkSession, tmp_path: Path) -> None:
    """One task an item, and nothing is started for none."""
    assert runner(spark).map("double", double, range(5)) == [0, 2, 4, 6, 8]
    assert runner(spark).map("double", double, []) == []


@pytest.mark.parametrize(
    ("function", "items", "line"),
    [
        (refuse, [1, 2, 3], "step: 00.wal at 40: no good"),
        (open_missing, ["/no/such/file"], "step: /no/such/file: No such file or directory"),
        (stumble, [1, 0], "step: ZeroDivisionError: division by zero"),
    ],
)
def test_what_goes_wrong_in_a_task_is_one_line(
    spark: SparkSession, tmp_path: Path, function: Callable[[object], object], items, line: str
) -> None:
    """It names the step and the reason, whether the error was foreseen or not."""
    with pytest.raises(JobFailed) as caught:
        runner(spark).map("step", function, items)
    assert str(caught.value) == line


def test_the_cause_of_an_error_of_java_is_named(spark: SparkSession) -> None:
    """A full disk of Spark, for example; not how many frames the traces of two errors share."""
    assert spark.sparkContext._jvm is not None
    trace = (
        "Job aborted: NoClassDefFoundError\n\tat a.B.c(B.java:1)\n"
        "Caused by: java.io.IOException: No space left on device\n\tat a.B.d(B.java:2)\n"
        "\t... 59 more\n\nDriver stacktrace:\n\tat e.F(F.java:3)"
    )
    with pytest.raises(JobFailed) as caught, runner(spark).job_group("step"):
        java = spark.sparkContext._jvm.java
        future = java.util.concurrent.CompletableFuture
        future.failedFuture(java.lang.IllegalStateException(trace)).join()
    assert str(caught.value) == "step: java.io.IOException: No space left on device"


def test_a_task_whose_process_is_killed_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    """The result is there as if nothing had happened."""
    assert runner(spark).map("again", die_once, [str(tmp_path / "mark")]) == [7]


def test_a_task_whose_process_is_always_killed_fails_the_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    """After four attempts the job says so in one line."""
    mark = tmp_path / "mark"
    with pytest.raises(JobFailed, match=r"^fatal: a task's process was killed in each attempt"):
        runner(spark).map("fatal", die, [str(mark)])
    assert mark.read_text() == "xxxx"


def test_a_task_is_tried_again_after_an_error_that_may_pass(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of a disk and of a server; after four attempts, the last error is the reason."""
    mark = tmp_path / "mark"
    assert runner(spark).map("again", fail_twice, [str(mark)]) == [7]
    assert mark.read_text() == "xxx"
    mark.unlink()
    with pytest.raises(JobFailed, match=r"^step: s3://bucket/a cannot be read: 503$"):
        runner(spark).map("step", fail_always, [str(mark)])
    assert mark.read_text() == "xxxx"


def test_a_full_disk_of_an_executor_is_not_that_of_the_archive(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Another attempt may run where there is room."""
    (tmp_path / "wal").mkdir()
    maker = LogMaker(tmp_path / "wal")
    maker.append(1, 0, [b"v"])
    maker.seal()
    (split,) = plan(tmp_path / "wal", bounds(1)).records
    item = (str(tmp_path / "mark"), target(tmp_path / "wal"), split)
    (info,) = runner(spark).map("records", short_of_room_once, [item])
    assert isinstance(info, FileInfo) and info.rows == 1


def test_what_a_worker_imports_is_not_looked_at_after_each_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's workers collect garbage then; most of what there is are modules, which stay."""
    assert min(runner(spark).map("counting", spared, range(3))) > 1000


def test_stages_have_the_name_of_their_step(
    spark: SparkSession, tmp_path: Path, event_log: Path
) -> None:
    """Spark's event log tells which step ran; what runs outside of one has no name."""
    run = runner(spark)
    run.map("count by tasks", double, [1])
    with run.job_group("count by frames"):
        assert spark.range(3).count() == 3
    spark.range(4).count()
    named = [
        event["Properties"].get("spark.job.description")
        for path in event_log.iterdir()
        for event in map(json.loads, path.read_text().splitlines())
        if event["Event"] == "SparkListenerJobStart"
    ]
    assert "count by tasks" in named
    assert "count by frames" in named
    assert named[-1] is None


def test_progress_is_shown_while_tasks_run(spark: SparkSession, tmp_path: Path) -> None:
    """A person sees what runs and how much of it is done, in the end too when it failed."""
    shown: list[object] = []

    class Shown:
        def begin(self, name: str, tasks: int) -> None:
            shown.append((name, tasks))

        def advance(self, tasks: int) -> None:
            assert 0 <= tasks <= 2

        def end(self) -> None:
            shown.append("end")

    run = runner(spark, Shown())
    run.map("double", double, [1, 2])
    with pytest.raises(JobFailed):
        run.map("refuse", refuse, [2])
    assert shown == [("starting Spark", 0), "end", ("double", 2), "end", ("refuse", 1), "end"]
