"""What clients of an endpoint observe that two formats share.

Mamamia (first byte 0) beside a language of one letter, ``F``, to which it answers ``f``.
"""

from __future__ import annotations

from brokerd.codecs import mamamia as mm
from brokerd.protocols.base.connection import Connection, Limits
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.base.first_byte import FirstByteFactory
from brokerd.protocols.mamamia.connection import MamamiaFactory
from brokerd.security import OPEN
from brokerd.security.quotas import Quota
from tests.house import Client, House, Wire


class Letter(Connection):
    """A connection of that language."""

    def feed(self, data: bytes) -> bool:
        self.count = data.count(b"F")
        return True

    def handle_requests(self) -> None:
        self.answers += [b"f"] * self.count
        self.count = 0


class LetterFactory(ConnectionFactory):
    """Its listener."""

    def new_connection(self) -> Connection:
        return Letter(self.broker)


class Shared:
    """An endpoint, and who is connected to it."""

    def __init__(self, house: House, limits: Limits | None = None, last: str = "mamamia") -> None:
        common = (house.broker, house.clock, limits or house.limits)
        self.mamamia = MamamiaFactory(*common)
        self.letter = LetterFactory("letter", *common)
        formats = [self.letter, self.mamamia]
        if last == "letter":
            formats.reverse()
        self.factory = FirstByteFactory(
            "both", *common, formats, {"mamamia": b"\0", "letter": b"F"}
        )
        self.factory.doStart()

    def counts(self) -> tuple[int, int, int]:
        """Connections of nobody yet, of the letter, of Mamamia."""
        return tuple(len(f.connections) for f in (self.factory, self.letter, self.mamamia))  # type: ignore[return-value]


def test_each_client_is_spoken_to_in_its_own_format() -> None:
    house = House()
    shared = Shared(house)
    one, other = Wire(shared.factory, house.clock), Client(shared.factory, house.clock)
    assert shared.counts() == (2, 0, 0)
    one.send_bytes(b"F")
    other.send(mm.Produce("orders", b"x"))
    assert shared.counts() == (0, 1, 1)
    house.run()
    one.send_bytes(b"FF")
    other.send(mm.Produce("orders", b"y"))
    house.run()
    assert one.received_bytes() == b"fff"
    assert other.answers() == [mm.Produced(0), mm.Produced(1)]
    one.disconnect()
    assert shared.counts() == (0, 0, 1)


def test_a_connection_takes_one_place_of_a_quota_and_gives_it_back() -> None:
    house = House()
    house.broker.quotas.put(OPEN, Quota("address", "unix", connections=2))
    house.run()
    shared = Shared(house)
    for _ in range(3):
        clients = [Wire(shared.factory, house.clock) for _ in range(2)]
        for client in clients:
            client.send_bytes(b"F")
        house.run()
        assert [client.received_bytes() for client in clients] == [b"f", b"f"]
        assert house.broker.quotas.status()[0]["connections"] == 2
        for client in clients:
            client.disconnect()
        house.run()
        assert house.broker.quotas.status()[0]["connections"] == 0


def test_a_frame_may_come_byte_by_byte() -> None:
    house = House()
    shared = Shared(house)
    client = Client(shared.factory, house.clock)
    for byte in mm.encode_request(mm.Produce("orders", b"x")):
        client.send_bytes(bytes([byte]))
    house.run()
    assert client.answers() == [mm.Produced(0)]


def test_a_byte_of_no_format_goes_to_the_last_one() -> None:
    """Mamamia closes, as it does for a length it cannot believe; the letter goes on."""
    house = House()
    for last, is_open in (("mamamia", False), ("letter", True)):
        client = Wire(Shared(house, last=last).factory, house.clock)
        client.send_bytes(b"GET / HTTP/1.1\r\n")
        house.run()
        assert client.is_open == is_open


def test_a_client_that_says_nothing_is_closed_when_idle_too_long() -> None:
    house = House()
    shared = Shared(house, Limits(idle_us=10_000_000, sweep_seconds=1))
    client = Wire(shared.factory, house.clock)
    house.pass_time(9, step=1)
    assert client.is_open
    house.pass_time(10, step=1)
    assert not client.is_open
    assert shared.counts() == (0, 0, 0)


def test_a_client_counts_once_against_the_limit() -> None:
    """Before its first byte and after it; who was let in is not refused at the first byte."""
    house = House()
    shared = Shared(house, Limits(connections=2))
    for factory in (shared.factory, shared.letter, shared.mamamia):
        factory.count_open = lambda: sum(shared.counts())
    first, second = (Wire(shared.factory, house.clock) for _ in range(2))
    assert shared.factory.buildProtocol(None) is None
    first.send_bytes(b"F")
    second.send_bytes(b"F")
    house.run()
    assert first.received_bytes() == second.received_bytes() == b"f"
    assert shared.counts() == (0, 2, 0)
    assert shared.factory.buildProtocol(None) is None
    assert (shared.factory.refused, shared.letter.refused) == (2, 0)
    first.disconnect()
    third = Wire(shared.factory, house.clock)
    third.send_bytes(b"F")
    house.run()
    assert third.received_bytes() == b"f"


def test_a_stop_closes_those_who_said_nothing() -> None:
    house = House()
    shared = Shared(house)
    silent = Wire(shared.factory, house.clock)
    shared.factory.close_all()
    house.run()
    assert not silent.is_open
    assert shared.factory.when_empty().called


def test_a_client_that_ends_before_its_first_byte_is_forgotten() -> None:
    house = House()
    shared = Shared(house)
    client = Wire(shared.factory, house.clock)
    client.send_no_more()
    house.run()
    assert not client.is_open
    assert shared.counts() == (0, 0, 0)


def test_a_client_that_ends_after_its_last_request_is_answered() -> None:
    house = House()
    shared = Shared(house)
    client = Client(shared.factory, house.clock)
    client.send(mm.Produce("orders", b"x"))
    client.send_no_more()
    house.run()
    assert client.answers() == [mm.Produced(0)]
    assert not client.is_open
    assert shared.counts() == (0, 0, 0)
