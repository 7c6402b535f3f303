# Tests: tests/test_archive_torture.py
"""``python -m benchmarks.archive_torture --rounds 30``: SIGKILL while a log is archived.

Writers of all wire formats fill small journal files. Readers of all formats follow from offset 0 to
the tail. Each round rolls up, compacts and deletes the log, and kills one victim with SIGKILL: the
job's driver, its workers, one or both executors of a small cluster (with their Java), or the
broker. The kill comes at a named point of the job, or while the broker loads a new version of the
archive, or while the broker deletes journal files. A job that died runs again, as cron would run
it. A job that lost executors has to finish.

After each round the table of records has to hold every (topic, partition, offset) exactly once. At
the end new readers of each format start. All readers, old and new, have to have seen each record
once and in order. The digest of their records has to equal the digest of the acknowledged records.

A round takes longer as the log grows, so a new log starts after `LOG_ROUNDS` rounds. ``--part 2/3``
runs the second of three parts that together do every kill of one seed once.

Exit codes: 0 every promise kept, 1 a promise broken (the data directory is kept), 2 the torture
could not run. ``--seed`` decides the kills; it does not decide what the clients do at that moment.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from deltalake import DeltaTable

from brokerd.cli.server import Server, find
from brokerd.client.mega import MegaClient
from brokerd.errors import BrokerdError

from .archive_kills import DELETING, EXECUTORS, KILLS, REFRESHED, Kill, Summary, some_kills
from .crowd import (
    BLIPMQ_SETTINGS,
    KEYED,
    SHARED,
    WRITERS,
    BlipmqReads,
    Follower,
    Stage,
    Writer,
    key_of,
    readers,
)
from .held_rollup import CLUSTER, LOCAL, HeldRollup, Outcome
from .ledger import Ledger, Seen
from .process import BrokerFailed, BrokerProcess, interrupt_on_signals

MIB = 1 << 20
ROUND_BYTES = 4 * MIB
LOG_ROUNDS = 12
TRIES = 3
"""How often a kill is tried. Some tables are merged only in some rounds."""
SETTINGS = (
    "wal.segment_bytes=1MiB",
    "wal.snapshot_interval_bytes=1MiB",
    "broker.tail_cache_bytes=1MiB",
    "broker.read_cache_bytes=1MiB",
    "retention.check_seconds=1",
    "archive.keep_wal_bytes=0",
    "archive.poll_seconds=1",
    *BLIPMQ_SETTINGS,
)
_LEAVES_UNDONE = ("driver", "workers")
"""Victims whose death ends a job, so that the job has to run again."""
_DELETING_SECONDS = 90.0
_ROUND_SECONDS = 180.0
_FOLLOW_SECONDS = 300.0


class Torture:
    """One run in its own directory, with a broker that is not started yet."""

    def __init__(
        self,
        broker: BrokerProcess,
        seed: int,
        say: Callable[[str], None],
        round_bytes: int = ROUND_BYTES,
        derived: bool = True,
    ) -> None:
        self.summary = Summary()
        self._broker = broker
        self._ledger = Ledger(seed)
        self._chance = random.Random(seed)
        self._say = say
        self._round_bytes = round_bytes
        self._derived = derived
        self._began = time.monotonic()
        self._data_dir = broker.data_dir
        self._followers: list[Follower] = []
        self._last: list[Follower] = []
        """Readers that have to see the whole log."""
        self._writers: list[Writer] = []

    def run(self, kills: Sequence[Kill]) -> Summary:
        """Do a round for each kill, then judge the log, the archive and the readers.

        A kill is tried again after all others if the job did not reach its point.

        :raises BrokerFailed: the broker does not come back.
        """
        self._broker.start()
        addresses = {
            wire_format: self._broker.address_of(wire_format)
            for wire_format in ("mamamia", "flymq", "blipmq", "rustlog", "mega")
        }
        stage = Stage(addresses, self._ledger)
        try:
            self._set_up(stage)
            again: list[Kill] = []
            for number, kill in enumerate(chain(kills, again)):  # the loop appends to ``again``
                if not stage.is_on():
                    break
                if not self._round(stage, number, kill):
                    tries = [*kills, *again].count(kill)
                    (again if tries < TRIES else self.summary.missed).append(kill)
            if stage.is_on():
                self._end(stage, self.summary.rounds)
        finally:
            stage.over.set()
        self._judge()
        return self.summary

    def _set_up(self, stage: Stage) -> None:
        with MegaClient(stage.addresses["mega"]) as client:
            client.create_topic(SHARED)
            client.create_topic(KEYED)
        self._ask("patch", "topics", KEYED, "settings", compact=True)
        self._follow(BlipmqReads(stage, "BlipMQ"))
        self._writers = [
            Writer(stage, number, topic, connect) for number, (topic, connect) in enumerate(WRITERS)
        ]
        for writer in self._writers:
            writer.start()

    def _follow(self, follower: Follower) -> None:
        self._followers.append(follower)
        follower.start()

    # -- A round ---------------------------------------------------------------------------------

    def _round(self, stage: Stage, number: int, kill: Kill) -> bool:
        """Roll up and kill once; return whether the kill happened."""
        began = time.monotonic()
        for reader in readers(stage, number):
            self._follow(reader)
        self._write(stage)
        self._ask("post", "wal", "seal")
        had = self._segments()
        for writer in self._writers:
            writer.write(self._round_bytes // len(self._writers) // 8)
        is_met = self._run_and_kill(kill)
        if kill.victim in _LEAVES_UNDONE:
            self._run_job_again()
        self._await_followers(stage)
        archived = self._check_table()
        self.summary.rounds += 1
        self.summary.segments_deleted += len(had - self._segments())
        what = str(kill) if is_met else f"never came to: {kill}"
        self._say(
            f"round {number}, {what}: {archived:,} archived of {self._ledger.count:,}, "
            f"{time.monotonic() - began:.1f} s"
        )
        return is_met

    def _write(self, stage: Stage) -> None:
        """Have each writer write its share of a round."""
        self._write_more()
        self._await_writers(stage)

    def _await_writers(self, stage: Stage) -> None:
        deadline = time.monotonic() + _ROUND_SECONDS
        for writer in self._writers:
            while stage.is_on() and not writer.is_idle():
                time.sleep(0.05)
                if time.monotonic() > deadline:
                    raise BrokerFailed(f"{writer.name} was not done within {_ROUND_SECONDS:.0f} s")

    def _run_and_kill(self, kill: Kill) -> bool:
        """Run the job and kill the victim once; return whether the kill happened."""
        if kill.when == DELETING:
            return self._run_and_kill_deleting(kill)
        is_met = False
        master = CLUSTER if kill.victim in EXECUTORS else LOCAL
        with self._job(master) as job:
            while (point := job.next_point()) is not None:
                if is_met or point != kill.when:
                    job.go_on()
                    continue
                is_met = self._kill_at_point(kill.victim, job)
            outcome = job.outcome()
        if kill.victim == "broker":
            self._judge_outcome(kill, outcome)
            if kill.when == REFRESHED:
                time.sleep(self._chance.uniform(0.0, 0.5))
                return self._kill_broker()
        elif kill.victim not in _LEAVES_UNDONE or not is_met:
            self._judge_outcome(kill, outcome)
        return is_met

    def _run_and_kill_deleting(self, kill: Kill) -> bool:
        """Run the job; kill the broker at a deletion of a journal file, during the job or later.

        The job continues without a broker. The kernel ends a child together with the thread that
        started it, so this method starts the broker again, not the pool's thread.

        :return: whether the kill happened.
        """
        is_over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            killed = pool.submit(self._kill_at_deletion, is_over)
            try:
                self._judge_outcome(kill, self._run_job())
                self._write_more()
            finally:
                is_over.set()
        if not killed.result():
            return False
        self._broker.start()
        self.summary.kills["broker"] += 1
        return True

    def _kill_at_point(self, victim: str, job: HeldRollup) -> bool:
        if victim == "driver":
            job.kill()
        elif victim == "broker":
            self._kill_broker()
            job.go_on()
            return True
        else:
            job.go_on()
            if not self._kill_beside(victim, job):
                return False
        self.summary.kills[victim] += 1
        return True

    def _kill_beside(self, victim: str, job: HeldRollup) -> int:
        """Kill processes of the running job and return their number."""
        if victim in EXECUTORS:
            return job.kill_executors(EXECUTORS[victim], self._chance.uniform(0.0, 2.0))
        delay = self._chance.uniform(0.0, 0.3)
        if victim == "worker":
            return job.kill_a_worker(delay)
        return job.kill_workers(self._chance.uniform(1.0, 6.0))

    def _kill_broker(self) -> bool:
        self._broker.kill()
        self._broker.start()
        self.summary.kills["broker"] += 1
        return True

    def _judge_outcome(self, kill: Kill, outcome: Outcome) -> None:
        for problem in outcome.problems:
            # A broker that was killed during the notification polls the archive itself.
            if "could not be told" not in problem:
                self._ledger.report(f"the job, {kill}: {problem}")

    def _run_job(self) -> Outcome:
        """Run the job from start to end and return its outcome."""
        with self._job() as job:
            while job.next_point() is not None:
                job.go_on()
            return job.outcome()

    def _run_job_again(self) -> None:
        """Run the job again, as cron would; it has to succeed."""
        for problem in self._run_job().problems:
            self._ledger.report(f"the job, run again: {problem}")

    def _write_more(self) -> None:
        """Write one more share. The broker deletes only after two further snapshots."""
        for writer in self._writers:
            writer.write(self._round_bytes // len(self._writers))

    def _kill_at_deletion(self, is_over: threading.Event) -> bool:
        """Kill the broker at a deletion of a journal file; return False if none comes in time."""
        had = self._segments()
        deadline: float | None = None
        while not had - self._segments():
            if is_over.is_set():
                deadline = deadline or time.monotonic() + _DELETING_SECONDS
                if time.monotonic() > deadline:
                    return False
            time.sleep(0.002)
        self._broker.kill()
        return True

    def _await_deletion_of(self, names: set[str]) -> None:
        """Wait until these journal files are deleted, with a limit, and count the deleted ones."""
        deadline = time.monotonic() + _DELETING_SECONDS
        while names & self._segments() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.summary.segments_deleted += len(names - self._segments())

    def _segments(self) -> set[str]:
        return {path.name for path in (self._data_dir / "wal").glob("*.wal")}

    def _await_followers(self, stage: Stage) -> None:
        """Let readers of earlier rounds finish, so that their number stays small."""
        for follower in self._followers:
            if not isinstance(follower, BlipmqReads):
                follower.finish.set()
        self._join(stage, [one for one in self._followers if not isinstance(one, BlipmqReads)])

    def _join(self, stage: Stage, followers: Sequence[Follower]) -> None:
        deadline = time.monotonic() + _FOLLOW_SECONDS
        for follower in followers:
            while follower.is_alive() and stage.is_on():
                follower.join(0.1)
                if time.monotonic() > deadline:
                    self._ledger.report(
                        f"{follower.name} has not come to the tail after {_FOLLOW_SECONDS:.0f} s: "
                        f"{len(follower.seen):,} records"
                    )
                    stage.over.set()

    # -- The end ---------------------------------------------------------------------------------

    def _end(self, stage: Stage, number: int) -> None:
        """Archive and delete the whole log but its end, while every reader reads it all."""
        had = self._segments()
        self._write(stage)
        self._ask("post", "wal", "seal")
        self._run_job_again()
        self._write_more()
        self._await_writers(stage)
        self._await_deletion_of(had)
        for reader in readers(stage, number):
            self._follow(reader)
            self._last.append(reader)
        for follower in self._followers:
            follower.finish.set()
        self._join(stage, self._followers)
        self._last += [one for one in self._followers if isinstance(one, BlipmqReads)]
        self._check_table()

    def _judge(self) -> None:
        summary, ledger = self.summary, self._ledger
        shared = [one for one in self._followers if one.topic == SHARED]
        whole = max((one.seen for one in shared), key=len, default=[])
        ledger.audit(SHARED, "all readers", whole)
        for follower in self._followers:
            summary.seen += len(follower.seen)
            if follower.topic == KEYED:
                ledger.audit_order(KEYED, follower.name, follower.seen)
            elif (place := _differ_at(follower.seen, whole)) is not None:
                ledger.report(f"{follower.name} saw something else than others, at record {place}")
        for follower in self._last:
            if follower.topic == KEYED:
                summary.compacted = ledger.audit_latest(KEYED, follower.name, follower.seen, key_of)
            elif len(follower.seen) != len(whole):
                ledger.report(f"{follower.name} saw {len(follower.seen)} of {len(whole)} records")
        code = self._broker.stop()
        if code:
            ledger.report(f"the broker stopped with exit code {code}:\n{self._broker.log_tail()}")
        self._verify()
        summary.readers = len(self._followers)
        summary.acknowledged = ledger.count
        summary.digest = ledger.digest(SHARED)
        summary.findings = ledger.findings
        summary.seconds = time.monotonic() - self._began

    def _check_table(self) -> int:
        """Check the table of records: each (topic, partition, offset) once, with its bytes."""
        path = self._data_dir / "archive" / "records"
        columns = ["topic", "partition", "offset", "value"]
        rows = DeltaTable(str(path)).to_pyarrow_table(columns=columns).to_pylist()
        places = Counter((row["topic"], row["partition"], row["offset"]) for row in rows)
        twice = [place for place, count in places.items() if count > 1]
        if twice:
            self._ledger.report(f"{len(twice)} records are there twice, as {sorted(twice)[:5]}")
        shared = sorted(offset for topic, _, offset in places if topic == SHARED)
        if shared != list(range(len(shared))):
            gaps = sorted(set(range(shared[-1])) - set(shared))
            self._ledger.report(f"the table has not {len(gaps)} offsets of {SHARED}: {gaps[:5]}")
        for topic in (SHARED, KEYED):
            there = [Seen(row["offset"], row["value"]) for row in rows if row["topic"] == topic]
            self._ledger.audit_order(topic, "the table", sorted(set(there)))
        self.summary.archived = len(rows)
        return len(rows)

    def _verify(self) -> None:
        """Run ``brokerctl wal verify`` on the rest of the log."""
        brokerctl = Path(sys.executable).with_name("brokerctl")
        command = [str(brokerctl), "--data-dir", str(self._data_dir), "wal", "verify"]
        verified = subprocess.run(command, capture_output=True, text=True, check=False)
        if verified.returncode:
            self._ledger.report(f"wal verify: {(verified.stdout + verified.stderr).strip()}")

    # -- The admin API ---------------------------------------------------------------------------

    def _ask(self, verb: str, *parts: str, **body: object) -> None:
        getattr(Server(find(None, str(self._data_dir))), verb)(*parts, **body)

    def _job(self, master: str = LOCAL) -> HeldRollup:
        log = self._data_dir.with_name("rollup.log")
        return HeldRollup(self._data_dir, log, self._derived, master)


def _differ_at(seen: Sequence[Seen], whole: Sequence[Seen]) -> int | None:
    """Return the index of the first value in ``seen`` that differs from ``whole``, or None."""
    pairs = enumerate(zip(seen, whole, strict=False))
    return next((at for at, (one, other) in pairs if one.value != other.value), None)


def _torture(directory: Path, seed: int, kills: Sequence[Kill]) -> Summary:
    """Run some rounds on a log of their own and return the summary."""
    directory.mkdir()
    with BrokerProcess(directory / "data", directory / "broker.log", SETTINGS) as broker:
        return Torture(broker, seed, lambda line: print(f"  {line}", flush=True)).run(kills)


def _part(text: str) -> tuple[int, int]:
    """Parse a part of a run, ``2/3``, into its number and the number of parts."""
    number, _, count = text.partition("/")
    part, parts = int(number), int(count)
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.archive_torture", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=30, help="default: 30")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--only", metavar="VICTIM", help="driver, worker, executor, broker ...")
    parser.add_argument("--part", metavar="K/N", type=_part, default=(1, 1), help="default: 1/1")
    options = parser.parse_args(arguments)
    part, parts = options.part
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    kills = some_kills(max(options.rounds, len(KILLS)), seed)
    kills = [one for one in kills if options.only in (None, one.victim)][: options.rounds]
    kills = kills[part - 1 :: parts]
    interrupt_on_signals()
    directory = Path(tempfile.mkdtemp(prefix="brokerd-archive-torture-"))
    print(f"torture: {len(kills)} rounds, seed {seed}, data in {directory}", flush=True)
    summary = Summary()
    try:
        for first in range(0, len(kills), LOG_ROUNDS):
            log = directory / f"log-{first // LOG_ROUNDS}"
            summary.add(_torture(log, seed + first, kills[first : first + LOG_ROUNDS]))
            if summary.findings:
                break
            shutil.rmtree(log, ignore_errors=True)  # Java may still write there
    except KeyboardInterrupt:
        shutil.rmtree(directory, ignore_errors=True)  # Java may still write there
        print("torture: interrupted; nothing is left", file=sys.stderr)
        return 130
    except (BrokerFailed, BrokerdError, OSError) as error:
        print(f"torture: {error}\ntorture: the data is kept in {directory}", file=sys.stderr)
        return 2
    print(summary.text())
    if summary.findings:
        print(f"the data is kept in {directory}, the seed was {seed}")
        return 1
    shutil.rmtree(directory, ignore_errors=True)  # Java may still write there
    return 0


if __name__ == "__main__":
    sys.exit(main())
