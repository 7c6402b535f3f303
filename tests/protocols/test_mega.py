"""MEGA served by a whole broker: docs/protocols/mega.rst, row by row."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from brokerd.broker import BrokerSettings
from brokerd.codecs import mega
from brokerd.codecs.mega import Code, Consume, CreateTopic, Dialect, Produce, Refused
from brokerd.protocols.base.connection import CLOSING_US, Limits
from brokerd.protocols.mega.connection import MegaFactory
from brokerd.values import Encoding, Format
from brokerd.wal import WalOptions
from simulator.machine.bare import WAL_DIR
from simulator.machine.disk import SimDisk
from tests.codecs.test_mega_golden import BYTES, CLOSED, EXAMPLES
from tests.house import House, Wire
from tests.strategies import mega as strategies

KIB = 1024
MIB = 1024 * KIB
T = 1_700_000_000_000
DOCUMENT, REFERENCE = Dialect.DOCUMENT, Dialect.REFERENCE
COLD = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0)
"""Every record is read from disk."""


class Desk:
    """One connection, in requests and answers."""

    def __init__(self, house: House, dialect: Dialect = REFERENCE) -> None:
        self.house = house
        self.dialect = dialect
        self.wire: Wire = house.connect_to(MegaFactory(house.broker, house.clock, house.limits))
        self._reader = mega.AnswerReader()

    def send(self, *requests: mega.Request) -> None:
        """Send requests in one piece."""
        for request in requests:
            self._reader.expect(request)
        encode = mega.encode_request
        self.wire.send_bytes(b"".join(encode(request, self.dialect) for request in requests))

    def answers(self) -> list[mega.Answer]:
        """Everything received since the last call."""
        answers = self._reader.feed(self.wire.received_bytes())
        assert self._reader.error is None
        assert self._reader.partial_bytes == 0
        return answers

    def ask(self, *requests: mega.Request) -> list[mega.Answer]:
        """Send requests and return their answers."""
        self.send(*requests)
        self.house.run()
        return self.answers()


def ask(house: House, *requests: mega.Request) -> list[mega.Answer]:
    """Over a connection of its own."""
    return Desk(house).ask(*requests)


def only(house: House, request: mega.Request) -> mega.Answer:
    (answer,) = ask(house, request)
    return answer


def create(house: House, name: str = "t") -> None:
    assert only(house, CreateTopic(1, name, T)) == mega.Created(1, T, name)


def produce(house: House, *payloads: bytes, topic: str = "t") -> None:
    answers = ask(house, *(Produce(1, topic, T, payload) for payload in payloads))
    assert all(isinstance(answer, mega.Produced) for answer in answers)


def consume(house: House, offset: int, topic: str = "t") -> Any:
    """(next offset, payload), or the error code."""
    answer = only(house, Consume(1, topic, 0, offset))
    return answer.code if isinstance(answer, Refused) else (answer.next_offset, answer.payload)  # type: ignore[union-attr]


# -- golden bytes -----------------------------------------------------------------------------


SEED = [name for name, way in BYTES if name.startswith("seed-") and way == ">"]
OURS = [
    name
    for name, way in BYTES
    if way == ">"
    and name.startswith("ours-")
    and name not in CLOSED
    and name not in ("ours-stalled", "ours-produce-disk-full", "ours-consume-unreadable")
]


def test_the_reference_conversation_is_answered_byte_for_byte() -> None:
    """What was captured from the reference server is what this broker sends, on one connection."""
    wire = Desk(house := House()).wire
    for name in SEED:
        if name == "seed-15-document-id-0":
            house.broker.topics.delete("seed")
        wire.send_bytes(BYTES[name, ">"])
        house.run()
        assert wire.received_bytes() == BYTES[name, "<"], name
    assert wire.is_open


@pytest.mark.parametrize("piece", [1, 7])
def test_the_same_in_small_pieces(piece: int) -> None:
    wire = Desk(house := House()).wire
    for name in SEED[:-1]:
        data = BYTES[name, ">"]
        if len(data) > MIB:
            continue
        for at in range(0, len(data), piece):
            wire.send_bytes(data[at : at + piece])
        house.run()
        assert wire.received_bytes() == BYTES[name, "<"], name


def test_three_requests_in_one_write_are_answered_in_order() -> None:
    """A CONSUME finds what was produced before it in the same write."""
    wire = Desk(house := House()).wire
    wire.send_bytes(BYTES["seed-13-three-in-one-write", ">"])
    house.run()
    assert wire.received_bytes() == BYTES["seed-13-three-in-one-write", "<"]


def test_a_consume_finds_what_its_own_connection_produced_in_the_same_write() -> None:
    create(house := House())
    assert ask(house, Produce(1, "t", T, b"a"), Consume(2, "t", T, 0), Consume(3, "t", T, 1)) == [
        mega.Produced(1, T, 0),
        mega.Consumed(2, T, 1, b"a"),
        Refused(3, Code.INVALID_OFFSET),
    ]


@pytest.mark.parametrize("name", OURS)
def test_what_the_reference_does_not_show_is_answered_byte_for_byte(name: str) -> None:
    wire = Desk(house := House()).wire
    ask(house, *(EXAMPLES[one].requests[0] for one in SEED[:4]))
    wire.send_bytes(BYTES[name, ">"])
    house.run()
    assert wire.received_bytes() == BYTES[name, "<"]
    assert wire.is_open


# -- each answer is one write -----------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 100, 70_000, MIB])
@pytest.mark.parametrize("cold", [False, True])
def test_an_answer_is_one_write(size: int, cold: bool) -> None:
    """The reference's clients read each with few calls and put nothing together."""
    house = House(settings=COLD if cold else None)
    create(house)
    desk = Desk(house)
    for request in (Produce(1, "t", T, b"x" * size), Consume(2, "t", T, 0), Consume(3, "t", T, 1)):
        writes = desk.wire.transport.writes
        (answer,) = desk.ask(request)
        assert desk.wire.transport.writes == writes + 1
    assert answer == Refused(3, Code.INVALID_OFFSET)


# -- what requests do -------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", Dialect)
def test_clients_of_either_dialect_are_served_the_same(dialect: Dialect) -> None:
    desk = Desk(House(), dialect)
    asked = [
        CreateTopic(1, "t", T),
        Produce(2, "t", -5, b"a"),
        Produce(3, "t", 7, b""),
        Consume(4, "t", 0, 0),
        Consume(0, "t", 0, 1),
        CreateTopic(0, "t", 0),
    ]
    answers = [
        mega.Created(1, T, "t"),
        mega.Produced(2, -5, 0),
        mega.Produced(3, 7, 1),
        mega.Consumed(4, -5, 1, b"a"),
        mega.Consumed(0, 7, 2, b""),
        Refused(0, Code.TOPIC_ALREADY_EXISTS),
    ]
    assert [desk.ask(request)[0] for request in asked] == answers
    asked[0] = CreateTopic(1, "u", T)
    answers[0] = mega.Created(1, T, "u")
    answers[1:3] = [mega.Produced(2, -5, 2), mega.Produced(3, 7, 3)]
    assert desk.ask(*asked) == answers, "and all at once"


NAMES = {
    "": Code.INVALID_REQUEST,
    "a b": Code.INVALID_REQUEST,
    "é": Code.INVALID_REQUEST,
    "a\n": Code.INVALID_REQUEST,
    "\udcff": Code.INVALID_REQUEST,
    "x" * 256: Code.INVALID_REQUEST,
    "__brokerd.x": Code.INVALID_REQUEST,
    "taken": Code.TOPIC_ALREADY_EXISTS,
}


@pytest.mark.parametrize("name", NAMES)
def test_topics_that_cannot_be_created(name: str) -> None:
    house = House()
    house.broker.topics.create("taken", 3)
    house.broker.topics.create("")
    assert only(house, CreateTopic(9, name, T)) == Refused(9, NAMES[name])
    assert [topic.name for topic in house.broker.topics.all()] == ["taken", ""]


@pytest.mark.parametrize("name", ["A-z.0_9", "x" * 255, "."])
def test_topics_that_can(name: str) -> None:
    create(house := House(), name)
    produce(house, b"x", topic=name)
    assert consume(house, 0, name) == (1, b"x")


@pytest.mark.parametrize("name", ["", "nope", "a b", "\udcff", "x" * 60_000])
def test_nothing_but_create_makes_a_topic(name: str) -> None:
    """Also where another format has one with an empty name, which this one does not know."""
    house = House()
    house.broker.topics.create("")
    answers = ask(house, Produce(1, name, T, b"x"), Consume(2, name, T, 0))
    assert answers == [Refused(1, Code.TOPIC_NOT_FOUND), Refused(2, Code.TOPIC_NOT_FOUND)]
    assert [topic.name for topic in house.broker.topics.all()] == [""]


def test_a_topic_of_another_format_is_used_whatever_its_name() -> None:
    """And of several partitions the first is the one."""
    house = House()
    house.broker.topics.create("größe 1", 3)
    for number in range(4):
        produce(house, b"%d" % number, topic="größe 1")
    assert consume(house, 3, "größe 1") == (4, b"3")
    partitions = house.broker.topics.existing("größe 1").partitions
    assert [partition.next_offset for partition in partitions] == [4, 0, 0]


def test_what_is_stored_is_bytes_with_the_producers_time() -> None:
    """And no key, no metadata; the format is on record."""
    create(house := House())
    ask(house, Produce(1, "t", -(1 << 63), b"\xff"))
    partition = house.broker.topics.existing("t").partitions[0]
    chunk = partition.find(0)
    assert chunk is not None
    record = chunk.record(0)
    assert (record.value, record.encoding, record.key, record.metadata) == (
        b"\xff",
        Encoding.BYTES,
        None,
        None,
    )
    assert (record.producer_time, record.producer_format) == (-(1 << 63), Format.MEGA)
    assert only(house, Consume(2, "t", T, 0)) == mega.Consumed(2, -(1 << 63), 1, b"\xff")


@pytest.mark.parametrize("cold", [False, True])
def test_a_record_without_a_producers_time_has_that_of_its_append(cold: bool) -> None:
    """In milliseconds, the unit of this format's clients."""
    house = House(settings=COLD if cold else None)
    house.pass_time(5)
    house.append("t", b"x", encoding=Encoding.TEXT, key=b"k")
    house.append("t", b"y", producer_time=77)
    first, second = ask(house, Consume(1, "t", T, 0), Consume(2, "t", T, 1))
    assert isinstance(first, mega.Consumed)
    assert first.timestamp == pytest.approx(house.wall_seconds * 1000, abs=100)
    assert second == mega.Consumed(2, 77, 2, b"y")


@given(st.lists(strategies.payloads, min_size=1, max_size=8))
def test_payloads_come_back_as_they_went_in(payloads: list[bytes]) -> None:
    """From memory, and after a restart from disk, to the byte."""
    create(house := House())
    produce(house, *payloads)
    expected = [(at + 1, payload) for at, payload in enumerate(payloads)]
    assert [consume(house, at) for at in range(len(payloads))] == expected
    house.stop()
    house = house.again()
    assert [consume(house, at) for at in range(len(payloads))] == expected
    assert consume(house, len(payloads)) == Code.INVALID_OFFSET


def test_the_largest_payload_goes_in_and_comes_out() -> None:
    house = House(options=WalOptions(segment_bytes=8 * MIB))
    create(house)
    produce(house, payload := os.urandom(MIB))
    assert consume(house, 0) == (1, payload)
    answers = ask(house, Produce(1, "t", T, payload + b"x"), Produce(2, "none", T, payload + b"x"))
    assert answers == [Refused(1, Code.MESSAGE_TOO_LARGE), Refused(2, Code.MESSAGE_TOO_LARGE)]
    assert consume(house, 1) == Code.INVALID_OFFSET


def test_a_lower_frame_limit_is_the_limit_of_payloads() -> None:
    create(house := House(limits=Limits(frame_bytes=100)))
    assert ask(house, *(Produce(size, "t", T, bytes(size)) for size in (100, 101, 3))) == [
        mega.Produced(100, T, 0),
        Refused(101, Code.MESSAGE_TOO_LARGE),
        mega.Produced(3, T, 1),
    ]


@pytest.mark.parametrize("cold", [False, True])
def test_a_record_of_another_format_over_the_limit_is_refused_and_passed(cold: bool) -> None:
    house = House(
        options=WalOptions(segment_bytes=8 * MIB, free_bytes_min=0),
        settings=COLD if cold else None,
    )
    for value in (b"a", bytes(MIB + 1), bytes(MIB), b"b"):
        house.append("t", value)
    assert consume(house, 1) == Code.MESSAGE_TOO_LARGE
    assert consume(house, 2) == (3, bytes(MIB))
    assert consume(house, 3) == (4, b"b")


def test_a_topic_that_is_deleted_while_it_is_read_is_not_found() -> None:
    """Not a record that comes later, nor the end of the topic."""
    create(house := House(settings=COLD))
    produce(house, b"a", b"b")
    desk = Desk(house)
    desk.send(Consume(1, "t", 0, 0))
    house.broker.topics.delete("t")
    house.run()
    (answer,) = desk.answers()
    assert isinstance(answer, Refused) and answer.code == Code.TOPIC_NOT_FOUND


# -- offsets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-(1 << 31), -1, 2, mega.MAX_OFFSET])
def test_an_offset_without_a_record_is_an_error_at_once(offset: int) -> None:
    create(house := House())
    produce(house, b"a", b"b")
    assert consume(house, offset) == Code.INVALID_OFFSET
    assert consume(house, 1) == (2, b"b")


def test_where_records_were_removed_the_next_one_is_answered() -> None:
    """With its own offset + 1, so that a consumer that follows passes over what is gone."""
    create(house := House())
    produce(house, *(b"%d" % number for number in range(5)))
    house.broker.topics.trim("t", 0, 3)
    house.run()
    assert [consume(house, at) for at in range(5)] == [(4, b"3")] * 4 + [(5, b"4")]
    house.broker.topics.trim("t", 0, 5)
    house.run()
    assert consume(house, 0) == Code.INVALID_OFFSET
    produce(house, b"5")
    assert consume(house, 0) == (6, b"5")


@pytest.mark.parametrize("cold", [False, True])
def test_expired_records_are_passed_over(cold: bool) -> None:
    create(house := House(settings=COLD if cold else None))
    soon = house.broker.appender.expiry_us(1_000_000)
    house.append("t", b"a", expires_at_us=soon)
    house.append("t", b"b")
    house.append("t", b"c", expires_at_us=soon)
    house.pass_time(700, step=10)
    assert [consume(house, at) for at in range(3)] == [(2, b"b"), (2, b"b"), Code.INVALID_OFFSET]


def test_offsets_end_where_four_bytes_do() -> None:
    """The last is used and read; what would come behind it is refused, and nothing is stored."""
    create(house := House())
    house.broker.topics.existing("t").partitions[0].skip_offsets(mega.MAX_OFFSET)
    answers = ask(house, Produce(1, "t", T, b"last"), Produce(2, "t", T, b"beyond"))
    assert answers == [
        mega.Produced(1, T, mega.MAX_OFFSET),
        Refused(2, Code.RESOURCE_EXHAUSTED),
    ]
    assert consume(house, mega.MAX_OFFSET) == (-(1 << 31), b"last")
    assert house.broker.topics.existing("t").partitions[0].next_offset == mega.MAX_OFFSET + 1


def test_records_beyond_four_bytes_are_not_there_for_this_format() -> None:
    create(house := House())
    house.broker.topics.existing("t").partitions[0].skip_offsets(mega.MAX_OFFSET + 1)
    house.append("t", b"beyond")
    assert consume(house, 0) == Code.INVALID_OFFSET


# -- durability and order ---------------------------------------------------------------------


def test_no_answer_leaves_before_its_commit_is_durable() -> None:
    desk = Desk(house := House())
    for request in (CreateTopic(1, "t", T), Produce(2, "t", T, b"x")):
        desk.send(request)
        house.turn()
        assert desk.answers() == []
        house.run()
        assert len(desk.answers()) == 1


def test_others_see_a_record_when_it_is_durable() -> None:
    """A crash takes back nothing that anybody has read."""
    create(house := House())
    producer, consumer = Desk(house), Desk(house)
    producer.send(Produce(1, "t", T, b"x"))
    consumer.send(Consume(2, "t", T, 0))
    assert consumer.answers() == [Refused(2, Code.INVALID_OFFSET)]
    house.run()
    assert consumer.ask(Consume(3, "t", T, 0)) == [mega.Consumed(3, T, 1, b"x")]
    house = house.crash()
    assert consume(house, 0) == (1, b"x")


def test_a_consume_that_finds_nothing_waits_for_nobody_else() -> None:
    create(house := House())
    producer, consumer = Desk(house), Desk(house)
    producer.send(Produce(1, "t", T, b"x"))
    consumer.send(Consume(2, "t", T, 5))
    assert consumer.answers() == [Refused(2, Code.INVALID_OFFSET)]


def test_answers_keep_the_order_of_requests() -> None:
    """Also when some must be read from disk and others are known at once."""
    house = House(settings=COLD)
    create(house)
    produce(house, *(b"%d" % number for number in range(10)))
    desk = Desk(house)
    requests: list[mega.Request] = []
    for number in range(10):
        requests += [
            Consume(10 * number, "t", T, number),
            Consume(10 * number + 1, "t", T, -1),
            Produce(10 * number + 2, "t", T, b"more"),
            Consume(10 * number + 3, "none", T, 0),
        ]
    answers = desk.ask(*requests)
    assert [answer.correlation_id for answer in answers] == [
        request.correlation_id for request in requests
    ]


def test_producers_that_race_get_the_offsets_of_their_own_records() -> None:
    create(house := House())
    desks = [Desk(house) for _ in range(20)]
    for _ in range(5):
        for number, desk in enumerate(desks):
            desk.send(Produce(number, "t", T, b"%d" % number))
    house.run()
    for number, desk in enumerate(desks):
        for answer in desk.answers():
            assert isinstance(answer, mega.Produced)
            assert consume(house, answer.offset) == (answer.offset + 1, b"%d" % number)


def test_more_connections_than_the_reference_serves_are_served_at_once() -> None:
    create(house := House())
    desks = [Desk(house) for _ in range(50)]
    assert all(desk.ask(Consume(1, "t", T, 0)) for desk in desks)


def test_a_peer_that_asks_for_much_and_reads_nothing_is_not_answered_into_memory() -> None:
    house = House(limits=Limits(in_flight_bytes=MIB), options=WalOptions(8 * MIB, free_bytes_min=0))
    create(house)
    produce(house, bytes(MIB))
    desk = Desk(house)
    desk.wire.stop_reading()
    desk.send(*[Consume(1, "t", T, 0)] * 200)
    house.run()
    assert desk.wire.transport.paused
    assert len(desk.wire.transport.buffered) < 4 * MIB
    desk.wire.read_on()
    house.run()
    assert len(desk.answers()) == 200


def test_produces_wait_while_the_log_lags_behind_and_none_is_lost_or_doubled() -> None:
    house = House(settings=BrokerSettings(max_uncommitted_bytes=64 * KIB, frame_bytes=64 * KIB))
    create(house)
    desks = [Desk(house) for _ in range(4)]
    for desk in desks:
        desk.send(*(Produce(number, "t", T, bytes(9000)) for number in range(12)))
    assert any(desk.wire.transport.paused for desk in desks)
    house.run()
    answers = [desk.answers() for desk in desks]
    for own in answers:
        assert [answer.correlation_id for answer in own] == list(range(12))
    offsets = sorted(answer.offset for own in answers for answer in own)  # type: ignore[union-attr]
    assert offsets == list(range(48))


# -- what the broker refuses ------------------------------------------------------------------


def test_a_full_disk_is_told_before_anything_is_stored_and_reading_goes_on() -> None:
    house = House(SimDisk(capacity=5 * MIB), options=WalOptions(MIB, free_bytes_min=0))
    ask(house, *(EXAMPLES[name].requests[0] for name in SEED[:4]))
    while isinstance(only(house, Produce(1, "test-topic", T, bytes(100 * KIB))), mega.Produced):
        pass
    while isinstance(only(house, Produce(1, "test-topic", T, bytes(KIB))), mega.Produced):
        pass
    wire = Desk(house).wire
    partition = house.broker.topics.existing("test-topic").partitions[0]
    before = partition.next_offset
    wire.send_bytes(BYTES["ours-produce-disk-full", ">"])
    house.run()
    while wire.received_bytes() != BYTES["ours-produce-disk-full", "<"]:
        assert partition.next_offset == before + 1, "refused, or stored and answered"
        before += 1
        wire.send_bytes(BYTES["ours-produce-disk-full", ">"])
        house.run()
    assert partition.next_offset == before
    assert wire.is_open
    assert consume(house, 0, "test-topic") == (1, b"Hello, World!")


def test_more_topics_than_the_broker_may_have_are_refused() -> None:
    house = House(settings=BrokerSettings(max_topics=1))
    create(house)
    assert only(house, CreateTopic(1, "u", T)) == Refused(1, Code.RESOURCE_EXHAUSTED)


def test_a_damaged_record_is_never_served() -> None:
    """Bytes that fail their checksum are an error; its neighbours are read."""
    house = House(settings=COLD)
    ask(house, CreateTopic(1, "test-topic", T))
    for value in (b"spoil-spoil", b"second-second"):
        produce(house, value, topic="test-topic")
    for name in house.disk.list(WAL_DIR):
        content = house.disk.content(f"{WAL_DIR}/{name}")
        at = content.find(b"spoil-spoil")
        if at >= 0:
            content[at] ^= 1
    wire = Desk(house).wire
    wire.send_bytes(BYTES["ours-consume-unreadable", ">"])
    house.run()
    assert wire.received_bytes() == BYTES["ours-consume-unreadable", "<"]
    assert wire.is_open
    assert consume(house, 1, "test-topic") == (2, b"second-second")


def test_a_failing_disk_is_told_and_can_be_asked_again() -> None:
    create(house := House(settings=COLD))
    produce(house, b"x")
    house.disk.fail("pread", error=errno.ENOMEM)
    assert consume(house, 0) == Code.INTERNAL_ERROR
    assert consume(house, 0) == (1, b"x")


def test_a_stopping_broker_refuses_what_it_cannot_store() -> None:
    create(house := House())
    house.broker.group_commit.close()
    assert only(house, Produce(1, "t", T, b"x")) == Refused(1, Code.INTERNAL_ERROR)


# -- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLOSED)
def test_what_cannot_be_followed_is_answered_last_and_closes(name: str) -> None:
    """Requests before are carried out and answered, those behind it are not."""
    create(house := House())
    desk = Desk(house, DOCUMENT)
    produce_bytes = mega.encode_request(Produce(1, "t", T, b"x"))
    desk.wire.send_bytes(produce_bytes * 2 + BYTES[name, ">"] + produce_bytes)
    house.run()
    desk.wire.send_bytes(produce_bytes)
    house.run()
    expected = mega.produced(1, T, 0) + mega.produced(1, T, 1) + BYTES[name, "<"]
    assert desk.wire.received_bytes() == expected
    assert not desk.wire.transport.connected
    assert house.broker.topics.existing("t").partitions[0].next_offset == 2


def test_a_payload_too_large_is_not_gathered() -> None:
    """64 MiB that will be refused are never in memory together."""
    create(house := House())
    desk = Desk(house)
    head = mega.encode_request(Produce(5, "t", T, b""))[:-4]
    desk.wire.send_bytes(head + mega.MAX_SKIPPED_BYTES.to_bytes(4, "big"))
    piece = bytes(MIB)
    for _ in range(63):
        desk.wire.send_bytes(piece)
    assert len(desk.wire.protocol._reader._partial) == 0
    assert desk.wire.received_bytes() == b""
    desk.wire.send_bytes(piece + mega.encode_request(Produce(6, "t", T, b"x")))
    house.run()
    assert desk.wire.received_bytes() == mega.refused(5, 3) + mega.produced(6, T, 0)


@pytest.mark.parametrize("size", [1, 8, 12, 25, 36])
def test_the_end_of_the_stream_inside_a_request_is_silent(size: int) -> None:
    """What came whole before it is carried out and answered."""
    create(house := House())
    desk = Desk(house)
    desk.send(Produce(1, "t", T, b"x"))
    desk.wire.send_bytes(mega.encode_request(Produce(2, "t", T, b"x" * 20))[:size])
    desk.wire.send_no_more()
    house.run()
    assert desk.answers() == [mega.Produced(1, T, 0)]
    assert not desk.wire.transport.connected


# -- time-outs --------------------------------------------------------------------------------


def listening(limits: Limits) -> tuple[House, MegaFactory, Wire]:
    house = House(limits=limits)
    factory = MegaFactory(house.broker, house.clock, limits)
    factory.doStart()
    create(house)
    return house, factory, house.connect_to(factory)


SECONDS = Limits(unfinished_frame_us=60_000_000, sweep_seconds=5)


def test_a_request_that_stalls_is_told_so_and_the_connection_closed() -> None:
    """By its id, and not before its time is over."""
    house, _, wire = listening(SECONDS)
    wire.send_bytes(BYTES["ours-stalled", ">"])
    house.pass_time(58, step=5)
    assert wire.received_bytes() == b""
    assert wire.is_open
    house.pass_time(10, step=5)
    assert wire.received_bytes() == BYTES["ours-stalled", "<"]
    assert not wire.transport.connected


@pytest.mark.parametrize(
    ("stalled", "told_id"),
    [
        (b"\0\0\1", 0),
        (mega.encode_request(Produce(-7, "t", T, b"x" * 99))[:-1], -7),
        (mega.encode_request(Produce(8, "t", T, bytes(MIB + 1)))[:-1], 8),
    ],
)
def test_wherever_it_stalls(stalled: bytes, told_id: int) -> None:
    house, _, wire = listening(SECONDS)
    wire.send_bytes(stalled)
    house.pass_time(70, step=5)
    assert wire.received_bytes() == mega.refused(told_id, Code.NETWORK_ERROR)
    assert not wire.transport.connected


@pytest.mark.parametrize("dialect", Dialect)
def test_a_client_that_is_silent_between_requests_is_told_nothing(dialect: Dialect) -> None:
    """The reference's message after 30 seconds is not sent, whatever its client sent before."""
    house, factory, _ = listening(SECONDS)
    wire = house.connect_to(factory)
    wire.send_bytes(mega.encode_request(Consume(1, "t", T, 0), dialect))
    house.run()
    assert wire.received_bytes() == mega.refused(1, 6)
    house.pass_time(600, step=5)
    assert wire.received_bytes() == b""
    wire.send_bytes(mega.encode_request(Produce(2, "t", T, b"x"), dialect))
    house.run()
    assert wire.received_bytes() == mega.produced(2, T, 0)
    assert wire.is_open


def test_an_idle_limit_that_was_set_closes_without_a_word() -> None:
    house, _, wire = listening(Limits(idle_us=30_000_000, sweep_seconds=5))
    house.pass_time(40, step=5)
    assert wire.received_bytes() == b""
    assert not wire.transport.connected


def test_a_peer_that_never_reads_that_it_stalled_is_cut_off() -> None:
    house, _, wire = listening(SECONDS)
    wire.stop_reading()
    wire.send_bytes(b"\0\0\0\1")
    house.pass_time(70, step=5)
    assert wire.transport.connected
    house.pass_time(CLOSING_US / 1e6 + 10, step=5)
    assert not wire.transport.connected


# -- a client that errs -----------------------------------------------------------------------


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A conversation with bytes changed, put in, or taken out."""
    conversation = [
        (CreateTopic(1, "t", T), REFERENCE),
        (Produce(2, "t", T, b"x"), REFERENCE),
        *draw(strategies.conversations),
    ]
    data = bytearray(b"".join(mega.encode_request(*one) for one in conversation))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data) - 1)) if data else 0
        kind = draw(st.integers(0, 2))
        if kind == 0 and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == 1:
            data[at:at] = draw(st.binary(max_size=5))
        else:
            del data[at : at + draw(st.integers(0, 5))]
    return bytes(data)


@settings(max_examples=max(60, settings().max_examples))
@given(mutated(), st.integers(1, 400), st.booleans())
def test_a_faulty_client_gets_refusals_and_the_log_no_traceback(
    data: bytes, piece: int, stays: bool
) -> None:
    """Whatever is sent, in whatever pieces: an answer for each request, and the rest goes on."""
    house = House()
    wire = Desk(house).wire
    reader = mega.RequestReader()
    requests = len(reader.feed(data))
    answered: list[bytes] = []
    with capturedLogs() as captured:
        for at in range(0, len(data), piece):
            wire.send_bytes(data[at : at + piece])
        house.run()
        assert wire.is_open is (reader.error is None)
        if not stays:
            wire.send_no_more()
            house.run()
            assert not wire.transport.connected
        answered += split_answers(wire.received_bytes(), mega.RequestReader().feed(data))
        assert len(answered) == requests
        assert isinstance(only(house, CreateTopic(1, "another", T)), mega.Created | Refused)
    assert [event for event in captured if event.get("log_failure")] == []
    assert house.failures == []


def split_answers(data: bytes, requests: list[Any]) -> list[bytes]:
    """The answers to these requests, which is all there may be."""
    reader = mega.AnswerReader()
    for request in requests:
        if isinstance(request, Refused):
            request = CreateTopic(request.correlation_id, "", 0)
        reader.expect(request)
    answers = reader.feed(data)
    assert reader.error is None
    assert reader.partial_bytes == 0
    return [repr(answer).encode() for answer in answers]


def test_a_connection_that_vanishes_leaves_what_it_had_not_begun_undone() -> None:
    house = House(settings=BrokerSettings(max_uncommitted_bytes=64 * KIB, frame_bytes=64 * KIB))
    create(house)
    first, gone = Desk(house), Desk(house)
    first.send(*[Produce(1, "t", T, bytes(30_000))] * 3)
    gone.send(Produce(2, "t", T, bytes(30_000)))
    assert gone.wire.transport.paused
    gone.wire.disconnect()
    house.run()
    assert len(first.answers()) == 3
    assert house.broker.topics.existing("t").partitions[0].next_offset == 3


def test_a_topic_that_is_not_durable_is_told_of_when_it_is() -> None:
    """Whoever asks: a crash may still take it back."""
    house = House()
    owner, other = Desk(house), Desk(house)
    owner.send(CreateTopic(1, "t", T))
    other.send(Consume(2, "t", T, 0))
    assert other.answers() == []
    house.run()
    assert other.answers() == [Refused(2, Code.INVALID_OFFSET)]


# -- requests of one read ---------------------------------------------------------------------


def stored(house: House, topic: str) -> list[Any]:
    """The records of a topic, without their append times."""
    found = house.broker.topics.find(topic)
    assert found is not None
    chunk = found.partition(0).find(0)
    assert chunk is not None
    return [
        chunk.record(index)._replace(append_time_us=0)
        for index in range(found.partition(0).next_offset)
    ]


@pytest.mark.parametrize("place", [0, 3, 20, 40])
@pytest.mark.parametrize(
    "between",
    [Produce(7, "other", T, b"x"), Produce(7, "no such", T, b"x"), Consume(7, "t", 0, 0)],
    ids=["other", "unknown", "consume"],
)
def test_produces_in_one_read_are_stored_and_answered_as_one_by_one(
    between: mega.Request, place: int
) -> None:
    """Those for one topic are carried out together; each has its id and its timestamp."""
    run = [Produce(number, "t", T + number, b"%d" % number) for number in range(40)]
    requests: list[Any] = [*run[:place], between, *run[place:]]
    together, alone = House(), House()
    for house in (together, alone):
        create(house)
        create(house, "other")
        produce(house, b"first")
    one = Desk(alone)
    assert Desk(together).ask(*requests) == [one.ask(request)[0] for request in requests]
    assert stored(together, "t") == stored(alone, "t")
    assert len(stored(together, "t")) == 41


@pytest.mark.parametrize("place", [0, 3, 20, 40])
@pytest.mark.parametrize(
    "between",
    [
        Produce(7, "topic-1", T, b"x"),
        Produce(7, "no such", T, b"x"),
        Produce(7, "", T, b"x"),
        Consume(7, "topic-1", 0, 0),
    ],
    ids=["again", "unknown", "empty", "consume"],
)
def test_produces_to_several_topics_in_one_read_are_stored_and_answered_as_one_by_one(
    between: mega.Request, place: int
) -> None:
    """Those of a read are carried out together; each has its topic, its id and its timestamp."""
    topics = [f"topic-{number}" for number in range(10)] + ["one-more-topic"]
    run = [
        Produce(number, topics[number * number % len(topics)], T + number, b"%d" % number)
        for number in range(40)
    ]
    requests: list[Any] = [*run[:place], between, *run[place:]]
    together, alone = House(), House()
    for house in (together, alone):
        for topic in topics:
            create(house, topic)
            produce(house, b"first", topic=topic)
    one = Desk(alone)
    assert Desk(together).ask(*requests) == [one.ask(request)[0] for request in requests]
    for topic in topics:
        assert stored(together, topic) == stored(alone, topic)
    counted = [house.broker.status()["records_produced"] for house in (together, alone)]
    assert counted[0] == counted[1]


def test_a_run_for_several_topics_is_appended_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends before a topic that nears the last offset that the format can name."""
    house = House()
    for topic in ("t", "other"):
        create(house, topic)
    runs: list[int] = []
    append = house.broker.appender.append_each
    monkeypatch.setattr(
        house.broker.appender,
        "append_each",
        lambda partitions, *rest: (
            runs.append(len(partitions)),
            append(partitions, *rest),
        )[1],
    )
    run = [Produce(number, ("t", "other")[number % 2], T, b"x") for number in range(10)]
    assert len(ask(house, *run)) == 10
    assert runs == [10]
    monkeypatch.setattr("brokerd.protocols.mega.connection.MAX_OFFSET", 7)
    answers = ask(house, *run)
    assert runs == [10]
    assert [type(answer) for answer in answers] == [mega.Produced] * 6 + [Refused] * 4


def test_a_run_is_appended_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the last offset that the format can name."""
    house = House()
    create(house)
    runs: list[int] = []
    append = house.broker.appender.append_values
    monkeypatch.setattr(
        house.broker.appender,
        "append_values",
        lambda partition, values, *rest: (
            runs.append(len(values)),
            append(partition, values, *rest),
        )[1],
    )
    run = [Produce(number, "t", T, b"x") for number in range(10)]
    assert len(ask(house, *run)) == 10
    assert runs == [10]
    monkeypatch.setattr("brokerd.protocols.mega.connection.MAX_OFFSET", 15)
    answers = ask(house, *run)
    assert runs == [10]
    assert [type(answer) for answer in answers] == [mega.Produced] * 6 + [Refused] * 4


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("place", [0, 3, 20, 40])
@pytest.mark.parametrize(
    "between",
    [
        Consume(7, "t", T, 2),
        Consume(7, "t", T, 9),
        Consume(7, "t", T, 77),
        Consume(7, "other", T, 0),
        Consume(7, "no such", T, 0),
        Produce(7, "t", T, b"x"),
        Produce(7, "other", T, b"x"),
    ],
    ids=["trimmed", "expired", "beyond", "other", "unknown", "produce", "produce-other"],
)
def test_consumes_in_one_read_are_answered_as_one_by_one(
    between: mega.Request, place: int, cold: bool
) -> None:
    run = [Consume(number, "t", T, 4 + number % 5) for number in range(40)]
    requests: list[Any] = [*run[:place], between, *run[place:]]
    answers = []
    for is_alone in (False, True):
        house = House(settings=COLD if cold else None)
        create(house)
        create(house, "other")
        produce(house, *(b"%d" % number for number in range(9)))
        produce(house, b"other", topic="other")
        house.append("t", b"soon", expires_at_us=house.broker.appender.expiry_us(1_000_000))
        house.append("t", b"last")
        house.broker.topics.trim("t", 0, 4)
        house.pass_time(700, step=10)
        desk = Desk(house)
        answers.append(
            [desk.ask(request)[0] for request in requests] if is_alone else desk.ask(*requests)
        )
    together, alone = answers
    assert len(together) == 41
    assert together == alone


def test_a_run_of_consumes_takes_no_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records in memory need none."""
    create(house := House())
    produce(house, *(b"%d" % number for number in range(10)))
    fetched: list[int] = []
    fetch = house.broker.reader.fetch
    monkeypatch.setattr(
        house.broker.reader,
        "fetch",
        lambda partition, offset, *rest: (
            fetched.append(offset),
            fetch(partition, offset, *rest),
        )[1],
    )
    topic = house.broker.topics.existing("t")
    traffic = topic.traffic or house.broker.counters.traffic.of(topic)
    before = traffic.read_records
    run = [Consume(number, "t", T, number) for number in range(10)]
    answers = ask(house, *run)
    assert [answer.payload for answer in answers] == [b"%d" % number for number in range(10)]  # type: ignore[union-attr]
    assert fetched == []
    assert traffic.read_records == before + 10
