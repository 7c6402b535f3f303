# Tests: tests/test_size.py
"""Measure what new groups cost on a topic of many partitions: memory, restart, stop, turns.

``python -m benchmarks.group_state [--groups 1000] [--partitions 1000] [--limit 1] [--json]``. Each
group acquires ``--limit`` records of the topic, which has one record in each partition, and keeps
its leases. The broker is then killed, started again, and stopped. The last columns are the
processor time of the broker's reactor thread for one ACQUIRE, and for one SUBSCRIBE of BlipMQ.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from brokerd.client.blipmq import BlipmqClient
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient

from .process import BrokerProcess, interrupt_on_signals

MIB = 1 << 20
TOPIC = "wide"
LEASE_SECONDS = 3600.0
SUBSCRIPTIONS = 5
STOP_SECONDS_MAX = 300.0
START_SECONDS_MAX = 600.0


def measure(
    broker: BrokerProcess, groups: int, partitions: int, limit: int, show: Callable[[str], None]
) -> dict[str, Any]:
    """Create the groups, kill, start and stop; return the figures."""
    broker.start()
    empty = broker.memory_bytes()
    fill(broker, partitions)
    turns = []
    with MamamiaClient(broker.address) as client:
        for number in range(groups):
            before = broker.reactor_seconds()
            client.acquire_batch(TOPIC, f"group-{number}", "worker", limit, duration=LEASE_SECONDS)
            turns.append(broker.reactor_seconds() - before)
    found: dict[str, Any] = {
        "groups": groups,
        "partitions": partitions,
        "limit": limit,
        "empty_bytes": empty,
        "rss_bytes": broker.memory_bytes(),
        "peak_bytes": broker.memory_bytes("VmHWM"),
        "acquire_median_ms": 1000 * sorted(turns)[len(turns) // 2],
        "acquire_max_ms": 1000 * max(turns),
    }
    show(
        f"{groups:,} groups x {limit} leases, {partitions:,} partitions: "
        f"RSS {empty / MIB:.0f} -> {found['rss_bytes'] / MIB:.0f} MB; processor time of an ACQUIRE "
        f"{found['acquire_median_ms']:.2f} ms, at most {found['acquire_max_ms']:.1f} ms"
    )
    broker.kill()
    found["start_seconds"] = broker.start(START_SECONDS_MAX)
    found["started_bytes"] = broker.memory_bytes()
    show(
        f"killed, started in {found['start_seconds']:.1f} s with "
        f"{found['started_bytes'] / MIB:.0f} MB"
    )
    found |= _stop(broker, show)
    found["again_seconds"] = broker.start(START_SECONDS_MAX)
    found["again_bytes"] = broker.memory_bytes()
    show(
        f"started from the snapshot in {found['again_seconds']:.1f} s with "
        f"{found['again_bytes'] / MIB:.0f} MB"
    )
    found["subscribe_ms"] = _subscribe(broker)
    show(f"processor time of a SUBSCRIBE at most {found['subscribe_ms']:.1f} ms")
    return found


def fill(broker: BrokerProcess, partitions: int) -> None:
    """Create the topic with one record in each partition."""
    with FlymqClient(broker.address_of("flymq")) as client:
        client.create_topic(TOPIC, partitions)
    with MamamiaClient(broker.address) as client:
        for _ in range(partitions):
            client.produce(TOPIC, b"record")


def _stop(broker: BrokerProcess, show: Callable[[str], None]) -> dict[str, Any]:
    begin = time.monotonic()
    broker.stop(STOP_SECONDS_MAX)
    seconds = time.monotonic() - begin
    size = sum(path.stat().st_size for path in (broker.data_dir / "state").glob("*.snapshot"))
    show(f"stopped in {seconds:.1f} s")
    return {"stop_seconds": seconds, "snapshot_bytes": size}


def _subscribe(broker: BrokerProcess) -> float:
    """Return the longest processor time of a subscription, in milliseconds."""
    turns = []
    with BlipmqClient(broker.address_of("blipmq")) as client:
        for _ in range(SUBSCRIPTIONS):
            before = broker.reactor_seconds()
            client.subscribe(TOPIC, 1)
            turns.append(broker.reactor_seconds() - before)
    return 1000 * max(turns)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_state", description=__doc__)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--limit", type=int, default=1, help="records that each group leases")
    parser.add_argument("--set", action="append", default=[], help="section.key=value")
    parser.add_argument("--directory", default=".")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    interrupt_on_signals()

    def show(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name,
        BrokerProcess(Path(name) / "data", Path(name) / "log", options.set) as broker,
    ):
        found = measure(broker, options.groups, options.partitions, options.limit, show)
    if options.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
