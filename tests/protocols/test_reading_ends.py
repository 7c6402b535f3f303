"""Peers that end while records are being read for them: what they sent before still counts."""

from __future__ import annotations

from tests.house import House, Wire
from tests.protocols.test_fetching import connect


def late_reader() -> tuple[House, Wire]:
    """A client of a broker that has to read from disk, and listens while it does."""
    house = House()
    client = connect(house)
    client.send_bytes(b"PPP")
    house.run()
    house.stop()
    house = house.again()
    return house, connect(house)


def test_what_a_peer_sent_before_it_ended_is_answered_though_its_end_is_seen_in_a_fetch() -> None:
    house, client = late_reader()
    client.send_bytes(b"FpPp")
    client.protocol.listen()
    client.send_no_more()
    house.run()
    assert client.received_bytes() == b"[0 1 2]3,p,3,p,"
    assert not client.transport.connected


def test_so_it_is_when_the_peer_reads_its_answers_late() -> None:
    """The fetch fills the transport; what is behind it is carried out once the peer reads."""
    house, client = late_reader()
    client.transport.BUFFER_BYTES = 5
    client.stop_reading()
    client.send_bytes(b"FPFp")
    client.protocol.listen()
    client.send_no_more()
    house.run()
    assert client.transport.connected
    client.read_on()
    house.run()
    assert client.received_bytes() == b"[0 1 2]3,3,[0 1 2 3]4,p,"
    assert not client.transport.connected


def test_a_peer_that_ended_and_never_reads_is_given_up() -> None:
    house, client = late_reader()
    client.protocol.factory.startFactory()
    client.transport.BUFFER_BYTES = 5
    client.stop_reading()
    client.send_bytes(b"FF")
    client.protocol.listen()
    client.send_no_more()
    house.run()
    house.pass_time(50, step=5)
    assert client.transport.connected
    house.pass_time(20, step=5)
    assert not client.transport.connected
