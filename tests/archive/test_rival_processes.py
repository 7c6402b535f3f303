"""Several ``brokerd-rollup`` on one archive at once, killed, beside a broker under load.

Each acknowledged record has to be in the table once, and FETCH has to give the same records.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.archive_torture import SETTINGS
from benchmarks.process import BrokerProcess, die_with_parent
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient, batch_message
from tests.archive.test_with_broker import ENVIRONMENT, archived

SECONDS = 120.0
TOPIC = "orders"
ROLLUP = (
    "archive.derived=false",
    "archive.retention=false",
    "archive.compaction=false",
    "archive.merge=false",
    "archive.vacuum_hours=0",
)
"""Complete runs without Spark. They delete each file at once that no version needs."""
FOLLOW = ("--follow", "--set=archive.follow_seconds=1", "--set=archive.maintain_seconds=3")
LOCKED = "brokerd-rollup: another brokerd-rollup is at work in "
STOPPED = "brokerd-rollup: stopped; commits stay, and the next run continues"


class Rollup(threading.Thread):
    """Starts one command again and again, and kills some of its processes at random moments."""

    def __init__(self, data_dir: Path, options: tuple[str, ...], seed: int) -> None:
        super().__init__(daemon=True)
        self.ends: Counter[int] = Counter()
        """Number of processes by exit code."""
        self.findings: list[str] = []
        self.over = threading.Event()
        self._command = [sys.executable, "-m", "brokerd.rollup", "--data-dir", str(data_dir)]
        self._command += [*options, "--seal", *(f"--set={setting}" for setting in ROLLUP)]
        self._chance = random.Random(seed)

    def run(self) -> None:
        while not self.over.is_set():
            self._once(self._chance.uniform(0.3, 4.0) if self._chance.random() < 0.7 else SECONDS)

    def _once(self, seconds: float) -> None:
        process = subprocess.Popen(
            self._command,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        until = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < until and not self.over.is_set():
            time.sleep(0.02)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM if self.over.is_set() else signal.SIGKILL)
        _, error = process.communicate(timeout=SECONDS)
        self.ends[process.returncode] += 1
        for line in error.splitlines():
            if not line.startswith((LOCKED, STOPPED)):
                self.findings.append(line)


class Load(threading.Thread):
    """Appends records, each different."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.values: list[bytes] = []
        self.over = threading.Event()
        self._address = address

    def run(self) -> None:
        with MamamiaClient(self._address) as client:
            while not self.over.wait(0.02):
                self.append(client, 100)

    def append(self, client: MamamiaClient, count: int) -> None:
        first = len(self.values)
        values = [b"%d %s" % (at, b"value" * 20) for at in range(first, first + count)]
        client.produce_batch(TOPIC, map(batch_message, values))
        self.values += values


def fetched(broker: BrokerProcess) -> list[bytes]:
    """Read all records from offset 0 on, from the archive and from the journal."""
    found: list[bytes] = []
    with FlymqClient(broker.address_of("flymq")) as client:
        while records := client.fetch(TOPIC, 0, len(found), 500).records:
            found += [record.value for record in records]
    return found


def attack(path: Path, commands: list[tuple[str, ...]], seconds: float) -> Counter[int]:
    """Run commands at once for ``seconds``, and until one is killed. Run one more, and judge.

    Return the number of ends by exit code.
    """
    data_dir = path / "data"
    with BrokerProcess(data_dir, path / "broker.log", SETTINGS) as broker:
        broker.start()
        load = Load(broker.address)
        rollups = [Rollup(data_dir, options, seed) for seed, options in enumerate(commands)]
        for thread in (load, *rollups):
            thread.start()
        deadline = time.monotonic() + SECONDS
        time.sleep(seconds)
        while not any(rollup.ends[-signal.SIGKILL] for rollup in rollups):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for thread in (load, *rollups):
            thread.over.set()
        for thread in (load, *rollups):
            thread.join(SECONDS)
            assert not thread.is_alive()
        for _ in range(2):  # the broker deletes segments that two snapshots follow
            with MamamiaClient(broker.address) as client:
                for _ in range(15):
                    load.append(client, 1_000)
            last = Rollup(data_dir, (), 0)
            last._once(SECONDS)
            assert (last.ends, last.findings) == ({0: 1}, [])
        assert archived(data_dir) == load.values
        deadline = time.monotonic() + SECONDS
        while (data_dir / "wal" / f"{0:020}.wal").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert fetched(broker) == load.values
        assert broker.stop() == 0
    assert "Traceback" not in (path / "broker.log").read_text()
    assert [line for rollup in rollups for line in rollup.findings] == []
    return sum((rollup.ends for rollup in rollups), Counter())


@pytest.mark.slow
def test_rollups_at_once_take_each_record_once(tmp_path: Path) -> None:
    """One that follows, and two that are started again and again."""
    ends = attack(tmp_path, [FOLLOW, (), ()], 8.0)
    assert ends[-signal.SIGKILL]


@pytest.mark.soak
def test_more_rollups_for_a_longer_time_take_each_record_once(tmp_path: Path) -> None:
    """Two that follow, too; some runs find the archive locked."""
    ends = attack(tmp_path, [FOLLOW, FOLLOW, (), ()], 120.0)
    assert ends[-signal.SIGKILL] and ends[75]
