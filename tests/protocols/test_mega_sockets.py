"""MEGA on real sockets: over TLS, with the reference's ways of reading, and how connections end."""

from __future__ import annotations

import socket
import ssl
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from struct import unpack

import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread

from brokerd.broker import Broker
from brokerd.client.mega import Dialect, MegaClient
from brokerd.codecs import mega
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.mega.connection import MegaFactory
from tests.certificates import tls
from tests.protocols import serving
from tests.protocols.serving import SECONDS, Served, no_faults, reactor, until

__all__ = ["no_faults"]

MIB = 1 << 20
T = 1_700_000_000_000


def served(
    tmp_path: Path, endpoint: str = "tcp:0"
) -> AbstractAsyncContextManager[Served[MegaFactory]]:
    """A broker that listens for this format alone."""
    return serving.served(tmp_path, "mega", endpoint, made)


def made(broker: Broker) -> MegaFactory:
    return MegaFactory(broker, reactor, Limits())


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("dialect", Dialect)
async def test_tls_carries_the_same_conversation(
    tmp_path: Path, no_faults: None, dialect: Dialect
) -> None:
    endpoint, context = tls(tmp_path)
    payloads = [bytes([number]) * size for number, size in enumerate([0, 1, 70_000, MIB])]

    def work(address: str) -> None:
        with MegaClient(
            address, dialect=dialect, timeout=SECONDS, ssl_context=context, server_hostname="broker"
        ) as client:
            client.create_topic("orders")
            assert client.produce_many("orders", payloads) == [0, 1, 2, 3]
            assert [message.payload for message in client.read("orders")] == payloads

    async with served(tmp_path, endpoint) as running:
        await deferToThread(work, running.address)
        await until(lambda: not running.factory.connections)


@pytest_twisted.ensureDeferred
async def test_clients_that_read_as_the_references_do_are_served(
    tmp_path: Path, no_faults: None
) -> None:
    """One recv an answer, or a recv a field; nothing put together."""

    def work(running: Served[MegaFactory]) -> None:
        with running.plain() as peer:
            peer.sendall(mega.encode_request(mega.CreateTopic(1, "test-topic", T)))
            assert peer.recv(13) == b"\0\0\0\1\1" + T.to_bytes(8, "big")
            assert peer.recv(*unpack(">H", peer.recv(2))) == b"test-topic"
            for number in range(20):
                payload = b"%04d" % number * 1000
                peer.sendall(mega.encode_request(mega.Produce(2, "test-topic", T, payload)))
                assert peer.recv(4096) == mega.produced(2, T, number)
                peer.sendall(mega.encode_request(mega.Consume(3, "test-topic", T, number)))
                assert peer.recv(4096) == mega.consumed(3, T, number, payload)

    async with served(tmp_path) as running:
        await deferToThread(work, running)


@pytest_twisted.ensureDeferred
async def test_the_answer_before_the_end_survives_what_the_peer_goes_on_sending(
    tmp_path: Path, no_faults: None
) -> None:
    """A connection closed on unread bytes would be reset, and the answer with it."""

    def work(running: Served[MegaFactory]) -> None:
        for _ in range(5):
            with running.plain() as peer:
                absurd = mega.encode_request(mega.Produce(7, "t", T, b""))[:-4] + b"\x7f" * 4
                peer.sendall(absurd + bytes(8 * MIB))
                assert b"".join(iter(lambda: peer.recv(65_536), b"")) == mega.refused(7, 3)
                peer.sendall(bytes(MIB))

    async with served(tmp_path) as running:
        await deferToThread(work, running)
        await until(lambda: not running.factory.connections)


@pytest_twisted.ensureDeferred
async def test_a_peer_that_has_ended_before_is_closed_at_once(
    tmp_path: Path, no_faults: None
) -> None:
    def work(running: Served[MegaFactory]) -> bytes:
        with running.plain() as peer:
            peer.sendall(b"\0\0\0\5\1\xff\xff\xff\xff")
            peer.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: peer.recv(65_536), b""))

    async with served(tmp_path) as running:
        assert await deferToThread(work, running) == mega.refused(5, 1)
        await until(lambda: not running.factory.connections)


@pytest_twisted.ensureDeferred
async def test_a_stop_does_not_wait_for_peers_that_were_told_to_go(
    tmp_path: Path, no_faults: None
) -> None:
    """They may keep the connection open, but not the broker from stopping."""

    def work(running: Served[MegaFactory]) -> socket.socket:
        peer = running.plain()
        peer.sendall(b"\0\0\0\5\1\xff\xff\xff\xff")
        assert peer.recv(100) == mega.refused(5, 1)
        assert peer.recv(100) == b""
        return peer

    async with served(tmp_path) as running:
        peer = await deferToThread(work, running)
        assert len(running.factory.connections) == 1
    assert not running.factory.connections
    peer.close()


@pytest_twisted.ensureDeferred
async def test_over_tls_the_answer_is_read_before_the_goodbye(
    tmp_path: Path, no_faults: None
) -> None:
    endpoint, context = tls(tmp_path)

    def work(running: Served[MegaFactory]) -> bytes:
        with context.wrap_socket(running.plain(), server_hostname="broker") as peer:
            peer.sendall(b"\0\0\0\5\1\xff\xff\xff\xff" + bytes(MIB))
            try:
                return b"".join(iter(lambda: peer.recv(65_536), b""))
            except ssl.SSLEOFError:
                return b"no goodbye"

    async with served(tmp_path, endpoint) as running:
        assert await deferToThread(work, running) == mega.refused(5, 1)
        await until(lambda: not running.factory.connections)
