# Tests: tests/simulator/test_format_clients.py
"""The audits of the other formats at the end of a run.

Formats with offsets read all records once more. Subscriptions of BlipMQ are drained. The audits
begin after the auditor, when all leases have ended and all records are known.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from random import Random

from brokerd.codecs import flymq, mega, rustlog
from simulator.clients import admin_calls
from simulator.clients.blipmq import acknowledge_ask, acknowledgement, poll_ask
from simulator.clients.conversation import Ask
from simulator.clients.direct import Asker
from simulator.clients.formats import wire_of
from simulator.clients.links import Connect
from simulator.clients.mega import NAME as MEGA_NAME
from simulator.clients.rustlog import MANY
from simulator.clients.scripted import Script, ScriptedClient, Step, insist
from simulator.history.offsets import Commit, Committed, Read, ResetOffset
from simulator.history.operations import History, Operation
from simulator.history.subscriptions import UNKNOWN_DELIVERY, Poll, Subscribe, group_of
from simulator.machine.world import World
from simulator.plan import Plan, Rot, WireFormat

READ_BYTES = 1 << 20
READ_MAX = 10_000
GROUP_PARTITIONS_MAX = 500
"""The most committed offsets that an audit reads."""
MEGA_READS_MAX = 100
"""The most records of a topic that MEGA reads, because it has no batches."""
LAPSING = 5
"""One message in so many is never acknowledged, and must become a dead letter."""
POLLS_MAX = 200
"""The most messages that one pass takes from a subscription."""
LETTERS_US = 2_000_000
"""Time after its last delivery in which a message becomes a dead letter."""
UNNUMBERED = -1


def auditor_name(wire_format: WireFormat) -> str:
    """Return the client of the audit of a format."""
    return f"{wire_format}-auditor"


def make_audit(
    wire_format: WireFormat,
    plan: Plan,
    world: World,
    connect: Connect,
    direct: Asker,
    history: History,
    done: Callable[[], None],
) -> ScriptedClient:
    """Return the audit of a format other than Mamamia."""
    name = auditor_name(wire_format)
    if wire_format == "blipmq":
        script = _drain(name, plan, history)
    else:
        script = _read_all(name, wire_format, plan, history)
    wire = wire_of(wire_format, Random(f"{plan.seed}/{name}"))
    return ScriptedClient(name, world, connect, direct, history, wire, script, done)


# -- reading by offset -----------------------------------------------------------------------------


def _read_all(name: str, wire_format: WireFormat, plan: Plan, history: History) -> Script:
    for topic in plan.topics:
        if not topic.name or (wire_format == "mega" and not MEGA_NAME.fullmatch(topic.name)):
            continue
        for partition in range(1 if wire_format == "mega" else topic.partitions):
            yield from _read_partition(name, wire_format, plan, topic.name, partition)
    if wire_format != "mega":
        for group_partition in _group_partitions(history):
            make = partial(_committed_ask, name, wire_format, group_partition)
            yield from insist(make, partial(_may_be_refused, plan))


def _group_partitions(history: History) -> list[tuple[str, str, int]]:
    """Return each (topic, group, partition) with a committed offset."""
    committed = (op for op in history.operations if isinstance(op, Commit | ResetOffset))
    return sorted({(op.topic, op.group, op.partition) for op in committed})[:GROUP_PARTITIONS_MAX]


def _committed_ask(
    name: str, wire_format: WireFormat, group_partition: tuple[str, str, int]
) -> Ask:
    topic, group, partition = group_partition
    asked = Committed(number=UNNUMBERED, client=name, topic=topic, group=group, partition=partition)
    if wire_format == "flymq":
        return Ask(flymq.GetOffset(topic, group, partition), asked)
    request = rustlog.OffsetFetch(topic, partition, group)
    return Ask((rustlog.Dialect.JSON, request), asked)


def _read_partition(
    name: str, wire_format: WireFormat, plan: Plan, topic: str, partition: int
) -> Script:
    """Read a partition to its end: an empty answer with an unchanged next offset."""
    accepts = partial(_may_be_refused, plan)
    offset = 0
    for _ in range(MEGA_READS_MAX if wire_format == "mega" else READ_MAX):
        make = partial(_read_ask, name, wire_format, topic, partition, offset)
        read = yield from insist(make, accepts)
        assert isinstance(read, Read), "it was asked"
        shown = [reading.place.offset + 1 for reading in read.readings]
        after = max([offset, *shown, *([] if read.next is None else [read.next])])
        if read.error or after == offset:
            return
        offset = after


def _may_be_refused(plan: Plan, operation: Operation) -> bool:
    """Return whether the broker may refuse a read.

    It may if bytes have rotted or were never synced, or if a topic was created again with fewer
    partitions.
    """
    rots = any(isinstance(fault, Rot) for fault in plan.faults)
    return (
        rots
        or plan.settings.durability != "fsync"
        or "not found" in operation.error
        or "not exist" in operation.error
    )


def _read_ask(name: str, wire_format: WireFormat, topic: str, partition: int, offset: int) -> Ask:
    read = Read(
        number=UNNUMBERED,
        client=name,
        topic=topic,
        partition=partition,
        offset=offset,
        limit=MANY,
    )
    if wire_format == "mega":
        read.limit = 1
        return Ask(mega.Consume(7, topic, 0, offset), read)
    if wire_format == "flymq":
        return Ask(flymq.Fetch(topic, partition, offset, MANY, sdk=bool(offset % 2)), read)
    read.limit_bytes, read.stops_at_gaps = READ_BYTES, True
    request = rustlog.Fetch(topic, partition, offset, READ_BYTES)
    return Ask((rustlog.Dialect.BINARY, request), read)


# -- subscriptions ---------------------------------------------------------------------------------


def _drain(name: str, plan: Plan, history: History) -> Script:
    """Take messages until all are acknowledged or dead letters; then list the dead letters."""
    left = [op for op in history.operations if isinstance(op, Subscribe) and op.succeeded]
    for _ in range(max(1, plan.settings.blipmq_max_deliveries) + 1):
        yield plan.longest_flight_us + LETTERS_US
        polled: list[Subscribe] = []
        for one in left:
            polled += [one] if (yield from _drain_one(name, one)) else []
        left = polled
    for one in left:
        yield from insist(partial(admin_calls.letters, name, one.topic, group_of(one.subscription)))
        yield 1


def _drain_one(name: str, subscribed: Subscribe) -> Generator[Step, Operation, bool]:
    """Drain a subscription for a limited time. Return whether it has no more messages now."""
    for _ in range(POLLS_MAX):
        polled = yield from insist(partial(poll_ask, name, subscribed))
        assert isinstance(polled, Poll), "it was asked"
        if polled.handed is None:
            return True
        place = polled.handed.place
        if place is not None and place.offset % LAPSING:
            held = acknowledgement(name, polled, place)
            yield from insist(partial(acknowledge_ask, held), _is_too_late)
    return False


def _is_too_late(operation: Operation) -> bool:
    """Return whether an ACK came after its lease: the message comes again, or is dead."""
    return UNKNOWN_DELIVERY in operation.error
