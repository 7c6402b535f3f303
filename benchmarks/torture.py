# Tests: tests/test_torture.py
"""``python -m benchmarks.torture --kills 50``: SIGKILL at random moments under load.

Producers and consumers work on one broker and one data directory. The broker is killed again and
again, sometimes during its start, and started on the same directory and ports. Consumers use the
plain and the batch commands. They settle most messages, fail some, and let some lapse.
:mod:`benchmarks.oracle` judges the answers. At the end the whole log is read and compared, and
    ``brokerctl wal verify`` reads every byte of the log.

Exit codes: 0 every promise kept, 1 a promise broken (the data directory is kept), 2 the torture
could not run. ``--seed`` decides the moments of the kills and the choices of the workers. It does
not decide the broker's state at that moment, so two runs with one seed differ.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .admin import AdminFailed, fetch_dead_letters
from .oracle import Oracle
from .process import BrokerFailed, BrokerProcess, interrupt_on_signals
from .wire import ACQUIRE_BATCH, GROUP_INFO, SETTLE_BATCH, Interrupted, Wire, WireError
from .workers import (
    GROUP,
    LEASE_SECONDS,
    LOG,
    BatchConsumer,
    PlainConsumer,
    Producer,
    Scene,
    Worker,
)

AUDIT = "audit"
_SETTINGS = ("wal.segment_bytes=4MiB", "wal.snapshot_interval_bytes=8MiB")
_UP_SECONDS_MAX = 1.0
_KILL_WHILE_STARTING = 0.15
_STARTING_SECONDS_MAX = 0.6
_DRAIN_SECONDS = 120.0
_AUDIT_BATCH = 1000


@dataclass(frozen=True)
class Summary:
    """The result of a run."""

    kills: int
    seconds: float
    slowest_start: float
    acknowledged: int
    stored: int
    deliveries: int
    settled: int
    lapsed: int
    dead: int
    findings: list[str]

    def text(self) -> str:
        """Return the summary as text for people."""
        lines = [
            f"{self.kills} kills in {self.seconds:.0f} s, slowest start {self.slowest_start:.2f} s",
            f"{self.acknowledged:,} records acknowledged, {self.stored:,} stored",
            f"{self.deliveries:,} deliveries, {self.settled:,} settled, {self.lapsed:,} after a "
            f"lapsed lease, {self.dead:,} dead letters",
        ]
        lines += [f"BROKEN: {finding}" for finding in self.findings]
        lines.append("broken promises" if self.findings else "every promise kept")
        return "\n".join(lines)


def torture(
    broker: BrokerProcess,
    kills: int,
    seed: int,
    producers: int,
    consumers: int,
    say: Callable[[str], None],
) -> Summary:
    """Run the torture against a broker that is not started yet, and return the result.

    :raises BrokerFailed: the broker does not come back.
    """
    began = time.monotonic()
    broker.start()
    oracle = Oracle(seed, LEASE_SECONDS)
    scene = Scene(broker.address, oracle, threading.Event(), threading.Event())
    scene.producing.set()
    workers: list[Worker] = [Producer(scene, number) for number in range(producers)]
    for number in range(consumers):
        kind = PlainConsumer if number % 2 == 0 else BatchConsumer
        workers.append(kind(scene, number))
    try:
        for worker in workers:
            worker.start()
        slowest = _kill_again_and_again(broker, scene, kills, say)
        scene.producing.clear()
        _drain(scene)
    finally:
        scene.producing.clear()
        scene.over.set()
    for worker in workers:
        worker.join(_DRAIN_SECONDS)
    code = broker.stop()
    if code:
        oracle.report(f"the broker stopped with exit code {code}:\n{broker.log_tail()}")
    broker.start()
    with Wire(broker.address) as wire:
        info = wire.ask(GROUP_INFO, {"log_id": LOG, "group_id": GROUP})
        records = read_log(wire)
    dead = fetch_dead_letters(broker.admin, LOG, GROUP)
    oracle.audit(info["next"], records, dead)
    if info["lag"] or info["dead"] != len(dead):
        oracle.report(f"after a clean restart: lag {info['lag']}, {info['dead']} dead letters")
    broker.stop()
    _verify(broker.data_dir, oracle)
    return Summary(
        kills,
        time.monotonic() - began,
        slowest,
        len(oracle.acknowledged),
        info["next"],
        oracle.deliveries,
        len(oracle.settled_at),
        oracle.lapsed,
        len(dead),
        oracle.findings,
    )


def _kill_again_and_again(
    broker: BrokerProcess, scene: Scene, kills: int, say: Callable[[str], None]
) -> float:
    """Do the kills and restarts; return the seconds of the slowest start."""
    chance = random.Random(scene.oracle.seed)
    slowest = 0.0
    done = 0
    while done < kills and scene.is_on():
        up_seconds = chance.uniform(0.02, _UP_SECONDS_MAX)
        scene.over.wait(up_seconds)
        if not broker.is_alive():
            raise BrokerFailed(f"the broker ended by itself:\n{broker.log_tail()}")
        _kill(broker, scene)
        done += 1
        while done < kills and chance.random() < _KILL_WHILE_STARTING:
            time.sleep(chance.uniform(0.0, _STARTING_SECONDS_MAX))
            _kill(broker, scene)
            done += 1
        begin = time.monotonic()
        broker.wait_ready()
        seconds = time.monotonic() - begin
        slowest = max(slowest, seconds)
        say(
            f"kill {done}/{kills} after {up_seconds:.2f} s, back in {seconds:.2f} s: "
            f"{len(scene.oracle.acknowledged):,} acknowledged, "
            f"{len(scene.oracle.settled_at):,} settled"
        )
    return slowest


def _kill(broker: BrokerProcess, scene: Scene) -> None:
    broker.kill()
    gone_at = launched_at = time.monotonic()
    broker.launch()
    scene.oracle.restarted(gone_at, launched_at)


def _drain(scene: Scene) -> None:
    """Wait until the consumers have settled everything."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while scene.is_on():
        with Wire(scene.address) as wire:
            info = wire.ask(GROUP_INFO, {"log_id": LOG, "group_id": GROUP})
        if info["lag"] == 0:
            return
        if time.monotonic() > deadline:
            scene.oracle.report(f"not drained after {_DRAIN_SECONDS:.0f} s: {info}")
            return
        time.sleep(0.1)


def _verify(data_dir: Path, oracle: Oracle) -> None:
    """Run ``brokerctl wal verify`` on the log."""
    brokerctl = Path(sys.executable).with_name("brokerctl")
    command = [str(brokerctl), "--data-dir", str(data_dir), "wal", "verify"]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    if verified.returncode:
        oracle.report(f"wal verify: {(verified.stdout + verified.stderr).strip()}")


def read_log(wire: Wire) -> dict[int, object]:
    """Read the whole log through a group of its own; return payloads by offset."""
    who: dict[str, object] = {"log_id": LOG, "group_id": AUDIT, "client_id": AUDIT}
    records: dict[int, object] = {}
    body = {**who, "duration": 600, "max": _AUDIT_BATCH, "wait": 0}
    while messages := wire.ask(ACQUIRE_BATCH, body)["messages"]:
        for message in messages:
            if message["id"] in records:
                raise WireError(f"offset {message['id']} was delivered twice to the audit")
            records[message["id"]] = message["payload"]
        settles = [{"message_id": message["id"], "success": True} for message in messages]
        wire.ask(SETTLE_BATCH, {**who, "settles": settles})
    return records


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.torture", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--kills", type=int, default=50, help="default: 50")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--producers", type=int, default=3, help="default: 3")
    parser.add_argument("--consumers", type=int, default=4, help="default: 4")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a setting of the broker",
    )
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    interrupt_on_signals()
    directory = Path(tempfile.mkdtemp(prefix="brokerd-torture-"))
    print(f"torture: {options.kills} kills, seed {seed}, data in {directory}", flush=True)
    settings = [*_SETTINGS, *options.set]
    try:
        with BrokerProcess(directory / "data", directory / "broker.log", settings) as broker:
            summary = torture(
                broker,
                options.kills,
                seed,
                options.producers,
                options.consumers,
                lambda line: print(f"  {line}", flush=True),
            )
    except KeyboardInterrupt:
        shutil.rmtree(directory)
        print("torture: interrupted; nothing is left", file=sys.stderr)
        return 130
    except (AdminFailed, BrokerFailed, Interrupted, WireError, OSError) as error:
        print(f"torture: {error}\ntorture: the data is kept in {directory}", file=sys.stderr)
        return 2
    print(summary.text())
    if summary.findings:
        print(f"the data is kept in {directory}, the seed was {seed}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
