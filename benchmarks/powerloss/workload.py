# Tests: tests/powerloss/test_main.py
"""Clients of all formats on one broker, with kills, rollups, trims, deletions and a retention.

A rollup writes all tables, merges and compacts files, and deletes those that no version needs.

The writers of `benchmarks.crowd` write records. The workers here make transactions, settle leases,
trim, and delete topics. All note positions in :class:`Facts`. A round has a fixed amount of work,
however slow the machine is: bytes of each writer, tasks of each worker, runs of the rollup.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.archive_torture import SETTINGS as ARCHIVE_SETTINGS
from benchmarks.crowd import (
    KEYED,
    SHARED,
    WRITERS,
    FlymqWrites,
    MamamiaWrites,
    MegaWrites,
    RustlogWrites,
    Stage,
    Writer,
)
from benchmarks.held_rollup import HeldRollup
from benchmarks.oracle import Origin
from benchmarks.process import BrokerFailed, BrokerProcess
from brokerd.archive.contract.layout import LAYOUTS
from brokerd.archive.storage.address import Place
from brokerd.cli.server import NoBroker, Refused, Server, find
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient
from brokerd.codecs.mamamia import BatchSettle

from .facts import (
    DELAYED,
    GROUP,
    LEFT,
    RIGHT,
    SHORT,
    TOPICS,
    TRIMMED,
    Asked,
    TimedLedger,
    Transaction,
    Trim,
)

MIB = 1 << 20
SETTINGS = ARCHIVE_SETTINGS
ROUND_BYTES = 3 * MIB
LEASE_SECONDS = 1.0
DELAY_MS = 1500
_BRIEF_RECORDS = 5
_TRANSACTION_PRODUCER, _BRIEF_PRODUCER = 100, 101
_PAUSE_SECONDS = 0.1
_AWAY_SECONDS = 0.05
_STALLED_SECONDS = 600.0
"""A run fails when its writers wait for this time and no record is acknowledged."""
_SETTLE_MAX = 40
_UNSETTLED = 0.1
_ROLLED_BACK = 0.2
_BROKER_KILLS = (1, 3)
KILL_STEPS = (
    "planned",
    "records written",
    "before records commit",
    "after records commit",
    "before events commit",
    "after events commit",
    "before deliveries commit",
    "before hourly commit",
    "after hourly commit",
    "before clean commit",
    "after clean commit",
    "before vacuum of records",
)
"""Steps of a rollup at which it is killed, each once before one of them is repeated."""
LAST_STEP = f"before vacuum of {[*LAYOUTS][-1]}"
"""The last step. Every run reaches it, so a run that has no work for its step is killed here."""
_KILLED_BESIDE = 0.5
"""Probability that the broker is killed beside a rollup that is not killed."""
_DELETION_SECONDS = 3.0
_SHORT_BYTES = MIB
_TASKS_PER_MIB = 20
"""Tasks that each worker gets in a round for a MiB of records, and again beside the rollups."""


class _DelayedWrites(FlymqWrites):
    """Writes delayed records; the answer has the number of the schedule, not the offset."""

    def write(self, topic: str, window: Sequence[tuple[Origin, bytes]]) -> Sequence[int]:
        for _, value in window:
            self.client.produce_delayed(topic, value, DELAY_MS)
        return []


MORE_WRITERS = (
    (TRIMMED, MegaWrites),
    (SHORT, RustlogWrites),
    (SHORT, MamamiaWrites),
    (DELAYED, _DelayedWrites),
)


@dataclass
class Plan:
    """The amount of work."""

    rounds: int = 3
    round_bytes: int = ROUND_BYTES
    has_rollups: bool = True
    rollup_kills: int = 3
    """The number of runs of the rollup in a round that are killed."""
    archive: Place | None = None
    """The place of the archive; None for the directory in the data directory."""


class Worker(threading.Thread):
    """Repeats a task, with a new connection after a broken one."""

    def __init__(self, stage: Stage, ledger: TimedLedger, does: Callable[[Worker], None]) -> None:
        super().__init__(name=does.__name__, daemon=True)
        self.stage = stage
        self.ledger = ledger
        self.chance = random.Random(f"{ledger.seed}:{does.__name__}")
        self._does = does
        self._numbers: dict[int, int] = {}
        self._tasks = 0

    def run(self) -> None:
        try:
            while self.stage.is_on():
                with suppress(OSError, NoBroker, Refused):  # The broker is away or starting.
                    self._does(self)
                self.stage.over.wait(_AWAY_SECONDS)
        except Exception as error:  # Any error ends the run as a finding.
            self.stage.fail(self.name, error)

    def add_tasks(self, count: int) -> None:
        """Let the worker begin this many more tasks."""
        self._tasks += count

    def may_begin(self) -> bool:
        """Wait until the worker has a task left; return False at the end of the run."""
        while self._tasks <= 0 and self.stage.is_on():
            self.stage.over.wait(_AWAY_SECONDS)
        return self.stage.is_on()

    def begin(self) -> None:
        """Take one of the tasks."""
        self._tasks -= 1

    def next(self, producer: int) -> tuple[Origin, bytes]:
        """Return a new record."""
        self._numbers[producer] = self._numbers.get(producer, 0) + 1
        origin = Origin(producer, self._numbers[producer])
        return origin, self.ledger.value(origin)


def transact(worker: Worker) -> None:
    """Write to two topics in transactions; roll some back."""
    ledger, address = worker.ledger, worker.stage.addresses["flymq"]
    with FlymqClient(address) as client:
        while worker.may_begin():
            worker.begin()
            transaction = client.transaction()
            origins: dict[str, list[Origin]] = {LEFT: [], RIGHT: []}
            for topic in (LEFT, RIGHT) * worker.chance.randint(1, 3):
                origin, value = worker.next(_TRANSACTION_PRODUCER)
                transaction.produce(topic, value)
                origins[topic].append(origin)
            is_commit = worker.chance.random() >= _ROLLED_BACK
            asked = Transaction(ledger.position(), origins=origins, is_commit=is_commit)
            ledger.facts.transactions.append(asked)
            if is_commit:
                transaction.commit()
                for topic, some in origins.items():
                    ledger.acknowledge(topic, some, [])
            else:
                transaction.rollback()
            asked.after = ledger.position()
            worker.stage.over.wait(_PAUSE_SECONDS)


def settle(worker: Worker) -> None:
    """Lease records of `SHARED` and settle most of them."""
    ledger, address = worker.ledger, worker.stage.addresses["mamamia"]
    with MamamiaClient(address) as client:
        while worker.may_begin():
            count = worker.chance.randint(1, _SETTLE_MAX)
            leased = client.acquire_batch(SHARED, GROUP, "settler", count, LEASE_SECONDS, 0.2)
            chosen = [one.id for one in leased if worker.chance.random() >= _UNSETTLED]
            if not chosen:
                continue
            worker.begin()
            asked = Asked(ledger.position())
            for offset in chosen:
                if ledger.facts.settles.setdefault(offset, asked).after is not None:
                    ledger.report(f"{SHARED} offset {offset} was leased after it was settled")
            said = client.settle_batch(
                SHARED, GROUP, "settler", [BatchSettle(offset, True) for offset in chosen]
            )
            after = ledger.position()
            for offset, text in zip(chosen, said, strict=True):
                if text == "settled":
                    earlier = ledger.facts.settles[offset]
                    ledger.facts.settles[offset] = Asked(earlier.before, after)


def trim(worker: Worker) -> None:
    """Remove the older records of a topic now and then."""
    if not worker.may_begin():
        return
    facts = worker.ledger.facts
    told = list(facts.told.get(TRIMMED, {}).values())
    worker.stage.over.wait(worker.chance.uniform(0.2, 1.0))
    if not told or told[-1][0] is None:
        return
    worker.begin()
    asked = Trim(worker.ledger.position(), offset=max(0, told[-1][0] - 20))
    facts.trims.append(asked)
    _server(worker.stage).post("topics", TRIMMED, "trim", offset=asked.offset)
    asked.after = worker.ledger.position()


def come_and_go(worker: Worker) -> None:
    """Create a topic, write to it, and delete every second one."""
    if not worker.may_begin():
        return
    worker.begin()
    ledger, address = worker.ledger, worker.stage.addresses["flymq"]
    number = len([topic for topic in ledger.facts.told if topic.startswith("brief-")])
    topic = f"brief-{number}-{worker.chance.randrange(1 << 32):08x}"
    with FlymqClient(address) as client:
        client.create_topic(topic)
        for _ in range(_BRIEF_RECORDS):
            origin, value = worker.next(_BRIEF_PRODUCER)
            ledger.acknowledge(topic, [origin], [client.produce(topic, value).offset])
        if number % 2:
            asked = ledger.facts.deletions[topic] = Asked(ledger.position())
            client.delete_topic(topic)
            asked.after = ledger.position()
    worker.stage.over.wait(worker.chance.uniform(0.2, 1.0))


class SteppedJob(Protocol):
    """The part of a `HeldRollup` that a kill at a step needs."""

    def next_point(self) -> str | None:
        """Wait for the next step; return None at the end of the run."""

    def go_on(self) -> None:
        """Let the run continue from its step."""

    def kill(self) -> None:
        """End the process."""


def kill_at_step(job: SteppedJob, step: str) -> str | None:
    """Kill a rollup at a step, or at its last step; return the step, or None if the run ended."""
    while (point := job.next_point()) is not None:
        if point in (step, LAST_STEP):
            job.kill()
            return point
        job.go_on()
    return None


def kill_steps(chance: random.Random) -> Iterator[str]:
    """Yield steps for kills without end: all of `KILL_STEPS` in a new order, again and again."""
    while True:
        yield from chance.sample(KILL_STEPS, len(KILL_STEPS))


class Workload:
    """One run on a broker that is not started yet."""

    def __init__(
        self, broker: BrokerProcess, ledger: TimedLedger, plan: Plan, say: Callable[[str], None]
    ) -> None:
        self._broker = broker
        self._ledger = ledger
        self._plan = plan
        self._say = say
        self._chance = random.Random(f"{ledger.seed}:workload")
        self._kill_steps = kill_steps(self._chance)
        self._writers: list[Writer] = []
        self._workers: list[Worker] = []

    def run(self) -> None:
        """Run the whole workload and stop the broker. Faults become findings of the ledger.

        :raises BrokerFailed: the broker does not come back.
        """
        self._broker.start()
        addresses = {
            wire_format: self._broker.address_of(wire_format)
            for wire_format in ("mamamia", "flymq", "blipmq", "rustlog", "mega", "admin")
        }
        stage = Stage(addresses, self._ledger)
        self._set_up(stage)
        self._workers = [Worker(stage, self._ledger, does) for does in _WORK]
        everybody = (*WRITERS, *MORE_WRITERS)
        self._writers = [
            Writer(stage, number, topic, connect)
            for number, (topic, connect) in enumerate(everybody)
        ]
        try:
            for thread in (*self._workers, *self._writers):
                thread.start()
            for number in range(self._plan.rounds):
                if stage.is_on():
                    self._round(stage, number)
        finally:
            stage.over.set()
            for thread in (*self._workers, *self._writers):
                thread.join(_STALLED_SECONDS)
        if self._chance.random() < 0.5:
            self._broker.kill()
        elif code := self._broker.stop():
            self._ledger.report(f"the broker stopped with exit code {code}")

    def _set_up(self, stage: Stage) -> None:
        with FlymqClient(stage.addresses["flymq"]) as client:
            for topic in TOPICS:
                client.create_topic(topic)
        server = _server(stage)
        server.patch("topics", KEYED, "settings", compact=True)
        server.patch("topics", SHORT, "settings", retention_bytes=_SHORT_BYTES)

    def _round(self, stage: Stage, number: int) -> None:
        began = time.monotonic()
        self._give_work(self._plan.round_bytes // len(self._writers))
        kills = self._chance.randint(*_BROKER_KILLS)
        for _ in range(kills):
            stage.over.wait(self._chance.uniform(0.1, 1.0))
            self._broker.kill()
            self._broker.start()
        self._await_writers(stage)
        killed = 0
        if self._plan.has_rollups:
            killed = self._roll_up(stage)
        self._say(
            f"round {number}: {kills} kills, {killed} rollups killed, "
            f"{self._ledger.count:,} records acknowledged, {time.monotonic() - began:.0f} s, "
            f"position {self._ledger.position():,}"
        )

    def _roll_up(self, stage: Stage) -> int:
        """Kill runs of the rollup during client work and let one end; return the runs killed."""
        _server(stage).post("wal", "seal")
        self._give_work(self._plan.round_bytes // len(self._writers) // 4)
        killed = sum(self._kill_job() for _ in range(self._plan.rollup_kills))
        self._run_job()
        self._await_writers(stage)
        stage.over.wait(_DELETION_SECONDS)
        return killed

    def _give_work(self, size: int) -> None:
        """Give each writer this many bytes to write, and each worker its tasks."""
        for writer in self._writers:
            writer.write(size)
        for worker in self._workers:
            worker.add_tasks(max(1, self._plan.round_bytes * _TASKS_PER_MIB // MIB))

    def _job(self) -> HeldRollup:
        """Return a rollup. Its vacuum keeps no file that the newest version does not need."""
        data_dir = self._broker.data_dir
        return HeldRollup(data_dir, log_of(data_dir), archive=self._plan.archive, vacuum_hours=0)

    def _kill_job(self) -> bool:
        """Run the rollup and kill it at the next of the steps; return whether it was killed."""
        with self._job() as job:
            point = kill_at_step(job, next(self._kill_steps))
            if point is not None:
                self._say(f"the rollup is killed {point}")
                return True
            problems = "; ".join(job.outcome().problems)
        self._ledger.report(f"the rollup ended before it was killed: {problems or 'no problem'}")
        return False

    def _run_job(self) -> None:
        """Run the rollup; kill the broker at one of its steps now and then."""
        kill_at = self._chance.choice(KILL_STEPS) if self._chance.random() < _KILLED_BESIDE else ""
        is_killed = False
        with self._job() as job:
            while (point := job.next_point()) is not None:
                if kill_at and not is_killed and point in (kill_at, LAST_STEP):
                    is_killed = True
                    self._say(f"the broker is killed {point}")
                    self._broker.kill()
                    self._broker.start()
                job.go_on()
            for problem in job.outcome().problems:
                self._ledger.report(f"the rollup: {problem}")

    def _await_writers(self, stage: Stage) -> None:
        count, since = self._ledger.count, time.monotonic()
        for writer in self._writers:
            while stage.is_on() and not writer.is_idle():
                time.sleep(_AWAY_SECONDS)
                if self._ledger.count > count:
                    count, since = self._ledger.count, time.monotonic()
                elif time.monotonic() - since > _STALLED_SECONDS:
                    text = f"no record was acknowledged for {_STALLED_SECONDS:.0f} s"
                    raise BrokerFailed(f"{writer.name} waits, and {text}")


def log_of(data_dir: Path) -> Path:
    """Return the path of the rollup's output, next to the file system of the data directory."""
    return data_dir.parent.parent / "rollup.log"


def _server(stage: Stage) -> Server:
    return Server(find(f"http://{stage.addresses['admin']}", ""))


_WORK = (transact, settle, trim, come_and_go)
