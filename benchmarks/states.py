# Tests: tests/test_size.py
"""Build large states through the broker's own methods, with the formulas of their memory.

Each builder is a coroutine ``build(inside, scale)``; at scale 1 it makes the state that
:data:`STATES` describes. The formulas are those of docs/leases.rst and docs/broker.rst, with the
    numbers of the state filled in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from brokerd.broker import Congested, Partition, Topic
from brokerd.broker.model.group_stores import OPEN_MAX
from simulator.machine.bare import AcceptAll

from .inside import Inside

Item = TypeVar("Item")

UNSETTLED = 10_000_000
LEASES = 1_000_000
GROUPS = 100_000
TOPICS = 10_000
GROUP = "bench"
OWNER = "worker"
VALUE = b"0123456789"

_TURN = 2_000
"""Number of calls in one turn of the reactor."""
_HOUR_US = 3_600_000_000


@dataclass(frozen=True)
class State:
    """A state and its size by the formulas of the pages."""

    name: str
    what: str
    build: Callable[[Inside, float], Awaitable[None]]
    formula_bytes: Callable[[float], float]
    """Bytes in addition to the caches and an empty broker."""


async def call(
    inside: Inside, items: Sequence[Item], begin: Callable[[], Callable[[Item], object]]
) -> None:
    """Call ``begin()(item)`` for all items, some thousand a turn, and repeat congested calls.

    ``begin`` is called once a turn, so that it may keep objects that are valid for one turn.
    """
    done = 0
    while done < len(items):
        act = begin()
        try:
            for item in items[done : done + _TURN]:
                act(item)
                done += 1
        except Congested:
            await inside.uncongested()
        else:
            await inside.sleep()
    await inside.durable()


async def produce(inside: Inside, topic: Topic, count: int, value: bytes = VALUE) -> None:
    """Append ``count`` records to partition 0."""
    partition = topic.partition(0)
    append = inside.broker.appender.produce
    await call(inside, range(count), lambda: lambda _: append(partition, value))


async def holes(inside: Inside, scale: float, name: str = "holes") -> None:
    """Append records and settle every second one; nobody leases the others."""
    count = int(UNSETTLED * scale)
    topic = inside.broker.topics.create(name)
    await produce(inside, topic, 2 * count)
    await _settle(inside, topic.partition(0), range(1, 2 * count, 2), True)


async def returned(inside: Inside, scale: float, delay_us: int = 0, name: str = "returned") -> None:
    """Append records, settle every second one, and fail the others once."""
    count = int(UNSETTLED * scale)
    topic = inside.broker.topics.create(name)
    await produce(inside, topic, 2 * count)
    partition = topic.partition(0)
    await _settle(inside, partition, range(1, 2 * count, 2), True)
    await _settle(inside, partition, range(0, 2 * count, 2), False, delay_us)


async def _settle(
    inside: Inside, partition: Partition, offsets: range, success: bool, delay_us: int = 0
) -> None:
    """Settle records that were never leased, as any client of the group may."""
    broker, name = inside.broker, partition.topic.name
    settle = broker.leases.settle

    def begin() -> Callable[[int], object]:
        group_partition = broker.leases.group_partition(name, GROUP, 0, 0)
        if success:
            return lambda offset: settle(group_partition, offset, True)
        return lambda offset: settle(group_partition, offset, False, delay_us=delay_us)

    await call(inside, offsets, begin)


async def leases(inside: Inside, scale: float, duration_us: int = _HOUR_US) -> None:
    """Take leases in one group."""
    count = int(LEASES * scale)
    topic = inside.broker.topics.create("leases")
    await produce(inside, topic, count)
    while count:
        found = None
        while found is None:
            try:
                found = inside.broker.leases.acquire(
                    "leases", GROUP, OWNER, duration_us, min(count, _TURN), AcceptAll()
                )
            except Congested:
                await inside.uncongested()
        count -= len(found)
        await inside.sleep()
    await inside.durable()


async def groups(inside: Inside, scale: float) -> None:
    """Create groups of one topic, each with a live lease."""
    acquire = inside.broker.leases.acquire
    topic = inside.broker.topics.create("groups")
    await produce(inside, topic, 1)

    def one(number: int) -> object:
        return acquire("groups", f"group-{number}", OWNER, _HOUR_US, 1, AcceptAll())

    await call(inside, range(int(GROUPS * scale)), lambda: one)


async def topics(inside: Inside, scale: float) -> None:
    """Create topics with one record each."""
    broker = inside.broker

    def one(number: int) -> object:
        return broker.appender.produce(broker.topics.create(f"topic-{number}").partition(0), VALUE)

    await call(inside, range(int(TOPICS * scale)), lambda: one)


async def everything(inside: Inside, scale: float) -> None:
    """Build all of the above in one broker."""
    for build in (holes, returned, leases, groups, topics):
        await build(inside, scale)


# -- formulas: docs/leases.rst "Memory", docs/broker.rst "Memory" -----------------------------


def _holes_bytes(scale: float) -> float:
    return 2 * UNSETTLED * scale / 1024 * 260


def _returned_bytes(scale: float) -> float:
    blocks = 2 * UNSETTLED * scale / 256
    return _holes_bytes(scale) + 260 * blocks + 24 * UNSETTLED * scale


def _leases_bytes(scale: float) -> float:
    return 370 * LEASES * scale


def _groups_bytes(scale: float) -> float:
    count = GROUPS * scale
    open_stores = min(count, OPEN_MAX)
    return (900 + 300 + 135 + 150) * count + (2_900 + 350 + 700) * open_stores


def _topics_bytes(scale: float) -> float:
    return (1_050 + 600 + 1_500) * TOPICS * scale


def _all_bytes(scale: float) -> float:
    parts = (_holes_bytes, _returned_bytes, _leases_bytes, _groups_bytes, _topics_bytes)
    return sum(part(scale) for part in parts)


STATES = (
    State("holes", "10,000,000 never leased, every other one settled", holes, _holes_bytes),
    State(
        "returned",
        "10,000,000 that failed once, every other one settled",
        returned,
        _returned_bytes,
    ),
    State("leases", "1,000,000 live leases", leases, _leases_bytes),
    State("groups", "100,000 groups with a lease each", groups, _groups_bytes),
    State("topics", "10,000 topics", topics, _topics_bytes),
    State("all", "all of these", everything, _all_bytes),
)
