# Tests: tests/test_stalls.py
"""Measure the longest turn of the reactor while many leases or groups change at once.

``python -m benchmarks.stalls [--scale 0.01] [--json]``. In one broker process, one after another: a
million leases of one group lapse, are released as one client's, are sought over, and go with their
group; a hundred thousand groups, each with a lease, lapse at one moment, see their record removed,
and go with their topic; a record comes for ten thousand groups with a long poll each; a client
comes upon a million expired records. :mod:`benchmarks.size` measures the other phases: snapshots
and scrapes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from twisted.internet.threads import deferToThread

from brokerd.broker import Congested, GroupPartition
from brokerd.cli.bench.machine import describe, sync_rate
from brokerd.client.mamamia import MamamiaClient
from simulator.machine.bare import AcceptAll

from .children import ChildFailed, answer, run_child
from .inside import Inside, run
from .process import interrupt_on_signals
from .stall_probe import LONG_SECONDS, StallProbe, Stalls
from .states import GROUP, LEASES, OWNER, VALUE, call, groups, leases, produce

POLLS = 10_000
EXPIRED = 1_000_000
_HOUR_US = 3_600_000_000
_STEP_SECONDS_MAX = 900.0


class Phases:
    """The watched phases, in this order."""

    def __init__(self, inside: Inside, scale: float) -> None:
        self._inside = inside
        self._broker = inside.broker
        self._scale = scale
        self._probe = StallProbe(inside.reactor)
        self.done: list[Stalls] = []

    async def run(self) -> None:
        """Run all phases."""
        broker, count = self._broker, int(LEASES * self._scale)
        await leases(self._inside, self._scale)
        group_partition = broker.leases.group_partition("leases", GROUP, 0, 0)
        await self._lapse("a group's leases lapse", [group_partition] * count, range(count))
        await self._lease_all(count)
        await self._release()
        await self._lease_all(count)
        await self._change("seek", lambda: broker.groups.seek("leases", GROUP, "start"))
        await self._lease_all(count)
        await self._change("delete group", lambda: broker.groups.delete("leases", GROUP))
        await groups(self._inside, self._scale)
        group_partitions = [
            group.partitions[0] for group in broker.topics.existing("groups").groups.values()
        ]
        await self._lapse("leases of groups lapse", group_partitions, [0] * len(group_partitions))
        del group_partitions
        await self._change("start offset of groups", lambda: broker.topics.trim("groups", 0, 1))
        await self._change("delete topic of groups", lambda: broker.topics.delete("groups"))
        await self._polls()
        await self._expired()

    def _end(self) -> None:
        self.done.append(self._probe.end())

    async def _lapse(
        self, phase: str, group_partitions: Sequence[GroupPartition], offsets: Sequence[int]
    ) -> None:
        """Let leases lapse at one moment, after each was extended to it."""
        inside, broker = self._inside, self._broker
        now_us = broker.time.monotonic_us
        due_us = now_us() + 500_000 + 20 * len(group_partitions)
        expired = broker.counters.lapsed

        def extend(item: tuple[GroupPartition, int]) -> object:
            return broker.leases.extend(*item, max(1, due_us - now_us()), owner=OWNER)

        items = list(zip(group_partitions, offsets, strict=True))
        await call(inside, items, lambda: extend)
        await inside.sleep(max(0.0, (due_us - now_us()) / 1e6 - 0.1))
        self._probe.begin(phase)
        while broker.counters.lapsed < expired + len(items):
            await inside.sleep(0.02)
        await inside.durable()
        self._end()

    async def _lease_all(self, count: int) -> None:
        while count > 0:
            try:
                found = self._broker.leases.acquire(
                    "leases", GROUP, OWNER, _HOUR_US, min(count, 2_000), AcceptAll()
                )
            except Congested:
                await self._inside.uncongested()
            else:
                count -= len(found)
                await self._inside.sleep()
        await self._inside.durable()

    async def _release(self) -> None:
        """End a client's leases, in each turn as many as a frame takes."""
        self._probe.begin("release owner")
        more = True
        while more:
            try:
                more = self._broker.groups.release_owner("leases", GROUP, OWNER)[1]
            except Congested:
                await self._inside.uncongested()
            await self._inside.sleep()
        await self._inside.durable()
        self._end()

    async def _change(self, phase: str, change: Callable[[], object]) -> None:
        self._probe.begin(phase)
        await call(self._inside, [None], lambda: lambda _: change())
        await self._inside.sleep(0.2)
        self._end()

    async def _polls(self) -> None:
        """Produce one record for many groups, each with a waiting long poll."""
        inside, broker = self._inside, self._broker
        topic = broker.topics.create("polls")
        count = int(POLLS * self._scale)
        served: set[str] = set()

        def attempt(name: str) -> bool:
            if broker.leases.acquire("polls", name, OWNER, _HOUR_US, 1, AcceptAll()):
                served.add(name)
            return name in served

        for name in (f"poll-{number}" for number in range(count)):
            broker.leases.wait(
                "polls", name, _HOUR_US, lambda name=name: attempt(name), lambda: None
            )
        await inside.durable()
        self._probe.begin("long polls of groups")
        await produce(inside, topic, 1)
        while len(served) < count:
            await inside.sleep(0.01)
        await inside.durable()
        self._end()

    async def _expired(self) -> None:
        """Acquire a message behind a long run of expired ones."""
        inside, broker = self._inside, self._broker
        topic = broker.topics.create("expired")
        partition = topic.partition(0)
        gone_us = broker.time.time_us() + 1

        def expiring(_: int) -> object:
            return broker.appender.produce(partition, VALUE, expires_at_us=gone_us)

        await call(inside, range(int(EXPIRED * self._scale)), lambda: expiring)
        await produce(inside, topic, 1)
        self._probe.begin("expired records")
        found = await deferToThread(_acquire, inside.address)
        self._end()
        assert found == int(EXPIRED * self._scale), f"message {found} was leased"


def _acquire(address: str) -> int | None:
    with MamamiaClient(address) as client:
        message = client.acquire("expired", GROUP, OWNER)
    return None if message is None else message.id


def _step(data_dir: Path, scale: float) -> dict[str, Any]:
    async def scenario(inside: Inside, start_seconds: float) -> dict[str, Any]:
        inside.leave = True
        phases = Phases(inside, scale)
        await phases.run()
        return {"phases": [asdict(one) for one in phases.done]}

    return run(data_dir, (), scenario)[0]


def measure(directory: Path, scale: float, show: Callable[[str], None]) -> list[dict[str, Any]]:
    """Run all phases in a broker process of its own and return the figures.

    :raises ChildFailed: the broker fails.
    """
    show(
        f"much at once, at scale {scale:g}; durability fsync; raw 4 KiB syncs/s "
        f"{sync_rate(directory, 4096, 0.5):,.0f}"
    )
    with tempfile.TemporaryDirectory(prefix="stalls-", dir=directory) as name:
        spec = {"data_dir": str(Path(name) / "data"), "scale": scale}
        found = run_child("benchmarks.stalls", spec, _STEP_SECONDS_MAX)
    phases: list[dict[str, Any]] = found["phases"]
    for phase in phases:
        over = " OVER" if phase["longest_ms"] > LONG_SECONDS * 1000 else ""
        show(
            f"  {phase['phase']:<24} {phase['seconds']:>6.2f} s, longest turn "
            f"{phase['longest_ms']:>7.1f} ms (processor {phase['busiest_ms']:.1f}), "
            f"{phase['over_50_ms']} over 50 ms, "
            f"longest gc {phase['gc_longest_ms']:.1f} ms{over}"
        )
        for line in phase["where"] if over else ():
            show(f"      {line}")
    return phases


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stalls")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes (default: 1)")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step is not None:
        spec = json.loads(options.step)
        return answer(lambda: _step(Path(spec["data_dir"]), spec["scale"]))
    interrupt_on_signals()

    def show(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name:
            machine = describe(Path(name))
            show(machine.text())
            phases = measure(Path(name), options.scale, show)
            if options.json:
                print(json.dumps({"machine": asdict(machine), "phases": phases}))
    except ChildFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
