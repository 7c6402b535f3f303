"""RustLog on real sockets: over TLS, in both dialects at once, and how connections end."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread

from brokerd.broker import Broker
from brokerd.client.rustlog import Dialect, RustlogClient, RustlogError
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.rustlog.connection import RustlogFactory, RustlogSettings
from tests.certificates import tls
from tests.codecs.test_rustlog_golden import BYTES
from tests.protocols import serving
from tests.protocols.serving import SECONDS, Served, no_faults, reactor, until

__all__ = ["no_faults"]

MIB = 1 << 20


def served(
    tmp_path: Path, endpoint: str = "tcp:0"
) -> AbstractAsyncContextManager[Served[RustlogFactory]]:
    """A broker that listens for this format alone."""
    return serving.served(tmp_path, "rustlog", endpoint, made)


def made(broker: Broker) -> RustlogFactory:
    return RustlogFactory(broker, reactor, Limits(), RustlogSettings())


def client_of(running: Served[RustlogFactory], dialect: Dialect, **options: Any) -> RustlogClient:
    return RustlogClient(running.address, dialect=dialect, timeout=SECONDS, **options)


def conversation(client: RustlogClient, dialect: Dialect) -> None:
    """Everything that a client can do."""
    name = f"orders-{dialect.value}"
    values = [b"", b"\0", bytes(range(256)), os.urandom(70_000), b"\xff" * 900_000]
    client.ping()
    client.create_topic(name, 2)
    with pytest.raises(RustlogError, match="already exists"):
        client.create_topic(name, 2)
    assert client.produce(name, values, partition=1) == 0
    assert client.produce(name, [b"more"], partition=1) == 5
    assert list(client.read(name, partition=1)) == list(enumerate([*values, b"more"]))
    assert client.committed(name, "g", 1) is None
    assert client.commit(name, "g", 5, 1)
    assert client.committed(name, "g", 1) == 5
    assert list(client.fetch(name, 0, 1, group="g").pairs()) == [(5, b"more")]
    assert client.topics()[name] == 2
    assert client.next_offsets(name) == (0, 6)
    assert client.next_offset(name, 1) == 6
    assert "messages_produced_total " in client.metrics()


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("dialect", Dialect)
async def test_tls_carries_the_same_conversation(
    tmp_path: Path, no_faults: None, dialect: Dialect
) -> None:
    endpoint, context = tls(tmp_path)

    def work(running: Served[RustlogFactory]) -> None:
        with client_of(running, dialect, ssl_context=context, server_hostname="broker") as client:
            conversation(client, dialect)

    async with served(tmp_path, endpoint) as running:
        await deferToThread(work, running)
        await until(lambda: not running.factory.connections)


@pytest_twisted.ensureDeferred
async def test_clients_of_both_dialects_share_a_port_and_what_they_wrote_survives(
    tmp_path: Path, no_faults: None
) -> None:
    def work(running: Served[RustlogFactory]) -> None:
        for dialect in Dialect:
            with client_of(running, dialect) as client:
                conversation(client, dialect)

    def again(running: Served[RustlogFactory]) -> None:
        for reader, writer in zip(Dialect, reversed(Dialect), strict=True):
            with client_of(running, reader) as client:
                name = f"orders-{writer.value}"
                assert [offset for offset, _ in client.read(name, partition=1)] == [*range(6)]
                assert client.committed(name, "g", 1) == 5

    async with served(tmp_path) as running:
        await deferToThread(work, running)
    async with served(tmp_path) as running:
        await deferToThread(again, running)


@pytest_twisted.ensureDeferred
async def test_the_largest_batches_go_through(tmp_path: Path, no_faults: None) -> None:
    """A frame of ten megabytes each way, with others served meanwhile."""

    def work(running: Served[RustlogFactory]) -> None:
        record = os.urandom(2_800_000)
        with client_of(running, Dialect.JSON) as json, client_of(running, Dialect.BINARY) as binary:
            json.create_topic("t")
            assert json.produce("t", [record]) == 0
            assert binary.produce("t", [record] * 3) == 1
            assert list(binary.fetch("t", 0, max_bytes=9 * MIB).values) == [record] * 3
            assert list(json.fetch("t", 0, max_bytes=9 * MIB).values) == [record]

    async with served(tmp_path) as running:
        await deferToThread(work, running)


@pytest_twisted.ensureDeferred
async def test_the_error_before_the_end_survives_what_the_peer_goes_on_sending(
    tmp_path: Path, no_faults: None
) -> None:
    """A connection closed on unread bytes would be reset, and the answer with it."""

    def work(running: Served[RustlogFactory]) -> None:
        for _ in range(5):
            with running.plain() as peer:
                peer.sendall(BYTES["seed-01-ping", ">"] + BYTES["seed-12-too-long", ">"])
                peer.sendall(bytes(8 * MIB))
                answers = b"".join(iter(lambda: peer.recv(65_536), b""))
                assert answers == BYTES["seed-01-ping", "<"] + BYTES["seed-12-too-long", "<"]

    async with served(tmp_path) as running:
        await deferToThread(work, running)
        await until(lambda: not running.factory.connections)
