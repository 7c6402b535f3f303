"""The sink under SIGKILL: Spark's driver with all its processes, and the broker. Each row once."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.process import BrokerProcess
from brokerd.client.mamamia import MamamiaClient
from tests.spark.killing import KILLS, KilledStream, wait_for

SEED = 22
ROWS_OF_FILE = 300
TOPICS = ("t0", "t1", "t2")


class Sink(KilledStream):
    """A stream of files to a broker. Each run has another partitioning."""

    module = "tests.spark.sinker"

    def __init__(self, path: Path, broker: BrokerProcess, work: Path) -> None:
        super().__init__(path, broker, work)
        self.input = path / "input"
        self.input.mkdir()
        self.rows = 0

    def add_files(self, count: int) -> None:
        """Add rows to the input, each different; a file appears whole."""
        for _ in range(count):
            numbers = range(self.rows, self.rows + ROWS_OF_FILE)
            hidden = self.path / "next"
            hidden.write_text("".join(f"{number} {'x' * (number % 90)}\n" for number in numbers))
            hidden.rename(self.input / f"{self.rows:08}.txt")
            self.rows += ROWS_OF_FILE

    def arguments(self) -> list[object]:
        return [self.input, self.checkpoint, self.broker.address, 1 + self.runs % 5]

    def state(self) -> tuple[int, int, int]:
        """Return how many micro-batches are begun, have a manifest, and are done."""
        staging = [*self.checkpoint.glob("brokerd/query-*"), self.path / "none"][0]

        def last(directory: str) -> int:
            names = (path.stem for path in staging.glob(f"{directory}/*.json"))
            return 1 + max((int(name) for name in names if name.isdigit()), default=-1)

        return self.micro_batches("offsets"), last("manifests"), last("done")

    def stored(self) -> Counter[str]:
        """Return the values in the broker, with how often each is there."""
        found: Counter[str] = Counter()
        with MamamiaClient(self.broker.address) as client:
            for topic in TOPICS:
                while leased := client.acquire_batch(topic, "reader", "me", 1_000, 600.0):
                    found.update(str(one.payload) for one in leased)
        return found

    def expected(self) -> Counter[str]:
        return Counter(f"{number} {'x' * (number % 90)}" for number in range(self.rows))


def run_kills(path: Path, kills: int, seed: int) -> Counter[str]:
    """Kill Spark at random moments of micro-batches, and the broker now and then; then finish.

    Return how often Spark was killed in each step of a micro-batch.
    """
    chance = random.Random(seed)
    steps: Counter[str] = Counter()
    with (
        BrokerProcess(path / "data", path / "broker.log", formats=("mamamia",)) as broker,
        TemporaryDirectory() as work,  # Spark's sockets have paths of at most 60 characters
    ):
        broker.start()
        sink = Sink(path, broker, Path(work))
        while steps.total() < kills:
            sink.add_files(12)
            # A micro-batch of this run, from its begin or from its manifest on.
            step = chance.choice((0, 1, 1))
            target = sink.state()[step] + chance.randrange(3)
            process = sink.start()
            try:
                wait_for(lambda: sink.state()[step] > target, process)  # noqa: B023
                time.sleep(chance.random() ** 2 * (1.5, 0.4)[step])
                if steps.total() % 3 == 2:
                    broker.kill()
                    if chance.random() < 0.5:
                        broker.start()
                        time.sleep(chance.random())
            finally:
                was_running = sink.kill(process)
            begun, manifests, done = sink.state()
            if was_running:
                before = "staging" if begun > done else "between"
                steps["sending" if manifests > done else before] += 1
            if not broker.is_alive():
                broker.start()
            noted = sink.micro_batches("commits")
            print(
                f"kill {steps.total()}: {begun} begun, {manifests} with manifest, {done} done, "
                f"{noted} noted by Spark"
            )
        sink.finish()
        stored, expected = sink.stored(), sink.expected()
        missing, doubled = expected - stored, stored - expected
        print(f"{sink.rows} rows: {len(missing)} missing, {len(doubled)} doubled; killed {steps}")
        assert not missing, list(missing)[:10]
        assert not doubled, list(doubled)[:10]
    return steps


@pytest.mark.slow
def test_a_killed_stream_and_a_killed_broker_lose_and_repeat_nothing(tmp_path: Path) -> None:
    run_kills(tmp_path, 2, SEED)


@pytest.mark.soak
def test_twenty_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    steps = run_kills(tmp_path, KILLS, SEED + 1)
    assert steps["sending"] and steps["staging"]
