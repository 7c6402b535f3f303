"""The job on executors of their own gives what it gives beside its driver, whoever is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from deltalake import DeltaTable

from benchmarks.held_rollup import CLUSTER, SETTINGS, HeldRollup
from benchmarks.process import die_with_parent
from brokerd.archive.contract.layout import LAYOUTS
from brokerd.archive.delta.table import Table
from brokerd.archive.job import Job, run_job
from brokerd.walformat import EventKind
from tests.archive import late
from tests.archive.data import NO_LIMIT, NOW_MS, Data
from tests.archive.making import LOG_ID, events_entry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.spark_tasks]

ROOT = Path(__file__).resolve().parents[2]
GONE_SECONDS = 240.0
AMID_SECONDS = 0.7
"""After so long a step of the job is at work."""
FAR_MS = 1 << 42
"""A wall clock by which every file is old."""

Rows = dict[str, list[dict[str, Any]]]


def fill(path: Path) -> Data:
    """A log of which something is to be done in every step of the job."""
    data = Data(path)
    data.fill()
    for turn in range(3):
        data.append(5, 0, *(b"%d of this key" % turn for _ in range(40)), keys=[b"key"] * 40)
        data.append(6, 0, *(b"record %d" % at for at in range(40)))
        data.lease(6, "workers", turn, "owner")
        settled = (int(EventKind.SETTLED), turn, 0, 0, 0, "", "")
        data.log.add(events_entry(6, 0, "workers", [settled]))
        data.log.seal()
    data.starts[6] = 20
    data.compacted = {5}
    data.publish()
    return data


def job_of(data: Data, spark: SparkSession) -> Job:
    return Job(
        data_dir=data.path,
        root=data.root,
        settings=SETTINGS,
        open_spark=lambda: nullcontext(spark),
        now_ms=lambda: NOW_MS,
        free_bytes=lambda path: NO_LIMIT,
    )


def rows_of(root: Path) -> Rows:
    """All rows of all tables, in some order that does not depend on their files."""
    return {
        name: sorted(DeltaTable(str(root / name)).to_pyarrow_table().to_pylist(), key=repr)
        for name in LAYOUTS
    }


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Rows:
    """What the tables are to be, from a run beside the driver."""
    data = fill(tmp_path_factory.mktemp("expected") / "data")
    summary = run_job(job_of(data, spark))
    assert summary.problems == []
    rows = rows_of(data.root)
    assert all(rows.values()), {name: len(found) for name, found in rows.items()}
    assert len(rows["records"]) < len(data.appended)
    return rows


def await_end(pids: Iterable[int]) -> None:
    """Wait until processes are gone, and not for ever."""
    deadline = time.monotonic() + GONE_SECONDS
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def await_both(job: HeldRollup) -> None:
    """Wait until executors took the place of those that were killed, and not for ever."""
    deadline = time.monotonic() + GONE_SECONDS
    while len(job.executors()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def python_without_brokerd(directory: Path) -> Path:
    """A Python with the libraries that this one has, but for brokerd, unless it is one of them."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(directory)]
    subprocess.run(command, check=True, timeout=120)
    (libraries,) = directory.glob("lib/python*/site-packages")
    found = [path for path in sys.path if path.endswith("site-packages")]
    (libraries / "others.pth").write_text("\n".join(found))
    return directory / "bin" / "python"


def test_the_command_gives_the_same_tables_on_a_cluster(tmp_path: Path, expected: Rows) -> None:
    """Executors have no brokerd but what they are sent; nothing is left but the log."""
    data = fill(tmp_path / "data")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "brokerd.rollup", "--data-dir", str(data.path)),
            *("--master", CLUSTER, "--set", "archive.rewrite_percent=1"),
            *("--set", "archive.tombstone_seconds=0", "--set", "archive.local_lot_bytes=0"),
        ],
        cwd=ROOT,
        env={**variables, "PYSPARK_PYTHON": str(python_without_brokerd(tmp_path / "python"))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert rows_of(data.root) == expected
    assert sorted(path.name for path in (data.path / "run").iterdir()) == [
        "rollup.lock",
        "rollup.log",
    ]
    said = (data.path / "run" / "rollup.log").read_text()
    assert "-- executor 0 --" in said and "-- executor 1 --" in said
    assert "authenticate.secret" not in said


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster of two machines, which are both this one by another address."""
    home = Path(pyspark.__file__).parent
    variables = {
        "SPARK_HOME": str(home),
        "SPARK_LOG_DIR": str(tmp_path),
        "SPARK_DAEMON_MEMORY": "128m",
        "PYTHONPATH": str(ROOT),
        late.MARK: str(tmp_path / "late"),
    }

    def start(role: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [
            *(str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}"),
            *("--host", host, "--port", "0", "--webui-port", "0", *arguments),
        ]
        with (tmp_path / f"{role}-{host}").open("wb") as said:
            return subprocess.Popen(
                command,
                env={**os.environ, **variables, "SPARK_LOCAL_IP": host},
                stdout=said,
                stderr=said,
                preexec_fn=die_with_parent,
            )

    rest = tmp_path / "master.conf"
    rest.write_text("spark.master.rest.enabled false\n")
    with ExitStack() as stack:
        stack.enter_context(ended(start("Master", "127.0.0.1", "--properties-file", str(rest))))
        url = said_in(tmp_path / "Master-127.0.0.1", rb"spark://127\.0\.0\.1:\d+")
        for host in ("127.0.0.1", "127.0.0.2"):
            work = str(tmp_path / f"work-{host}")
            size = ("--cores", "1", "--memory", "1g", "--work-dir", work)
            stack.enter_context(ended(start("Worker", host, *size, url)))
            said_in(tmp_path / f"Worker-{host}", rb"Successfully registered with master")
        yield url


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process in the end."""
    try:
        yield
    finally:
        process.terminate()
        process.wait(GONE_SECONDS)


def said_in(log: Path, pattern: bytes) -> str:
    """Wait until a process says something, and not for ever."""
    deadline = time.monotonic() + GONE_SECONDS
    found = None
    while found is None:
        assert time.monotonic() < deadline, log.read_text() if log.exists() else log
        time.sleep(0.05)
        found = re.search(pattern, log.read_bytes() if log.exists() else b"")
    return found[0].decode()


def run_late(data: Data, master: str, mark: Path, **settings: str) -> subprocess.Popen[str]:
    """Begin a run in which one attempt of a task never gets to say what it has written.

    It makes the file ``mark`` when it has.
    """
    script = f"""
        import os
        from functools import partial
        from pathlib import Path
        from benchmarks.held_rollup import SETTINGS
        from brokerd.archive.ingest import ingest
        from brokerd.archive.job import Job, run_job
        from brokerd.archive.cluster.session import SparkOptions, spark_session
        from tests.archive.late import write_records_late

        ingest.write_records = write_records_late
        data = Path({str(data.path)!r})
        settings = {{name.replace("_", "."): value for name, value in {settings!r}.items()}}
        options = SparkOptions({master!r}, settings=settings)
        open_spark = partial(spark_session, "late", options, data / "run" / "rollup", os.environ)
        report = run_job(Job(
            data, Path({str(data.root)!r}), SETTINGS, open_spark,
            lambda: {NOW_MS}, lambda path: {NO_LIMIT},
        ))
        print(report.problems)
    """
    return subprocess.Popen(
        [sys.executable, "-c", dedent(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), late.MARK: str(mark)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,
    )


def assert_one_counts(data: Data, run: subprocess.Popen[str], expected: Rows) -> None:
    """A run comes to its end; a file of records was left over, which goes by vacuum.

    On a busy machine Spark may begin a task more than twice.
    """
    assert run.communicate(timeout=late.LATE_SECONDS) == ("[]\n", "")
    assert rows_of(data.root) == expected
    assert unnamed(data.root / "records")
    Table(data.root, LAYOUTS["records"], LOG_ID).vacuum(0, FAR_MS)
    assert not unnamed(data.root / "records")


def test_of_two_attempts_of_a_task_one_counts(
    tmp_path: Path, expected: Rows, standalone: str
) -> None:
    """Both have written their files when the run commits, the slow one and the second one."""
    data = fill(tmp_path / "data")
    settings = {
        "spark_speculation": "true",
        "spark_speculation_interval": "100ms",
        "spark_speculation_minTaskRuntime": "1s",
        "spark_speculation_task_duration_threshold": "1s",
    }
    with run_late(data, standalone, tmp_path / "late", **settings) as run:
        assert_one_counts(data, run, expected)


def test_an_executor_that_is_killed_amid_a_task_changes_nothing(
    tmp_path: Path, expected: Rows
) -> None:
    """The task has written its file, and does it again elsewhere."""
    data = fill(tmp_path / "data")
    with run_late(data, CLUSTER, tmp_path / "late") as run:
        os.kill(int(said_in(tmp_path / "late", rb"\d+(?=\n)")), signal.SIGKILL)
        assert_one_counts(data, run, expected)


def unnamed(table: Path) -> list[Path]:
    """Files of a table that no commit ever named."""
    commits = [path.read_text() for path in (table / "_delta_log").glob("*.json")]
    found = [path for path in table.rglob("*.parquet") if path.parent.name != "_delta_log"]
    return [path for path in found if not any(path.name in commit for commit in commits)]


@pytest.mark.soak
def test_whoever_is_killed_the_tables_are_the_same(tmp_path: Path, expected: Rows) -> None:
    """The driver, then one executor, a worker, and both executors in the run that follows.

    That run has to come to its end, and what is left of those who were killed goes by vacuum.
    """
    data = fill(tmp_path / "data")
    log = tmp_path / "log"
    with HeldRollup(data.path, log, master=CLUSTER) as job:
        while job.next_point() != "records written":
            job.go_on()
        await_both(job)
        executors = job.executors()
        job.kill()
        await_end(executors)
    points: list[str] = []
    with HeldRollup(data.path, log, master=CLUSTER) as job:
        while (point := job.next_point()) is not None:
            if point == "records written":
                assert job.kill_executors(1) == 1
            if point == "clean planned":
                await_both(job)
            job.go_on()
            if point == "before deliveries":
                assert job.kill_executors(1, AMID_SECONDS) == 1
            elif point == "before hourly":
                assert job.kill_a_worker(0.0)
            elif point == "clean planned":
                assert job.kill_executors(2, AMID_SECONDS) == 2
            points.append(point)
        outcome = job.outcome()
    assert {"records written", "before deliveries", "before hourly", "clean planned"} <= {*points}
    assert (outcome.killed, outcome.problems, outcome.left) == (False, [], "")
    assert rows_of(data.root) == expected
    for layout in LAYOUTS.values():
        table = Table(data.root, layout, LOG_ID)
        table.vacuum(0, FAR_MS)
        directory = data.root / layout.name
        found = {str(path.relative_to(directory)) for path in directory.rglob("*.parquet")}
        assert {path for path in found if not path.startswith("_")} == set(table.paths())
