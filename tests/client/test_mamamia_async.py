"""What a user of the asynchronous Mamamia client observes, on an in-memory transport."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from brokerd.client.errors import AddressError, ConnectionLost, MamamiaError, OutOfStep
from brokerd.client.mamamia_async import MamamiaProtocol, connect
from brokerd.codecs import mamamia as mm
from brokerd.errors import LimitExceeded
from tests.client.test_mamamia import CALLS


class Results(list[Any]):
    """What Deferreds came to, in the order they did."""

    def of(self, *deferreds: Deferred[Any]) -> Results:
        for deferred in deferreds:
            deferred.addBoth(self._add)
        return self

    def _add(self, result: Any) -> None:
        self.append(result.value if isinstance(result, Failure) else result)


def connected(**limits: int) -> tuple[MamamiaProtocol, StringTransport]:
    client, transport = MamamiaProtocol(**limits), StringTransport()
    client.makeConnection(transport)
    return client, transport


def sent(transport: StringTransport) -> list[mm.Request]:
    decoder = mm.Decoder()
    return [decoder.decode(*one) for one in mm.FrameReader().feed(transport.value())]


@pytest.mark.parametrize(("call", "request_sent", "answer", "result"), CALLS)
def test_each_call_sends_its_request_and_fires_with_its_result(call, request_sent, answer, result):
    client, transport = connected()
    results = Results().of(call(client))
    assert sent(transport) == [request_sent]
    assert results == []
    client.dataReceived(answer)
    assert results == [result]


def test_calls_are_answered_in_order_whatever_the_chunks():
    client, transport = connected()
    results = Results().of(
        client.produce("l", 1), client.settle("l", "g", 0, "c"), client.produce("l", 2)
    )
    for byte in mm.produced(0) + mm.error(3, "no") + mm.produced(1):
        client.dataReceived(bytes([byte]))
    assert (results[0], results[2]) == (0, 1)
    assert isinstance(results[1], MamamiaError)
    assert str(results[1]) == "no"
    assert not transport.disconnecting


def test_requests_beyond_the_limit_wait_for_answers():
    client, transport = connected(in_flight_max=2, waiting_max=1)
    results = Results().of(*(client.produce("l", n) for n in range(4)))
    assert len(sent(transport)) == 2
    assert isinstance(results.pop(), LimitExceeded)
    client.dataReceived(mm.produced(0))
    assert len(sent(transport)) == 3
    client.dataReceived(mm.produced(1) + mm.produced(2))
    assert results == [0, 1, 2]


def test_a_lost_connection_fails_every_call_in_order_and_later_ones_at_once():
    client, _ = connected(in_flight_max=1)
    order: list[int] = []
    for number in range(3):
        client.produce("l", number).addErrback(
            lambda failure, number=number: order.append(number) or failure.trap(ConnectionLost)
        )
    client.connectionLost(Failure(ConnectionDone()))
    assert order == [0, 1, 2]
    (late,) = Results().of(client.produce("l", 3))
    assert isinstance(late, ConnectionLost)


@pytest.mark.parametrize(
    "answer", [mm.settled(), mm.frame(1, b"\xc1"), b"\xff\xff\xff\xff", mm.produced(0) * 2]
)
def test_a_peer_out_of_step_is_dropped(answer):
    client, transport = connected()
    results = Results().of(client.produce("l", 1))
    client.dataReceived(answer)
    assert transport.disconnecting
    client.dataReceived(mm.produced(5))
    client.connectionLost(Failure(ConnectionDone()))
    assert len(results) == 1
    assert results[0] == 0 or isinstance(results[0], OutOfStep)


def test_a_cancelled_call_does_not_disturb_the_others():
    client, _ = connected()
    first, second = client.produce("l", 1), client.produce("l", 2)
    results = Results().of(first, second)
    first.cancel()
    client.dataReceived(mm.produced(0) + mm.produced(1))
    assert isinstance(results[0], CancelledError)
    assert results[1:] == [1]


def test_calls_made_before_the_connection_are_sent_when_it_is_there():
    client, transport = MamamiaProtocol(), StringTransport()
    results = Results().of(client.produce("l", b"x"))
    client.makeConnection(transport)
    client.dataReceived(mm.produced(0))
    assert results == [0]


def test_a_call_made_from_an_answer_is_sent():
    client, transport = connected(in_flight_max=1)
    results = Results()
    client.produce("l", b"x").addCallback(lambda _: results.of(client.produce("l", b"y")))
    client.dataReceived(mm.produced(0))
    client.dataReceived(mm.produced(1))
    assert results == [1]
    assert len(sent(transport)) == 2


def test_an_argument_without_a_wire_form_does_not_disturb_the_others():
    client, _ = connected()
    with pytest.raises(ValueError, match="message_id must be"):
        client.settle("l", "g", 1 << 70, "c")
    results = Results().of(client.produce("l", 1))
    client.dataReceived(mm.produced(0))
    assert results == [0]


def test_answers_behind_one_that_ended_the_connection_are_passed_over():
    """Their calls have failed already."""
    client, _ = connected()
    results = Results()
    client.produce("l", 1).addCallback(lambda _: client.connectionLost(Failure(ConnectionDone())))
    results.of(client.produce("l", 2))
    client.dataReceived(mm.produced(0) + mm.produced(1))
    assert isinstance(results[0], ConnectionLost)
    assert len(results) == 1


def test_closing_sends_what_was_written_first():
    client, transport = connected()
    client.close()
    assert transport.disconnecting


def test_an_endpoint_is_connected():
    reactor = MemoryReactorClock()
    results = Results().of(connect(TCP4ClientEndpoint(reactor, "127.0.0.1", 9000)))
    factory = reactor.tcpClients[0][2]
    factory.buildProtocol(None).makeConnection(StringTransport())
    assert isinstance(results[0], MamamiaProtocol)


def test_an_address_is_enough_to_connect():
    """As it stands in listeners.json, and as the blocking client takes it."""
    reactor = MemoryReactorClock()
    connect("127.0.0.1:9000", reactor)
    connect("unix:/run/b.sock", reactor)
    ((host, port, *_),) = reactor.tcpClients
    ((path, *_),) = reactor.unixClients
    assert (host, port, path) == ("127.0.0.1", 9000, "/run/b.sock")
    with pytest.raises(TypeError, match="needs the reactor"):
        connect("127.0.0.1:9000")
    with pytest.raises(AddressError):
        connect("here", reactor)
