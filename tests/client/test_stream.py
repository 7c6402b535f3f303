"""What the clients of all formats rely on: a stream that says how it failed, and starts anew."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Timer

import pytest

from brokerd.client.errors import AddressError, ConnectionLost
from brokerd.client.stream import Stream


@pytest.fixture
def peers() -> Iterator[list[socket.socket]]:
    """The broker's ends of the connections that `stream_to` opened."""
    ends: list[socket.socket] = []
    yield ends
    for end in ends:
        end.close()


def stream_to(peers: list[socket.socket], **options: object) -> Stream:
    def connect(address: object, timeout: float) -> socket.socket:
        ours, theirs = socket.socketpair()
        peers.append(ours)
        return theirs

    return Stream("broker:1", timeout=60.0, connect=connect, **options)


def test_bytes_go_both_ways(peers: list[socket.socket]) -> None:
    stream = stream_to(peers)
    assert not stream.connected
    stream.send(b"ask")
    assert peers[0].recv(10) == b"ask"
    peers[0].sendall(b"answer")
    assert stream.receive() == b"answer"
    assert stream.connected
    stream.close()


def test_a_closed_connection_is_lost_and_the_next_use_opens_another(
    peers: list[socket.socket],
) -> None:
    stream = stream_to(peers)
    stream.open()
    peers[0].close()
    with pytest.raises(ConnectionLost, match="broker:1 closed the connection"):
        stream.receive()
    assert not stream.connected
    stream.send(b"again")
    assert peers[1].recv(10) == b"again"
    stream.close()


def test_silence_is_a_timeout_and_closes_but_a_poll_only_says_so(
    peers: list[socket.socket],
) -> None:
    stream = stream_to(peers)
    assert stream.poll(0) == b""
    assert stream.connected
    with pytest.raises(TimeoutError, match=r"no answer from broker:1 within 0\.001 seconds"):
        stream.receive(timeout=0.001)
    assert not stream.connected


def test_a_peer_that_takes_nothing_is_a_timeout(peers: list[socket.socket]) -> None:
    stream = stream_to(peers)
    stream.timeout = 0.01
    with pytest.raises(TimeoutError, match="did not take the request"):
        stream.send(bytes(50_000_000))
    assert not stream.connected


def test_an_address_that_is_none_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(AddressError):
        Stream("nowhere", timeout=1.0)


def test_what_cannot_be_sent_now_is_left_while_answers_are_taken(
    peers: list[socket.socket],
) -> None:
    """Neither end waits for the other to read."""
    stream = stream_to(peers)
    outgoing = bytearray(50_000_000)
    assert stream.transfer(outgoing, 5.0) == b""
    assert 0 < len(outgoing) < 50_000_000
    peers[0].sendall(b"answer")
    assert stream.transfer(outgoing, 5.0) == b"answer"
    left = len(outgoing)
    while len(outgoing) == left:
        assert peers[0].recv(1 << 20)
        assert stream.transfer(outgoing, 5.0) == b""
    assert stream.connected
    stream.close()


def test_neither_sent_nor_received_is_a_timeout(peers: list[socket.socket]) -> None:
    stream = stream_to(peers)
    outgoing = bytearray(50_000_000)
    stream.transfer(outgoing, 0.001)
    with pytest.raises(TimeoutError, match=r"no answer from broker:1 within 0\.001 seconds"):
        while True:
            stream.transfer(outgoing, 0.001)
    assert not stream.connected


def test_an_end_is_told_while_bytes_are_sent(peers: list[socket.socket]) -> None:
    stream = stream_to(peers)
    stream.open()
    peers[0].close()
    with pytest.raises(ConnectionLost, match="broker:1"):
        stream.transfer(bytearray(b"ask"), 5.0)
    assert not stream.connected


def test_a_wait_of_a_month_is_no_fault_of_the_system(peers: list[socket.socket]) -> None:
    """poll(2) takes 24 days: a longer wait failed after the request was sent."""
    stream = stream_to(peers)
    stream.open()
    Timer(0.05, peers[0].sendall, (b"answer",)).start()
    assert stream.transfer(bytearray(), 30 * 86_400.0) == b""
    assert stream.transfer(bytearray(), 30 * 86_400.0) == b"answer"
    stream.close()
