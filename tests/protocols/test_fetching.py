"""What clients that fetch by offset observe, whatever their format: order, own writes, slowness.

Spoken in a language of one byte a request, because a connection needs one: ``P`` produces a record
of its own, ``F`` fetches all from offset 0 on, ``p`` answers at once, ``4`` does in four parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.broker import Partition
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.protocols.base.fetching import FetchConnection
from brokerd.values import Record
from tests.house import House, Wire


class Letters(FetchConnection):
    """The connection of that language."""

    def __init__(self, house: House) -> None:
        super().__init__(house.broker)
        self._requests = b""
        self.fetch_bytes = 1 << 20

    def feed(self, data: bytes) -> bool:
        self._requests += data
        return True

    def handle_requests(self) -> None:
        while self._requests and not self.holds:
            letter, self._requests = self._requests[:1], self._requests[1:]
            if letter == b"P":
                self.answers.append(
                    b"%d," % self.broker.appender.produce(self._partition(), b"value")
                )
                self.wrote()
            elif letter == b"F":
                self.fetch(self._partition(), 0, 1000, self.fetch_bytes, self._fetched)
            elif letter == b"4":
                self.answer_at_once(b"4", b"4", b"4", b"4,")
            else:
                self.answer_at_once(b"p,")

    def _partition(self) -> Partition:
        topic = self.broker.topics.find("t") or self.broker.topics.create("t")
        return topic.partitions[0]

    def _fetched(self, records: Sequence[Record], end: int, error: Exception | None) -> bytes:
        return f"[{' '.join(str(record.offset) for record in records)}]{end},".encode()


class LettersFactory(ConnectionFactory):
    """Its listener."""

    def __init__(self, house: House) -> None:
        super().__init__("letters", house.broker, house.clock, house.limits)
        self._house = house

    def new_connection(self) -> Letters:
        return Letters(self._house)


def connect(house: House) -> Wire:
    return house.connect_to(LettersFactory(house))


def test_a_fetch_shows_what_its_connection_wrote_before_in_the_same_write() -> None:
    house = House()
    client = connect(house)
    client.send_bytes(b"PPFP")
    house.run()
    assert client.received_bytes() == b"0,1,[0 1]2,2,"


def test_a_fetch_never_shows_what_others_wrote_and_is_not_durable() -> None:
    """It answers at once, too: another's commit is not waited for."""
    house = House()
    house.broker.topics.create("t")
    house.run()
    writer, reader = connect(house), connect(house)
    writer.send_bytes(b"P")
    reader.send_bytes(b"F")
    assert reader.received_bytes() == b"[]0,"
    house.run()
    reader.send_bytes(b"F")
    assert reader.received_bytes() == b"[0]1,"


def test_a_fetch_shows_no_topic_that_a_crash_would_take_back() -> None:
    """Also when there is nothing in it to show: that it is there is shown already."""
    house = House()
    reader = connect(house)
    house.broker.topics.create("t")
    reader.send_bytes(b"F")
    assert reader.received_bytes() == b""
    house.run()
    assert reader.received_bytes() == b"[]0,"


def test_what_needs_no_commit_waits_for_nobody_but_earlier_answers() -> None:
    house = House()
    writer, other = connect(house), connect(house)
    writer.send_bytes(b"Pp")
    other.send_bytes(b"p")
    assert writer.received_bytes() == b""
    assert other.received_bytes() == b"p,"
    house.run()
    assert writer.received_bytes() == b"0,p,"


def test_requests_behind_a_fetch_from_disk_wait_and_are_answered_in_order() -> None:
    house = House()
    client = connect(house)
    client.send_bytes(b"PPP")
    house.run()
    house.stop()
    house = house.again()
    client = connect(house)
    client.send_bytes(b"pFpP")
    assert client.received_bytes() == b"p,"
    house.run()
    assert client.received_bytes() == b"[0 1 2]3,p,3,"


def test_a_client_that_left_during_a_fetch_leaves_nothing_behind() -> None:
    house = House()
    client = connect(house)
    client.send_bytes(b"P")
    house.run()
    house.stop()
    house = house.again()
    client = connect(house)
    client.send_bytes(b"FF")
    client.disconnect()
    house.run()
    assert client.received_bytes() == b""
    assert client.protocol.gone


def test_for_a_client_that_does_not_read_few_answers_are_made() -> None:
    house = House(limits=Limits(in_flight_bytes=4_000))
    client = connect(house)
    client.send_bytes(b"P" * 50)
    house.run()
    client.received_bytes()
    client.stop_reading()
    client.send_bytes(b"F" * 2000)
    house.run()
    assert client.protocol.queued_bytes + len(client.transport.buffered) < 65_536 + 3 * 4_000
    client.read_on()
    house.run()
    assert client.received_bytes().count(b"]50,") == 2000


def test_requests_that_wait_are_counted_not_the_parts_of_their_answers() -> None:
    """Three may wait: a fourth that does stops the reading, however many parts there are."""
    house = House(limits=Limits(in_flight_requests=3))
    client = connect(house)
    client.send_bytes(b"P44")
    assert not client.transport.paused
    client.send_bytes(b"4")
    assert client.transport.paused
    house.run()
    assert client.received_bytes() == b"0,4444,4444,4444,"
    assert not client.transport.paused
