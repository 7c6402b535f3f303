# Tests: tests/test_bench.py
"""Measure a broker's memory: a thousand idle connections, a million records in and out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from brokerd.cli.bench.formats import BenchFailed, LoadTarget
from brokerd.cli.bench.formats.base import connect
from brokerd.cli.bench.formats.mamamia import fill
from brokerd.cli.bench.measure import Plan, measure, new_topic
from brokerd.server.config import load as load_config

from .admin import fetch_status
from .process import BrokerProcess
from .wire import PRODUCE, Wire

_SETTLE_SECONDS = 1.0
_CONSUME_SECONDS_MAX = 300.0
_SIZE = 100
MIB = 1 << 20


@dataclass(frozen=True)
class Idle:
    """The cost of idle connections."""

    connections: int
    before_bytes: int
    after_bytes: int

    @property
    def kib_each(self) -> float:
        """Resident KiB a connection."""
        return (self.after_bytes - self.before_bytes) / self.connections / 1024


@dataclass(frozen=True)
class Phase:
    """Resident memory after a phase."""

    name: str
    seconds: float
    rss_bytes: int


def configured_caches(settings: Sequence[str]) -> int:
    """Return the bytes that a broker with these settings may cache: log tail and cold reads."""
    broker = load_config(assignments=settings).config.broker
    return broker.tail_cache_bytes + broker.read_cache_bytes


def idle_connections(broker: BrokerProcess, count: int) -> Idle:
    """Open connections that send nothing and compare the resident memory.

    One connection is used first, so that the memory loaded by a first request does not count.

    :raises BenchFailed: the broker counts fewer connections.
    """
    produce: dict[str, object] = {"log_id": new_topic(), "payload": b"", "metadata": None}
    with Wire(broker.address) as first:
        first.ask(PRODUCE, produce)
    time.sleep(_SETTLE_SECONDS)
    before = broker.memory_bytes()
    with ExitStack() as stack:
        for _ in range(count - 1):
            stack.enter_context(connect(broker.address))
        # Connections are accepted in order, so an answer on the last one proves that all are open.
        stack.enter_context(Wire(broker.address)).ask(PRODUCE, produce)
        time.sleep(_SETTLE_SECONDS)
        after = broker.memory_bytes()
        counted = fetch_status(broker.admin)["connections"]["mamamia"]
    if counted != count:
        raise BenchFailed(f"{counted:,} of {count:,} idle connections are open")
    return Idle(count, before, after)


def million_records(
    broker: BrokerProcess, records: int, show: Callable[[Phase], None]
) -> list[Phase]:
    """Produce and consume ``records`` in batches, then one by one, each time on a log of its own.

    :raises BenchFailed: fewer records came back.
    """
    phases = [Phase("at rest", 0.0, broker.memory_bytes())]
    show(phases[0])

    def note(name: str, began: float) -> None:
        spent = time.monotonic() - began
        time.sleep(_SETTLE_SECONDS)
        phases.append(Phase(name, round(spent, 2), broker.memory_bytes()))
        show(phases[-1])

    for name, batch, scenario, window in (
        ("in batches of 100", 100, "acquire-settle-batch", 4),
        ("one by one", 1, "acquire-settle", 64),
    ):
        log = new_topic()
        began = time.monotonic()
        fill(broker.address, log, records, _SIZE, batch)
        note(f"{records:,} produced {name}", began)
        began = time.monotonic()
        plan = Plan(
            scenario,
            broker.address,
            connections=16,
            window=window,
            size=_SIZE,
            seconds=_CONSUME_SECONDS_MAX,
            warm_up_seconds=0.0,
            batch=100,
        )
        settled = measure(plan, LoadTarget(log)).settled
        if settled != records:
            raise BenchFailed(f"{settled:,} of {records:,} records came back {name}")
        note(f"{records:,} leased and settled {name}", began)
    return phases
