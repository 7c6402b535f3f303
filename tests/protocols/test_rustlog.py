"""RustLog served by a whole broker, both dialects: docs/protocols/rustlog.rst, row by row."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from brokerd.broker import BrokerSettings, Congested
from brokerd.broker.slices import SLICE_SECONDS, SliceQueue
from brokerd.codecs import rustlog as rl
from brokerd.codecs.rustlog import Dialect
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.rustlog import topic_list
from brokerd.protocols.rustlog.connection import RustlogFactory, RustlogSettings
from brokerd.values import Encoding, Format
from brokerd.wal import WalOptions
from simulator.machine.bare import WAL_DIR
from simulator.machine.disk import SimDisk
from tests.codecs.test_rustlog_golden import BYTES, CLOSED
from tests.house import House, Wire
from tests.strategies import rustlog as strategies

KIB = 1024
MIB = 1024 * KIB
BINARY, JSON = Dialect.BINARY, Dialect.JSON
REFERENCE = RustlogSettings(group_rules="reference")
COLD = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0)
"""Every record is read from disk."""
LARGE = WalOptions(segment_bytes=64 * MIB, free_bytes_min=0)

both = pytest.mark.parametrize("dialect", Dialect)


class Desk:
    """One connection, in requests and answers of one dialect."""

    def __init__(
        self,
        house: House,
        dialect: Dialect = BINARY,
        rules: RustlogSettings | None = None,
        factory: RustlogFactory | None = None,
    ) -> None:
        self.house = house
        self.factory = factory or factory_of(house, rules)
        self.codec = rl.CODECS[dialect]
        self.wire: Wire = house.connect_to(self.factory)
        self._reader = rl.FrameReader()

    def send(self, *requests: rl.Request) -> None:
        """Send requests in one piece."""
        self.wire.send_bytes(b"".join(map(self.codec.encode_request, requests)))

    def answers(self) -> list[Any]:
        """Everything received since the last call."""
        payloads = self._reader.feed(self.wire.received_bytes())
        assert self._reader.error is None
        return [self.codec.decode_answer(payload) for payload in payloads]

    def ask(self, *requests: rl.Request) -> list[Any]:
        """Send requests and return their answers."""
        self.send(*requests)
        self.house.run()
        return self.answers()

    def only(self, request: rl.Request) -> Any:
        (answer,) = self.ask(request)
        return answer

    def fetch(self, offset: int, max_bytes: int = MIB, group: str | None = None) -> Any:
        """((offset, value) of each record, next offset), or the refusal."""
        answer = self.only(rl.Fetch("t", 0, offset, max_bytes, group))
        if isinstance(answer, rl.Failed):
            return answer
        pairs = zip(answer.offsets, answer.records, strict=True)
        return list(pairs), answer.next_offset


def factory_of(house: House, rules: RustlogSettings | None = None) -> RustlogFactory:
    return RustlogFactory(house.broker, house.clock, house.limits, rules or RustlogSettings())


def with_topic(*values: bytes, house: House | None = None) -> House:
    """A house with topic t of one partition, and records in it."""
    house = house or House()
    house.broker.topics.create("t")
    for value in values:
        house.append("t", value)
    return house


# -- golden bytes -----------------------------------------------------------------------------

SERVED = [
    name
    for name, way in BYTES
    if way == ">" and name not in CLOSED and name not in ("ours-metrics", "ours-json-metrics")
]


def test_the_worked_conversation_is_answered_byte_for_byte() -> None:
    """Both dialects on one connection, frame by frame."""
    wire = Desk(house := House()).wire
    for name in SERVED:
        wire.send_bytes(BYTES[name, ">"])
        house.run()
        assert wire.received_bytes() == BYTES[name, "<"], name
    assert wire.is_open


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_the_same_pipelined_and_in_pieces(piece: int) -> None:
    wire = Desk(house := House()).wire
    data = b"".join(BYTES[name, ">"] for name in SERVED)
    for at in range(0, len(data), piece):
        wire.send_bytes(data[at : at + piece])
    house.run()
    assert wire.received_bytes() == b"".join(BYTES[name, "<"] for name in SERVED)
    assert wire.is_open


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("tail", [b"", b"whatever comes then"])
def test_a_wrong_length_is_answered_in_the_last_dialect_then_the_connection_is_closed(
    name: str, tail: bytes
) -> None:
    dialect, _ = CLOSED[name]
    desk = Desk(house := House(), dialect)
    if dialect is BINARY:
        assert desk.only(rl.Ping()) == rl.Pong()
    desk.wire.send_bytes(BYTES[name, ">"] + tail)
    house.run()
    assert desk.wire.received_bytes() == BYTES[name, "<"]
    assert not desk.wire.is_open


def test_what_came_before_a_wrong_length_is_answered_first() -> None:
    desk = Desk(house := with_topic())
    desk.send(rl.Produce("t", 0, [b"x"]), rl.Fetch("t", 0, 0, 9))
    desk.wire.send_bytes(bytes(4))
    house.run()
    produced, found, failed = desk.answers()
    assert (produced, list(found.records), failed.code) == (rl.Produced(0, 1), [b"x"], 1)
    assert not desk.wire.is_open


def test_a_lower_frame_limit_is_said_and_holds() -> None:
    desk = Desk(with_topic(house=House(limits=Limits(frame_bytes=100))))
    assert desk.only(rl.Produce("t", 0, [bytes(80)])) == rl.Produced(0, 1)
    (failed,) = desk.ask(rl.Produce("t", 0, [bytes(90)]))
    assert failed == rl.Failed(1, "Frame error: frame too large: 106 bytes (max: 100)")
    assert not desk.wire.is_open


# -- bad input --------------------------------------------------------------------------------

DEMO = b"\x00\x01t"
BAD: dict[str, tuple[bytes, str]] = {
    "no dialect": (b"\x7f", "unknown request type: 127"),
    "byte-order mark": (b'\xef\xbb\xbf{"Ping":null}', "unknown request type: 239"),
    "an answer": (b"\xfe\x00\x01\x00\x00", "unknown request type: 254"),
    "a field missing": (b"\x02\x00\x00" + DEMO, "missing partition"),
    "a count without records": (b"\x01" + DEMO + bytes(4) + b"\xff" * 4, "truncated record length"),
    "not UTF-8": (b"\x07\x00\x01\xff", "invalid utf8 topic"),
    "not JSON": (b"{", "failed to parse request"),
    "a blank": (b" ", "failed to parse request"),
    "an array": (b"[1]", "failed to parse request"),
    "another dialect": (b'{"type":"Ping","x":1}', "failed to parse request"),
    "NaN": (b'{"CreateTopic":{"topic":"u","partition_count":NaN}}', "failed to parse request"),
    "a float": (b'{"CreateTopic":{"topic":"u","partition_count":1.0}}', "floating point"),
    "base64": (b'{"Produce":{"topic":"t","partition":0,"records":["aGk="]}}', "arrays of numbers"),
    "half a batch": (b'{"Produce":{"topic":"t","partition":0,"records":[[1],[256]]}}', "0 to 255"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_payload_that_is_no_request_is_told_so_and_changes_nothing(name: str) -> None:
    payload, said = BAD[name]
    desk = Desk(house := with_topic(b"x"))
    desk.wire.send_bytes(rl.frame(payload))
    house.run()
    (answer,) = rl.FrameReader().feed(desk.wire.received_bytes())
    failed = rl.CODECS[rl.dialect_of(payload)].decode_answer(answer)
    assert isinstance(failed, rl.Failed)
    assert said in failed.message
    assert failed.code == (2 if rl.dialect_of(payload) is BINARY else 0)
    assert desk.only(rl.ListTopics()) == rl.TopicList((rl.TopicSummary("t", 1),))
    assert desk.only(rl.DescribeTopic("t")) == rl.TopicDescription("t", (1,))


@both
@pytest.mark.parametrize("count", [65_536, 65_537])
def test_a_request_has_as_many_records_as_the_page_says(dialect: Dialect, count: int) -> None:
    desk = Desk(with_topic(house=House(options=LARGE)), dialect)
    answer = desk.only(rl.Produce("t", 0, [b""] * count))
    if count == 65_536:
        assert answer == rl.Produced(0, count)
    else:
        assert "at most 65536 records" in answer.message
        assert answer.code == (500 if dialect is BINARY else 0)
        assert desk.fetch(0) == ([], 0)


@pytest.mark.parametrize("cut", [1, 3, 4, 10])
def test_the_end_of_the_stream_inside_a_frame_is_silent(cut: int) -> None:
    desk = Desk(house := with_topic())
    data = desk.codec.encode_request(rl.Produce("t", 0, [b"x"]))
    desk.wire.send_bytes(data + data[:cut])
    desk.wire.send_no_more()
    house.run()
    assert desk.answers() == [rl.Produced(0, 1)]
    assert not desk.wire.transport.connected


# -- producing --------------------------------------------------------------------------------


@both
def test_what_is_produced_is_bytes_without_a_key_and_comes_back_in_both_dialects(
    dialect: Dialect,
) -> None:
    house = with_topic()
    values = [b"", b"\x00", bytes(range(256)), "größe".encode(), os.urandom(70_000)]
    assert Desk(house, dialect).only(rl.Produce("t", 0, values)) == rl.Produced(0, 5)
    chunk = house.broker.topics.existing("t").partitions[0].find(1)
    assert chunk is not None
    record = chunk.record(1)
    assert record._replace(append_time_us=0) == (
        (1, b"\x00", None, Encoding.BYTES, None, 0, None, 0, Format.RUSTLOG)
    )
    for reader in Dialect:
        assert Desk(house, reader).fetch(0) == (list(enumerate(values)), 5)


@both
@pytest.mark.parametrize("topic", ["none", "", "t\n"])
@pytest.mark.parametrize("request_type", ["produce", "fetch", "empty batch"])
def test_a_topic_must_exist(dialect: Dialect, topic: str, request_type: str) -> None:
    """Also for another format's topic without a name, which this one does not know."""
    house = with_topic()
    house.broker.topics.create("")
    request: rl.Request = rl.Fetch(topic, 0, 0, 9)
    if request_type != "fetch":
        request = rl.Produce(topic, 0, [b"x"] if request_type == "produce" else [])
    failed = Desk(house, dialect).only(request)
    shown = topic.replace("\n", r"\x0a")
    if dialect is BINARY:
        text = f"Topic or partition does not exist: topic={shown}, partition=0"
        assert failed == rl.Failed(10, text)
    else:
        assert failed.message == f"partition not found: topic={shown}, partition=0"
    assert [one.name for one in house.broker.topics.all()] == ["t", ""]


def test_batches_of_producers_that_race_follow_one_another_whole() -> None:
    """Base and count say where each record is."""
    house = with_topic()
    desks = [Desk(house, dialect) for dialect in Dialect for _ in range(5)]
    for turn in range(4):
        for number, desk in enumerate(desks):
            desk.send(rl.Produce("t", 0, [b"%d %d %d" % (number, turn, at) for at in range(7)]))
    house.run()
    pairs, _ = Desk(house).fetch(0)
    for number, desk in enumerate(desks):
        for turn, produced in enumerate(desk.answers()):
            expected = [b"%d %d %d" % (number, turn, at) for at in range(7)]
            begin = produced.base_offset
            assert [value for _, value in pairs[begin : begin + 7]] == expected


def test_produces_wait_while_the_log_lags_behind_and_none_is_lost_or_doubled() -> None:
    small = BrokerSettings(max_uncommitted_bytes=64 * KIB, frame_bytes=64 * KIB)
    house = with_topic(house=House(settings=small))
    desks = [Desk(house, dialect) for dialect in Dialect for _ in range(2)]
    for desk in desks:
        desk.send(*[rl.Produce("t", 0, [bytes(3000)] * 3)] * 12)
    assert any(desk.wire.transport.paused for desk in desks)
    house.run()
    bases = [answer.base_offset for desk in desks for answer in desk.answers()]
    assert sorted(bases) == list(range(0, 48 * 3, 3))


@both
def test_no_answer_leaves_before_its_commit_is_durable(dialect: Dialect) -> None:
    desk = Desk(house := with_topic(), dialect)
    for request in (
        rl.Produce("t", 0, [b"x"]),
        rl.OffsetCommit("t", 0, "g", 1),
        rl.CreateTopic("u", 1),
    ):
        desk.send(request)
        house.turn()
        assert desk.answers() == []
        house.run()
        assert len(desk.answers()) == 1
    house = house.crash()
    desk = Desk(house, dialect)
    assert desk.fetch(0) == ([(0, b"x")], 1)
    assert desk.only(rl.OffsetFetch("t", 0, "g")) == rl.OffsetFetched(1)
    assert desk.only(rl.DescribeTopic("u")) == rl.TopicDescription("u", (0,))


def test_a_pong_and_a_fetch_wait_for_nobody_elses_commit() -> None:
    house = with_topic()
    house.run()
    producer, reader = Desk(house), Desk(house)
    producer.send(rl.Produce("t", 0, [b"x"]))
    reader.send(rl.Ping(), rl.Fetch("t", 0, 0, 9), rl.Fetch("t", 0, 1, 9))
    pong, found, at_end = reader.answers()
    assert (pong, list(found.records), list(at_end.records)) == (rl.Pong(), [], [])
    house.run()
    assert reader.fetch(0) == ([(0, b"x")], 1)


def test_a_place_that_somebody_committed_is_told_when_it_is_durable() -> None:
    """A crash may still take the commit back."""
    house = with_topic()
    house.run()
    committer, reader = Desk(house), Desk(house)
    committer.ask(rl.Produce("t", 0, [b"a", b"b"]))
    committer.send(rl.OffsetCommit("t", 0, "g", 1))
    reader.send(rl.Fetch("t", 0, 0, 9, "g"))
    assert reader.answers() == []
    house.run()
    (found,) = reader.answers()
    assert list(found.records) == [b"b"]


def test_a_fetch_shows_what_its_own_connection_produced_in_the_same_write() -> None:
    desk = Desk(with_topic())
    produced, found, more = desk.ask(
        rl.Produce("t", 0, [b"a", b"b"]), rl.Fetch("t", 0, 0, 99), rl.Produce("t", 0, [b"c"])
    )
    assert (produced, more) == (rl.Produced(0, 2), rl.Produced(2, 1))
    assert list(found.records) == [b"a", b"b"]


# -- a long produce in JSON -------------------------------------------------------------------


class Turns:
    """A clock that makes one call a turn; each reading of it takes longer than a slice."""

    def __init__(self) -> None:
        self._calls: list[Any] = []
        self._seconds = 0.0

    def callLater(self, delay: float, function: Any, *arguments: Any) -> None:
        self._calls.append((function, arguments))

    def seconds(self) -> float:
        self._seconds += 2 * SLICE_SECONDS
        return self._seconds

    @property
    def waiting(self) -> int:
        """Calls that the reactor would make in its next turn."""
        return len(self._calls)

    def turn(self) -> bool:
        """Make one call, if one waits."""
        if self._calls:
            function, arguments = self._calls.pop(0)
            function(*arguments)
            return True
        return False


def in_turns(desk: Desk) -> Turns:
    """Let the slices of this desk's requests wait for turns."""
    turns = Turns()
    desk.factory.clock = turns  # type: ignore[assignment]
    desk.factory.slices = SliceQueue(turns)  # type: ignore[arg-type]
    return turns


def long_records() -> list[bytes]:
    """Of three slices of text and a bit."""
    return [b"\xff" * 600_000, b"", os.urandom(200_000), b"\x01" * 100_000]


def test_a_long_produce_is_parsed_in_turns_and_others_are_served_in_between() -> None:
    house = with_topic(house=House(options=LARGE))
    slow, quick = Desk(house, JSON), Desk(house, BINARY)
    turns = in_turns(slow)
    slow.send(rl.Produce("t", 0, records := long_records()), rl.Produce("t", 0, [b"behind"]))
    count = 0
    while turns.turn():
        assert quick.only(rl.Ping()) == rl.Pong()
        count += 1
        if slow.answers():
            break
        assert quick.only(rl.Produce("t", 0, [b"quick"])) == rl.Produced(count - 1, 1)
    assert count >= 4
    pairs, _ = quick.fetch(0, 10 * MIB)
    assert [value for _, value in pairs] == [b"quick"] * (count - 1) + [*records, b"behind"]


def test_long_produces_of_many_clients_have_one_slice_a_turn_between_them() -> None:
    """Else eight that come together would make one turn as long as eight."""
    house = with_topic(house=House(options=LARGE))
    first = Desk(house, JSON)
    others = [Desk(house, JSON, factory=first.factory) for _ in range(7)]
    turns = in_turns(first)
    desks = [first, *others]
    for desk in desks:
        desk.send(rl.Produce("t", 0, [b"\xff" * 600_000]))
    at_most = 0
    while turns.waiting:
        at_most = max(at_most, turns.waiting)
        turns.turn()
        house.run()
    assert at_most == 1
    assert sorted(desk.answers() for desk in desks) == [[rl.Produced(at, 1)] for at in range(8)]


@pytest.mark.parametrize("records", ["[[1],[256]]", "[[1],[2]", "[[1],]"])
def test_a_long_produce_that_is_wrong_at_its_end_stores_nothing(records: str) -> None:
    head = '{"Produce":{"topic":"t","partition":0,"records":[[' + ",".join(["1"] * MIB) + "],"
    desk = Desk(house := with_topic(), JSON)
    desk.wire.send_bytes(rl.frame((head + records + "}}").encode()))
    desk.send(rl.Ping())
    house.run()
    failed, pong = desk.answers()
    assert "arrays of numbers from 0 to 255" in failed.message
    assert pong == rl.Pong()
    assert desk.fetch(0) == ([], 0)


def test_a_long_produce_waits_for_room_like_others() -> None:
    house = with_topic(
        house=House(settings=BrokerSettings(max_uncommitted_bytes=64 * KIB, frame_bytes=64 * KIB))
    )
    slow, other = Desk(house, JSON), Desk(house)
    turns = in_turns(slow)
    slow.send(rl.Produce("t", 0, [b"\xff" * 400_000]))
    other.send(*[rl.Produce("t", 0, [bytes(40_000)])] * 3)
    while turns.turn():
        assert slow.answers() == []
    house.run()
    while turns.turn():
        house.run()
    assert len(other.answers()) == 3
    (produced,) = slow.answers()
    (found,) = slow.ask(rl.Fetch("t", 0, produced.base_offset, 1))
    assert list(found.records) == [b"\xff" * 400_000]


def test_a_long_produce_to_a_topic_deleted_meanwhile_is_refused() -> None:
    desk = Desk(house := with_topic(), JSON)
    turns = in_turns(desk)
    desk.send(rl.Produce("t", 0, long_records()))
    house.broker.topics.delete("t")
    while turns.turn():
        house.run()
    (failed,) = desk.answers()
    assert failed.message == "partition not found: topic=t, partition=0"


@pytest.mark.parametrize("ends", ["vanishes", "sends no more"])
def test_a_connection_may_end_during_a_long_produce(ends: str) -> None:
    house = with_topic(house=House(options=LARGE))
    desk = Desk(house, JSON)
    turns = in_turns(desk)
    desk.send(rl.Produce("t", 0, long_records()), rl.Ping())
    with capturedLogs() as captured:
        if ends == "vanishes":
            desk.wire.disconnect()
        else:
            desk.wire.send_no_more()
        while turns.turn():
            house.run()
    stored = house.broker.topics.existing("t").partitions[0].next_offset
    assert stored == (0 if ends == "vanishes" else 4)
    if ends != "vanishes":
        assert desk.answers() == [rl.Produced(0, 4), rl.Pong()]
    assert not desk.wire.transport.connected
    assert [event for event in captured if event.get("log_failure")] == []


def test_a_wrong_length_behind_a_long_produce_is_answered_behind_it() -> None:
    house = with_topic(house=House(options=LARGE))
    desk = Desk(house, JSON)
    desk.send(rl.Produce("t", 0, long_records()))
    desk.wire.send_bytes(bytes(4))
    house.run()
    assert desk.answers() == [rl.Produced(0, 4), rl.Failed(0, "zero-length frame")]
    assert not desk.wire.is_open


# -- fetching ---------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("cold", [False, True])
def test_where_a_fetch_begins(dialect: Dialect, cold: bool) -> None:
    """The rows of the page's table."""
    house = with_topic(b"0", b"1", b"2", b"3", house=House(settings=COLD if cold else None))
    desk = Desk(house, dialect)
    assert desk.fetch(1) == ([(1, b"1"), (2, b"2"), (3, b"3")], 4)
    assert desk.fetch(4) == ([], 4)
    assert desk.fetch(99) == ([], 4)
    assert desk.fetch((1 << 64) - 1) == ([], 4)
    assert desk.fetch(3, group="g") == ([(3, b"3")], 4), "nothing is committed"
    assert desk.only(rl.OffsetCommit("t", 0, "g", 2)) == rl.OffsetCommitted(True)
    assert desk.fetch(0, group="g") == ([(2, b"2"), (3, b"3")], 4), "the commit is larger"
    assert desk.fetch(3, group="g") == ([(3, b"3")], 4), "the request is larger"
    assert desk.fetch(0, group="") == desk.fetch(0), "no name, no group"
    assert desk.only(rl.OffsetFetch("t", 0, "g")) == rl.OffsetFetched(2), "a fetch commits nothing"
    assert desk.only(rl.OffsetCommit("t", 0, "g", 0)) == rl.OffsetCommitted(True)
    assert desk.fetch(0, group="g") == desk.fetch(0), "a commit may go back"


@both
def test_max_bytes_counts_payload_and_lets_one_record_through(dialect: Dialect) -> None:
    desk = Desk(with_topic(b"a" * 10, b"b" * 10, b"c" * 10), dialect)
    sizes = {0: 1, 9: 1, 10: 1, 19: 1, 20: 2, 29: 2, 30: 3, (1 << 32) - 1: 3}
    found = {most: len(desk.fetch(0, most)[0]) for most in sizes}
    assert found == sizes


def test_json_may_ask_for_more_bytes_than_four_bytes_can_say() -> None:
    desk = Desk(with_topic(b"a"), JSON)
    assert desk.fetch(0, (1 << 64) - 1) == ([(0, b"a")], 1)


@pytest.mark.parametrize("cold", [False, True])
def test_below_the_first_kept_record(cold: bool) -> None:
    """JSON says that it is out of range; binary says where to go on."""
    house = with_topic(
        *[b"%d" % at for at in range(5)], house=House(settings=COLD if cold else None)
    )
    house.broker.topics.trim("t", 0, 3)
    house.run()
    assert Desk(house, BINARY).fetch(1) == ([], 3)
    assert Desk(house, JSON).fetch(1) == rl.Failed(
        0, "offset out of range: topic=t, partition=0, offset=1: the records begin at 3"
    )
    for dialect in Dialect:
        assert Desk(house, dialect).fetch(3) == ([(3, b"3"), (4, b"4")], 5)


@pytest.mark.parametrize("cold", [False, True])
def test_gaps(cold: bool) -> None:
    """JSON passes over them; binary stops before one, and is told where one ends."""
    house = with_topic(house=House(settings=COLD if cold else None))
    soon = house.broker.appender.expiry_us(1_000_000)
    for at in range(8):
        house.append("t", b"%d" % at, expires_at_us=soon if at in (0, 3, 4, 7) else None)
    house.pass_time(700, step=10)
    desk = Desk(house, JSON)
    assert desk.fetch(0) == ([(1, b"1"), (2, b"2"), (5, b"5"), (6, b"6")], 8)
    assert desk.fetch(7) == ([], 8)
    desk = Desk(house, BINARY)
    assert desk.fetch(0) == ([], 1)
    assert desk.fetch(1) == ([(1, b"1"), (2, b"2")], 3)
    assert desk.fetch(3) == ([], 5)
    assert desk.fetch(4) == ([], 5)
    assert desk.fetch(5) == ([(5, b"5"), (6, b"6")], 7)
    assert desk.fetch(7) == ([], 8)


@both
def test_a_reader_that_goes_on_gets_every_record_whatever_their_sizes(dialect: Dialect) -> None:
    """Answers keep within a frame, also where the client would take more."""
    house = House(options=LARGE)
    values = [bytes([200 + at]) * size for at, size in enumerate([0, 900_000, 1, 2_000_000] * 4)]
    values += [b""] * 12_000
    with_topic(house=house)
    for at in range(0, 16, 2):
        Desk(house).ask(rl.Produce("t", 0, values[at : at + 2]))
    Desk(house).ask(rl.Produce("t", 0, values[16:]))
    desk = Desk(house, dialect)
    got: list[bytes] = []
    while True:
        desk.send(rl.Fetch("t", 0, len(got), (1 << 32) - 1))
        house.run()
        data = desk.wire.received_bytes()
        assert len(data) - 4 <= rl.MAX_PAYLOAD
        answer: Any = desk.codec.decode_answer(data[4:])
        if not answer.records:
            break
        assert list(answer.offsets) == list(range(len(got), len(got) + len(answer.records)))
        got += answer.records
    assert got == values


@pytest.mark.parametrize(
    ("dialect", "largest"),
    [(BINARY, bytes(rl.MAX_RECORD_BYTES)), (JSON, None)],
)
def test_a_record_too_large_for_an_answer_is_told_with_its_offset(
    dialect: Dialect, largest: bytes | None
) -> None:
    """The largest that is not is delivered."""
    if largest is None:
        size = (rl.MAX_PAYLOAD - 62) // 2 + 1
        while rl.fetched_length(0, b"\x07" * size) > rl.MAX_PAYLOAD:
            size -= 1
        largest = b"\x07" * size
    house = with_topic(house=House(options=LARGE))
    for value in (largest, largest + b"\x07", b"after"):
        house.append("t", value)
    desk = Desk(house, dialect)
    assert desk.fetch(0) == ([(0, largest)], 1)
    failed = desk.fetch(1)
    assert failed.code == (4 if dialect is BINARY else 0)
    assert f"the record at offset 1 has {len(largest) + 1} bytes" in failed.message
    assert "go on from offset 2" in failed.message
    assert desk.fetch(2) == ([(2, b"after")], 3)


@both
def test_records_of_other_formats_are_their_bytes(dialect: Dialect) -> None:
    house = with_topic()
    house.append("t", "größe".encode(), encoding=Encoding.TEXT, key=b"k", metadata=b"\x80")
    house.append("t", b"\x81\xa1n\x01", encoding=Encoding.MSGPACK)
    assert Desk(house, dialect).fetch(0) == ([(0, "größe".encode()), (1, b"\x81\xa1n\x01")], 2)


@both
def test_a_damaged_record_is_an_error_that_says_where_to_go_on(dialect: Dialect) -> None:
    house = with_topic(house=House(settings=COLD))
    for value in (b"first", b"spoil-spoil", b"third"):
        house.append("t", value)
    for name in house.disk.list(WAL_DIR):
        content = house.disk.content(f"{WAL_DIR}/{name}")
        at = content.find(b"spoil-spoil")
        if at >= 0:
            content[at] ^= 1
    desk = Desk(house, dialect)
    assert desk.fetch(0) == ([(0, b"first")], 1)
    failed = desk.fetch(1)
    assert failed.message.lower().startswith("fetch failed: ")
    assert "go on from offset 2" in failed.message
    assert failed.code == (4 if dialect is BINARY else 0)
    assert desk.fetch(2) == ([(2, b"third")], 3)


@both
def test_a_failing_disk_is_told_and_can_be_asked_again(dialect: Dialect) -> None:
    house = with_topic(b"x", house=House(settings=COLD))
    house.disk.fail("pread", error=errno.ENOMEM)
    desk = Desk(house, dialect)
    assert "try again" in desk.fetch(0).message
    assert desk.fetch(0) == ([(0, b"x")], 1)


def test_answers_keep_the_order_of_requests() -> None:
    """Also when some must be read from disk and others are known at once."""
    house = with_topic(*[b"%d" % at for at in range(10)], house=House(settings=COLD))
    desk = Desk(house)
    requests: list[rl.Request] = []
    for at in range(10):
        requests += [
            rl.Fetch("t", 0, at, 1),
            rl.Ping(),
            rl.Produce("t", 0, [b"more"]),
            rl.Fetch("none", 0, 0, 1),
        ]
    answers = desk.ask(*requests)
    assert [type(answer) for answer in answers] == [
        rl.Fetched,
        rl.Pong,
        rl.Produced,
        rl.Failed,
    ] * 10
    assert [answer.records[0] for answer in answers[::4]] == [b"%d" % at for at in range(10)]


@both
def test_a_peer_that_asks_for_much_and_reads_nothing_is_not_answered_into_memory(
    dialect: Dialect,
) -> None:
    house = House(limits=Limits(in_flight_bytes=MIB), options=LARGE)
    desk = Desk(with_topic(bytes(MIB), house=house), dialect)
    desk.wire.stop_reading()
    desk.send(*[rl.Fetch("t", 0, 0, MIB)] * 25)
    house.run()
    assert desk.wire.transport.paused
    assert len(desk.wire.transport.buffered) < 8 * MIB
    desk.wire.read_on()
    house.run()
    assert len(desk.answers()) == 25


# -- committed offsets ------------------------------------------------------------------------


@both
def test_commits_belong_to_a_group_and_a_place_and_survive_a_crash(dialect: Dialect) -> None:
    house = House()
    for name in ("t", "u"):
        house.broker.topics.create(name, 2)
    desk = Desk(house, dialect)
    places = [(t, p, g) for t in ("t", "u") for p in (0, 1) for g in ("g", "größe")]
    for number, (topic, index, group) in enumerate(places):
        assert desk.only(rl.OffsetCommit(topic, index, group, number)).success
    desk = Desk(house.crash(), dialect)
    found = [desk.only(rl.OffsetFetch(*place)).offset for place in places]
    assert found == list(range(8))
    assert desk.only(rl.OffsetFetch("t", 0, "other")).offset is None


@both
@pytest.mark.parametrize(("topic", "index"), [("none", 0), ("t", 1), ("", 0)])
def test_a_commit_to_a_place_that_is_not_there(dialect: Dialect, topic: str, index: int) -> None:
    house = with_topic()
    house.broker.topics.create("")
    desk = Desk(house, dialect)
    assert desk.ask(rl.OffsetCommit(topic, index, "g", 1), rl.OffsetFetch(topic, index, "g")) == [
        rl.OffsetCommitted(False),
        rl.OffsetFetched(None),
    ]


@both
@pytest.mark.parametrize(
    ("group", "offset", "said"),
    [
        ("", 1, "the group has no name"),
        ("g" * 256, 1, "longer than 255 bytes"),
        ("a\nb", 1, "control character"),
        ("g", 1 << 63, "offset 9223372036854775808 is above 9223372036854775807"),
    ],
)
def test_commits_that_cannot_be_stored(
    dialect: Dialect, group: str, offset: int, said: str
) -> None:
    desk = Desk(with_topic(), dialect)
    failed, after = desk.ask(rl.OffsetCommit("t", 0, group, offset), rl.OffsetFetch("t", 0, group))
    assert failed.message.lower().startswith("offset commit failed: ")
    assert said in failed.message
    assert failed.code == (5 if dialect is BINARY else 0)
    assert after == rl.OffsetFetched(None)


def test_the_largest_offset_can_be_committed() -> None:
    desk = Desk(with_topic(b"x"))
    assert desk.only(rl.OffsetCommit("t", 0, "g", rl.MAX_OFFSET)).success
    assert desk.only(rl.OffsetFetch("t", 0, "g")) == rl.OffsetFetched(rl.MAX_OFFSET)
    assert desk.fetch(0, group="g") == ([], 1)


def test_a_commit_moves_nothing_that_leases_are_about() -> None:
    house = with_topic(*[b"x"] * 5)
    Desk(house).ask(rl.OffsetCommit("t", 0, "g", 4))
    info = house.broker.overview.group_info("t", "g")
    assert (info.floor, info.lag, info.committed) == (0, 1, 4)
    house.broker.leases.settle(house.broker.leases.group_partition("t", "g", 0, 0), 0, True)
    info = house.broker.overview.group_info("t", "g")
    assert (info.floor, info.committed) == (1, 4)


# -- the reference's group rules --------------------------------------------------------------


def test_by_the_references_rules_the_commit_alone_counts() -> None:
    house = with_topic(b"0", b"1", b"2")
    desk = Desk(house, BINARY, REFERENCE)
    assert desk.fetch(1, group="g") == ([], 0), "nothing committed: nothing found"
    assert desk.fetch(1) == ([(1, b"1"), (2, b"2")], 3), "no group: as always"
    desk.ask(rl.OffsetCommit("t", 0, "g", 1))
    assert desk.fetch(2, group="g") == ([(1, b"1"), (2, b"2")], 3), "the commit is lower"
    assert desk.fetch(0, group="g") == ([(1, b"1"), (2, b"2")], 3)
    assert desk.only(rl.Fetch("none", 0, 5, 9, "g")) == rl.Fetched(range(0), [], 0)
    desk.ask(rl.OffsetCommit("none", 0, "g", 1))
    assert desk.only(rl.Fetch("none", 0, 5, 9, "g")).code == 10


def test_by_the_references_rules_any_place_takes_a_commit_until_the_broker_ends() -> None:
    """All connections see it. When there is such a place it is no longer there."""
    house = with_topic()
    factory = factory_of(house, REFERENCE)
    desk, other = Desk(house, factory=factory), Desk(house, factory=factory)
    for place in (("none", 0, "g"), ("t", 7, "g")):
        assert desk.only(rl.OffsetCommit(*place, 5)) == rl.OffsetCommitted(True)
        assert other.only(rl.OffsetFetch(*place)) == rl.OffsetFetched(5)
    other.ask(rl.CreateTopic("none", 1))
    assert desk.only(rl.OffsetFetch("none", 0, "g")) == rl.OffsetFetched(None)
    other.ask(rl.OffsetCommit("none", 0, "g", 3))
    assert desk.only(rl.OffsetFetch("none", 0, "g")) == rl.OffsetFetched(3)
    desk = Desk(house.crash(), BINARY, REFERENCE)
    assert desk.only(rl.OffsetFetch("t", 7, "g")) == rl.OffsetFetched(None)
    assert desk.only(rl.OffsetFetch("none", 0, "g")) == rl.OffsetFetched(3)


def test_commits_without_a_place_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.protocols.rustlog.offset_commits.UNPLACED_MAX", 3)
    desk = Desk(House(), BINARY, REFERENCE)
    desk.ask(*[rl.OffsetCommit("none", at % 4, "g", at) for at in (0, 1, 2, 4, 3)])
    found = [desk.only(rl.OffsetFetch("none", at, "g")).offset for at in range(4)]
    assert found == [4, None, 2, 3], "the latest three"
    for names in (("n" * 256, 0, "g"), ("none", 0, "g" * 256)):
        assert desk.only(rl.OffsetCommit(*names, 1)).code == 5


def test_the_references_rules_are_not_for_json() -> None:
    house = with_topic(b"0", b"1")
    factory = factory_of(house, REFERENCE)
    desk, other = Desk(house, JSON, factory=factory), Desk(house, factory=factory)
    assert desk.fetch(1, group="g") == ([(1, b"1")], 2)
    assert desk.only(rl.OffsetCommit("none", 0, "g", 5)) == rl.OffsetCommitted(False)
    assert other.only(rl.OffsetCommit("none", 0, "g", 5)) == rl.OffsetCommitted(True)
    assert desk.only(rl.OffsetFetch("none", 0, "g")) == rl.OffsetFetched(None)


def test_a_topic_made_anew_has_no_old_commits() -> None:
    house = with_topic(b"0", b"1")
    desk = Desk(house, factory=factory_of(house, REFERENCE))
    house.broker.topics.delete("t")
    desk.ask(rl.OffsetCommit("t", 0, "g", 2))
    house.broker.topics.create("t")
    desk.ask(rl.OffsetCommit("t", 0, "g", 1))
    house.broker.topics.delete("t")
    house.broker.topics.create("t")
    assert desk.only(rl.OffsetFetch("t", 0, "g")) == rl.OffsetFetched(None)


@pytest.mark.parametrize(
    ("dialect", "topic", "value"),
    [(BINARY, "t", bytes(rl.MAX_RECORD_BYTES + 1)), (JSON, "t", bytes(5_242_853))],
)
def test_a_record_that_its_own_dialect_could_not_fetch_is_refused(
    dialect: rl.Dialect, topic: str, value: bytes
) -> None:
    """The frame of the request is shorter than the frame of the answer would be."""
    house = with_topic()
    desk = Desk(house, dialect)
    refused = desk.only(rl.Produce(topic, 0, [value]))
    assert refused.code in (0, 500)
    assert "does not fit an answer of 10485760 bytes" in refused.message
    assert house.broker.topics.find("t").partitions[0].next_offset == 0
    desk.ask(rl.Produce(topic, 0, [b"x"]))
    assert desk.fetch(0) == ([(0, b"x")], 1)


def test_a_topic_without_a_name_is_a_bad_name_also_if_another_format_has_one() -> None:
    house = with_topic()
    house.broker.topics.create("")
    for dialect in (BINARY, JSON):
        assert "the topic has no name" in Desk(house, dialect).only(rl.CreateTopic("", 1)).message


# -- topics -----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("name", "count", "code", "said"),
    [
        ("", 1, 500, "the topic has no name"),
        ("x" * 256, 1, 500, "longer than 255 bytes"),
        ("a\nb", 1, 500, "control character"),
        ("__brokerd.x", 1, 500, "the broker's own"),
        ("u", 0, 12, "nvalid partition count: 0"),
        ("u", 1_001, 12, "nvalid partition count: 1001 (1 to 1000)"),
        ("u", (1 << 32) - 1, 12, "nvalid partition count: 4294967295"),
        ("t", 1, 11, "already exists"),
        ("t", 5, 11, "already exists"),
    ],
)
def test_topics_that_cannot_be_created(
    dialect: Dialect, name: str, count: int, code: int, said: str
) -> None:
    house = with_topic()
    failed = Desk(house, dialect).only(rl.CreateTopic(name, count))
    assert failed.code == (code if dialect is BINARY else 0)
    assert said in failed.message
    assert [(one.name, len(one.partitions)) for one in house.broker.topics.all()] == [("t", 1)]


@both
def test_topics_are_listed_by_name_and_described_with_their_next_offsets(dialect: Dialect) -> None:
    """Whoever made them; the one without a name is left out."""
    house = House()
    for name, count in (("ü", 1), ("b", 1000), ("", 1), ("a", 2)):
        house.broker.topics.create(name, count)
    desk = Desk(house, dialect)
    desk.ask(rl.Produce("a", 1, [b"x"] * 3))
    topics = desk.only(rl.ListTopics()).topics
    assert topics == (("a", 2), ("b", 1000), ("ü", 1))
    assert desk.only(rl.DescribeTopic("a")) == rl.TopicDescription("a", (0, 3))
    assert len(desk.only(rl.DescribeTopic("b")).next_offsets) == 1000
    assert desk.only(rl.DescribePartition("a", 1)) == rl.PartitionDescription("a", 1, 3)
    for request in (rl.DescribeTopic(""), rl.DescribePartition("", 0), rl.DescribeTopic("c")):
        assert "not found" in desk.only(request).message


@both
def test_a_long_list_is_made_in_turns(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are served in between; a topic that goes meanwhile is left out, or may be."""
    monkeypatch.setattr(topic_list, "STEP_TOPICS", 3)
    house = House()
    names = [f"topic-{at:02}" for at in range(10)]
    for name in reversed(names):
        house.broker.topics.create(name)
    slow, quick = Desk(house, dialect), Desk(house)
    turns = in_turns(slow)
    slow.send(rl.ListTopics(), rl.Ping())
    count = 0
    while turns.turn():
        assert quick.only(rl.Ping()) == rl.Pong()
        if house.broker.topics.find("topic-09") is not None:
            house.broker.topics.delete("topic-09")
        count += 1
    assert count >= 4
    listed, pong = slow.answers()
    assert listed.topics == tuple((name, 1) for name in names[:9])
    assert pong == rl.Pong()


@both
def test_a_list_that_does_not_fit_a_frame_is_refused(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a number: it would count topics, too, that the asker may not know of."""
    monkeypatch.setattr(topic_list, "MAX_PAYLOAD", 100)
    house = House()
    for at in range(20):
        house.broker.topics.create(f"topic-{at}")
    failed = Desk(house, dialect).only(rl.ListTopics())
    assert "the topics do not fit an answer of 100 bytes" in failed.message
    assert "20" not in failed.message
    assert failed.code == (500 if dialect is BINARY else 0)


# -- what the broker refuses ------------------------------------------------------------------


@both
def test_a_full_disk_is_told_before_anything_is_stored_and_reading_goes_on(
    dialect: Dialect,
) -> None:
    house = House(SimDisk(capacity=5 * MIB), options=WalOptions(MIB, free_bytes_min=0))
    with_topic(b"x", house=house)
    desk = Desk(house, dialect)
    for size in (100 * KIB, KIB, 1):
        while isinstance(desk.only(rl.Produce("t", 0, [bytes(size)] * 2)), rl.Produced):
            pass
    before = house.broker.topics.existing("t").partitions[0].next_offset
    failed = desk.only(rl.Produce("t", 0, [b"a", b"b"]))
    assert failed.message.lower().startswith("failed to write record: the disk has no room")
    assert failed.code == (500 if dialect is BINARY else 0)
    assert house.broker.topics.existing("t").partitions[0].next_offset == before
    assert desk.only(rl.OffsetCommit("t", 0, "g", 1)) == rl.OffsetCommitted(True), "the reserve"
    created = desk.only(rl.CreateTopic("u", 1))
    assert created.message.lower().startswith(("createtopic failed: ", "create topic failed: "))
    assert desk.fetch(0, 1) == ([(0, b"x")], 1)


@both
def test_a_stopping_broker_refuses_what_it_cannot_store(dialect: Dialect) -> None:
    house = with_topic(b"x")
    house.broker.group_commit.close()
    desk = Desk(house, dialect)
    for request, code in (
        (rl.Produce("t", 0, [b"y"]), 500),
        (rl.OffsetCommit("t", 0, "g", 1), 5),
        (rl.CreateTopic("u", 1), 500),
    ):
        failed = desk.only(request)
        assert "shutting down" in failed.message
        assert failed.code == (code if dialect is BINARY else 0)


@both
def test_more_topics_than_the_broker_may_have_are_refused(dialect: Dialect) -> None:
    desk = Desk(with_topic(house=House(settings=BrokerSettings(max_topics=1))), dialect)
    failed = desk.only(rl.CreateTopic("u", 1))
    assert "limits.max_topics" in failed.message
    assert failed.code == (500 if dialect is BINARY else 0)


@both
@pytest.mark.parametrize(
    ("method", "request_made", "answer"),
    [
        ("group_commit.admit", rl.Produce("t", 0, [b"y"]), rl.Produced(1, 1)),
        ("groups.commit_offset", rl.OffsetCommit("t", 0, "g", 1), rl.OffsetCommitted(True)),
        ("topics.create", rl.CreateTopic("u", 2), rl.TopicCreated()),
    ],
)
def test_what_meets_a_full_queue_is_answered_once_it_was_carried_out(
    dialect: Dialect, method: str, request_made: rl.Request, answer: rl.Answer
) -> None:
    house = with_topic(b"x")
    part, name = method.split(".")
    service = getattr(house.broker, part)
    does, times = getattr(service, name), 0

    def congested_first(*arguments: Any) -> Any:
        nonlocal times
        times += 1
        if times == 1:
            raise Congested("too much work waits for the disk; try again")
        return does(*arguments)

    desk, other = Desk(house, dialect), Desk(house)
    other.send(rl.OffsetCommit("t", 0, "other", 1))
    setattr(service, name, congested_first)
    desk.send(request_made, rl.Ping())
    assert desk.answers() == []
    house.run()
    assert times == 2
    assert desk.answers() == [answer, rl.Pong()]


# -- metrics ----------------------------------------------------------------------------------


@both
def test_metrics_tell_what_the_broker_did(dialect: Dialect) -> None:
    house = with_topic(b"12345", b"678")
    factory = factory_of(house)
    desk = Desk(house, dialect, factory=factory)
    Desk(house, factory=factory)
    desk.ask(rl.OffsetCommit("t", 0, "g", 1))
    desk.fetch(1)
    lines = desk.only(rl.MetricsFetch()).text.splitlines()
    for line in (
        "messages_produced_total 2",
        "bytes_in_total 8",
        "messages_fetched_total 1",
        "bytes_out_total 3",
        "active_connections 2",
        'consumer_lag{topic="t",partition="0",group="g"} 1',
    ):
        assert line in lines
    house.broker.topics.trim("t", 0, 2)
    lines = desk.only(rl.MetricsFetch()).text.splitlines()
    assert 'consumer_lag{topic="t",partition="0",group="g"} 0' in lines, "what is gone is no lag"


# -- any conversation -------------------------------------------------------------------------

conversations = st.lists(st.tuples(st.sampled_from(Dialect), strategies.requests), max_size=12)


def talk(pieces: list[bytes]) -> tuple[bytes, bool]:
    house = with_topic(b"x")
    wire = Desk(house).wire
    with capturedLogs() as captured:
        for piece in pieces:
            wire.send_bytes(piece)
        house.run()
    assert [event for event in captured if event.get("log_failure")] == []
    return wire.received_bytes(), wire.is_open


@settings(deadline=None)
@given(conversations, st.lists(st.integers(0, 5_000), max_size=6))
def test_any_conversation_is_answered_the_same_however_it_is_cut(asked, cuts):
    """One answer a request, each in its own dialect."""
    data = b"".join(rl.CODECS[dialect].encode_request(request) for dialect, request in asked)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    whole = talk([data])
    assert talk([data[start:end] for start, end in pairwise(edges)]) == whole
    payloads = rl.FrameReader().feed(whole[0])
    assert len(payloads) == len(asked)
    for (dialect, _), payload in zip(asked, payloads, strict=True):
        assert rl.dialect_of(payload) is dialect or payload[0] == 0xFE
        assert rl.CODECS[dialect].decode_answer(payload)
    assert whole[1]


@settings(deadline=None)
@given(st.lists(st.sampled_from(SERVED), max_size=8), st.data())
def test_a_conversation_with_a_fault_in_it_never_costs_a_traceback(names, data):
    stream = bytearray(b"".join(BYTES[name, ">"] for name in names))
    for _ in range(data.draw(st.integers(0, 6))):
        if stream:
            stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    answers, is_open = talk([bytes(stream)])
    reader = rl.FrameReader()
    reader.feed(answers)
    assert reader.error is None
    assert reader.partial_bytes == 0
    expected = rl.FrameReader()
    expected.feed(bytes(stream))
    assert is_open is (expected.error is None)
