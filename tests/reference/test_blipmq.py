"""BlipMQ's own clients, as its notes describe them, against a real broker."""

from __future__ import annotations

import threading

import pytest

from benchmarks.process import BrokerProcess
from tests.reference import blipmq
from tests.reference.blipmq import Case, Connection, Message, Tally


@pytest.fixture
def address(broker: BrokerProcess) -> str:
    """Where BlipMQ listens."""
    return broker.address_of("blipmq")


def bench(address: str, subject: str, case: Case) -> Tally:
    """The bench programs as its pages tell: subscribers first, then the publishers."""
    subscribed = threading.Semaphore(0)
    tallies: list[Tally] = []

    def subscribe() -> None:
        tallies.append(
            blipmq.bench_subscriber(address, subject, case, subscribed=subscribed, seconds_max=60)
        )

    thread = threading.Thread(target=subscribe)
    thread.start()
    for _ in range(case.subscribers):
        assert subscribed.acquire(timeout=60)
    blipmq.bench_publisher(address, subject, case)
    thread.join()
    return tallies[0]


def test_sample_of_the_documents_gets_its_message_with_a_single_poll(address: str) -> None:
    """The POLL right behind the PUBLISH finds the message."""
    assert blipmq.sample(address, "sample") == Message(1, "sample", b"hi")


def test_test_client_gets_every_message_that_it_published(address: str) -> None:
    """PUBLISH, POLL, ACK, again and again on one connection; no POLL overtakes its PUBLISH."""
    bodies = [b"message %d" % number for number in range(100)]
    delivered = blipmq.round_trips(address, "test", bodies)
    assert delivered == [Message(1, "test", body) for body in bodies]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(("publishers", "subscribers"), [(1, 1), (4, 4)])
def test_bench_programs_end_with_every_message(
    address: str, qos: int, publishers: int, subscribers: int
) -> None:
    """The publishers drop their connections with all of it under way; nothing is lost.

    Every subscriber has every message, once, and never anything but messages.
    """
    case = Case(100, publishers, subscribers, qos, 200)
    tally = bench(address, f"bench-{qos}-{publishers}-{subscribers}", case)
    assert tally.received == tally.wanted
    assert tally.others == []
    for bodies in tally.bodies:
        assert len(bodies) == case.messages
        assert sorted(bodies) == sorted(tally.bodies[0])
        assert all(len(body) == case.size for body in bodies)
    if publishers == 1:
        sent_at = [int.from_bytes(body[:8], "little") for body in tally.bodies[0]]
        assert sent_at == sorted(sent_at)


def test_bench_publisher_outruns_its_subscriber_and_nothing_is_dropped(address: str) -> None:
    """Far more messages than the original's queue of 1,024 holds wait for a slow subscriber."""
    case = Case(4096, 1, 1, 0, 1100)
    tally = bench(address, "bench-outrun", case)
    assert (tally.received, tally.others) == (1100, [])


def test_wrong_order_of_the_handshake_leaves_the_connection_usable(address: str) -> None:
    """What the original's tests replay: refusals have their codes, and no refusal closes."""
    connection = Connection(address, "bench-key")
    for kind, payload, code, text in [
        (blipmq.HELLO, b"\x00\x01", 400, b"HELLO already performed"),
        (blipmq.AUTH, b"\x00\x01x", 400, b"already authenticated"),
        (blipmq.PUBLISH, b"\x01\x00\x00x", 400, b"empty topic"),
        (blipmq.SUBSCRIBE, b"\x00\x01t\x07", 400, b"invalid QoS value"),
        (blipmq.POLL, bytes(8), 400, b"subscription_id must be non-zero"),
        (blipmq.ACK, b"\xff" * 8, 404, b"unknown subscription or delivery tag"),
    ]:
        correlation_id = connection.send(kind, payload)
        frame = connection.read()
        expected = code.to_bytes(2) + len(text).to_bytes(2) + text
        assert frame == (blipmq.NACK, correlation_id, expected)
    correlation_id = connection.send(blipmq.PING, b"")
    assert connection.read() == (blipmq.PONG, correlation_id, b"")
    connection.close()
