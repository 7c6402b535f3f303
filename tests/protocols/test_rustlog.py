"""RustLog served by a whole broker, both dialects: docs/protocols/rustlog.rst, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.broker import BrokerSettings, Congested
from brokerd.codecs import rustlog as rl
from brokerd.codecs.rustlog import Dialect
from brokerd.protocols.connection import Limits
from brokerd.protocols.rustlog import RustlogFactory, RustlogSettings
from brokerd.wal import WalOptions
from tests.codecs.test_rustlog_golden import BYTES, CLOSED
from tests.house import House, Wire

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
    house.broker.create_topic("t")
    for value in values:
        append(house, value)
    return house


def append(house: House, value: bytes, **rest: Any) -> None:
    """Append as another format would, which has other limits."""
    partition = house.broker.existing_topic("t").partitions[0]
    while True:
        try:
            house.broker.produce(partition, value, **rest)
        except Congested:
            house.run()
        else:
            house.run()
            return


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
