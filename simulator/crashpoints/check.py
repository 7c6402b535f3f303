# Tests: tests/simulator/test_crashpoints.py
"""Recover a whole broker after a crash, compare it with the expected state, and use it.

A broker of the real parts starts on the disk. Its records are read from the log, its groups are
listed and leased. Then each partition takes one more record, and groups lease and settle. All of
this must survive a second loss of power, and a clean stop must leave sound files.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from brokerd.broker import GroupPartition as BrokerGroupPartition
from brokerd.broker import Partition
from brokerd.values import Grant, Record
from brokerd.wal import WalOptions
from brokerd.wal.damage.verify import verify
from simulator.crashpoints.expect import (
    UNTOUCHED,
    Expected,
    GroupPartition,
    SentMessage,
    State,
    Status,
)
from simulator.crashpoints.points import LOST, Point
from simulator.crashpoints.script import SEGMENT_BYTES
from simulator.directory.state_text import describe, without_snapshots
from simulator.history.operations import Place
from simulator.machine.bare import (
    FORGETFUL,
    STATE_DIR,
    WAL_DIR,
    WALL_SECONDS,
    AcceptAll,
    BareBroker,
)
from simulator.machine.crash import CrashModel
from simulator.machine.disk import SimDisk

MICROSECONDS = 1_000_000
OPTIONS = WalOptions(segment_bytes=SEGMENT_BYTES, free_bytes_min=0)
PROBER = "prober"
"""The owner of leases in a check."""
PROBE_US = 60_000_000
PROBLEMS_MAX = 10
"""The most findings of one check. Losses of acknowledged records come first."""


def check_broker(disk: SimDisk, point: Point, model: CrashModel, expected: Expected) -> list[str]:
    """Return the faults of ``disk`` after a crash. The check changes the disk.

    After a fault, later steps are not checked.
    """
    try:
        problems = _problems(disk, point, model, expected)
    except Exception:
        return [traceback.format_exc()]  # any error: the broker should have started
    return sorted(problems, key=lambda text: not text.startswith(LOST))[:PROBLEMS_MAX]


def _problems(disk: SimDisk, point: Point, model: CrashModel, expected: Expected) -> list[str]:
    chance = point.chance(model)

    def start(disk: SimDisk) -> BareBroker:
        wall_seconds = WALL_SECONDS + expected.now_us / MICROSECONDS
        return BareBroker(disk, OPTIONS, chance.randbytes, FORGETFUL, wall_seconds)

    log_alone = without_snapshots(disk)
    house = start(disk)
    problems = [*_recovery_problems(house), *_record_problems(house, expected)]
    problems += _differences("snapshots", house, "the log", start(log_alone))
    if problems:
        return problems
    problems += [*_group_problems(house, expected), *_work_on(house)]
    if problems:
        return problems
    disk.crash(CrashModel.DROP)
    again = start(disk)
    problems += [*_recovery_problems(again), *_record_problems(again, expected, afterwards=1)]
    problems += _differences("the broker", house, "the next start", again)
    return problems or list(_stop(again))


def _recovery_problems(house: BareBroker) -> Iterator[str]:
    """Check that recovery after a power loss reports no damaged segment, index or snapshot."""
    report = house.report
    yield from (f"recovery reports damage: {damage}" for damage in report.damages)
    yield from (f"recovery reports a bad index: {problem}" for problem in report.bad_indexes)
    if house.broker.status()["damage"]["snapshots"]:
        yield "recovery passed over a damaged snapshot"


def _differences(name: str, house: BareBroker, other: str, twin: BareBroker) -> list[str]:
    for one, two in zip_longest(describe(house.broker), describe(twin.broker)):
        if one != two:
            return [f"{name} and {other} tell different things:\n  {one}\n  {two}"]
    return []


# -- records ---------------------------------------------------------------------------------------


def _record_problems(house: BareBroker, expected: Expected, afterwards: int = 0) -> Iterator[str]:
    """Check topics, and every record of every partition.

    :param afterwards: number of records that the check has appended to each partition.
    """
    topics = {topic.name: len(topic.partitions) for topic in house.broker.topics.all()}
    for name in expected.certain - topics.keys():
        yield f"topic {name!r} is gone"
    for name, count in topics.items():
        if expected.topics.get(name) != count:
            yield f"topic {name!r} with {count} partitions: nobody asked for it"
    seen: Counter[int] = Counter()
    waiting = [sent for produce in expected.produces for sent in produce if sent.place is None]
    known = {
        (sent.operation.topic, sent.place): sent
        for produce in expected.produces
        for sent in produce
        if sent.place is not None
    }
    for partition in house.partitions():
        end = partition.next_offset - afterwards
        for offset, record in _records(house, partition):
            if offset >= end:
                continue
            if record is None:
                yield f"{_named(partition, offset)} cannot be read"
                continue
            place = Place(partition.index, offset)
            sent = known.get((partition.topic.name, place)) or _guess(waiting, partition, record)
            if sent is None or not sent.is_shown_by(record):
                yield f"{_named(partition, offset)} holds {record!r:.200}, sent was {sent!r:.300}"
            else:
                seen[sent.operation.number] += 1
    yield from _produce_problems(expected, seen)


def _records(house: BareBroker, partition: Partition) -> Iterator[tuple[int, Record | None]]:
    """Yield each record with its offset; None once for each range of gaps."""
    left_out = dict(partition.gaps)
    offset = 0
    while offset < partition.next_offset:
        chunk, _ = house.load(partition, offset)
        if chunk is None:
            yield offset, None
            offset = left_out.get(offset, offset + 1)
        else:
            for at in range(offset, chunk.end):
                yield at, chunk.record(at - chunk.base)
            offset = chunk.end


def _guess(waiting: list[SentMessage], partition: Partition, record: Record) -> SentMessage | None:
    """Take from ``waiting`` and return the first message that the record can be, or None."""
    for index, sent in enumerate(waiting):
        if sent.operation.topic == partition.topic.name and sent.is_shown_by(record):
            return waiting.pop(index)
    return None


def _produce_problems(expected: Expected, seen: Counter[int]) -> Iterator[str]:
    """Check that each produce is there whole or not at all, and all answered ones are there."""
    missing: dict[int, int] = {}
    for produce in expected.produces:
        operation = produce[0].operation
        number, there = operation.number, seen[operation.number]
        what = f"produce #{number} to {operation.topic!r} at {operation.places}"
        if there and operation.connection in missing:
            yield f"{what} is there without #{missing[operation.connection]} sent before it"
        if there == 0:
            missing.setdefault(operation.connection, number)
            if number in expected.sure:
                yield f"{LOST}{what} was acknowledged and is gone"
        elif there != len(produce):
            yield f"{there} of {len(produce)} messages of {what} are there"


def _named(partition: Partition, offset: int) -> str:
    return f"{partition.topic.name!r} partition {partition.index} offset {offset}"


# -- groups ----------------------------------------------------------------------------------------


def _group_problems(house: BareBroker, expected: Expected) -> Iterator[str]:
    for group_partition, places in expected.group_partitions.items():
        topic = house.broker.topics.find(group_partition.topic)
        if topic is None:
            continue  # `_record_problems` reports a missing group partition
        passive = _listed(house, group_partition)
        grants = _drain(house, group_partition)
        for partition in topic.partitions:
            for offset in range(partition.next_offset):
                place = Place(partition.index, offset)
                possible = places.get(place, {UNTOUCHED})
                seen = passive.get(place) or _tried(house, group_partition, place, grants)
                if not any(_fits(state, seen, expected.now_us) for state in possible):
                    yield (
                        f"group {group_partition.group!r}: {_named(partition, offset)} is {seen}; "
                        f"it may be {' or '.join(map(str, sorted(possible, key=str)))}"
                    )
        told = expected.tokens.get(group_partition, 0)
        for place, grant in grants.items():
            if len(topic.partitions) == 1 and grant.token <= told:
                yield (
                    f"group {group_partition.group!r}: token {grant.token} of {place} was "
                    f"given before"
                )


def _broker_group_partitions(
    house: BareBroker, group_partition: GroupPartition
) -> list[BrokerGroupPartition]:
    topic = house.broker.topics.find(group_partition.topic)
    group = topic.groups.get(group_partition.group) if topic is not None else None
    return list(group.partitions) if group is not None else []


class RecordView:
    """The state of a record in a group, as the broker shows it."""

    def __init__(self, state: State, is_ready: bool = False, reason: str = "") -> None:
        self.state = state
        self.is_ready = is_ready
        """OPEN: whether it can be leased now."""
        self.reason = reason
        """DEAD: the reason."""

    def __str__(self) -> str:
        return f"{self.state}, ready: {self.is_ready}, reason: {self.reason!r}"


def _listed(house: BareBroker, group_partition: GroupPartition) -> dict[Place, RecordView]:
    """Return the leases and dead letters of a group."""
    found: dict[Place, RecordView] = {}
    for one in _broker_group_partitions(house, group_partition):
        for lease in one.store.leases():
            found[Place(one.partition.index, lease.offset)] = RecordView(
                State(
                    Status.LEASED,
                    lease.grants,
                    lease.failures,
                    owner=lease.owner,
                    token=lease.token,
                    duration_us=lease.duration_us,
                )
            )
        for letter in one.store.dead_letters():
            state = State(Status.DEAD, letter.grants, letter.failures)
            found[Place(one.partition.index, letter.offset)] = RecordView(
                state, reason=letter.reason
            )
    return found


def _drain(house: BareBroker, group_partition: GroupPartition) -> dict[Place, Grant]:
    """Lease all records that a group can get now, and return the grants."""
    found: dict[Place, Grant] = {}
    while True:
        house.run()
        leased = house.broker.leases.acquire(
            group_partition.topic, group_partition.group, PROBER, PROBE_US, 100, AcceptAll()
        )
        for one, grant in leased:
            found[Place(one.partition.index, grant.offset)] = grant
        if not leased:
            return found


def _tried(
    house: BareBroker, group_partition: GroupPartition, place: Place, grants: dict[Place, Grant]
) -> RecordView:
    """Return the state of a record that is not leased or dead. A settle shows if it is settled."""
    grant = grants.get(place)
    if grant is not None:
        return RecordView(State(grants=grant.grants - 1, failures=grant.failures), is_ready=True)
    one = house.broker.leases.group_partition(group_partition.topic, group_partition.group, *place)
    attempts = one.store.attempts(place.offset)
    if house.broker.leases.settle(one, place.offset, True, owner=PROBER):
        return RecordView(State(Status.OPEN, *attempts))
    return RecordView(State(Status.SETTLED))


def _fits(state: State, seen: RecordView, now_us: int) -> bool:
    shown = seen.state
    if state.status is not shown.status:
        return False
    if state.status is Status.SETTLED:
        return True
    if (state.grants, state.failures) != (shown.grants, shown.failures):
        return False
    if state.status is Status.DEAD:
        return seen.reason == "max_attempts"
    if state.status is Status.OPEN:
        return state.ready_from_us <= now_us if seen.is_ready else state.ready_by_us > now_us
    is_token = state.token in (None, shown.token)
    return is_token and (state.owner, state.duration_us) == (shown.owner, shown.duration_us)


# -- working on ------------------------------------------------------------------------------------


def _work_on(house: BareBroker) -> Iterator[str]:
    """Append a record to each partition, and wait until all changes are durable."""
    ends = {partition: partition.next_offset for partition in house.partitions()}
    for partition, end in ends.items():
        house.run()
        offset = house.broker.appender.produce(partition, b"one more")
        if offset != end:
            yield f"{_named(partition, offset)} comes after {end - 1}"
    house.run()
    yield from (f"the broker fails: {failure}" for failure in house.failures)


def _stop(house: BareBroker) -> Iterator[str]:
    """Stop cleanly, and verify every byte of the log."""
    house.stop()
    report = verify(house.disk, WAL_DIR, STATE_DIR)
    for problem in report.problems:
        yield f"after a clean stop: {problem}"
