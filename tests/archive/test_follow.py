"""``brokerd-rollup --follow``: rounds without Spark's start, and complete runs in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from brokerd.archive.contract.layout import LAYOUTS
from brokerd.archive.delta import log_reader
from brokerd.archive.delta.log_files import OPEN_PROTOCOL, PROTOCOL, Protocol
from brokerd.archive.delta.tables import Tables, open_tables
from brokerd.archive.errors import JobFailed
from brokerd.archive.follow import RETRY_SECONDS, Pace, follow
from brokerd.archive.job import Job, run_job
from brokerd.archive.maintain import file_stats
from brokerd.archive.maintain.compaction_state import (
    CompactionState,
    PartitionState,
    read_state,
    write_state,
)
from brokerd.archive.run import Settings
from tests.archive.adding import open_to_writers
from tests.archive.data import MIB, NO_LIMIT, NOW_MS, Data
from tests.archive.making import LOG_ID

pytestmark = pytest.mark.spark_tasks
"""Nothing here starts Spark, and tasks run where the job runs them."""

SMALL = Settings(file_bytes=MIB, local_lot_bytes=MIB)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


def job_of(data: Data, settings: Settings = SMALL, is_small: bool = True) -> Job:
    data.publish()
    return Job(
        data_dir=data.path,
        root=data.root,
        settings=settings,
        open_spark=no_spark,
        now_ms=lambda: NOW_MS,
        free_bytes=lambda path: NO_LIMIT,
        is_small=is_small,
        tables=Tables(),
    )


def no_spark() -> None:  # type: ignore[misc]
    raise JobFailed("Spark starts")


# -- Pace ----------------------------------------------------------------------------------------


class Stopped(Exception):
    """In place of a signal."""


class Host:
    """A clock that a sleep advances, and a log of rounds. A round takes a second."""

    def __init__(self, outcomes: dict[int, bool], rounds: int) -> None:
        self.time = 1000.0
        self.rounds: list[tuple[float, bool]] = []
        self._outcomes = outcomes
        self._last = rounds

    def run(self, is_small: bool) -> bool:
        self.rounds.append((self.time - 1000.0, is_small))
        self.time += 1
        return self._outcomes.get(len(self.rounds), True)

    def sleep(self, seconds: float) -> None:
        if len(self.rounds) == self._last:
            raise Stopped
        self.time += seconds

    def follow(self, pace: Pace) -> list[tuple[float, bool]]:
        with pytest.raises(Stopped):
            follow(self.run, pace, lambda: self.time, self.sleep)
        return self.rounds


def test_rounds_are_small_but_for_one_in_a_while() -> None:
    assert Host({}, 6).follow(Pace(10, 40)) == [
        (0, False),
        (10, True),
        (20, True),
        (30, True),
        (40, False),
        (50, True),
    ]


def test_failed_rounds_are_tried_again_ever_more_rarely() -> None:
    """A complete run that fails does not hold up the small ones."""
    failures = dict.fromkeys(range(2, 12), False)
    times = [time for time, _ in Host(failures, 12).follow(Pace(10, 100_000))]
    waits = [after - before for before, after in pairwise(times)]
    assert waits[:6] == [10, 20, 40, 80, 160, RETRY_SECONDS]
    assert set(waits[5:]) == {RETRY_SECONDS}
    rounds = Host({1: False}, 33).follow(Pace(10, 3600))
    assert [time for time, is_small in rounds if not is_small] == [0, 300]
    assert rounds[1] == (10, True)


# -- Rounds --------------------------------------------------------------------------------------


def no_footer(*given: object) -> None:
    raise AssertionError("the cost of a round would grow with the archive")


def test_small_rounds_take_the_log_and_merge_without_spark(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that may be compacted, and trimmed records, wait for a complete run."""
    monkeypatch.setattr(file_stats, "open_file", no_footer)
    job = job_of(data)
    merged: Counter[str] = Counter()
    for _ in range(9):
        data.fill(1)
        data.compacted.add(1)
        data.publish()
        report = run_job(job)
        assert report.problems == []
        assert report.ingest.segments == 1
        for step in report.steps:
            merged.update(step.numbers)
    data.check()
    assert merged["files_removed"] > merged["files_added"] > 0
    assert merged["merged_events"] > 0
    data.starts[1] = 2
    data.publish()
    assert not run_job(job).has_committed
    data.check()


def test_each_commit_is_read_once_by_all_rounds(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    decode = log_reader.decode_commit

    def counting(content: bytes, path: Path) -> log_reader.Actions:
        read.append(str(path))
        return decode(content, path)

    monkeypatch.setattr(log_reader, "decode_commit", counting)
    job = job_of(data)
    for _ in range(3):
        data.fill(1)
        data.publish()
        assert run_job(job).problems == []
    commits = {str(path) for path in data.root.glob("*/_delta_log/*.json")}
    assert sorted(read) == sorted(commits)


def test_a_large_lot_is_for_spark(data: Data) -> None:
    data.fill(1)
    report = run_job(job_of(data, SMALL._replace(local_lot_bytes=100)))
    assert report.problems == ["Spark starts"]


def test_a_complete_run_takes_a_small_lot_without_spark(data: Data) -> None:
    """Other steps may start Spark afterwards."""
    data.fill(2)
    settings = SMALL._replace(derived=False, retention=False, compaction=False, merge=False)
    assert run_job(job_of(data, settings, is_small=False)).problems == []
    data.check()


def test_damage_is_told_as_ever(data: Data) -> None:
    (path, *_) = data.fill(1)
    content = bytearray(path.read_bytes())
    content[content.index(b"value 0")] ^= 1
    path.write_bytes(content)
    (problem,) = run_job(job_of(data)).problems
    assert "nothing after it is archived until the broker knows of the damage" in problem


def test_small_rounds_leave_the_state_of_compaction(data: Data) -> None:
    """Else the next complete run would read all keys again."""
    job = job_of(data)
    data.fill(1)
    data.publish()
    run_job(job)
    partition = PartitionState(1, 0, 3, 3, 0, False)
    write_state(data.root, CompactionState(LOG_ID, 1, {}, [partition]))
    for _ in range(3):
        data.fill(1)
        data.publish()
        assert run_job(job).problems == []
    assert read_state(data.root, LOG_ID, 1 << 40).partitions == [partition]


def test_a_complete_run_keeps_other_writers_out_of_an_older_archive(data: Data) -> None:
    """A small round leaves the tables as they are."""
    data.fill(1)
    data.roll_up()
    for name in LAYOUTS:
        open_to_writers(data.root / name)
    assert run_job(job_of(data)).problems == []

    def protocols() -> set[Protocol]:
        return {table.snapshot.protocol for table in open_tables(data.root, LOG_ID).values()}

    assert protocols() == {OPEN_PROTOCOL}
    settings = SMALL._replace(derived=False)
    assert run_job(job_of(data, settings, is_small=False)).problems == []
    assert protocols() == {PROTOCOL}
    data.check()


@pytest.mark.slow
def test_the_command_follows_a_log_until_it_is_ended(data: Data) -> None:
    data.fill(1)
    data.publish()
    options = ["--set", "archive.derived=false", "--set", "archive.follow_seconds=1"]
    command = [sys.executable, "-m", "brokerd.rollup", "--follow", "--data-dir", str(data.path)]
    with subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": "", "JAVA_HOME": ""},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            for _ in range(2):
                line = process.stdout.readline()
                assert line.startswith("ingested 1 journal file, ")
                while not process.stdout.readline().startswith("took"):
                    pass
                data.fill(1)
                data.publish()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert process.stderr.read() == (
            "brokerd-rollup: stopped; commits stay, and the next run continues\n"
        )


@pytest.mark.slow
def test_rounds_go_on_though_nobody_takes_their_reports(data: Data) -> None:
    """A log file on a full disk: the rounds may free it. stderr tells of it once, if it can."""
    data.fill(1)
    data.publish()
    options = ["--set", "archive.derived=false", "--set", "archive.follow_seconds=1"]
    command = [sys.executable, "-m", "brokerd.rollup", "--follow", "--data-dir", str(data.path)]
    commits = data.root / "events" / "_delta_log"
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(
            [*command, *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": "", "JAVA_HOME": ""},
        ) as process,
    ):
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert line == (
                "brokerd-rollup: stdout cannot be written: No space left on device. "
                "The rounds go on\n"
            )
            before = len(list(commits.glob("*.json")))
            data.fill(1)
            data.publish()
            deadline = time.monotonic() + 60
            while len(list(commits.glob("*.json"))) == before:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert process.stderr.read() == (
            "brokerd-rollup: stopped; commits stay, and the next run continues\n"
        )
    data.check()
