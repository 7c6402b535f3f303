# Tests: tests/test_archive_torture.py
"""Run a rollup that stops at each of its points and waits, so that it can be killed there.

``python -m benchmarks.held_rollup DATA_DIR DERIVED MASTER ARCHIVE VACUUM_HOURS`` builds its job as
``brokerd-rollup`` does. At each point it prints the name on stdout (``at before records commit``)
and waits for a line on stdin. At the end it notifies the broker and prints ``done`` and the outcome
as JSON. :class:`HeldRollup` is the other side of this dialogue. It signals only its own processes,
by their ids.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from brokerd.archive.cluster.session import SparkOptions, spark_session
from brokerd.archive.job import Job, run_job
from brokerd.archive.run import Settings
from brokerd.archive.storage.address import Place, place_of
from brokerd.cli.server import NoBroker, Server, find
from brokerd.errors import BrokerdError

from .process import die_with_parent

MIB = 1 << 20
SETTINGS = Settings(lot_bytes=2 * MIB, file_bytes=MIB, rewrite_percent=1, tombstone_seconds=0)
"""Small lots and files, so that a few megabytes of log exercise every step of the job."""
LOCAL, CLUSTER = "local[2]", "local-cluster[2,1,1024]"
"""Spark's master: beside the driver, or in two executor processes."""
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a fast start; the Java process is short-lived."""


class Outcome(NamedTuple):
    """The end of a run."""

    killed: bool
    problems: list[str]
    left: str
    lots: int
    records: int


class HeldRollup:
    """A run in a process of its own; leaving the context ends the process."""

    def __init__(
        self,
        data_dir: Path,
        log: Path,
        derived: bool = True,
        master: str = LOCAL,
        archive: Place | None = None,
        vacuum_hours: int = SETTINGS.vacuum_hours,
    ) -> None:
        self._data_dir = data_dir
        self._log = log
        self._derived = derived
        self._master = master
        self._archive = archive or data_dir / "archive"
        self._vacuum_hours = vacuum_hours
        self._outcome: Outcome | None = None
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> HeldRollup:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.held_rollup", str(self._data_dir)),
                    *("derived" if self._derived else "", self._master, str(self._archive)),
                    str(self._vacuum_hours),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "JAVA_TOOL_OPTIONS": _JAVA_OPTIONS},
                preexec_fn=die_with_parent,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._running.stdin, self._running.stdout):
            assert pipe is not None
            with pipe:
                pass

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def next_point(self) -> str | None:
        """Wait for the next point, where the run stays until `go_on`; return None at the end."""
        said: IO[str] | None = self._running.stdout
        assert said is not None
        for line in said:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "at":
                return rest
            if word == "done":
                self._outcome = Outcome(**json.loads(rest))
        return None

    def go_on(self) -> None:
        """Let the run continue from its point."""
        asked = self._running.stdin
        assert asked is not None
        try:
            asked.write("\n")
            asked.flush()
        except BrokenPipeError:
            pass  # The run was killed; `outcome` says so.

    def kill(self) -> None:
        """SIGKILL the driver; its Java process notices that and ends by itself."""
        self._running.kill()
        self._running.wait()

    def kill_workers(self, seconds: float) -> int:
        """SIGKILL every Python worker for the given seconds; return their number."""
        killed: set[int] = set()
        deadline = time.monotonic() + seconds
        while self._running.poll() is None and time.monotonic() < deadline:
            for pid in workers(self._running.pid):
                if pid not in killed:
                    killed.add(pid)
                    _kill(pid)
            time.sleep(0.002)
        return len(killed)

    def kill_a_worker(self, delay: float, seconds: float = 60.0) -> bool:
        """SIGKILL one worker ``delay`` seconds after its start; return False if none starts."""
        deadline = time.monotonic() + seconds
        while self._running.poll() is None and time.monotonic() < deadline:
            for pid in workers(self._running.pid):
                time.sleep(delay)
                return _kill(pid)
            time.sleep(0.002)
        return False

    def kill_executors(self, count: int, delay: float = 0.0, seconds: float = 60.0) -> int:
        """SIGKILL executors once ``count`` of them run; return how many were killed.

        A delay lets them start their tasks first.
        """
        deadline = time.monotonic() + seconds
        while self._running.poll() is None and time.monotonic() < deadline:
            found = executors(self._running.pid)
            if len(found) >= count:
                time.sleep(delay)
                return sum(_kill(pid) for pid in found[:count])
            time.sleep(0.002)
        return 0

    def executors(self) -> list[int]:
        """Return the process ids of the executors."""
        return executors(self._running.pid)

    def outcome(self) -> Outcome:
        """Return the outcome, once `next_point` has returned None."""
        self._running.wait()
        if self._outcome is not None:
            return self._outcome
        if self._running.returncode < 0:
            return Outcome(True, [], "", 0, 0)
        return Outcome(False, [f"exit code {self._running.returncode}"], "", 0, 0)


def workers(driver: int) -> list[int]:
    """Return the process ids of a driver's workers: forks of the Python daemon that Java starts."""
    found = executors(driver)
    daemons = [pid for java in found or _children(driver) for pid in _children(java)]
    return [pid for daemon in daemons for pid in _children(daemon)]


def executors(driver: int) -> list[int]:
    """Return the process ids of a driver's executors: the Java children of its Java process."""
    return [pid for java in _children(driver) for pid in _children(java) if _is_java(pid)]


def _is_java(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "java\n"
    except OSError:
        return False  # The process has ended.


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue  # That thread has ended.
    return found


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return False  # The process had ended by itself.
    return True


# -- The process itself --------------------------------------------------------------------------


def _hold(point: str) -> None:
    print(f"at {point}", flush=True)
    if not sys.stdin.readline():
        sys.exit("nobody says when to go on")


def main(data_dir: Path, derived: bool, master: str, archive: str, vacuum_hours: int) -> int:
    """Run the rollup in this process and return the exit code."""
    job = Job(
        data_dir=data_dir,
        root=place_of(archive),
        settings=SETTINGS._replace(derived=derived, vacuum_hours=vacuum_hours),
        open_spark=partial(
            spark_session,
            "torture",
            SparkOptions(master, 512 * MIB),
            data_dir / "run" / "rollup",
            os.environ,
        ),
        now_ms=lambda: time.time_ns() // 1_000_000,
        free_bytes=lambda path: shutil.disk_usage(path).free,
        failpoint=_hold,
    )
    report = run_job(job)
    problems = list(report.problems)
    if report.has_committed:
        problems += _tell_broker(data_dir)
    ingest = report.ingest
    outcome = Outcome(False, problems, report.stop_reason, ingest.lots, ingest.records)
    print(f"done {json.dumps(outcome._asdict())}", flush=True)
    return 0


def _tell_broker(data_dir: Path) -> list[str]:
    try:
        Server(find(None, str(data_dir))).post("archive", "refresh")
    except NoBroker:
        return []  # The broker polls the archive when it starts again.
    except BrokerdError as error:
        return [f"the broker could not be told: {error}"]
    return []


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), bool(sys.argv[2]), *sys.argv[3:5], int(sys.argv[5])))
