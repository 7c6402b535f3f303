"""What each format answers when the broker refuses: docs/cross-format.rst, cell by cell."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from twisted.internet.address import IPv4Address

from brokerd.broker import BrokerSettings
from brokerd.codecs import flymq
from brokerd.codecs.rustlog import OffsetCommit, binary_peer, json_peer
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.base.memory import MemoryBudget
from brokerd.security import OPEN, READ
from brokerd.security.quotas import Quota
from simulator.machine.bare import FORGETFUL, WAL_DIR
from tests.broker.colddesk import archive_all, cold_house, segments
from tests.broker.fakearchive import FakeArchive
from tests.cross.format_clients import DONE, FORMAT_CLIENTS, QuietBlipMQ, Reply
from tests.cross.page import literals, matches, table
from tests.cross.talk import TOPIC, Talk
from tests.guards import Given, GuardOf
from tests.house import House, Transport

MIB = 1 << 20
REFUSALS = table("Refusals")


# -- one function a row: it provokes the refusal and returns what is told ---------------------


def disk_full(talk: Talk) -> list[Reply]:
    talk.make()
    talk.house.disk.capacity = talk.house.disk.used_bytes
    for _ in range(1000):
        told = talk.write(b"x" * 10_000)
        if told != [DONE]:
            return told
    raise AssertionError("the disk is never full")


def too_large_to_write(talk: Talk) -> list[Reply]:
    talk.make()
    return talk.write(b"\x01" * (talk.client.largest_bytes + 1))


def not_permitted(talk: Talk) -> list[Reply]:
    """BlipMQ's empty key leaves who it is to the guard."""
    talk.make()
    somebody = Given("sue", 0, {TOPIC: READ})
    wire = talk.wire
    factory = wire.protocol.factory
    factory.guard = GuardOf(somebody)
    talk.wire = talk.house.connect_to(factory)
    talk.wire.send_bytes(talk.client.greeting)
    talk.house.run()
    talk.wire.received_bytes()
    told = talk.write()
    wire.disconnect()
    return told


def unknown_topic_written_to(talk: Talk) -> list[Reply]:
    return talk.write()


def unknown_topic_read_from(talk: Talk) -> list[Reply]:
    return talk.read()


def unknown_partition(talk: Talk) -> list[Reply]:
    talk.make()
    talk.write()
    return talk.write(partition=9)


def control_character(talk: Talk) -> list[Reply]:
    return talk.say(talk.client.make("bell\a") or talk.client.write("bell\a", b"x"))


def empty_name(talk: Talk) -> list[Reply]:
    return talk.say(talk.client.make("") or talk.client.write("", b"x"))


def too_many_topics(talk: Talk) -> list[Reply]:
    talk.begin(House(settings=BrokerSettings(max_topics=1)))
    talk.house.broker.topics.create("the only one")
    talk.house.run()
    return talk.say(talk.client.make(TOPIC) or talk.client.write(TOPIC, b"x"))


def too_much_group_state(talk: Talk) -> list[Reply]:
    talk.begin(House(settings=BrokerSettings(max_group_state_bytes=1)))
    talk.house.append(TOPIC, b"x")
    commit = {
        "FlyMQ": lambda: flymq.encode_request(flymq.Commit(TOPIC, "g", 0, 1)),
        "RustLog JSON": lambda: json_peer.encode_request(OffsetCommit(TOPIC, 0, "g", 1)),
        "RustLog binary": lambda: binary_peer.encode_request(OffsetCommit(TOPIC, 0, "g", 1)),
    }.get(talk.client.name)
    told = talk.say(commit() if commit else talk.client.make(TOPIC) or talk.client.read(TOPIC))
    topic = talk.house.broker.topics.existing(TOPIC)
    assert not topic.groups
    return told


def behind_the_end(talk: Talk) -> list[Reply]:
    talk.make()
    talk.write()
    return talk.read(offset=5)


def damaged_record(talk: Talk) -> list[Reply]:
    talk.begin(House(settings=FORGETFUL))
    talk.make()
    talk.append(b"spoil-spoil")
    talk.append(b"next")
    for name in talk.house.disk.list(WAL_DIR):
        content = talk.house.disk.content(f"{WAL_DIR}/{name}")
        at = content.find(b"spoil-spoil")
        if at >= 0:
            content[at] ^= 1
    return passed_over(talk, "damaged")


def archived(talk: Talk) -> FakeArchive:
    """Two records that are in the archive alone, and in no memory."""
    archive = FakeArchive()
    talk.begin(cold_house(archive))
    talk.make()
    talk.append(b"first")
    talk.append(b"next")
    archive_all(talk.house, archive)
    talk.begin(talk.house.crash())
    talk.house.run()
    assert len(segments(talk.house)) == 1
    return archive


def damaged_in_the_archive(talk: Talk) -> list[Reply]:
    archive = archived(talk)
    archive.damage[1, 0] = (0, 1)
    return passed_over(talk, "damaged")


def out_of_reach(talk: Talk) -> list[Reply]:
    archive = archived(talk)
    archive.read_failure = OSError(5, "not mounted")
    told = talk.read()
    topic = talk.house.broker.topics.find(TOPIC)
    assert topic is not None
    for group in topic.groups:
        info = talk.house.broker.overview.group_info(TOPIC, group)
        assert (info.lag, info.leased, info.dead) == (2, 0, 0)
    assert talk.house.broker.status()["damage"]["reads"] == 0
    archive.read_failure = None
    assert [answer.values for answer in talk.read()] == [(b"first",)]
    archive.read_failure = OSError(5, "not mounted")
    return told


def too_large_to_read(talk: Talk) -> list[Reply]:
    talk.make()
    talk.append(b"\xff" * (17 * MIB))
    talk.append(b"next")
    return passed_over(talk, "too_large")


def passed_over(talk: Talk, reason: str) -> list[Reply]:
    """Read the first of two records, which cannot be had; leases go on with the second."""
    told = talk.read()
    if [answer.values for answer in told] == [(b"next",)]:
        topic = talk.house.broker.topics.find(TOPIC)
        assert topic is not None
        (group,) = topic.groups
        letters = [letter for _, letter in talk.house.broker.leases.dead_letters(TOPIC, group)]
        assert [(letter.offset, letter.reason) for letter in letters] == [(0, reason)]
        return [Reply(f"dead letter {reason}")]
    assert [answer.values for answer in talk.read(offset=1)] == [(b"next",)]
    return told


def too_much_waits(talk: Talk) -> list[Reply]:
    settings = BrokerSettings(max_uncommitted_bytes=64 << 10, frame_bytes=64 << 10)
    talk.begin(House(settings=settings))
    talk.make()
    other = talk.connect()
    other.send_bytes(talk.client.write(TOPIC, b"x" * 60_000))
    talk.wire.send_bytes(talk.client.write(TOPIC, b"y" * 60_000))
    talk.house.turn()
    if talk.wire.received_bytes():
        return [Reply("did not wait")]
    return [Reply("waits")] if talk.say(None) == [DONE] else [Reply("was lost")]


def stopping(talk: Talk) -> list[Reply]:
    talk.make()
    talk.wire.protocol.factory.close_all()
    return talk.write()


def failed_write(talk: Talk) -> list[Reply]:
    talk.make()
    talk.house.disk.fail("sync")
    wires = [talk.wire]
    talk.house.wal.on_fatal = lambda error: talk.wire.protocol.factory.abort_all()
    told = talk.write()
    assert not any(wire.is_open for wire in wires)
    return told


def too_many_connections(talk: Talk) -> list[Reply]:
    house = House(limits=Limits(connections=1))
    factory = talk.client.factory(house)
    house.connect_to(factory)
    return [Reply("closed" if factory.buildProtocol(None) is None else "open")]


def too_many_of_an_address(talk: Talk) -> list[Reply]:
    house = House(limits=Limits(connections_per_address=1))
    factory = talk.client.factory(house)
    address = IPv4Address("TCP", "192.0.2.1", 1)
    transport = Transport(house.clock)
    transport.getPeer = lambda: address  # type: ignore[assignment, method-assign, return-value]
    transport.protocol = factory.buildProtocol(address)
    transport.protocol.makeConnection(transport)
    return [Reply("closed" if factory.buildProtocol(address) is None else "open")]


def too_many_for_a_quota(talk: Talk) -> list[Reply]:
    talk.house.broker.quotas.put(OPEN, Quota("default", "*", connections=1))
    talk.house.run()
    talk.begin(talk.house)
    other = talk.house.connect_to(talk.client.factory(talk.house))
    other.send_bytes(talk.client.greeting)
    talk.house.run()
    assert other.received_bytes() == b""
    return [Reply("open" if other.is_open else "closed")]


def too_many_requests(talk: Talk) -> list[Reply]:
    talk.make()
    quotas = talk.house.broker.quotas
    quotas.put(OPEN, Quota("default", "*", requests=1))
    talk.house.run()
    for _ in range(5):
        told = talk.write()
        if not told:
            break
        assert told == [DONE]
    else:
        return [Reply("did not wait")]
    talk.house.pass_time(5, step=1)
    told = talk.say(None)
    quotas.delete(OPEN, "default", "*")
    talk.house.run()
    return [Reply("waits" if told == [DONE] else "was lost")]


class Holder:
    """A connection that holds memory, and whose peer does not read."""

    reads_answers = awaits_each_answer = False

    def memory_freed(self) -> None:
        raise AssertionError("it does not wait")

    def cut_for_memory(self) -> None:
        raise AssertionError("it was cut")

    def peer_name(self) -> str:
        return "holder"


def too_much_memory(talk: Talk) -> list[Reply]:
    talk.make()
    talk.append(b"first")
    talk.append(b"second")
    budget = MemoryBudget(MIB, talk.house.clock)
    talk.wire.protocol.factory.memory = budget
    holder = Holder()
    budget.charge(holder, 0, 2 * MIB, 0)
    if talk.read():
        return [Reply("did not wait")]
    budget.forget(holder)
    told = talk.say(None)
    return [Reply("waits" if [one.values for one in told] == [(b"first",)] else "was lost")]


def too_much_in_transactions(talk: Talk) -> list[Reply]:
    talk.begin(House(settings=BrokerSettings(max_transaction_bytes=1)))
    return talk.say(flymq.encode_request(flymq.BeginTransaction()))


PROVOKE: dict[str, Callable[[Talk], list[Reply]]] = {
    "Disk full": disk_full,
    "Record larger than the format writes": too_large_to_write,
    "Not permitted (:doc:`security`)": not_permitted,
    "Unknown topic, written to": unknown_topic_written_to,
    "Unknown topic, read from": unknown_topic_read_from,
    "Unknown partition": unknown_partition,
    "Topic name with a control character": control_character,
    "Empty topic name": empty_name,
    "More topics than ``limits.max_topics``": too_many_topics,
    "A lease, commit or subscription that needs more than ``limits.group_state_bytes``": (
        too_much_group_state
    ),
    "Offset behind the end, read from": behind_the_end,
    "Damaged record, read": damaged_record,
    "Record damaged in the archive, read": damaged_in_the_archive,
    "Record in the archive alone, which is out of reach, read": out_of_reach,
    "Record larger than the format reads": too_large_to_read,
    "Too much work waits for the disk": too_much_waits,
    "The broker is stopping": stopping,
    "A write or sync failed": failed_write,
    "More connections than ``limits.connections``": too_many_connections,
    "More connections of an address than ``limits.connections_per_address``": (
        too_many_of_an_address
    ),
    "More connections than a quota allows (:ref:`security:Quotas`)": too_many_for_a_quota,
    "More requests or bytes a second than a quota allows": too_many_requests,
    "More memory of answers than ``limits.memory`` has for them (:ref:`limits:Memory`), read": (
        too_much_memory
    ),
    "More memory of open transactions than ``limits.transaction_bytes``": too_much_in_transactions,
}

CELLS = [
    (row, column) for row, cells in REFUSALS.items() for column in cells if literals(cells[column])
]


def test_every_row_of_the_page_is_provoked() -> None:
    assert PROVOKE.keys() == REFUSALS.keys()


@pytest.mark.parametrize(("row", "column"), CELLS)
def test_a_refusal_is_told_as_the_page_says(row: str, column: str) -> None:
    """The answer, whether the connection stays, and that it can be used if it does."""
    wanted = literals(REFUSALS[row][column])
    talk = Talk(FORMAT_CLIENTS[column]())
    told = PROVOKE[row](talk)
    assert len(told) == len(wanted), told
    for literal, answer in zip(wanted, told, strict=True):
        assert matches(literal, answer.words), (literal, answer.words)
    if "closed" not in wanted:
        again = talk.read()
        assert again and again[-1].words != "closed", again


def test_blipmq_says_nothing_of_what_it_drops_at_qos_0() -> None:
    """On a full disk the PONG comes all the same, and the message is not there."""
    talk = Talk(QuietBlipMQ())
    talk.make()
    talk.house.disk.capacity = talk.house.disk.used_bytes
    for _ in range(200):
        assert talk.write(b"x" * 10_000) == [DONE]
    topic = talk.house.broker.topics.find(TOPIC)
    assert topic is not None and topic.partitions[0].next_offset < 200


def test_a_record_too_large_for_a_subscription_of_qos_0_is_passed_over() -> None:
    """It leaves no dead letter behind; a damaged one does, as with QoS 1."""
    talk = Talk(QuietBlipMQ())
    talk.make()
    talk.append(b"\xff" * (17 * MIB))
    talk.append(b"next")
    assert talk.read_one().values == (b"next",)
    topic = talk.house.broker.topics.find(TOPIC)
    assert topic is not None
    (group,) = topic.groups
    assert list(talk.house.broker.leases.dead_letters(TOPIC, group)) == []
    assert damaged_record(Talk(QuietBlipMQ())) == [Reply("dead letter damaged")]


@pytest.mark.parametrize("column", FORMAT_CLIENTS)
@pytest.mark.parametrize(
    ("row", "reason"), [(disk_full, "NoSpace"), (not_permitted, "Denied")], ids=["full", "denied"]
)
def test_a_refusal_is_counted_by_its_reason(
    row: Callable[[Talk], list[Reply]], reason: str, column: str
) -> None:
    """Whatever words the format has for it."""
    talk = Talk(FORMAT_CLIENTS[column]())
    row(talk)
    refusals = talk.house.broker.status()["refusals"]
    assert [one["reason"] for one in refusals] == [reason], refusals
    assert refusals[0]["format"] == talk.wire.protocol.factory.name
