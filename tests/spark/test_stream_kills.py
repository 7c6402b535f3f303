"""A stream of the log under SIGKILL: Spark's driver with all its processes, and the broker.

The broker and rollups go on meanwhile, so each run begins in the archive and ends in the journal.
Spark's file sink writes each micro-batch once. So each record has to be in the output once.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest

from benchmarks.process import BrokerProcess
from brokerd.client.mamamia import MamamiaClient
from brokerd.codecs.mamamia import BatchMessage
from tests.archive.test_with_broker import ROOT
from tests.spark.killing import KILLS, SECONDS, KilledStream, wait_for

SEED = 23
RECORDS = 1_500
"""Records that are appended before each kill: about ten micro-batches."""
SETTINGS = (
    "wal.segment_bytes=1MiB",
    "wal.snapshot_interval_bytes=1MiB",
    "archive.keep_wal_bytes=0",
    "archive.poll_seconds=1",
)
ROLLUP = [
    f"--set=archive.{name}=false" for name in ("derived", "retention", "compaction", "vacuum")
]


class Stream(KilledStream):
    """A stream of a log to Parquet files."""

    module = "tests.spark.streamer"

    def __init__(self, path: Path, broker: BrokerProcess, work: Path) -> None:
        super().__init__(path, broker, work)
        self.output = path / "output"
        self.appended = 0

    def append(self) -> None:
        """Append records, each different, to two topics."""
        with MamamiaClient(self.broker.address) as client:
            for first in range(self.appended, self.appended + RECORDS, 250):
                values = [f"{number} {'x' * 500}" for number in range(first, first + 250)]
                messages = [BatchMessage(value.encode(), key=b"key") for value in values]
                client.produce_batch(f"t{first // 250 % 2}", messages)
        self.appended += RECORDS

    def roll_up(self) -> None:
        """Archive the log, so that the broker deletes its journal."""
        command = [sys.executable, "-m", "brokerd.rollup", "--data-dir", str(self.broker.data_dir)]
        subprocess.run(
            [*command, "--seal", *ROLLUP],
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=SECONDS,
        )

    def arguments(self) -> list[object]:
        return [self.broker.data_dir, self.output, self.checkpoint]

    def written(self) -> Counter[str]:
        """Return the numbers in the files that Spark's log of the sink names."""
        found: Counter[str] = Counter()
        for path in self._files():
            values = pq.read_table(path, columns=["value"], partitioning=None)["value"]
            found.update(bytes(value).split()[0].decode() for value in values.to_pylist())
        return found

    def _files(self) -> list[str]:
        log = self.output / "_spark_metadata"
        names = [name for name in os.listdir(log) if not name.startswith(".")]
        whole = max((int(n.split(".")[0]) for n in names if n.endswith(".compact")), default=-1)
        wanted = [name for name in names if int(name.split(".")[0]) >= max(whole, 0)]
        wanted = [name for name in wanted if name != str(whole)]
        lines = [line for name in wanted for line in (log / name).read_text().splitlines()[1:]]
        return [unquote(urlsplit(json.loads(line)["path"]).path) for line in lines]


def run_kills(path: Path, kills: int, seed: int) -> Counter[str]:
    """Kill Spark at random moments of micro-batches, and the broker apart; then finish.

    Return how often Spark was killed in a micro-batch and between two.
    """
    chance = random.Random(seed)
    steps: Counter[str] = Counter()
    with (
        BrokerProcess(path / "data", path / "broker.log", SETTINGS, formats=("mamamia",)) as broker,
        TemporaryDirectory() as work,  # Spark's sockets have paths of at most 60 characters
    ):
        broker.start()
        stream = Stream(path, broker, Path(work))
        while steps.total() < kills:
            stream.append()
            target = stream.micro_batches("offsets") + chance.randrange(4)
            process = stream.start()
            try:
                wait_for(lambda: stream.micro_batches("offsets") > target, process)  # noqa: B023
                time.sleep(chance.random() ** 2 * 0.5)
                if chance.random() < 0.3:
                    broker.kill()
                    broker.start()
                    time.sleep(chance.random() * 0.2)
            finally:
                was_running = stream.kill(process)
            begun, noted = stream.micro_batches("offsets"), stream.micro_batches("commits")
            if was_running:
                steps["in a batch" if begun > noted else "between"] += 1
            if chance.random() < 0.3:
                stream.roll_up()
            print(f"kill {steps.total()}: {begun} begun, {noted} noted by Spark")
        stream.finish()
        written = stream.written()
        expected = Counter(map(str, range(stream.appended)))
        missing, doubled = expected - written, written - expected
        print(f"{stream.appended} records: {len(missing)} missing, {len(doubled)} doubled; {steps}")
        assert not missing, list(missing)[:10]
        assert not doubled, list(doubled)[:10]
    return steps


@pytest.mark.soak
def test_twenty_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    steps = run_kills(tmp_path, KILLS, SEED)
    assert steps["in a batch"]
