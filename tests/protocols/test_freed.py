"""What a connection holds is given back when it is closed, without the cycle collector.

That may come only after hundreds of connections, with megabytes each.
"""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread

from brokerd.broker import Broker
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.server.assembly import FACTORIES, FactoryContext
from brokerd.server.config import Config
from tests.certificates import tls
from tests.protocols.serving import no_faults, reactor, served, until
from tests.protocols.test_strangers import BEGINNINGS

__all__ = ["no_faults"]

UNREAD_BYTES = 32 << 20
"""More than the kernel keeps for a peer that does not read."""

FRAMES = {**BEGINNINGS, "mega": BEGINNINGS["mamamia"]}


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("form", FACTORIES)
@pytest.mark.parametrize("secure", [False, True])
async def test_a_closed_connection_is_freed_with_all_that_it_holds(
    tmp_path: Path,
    no_faults: None,
    no_collector: None,
    form: str,
    secure: bool,
) -> None:
    """With a frame of which the rest did not come, and an answer that was not read."""

    def make(broker: Broker) -> ConnectionFactory:
        return FACTORIES[form](FactoryContext(broker, reactor, Limits(), Config()))

    endpoint, context = tls(tmp_path) if secure else ("tcp:0", None)
    async with served(tmp_path, form, endpoint, make) as running:

        def connect() -> socket.socket:
            peer = running.plain()
            return peer if context is None else context.wrap_socket(peer, server_hostname="broker")

        peers = [await deferToThread(connect) for _ in range(3)]
        refs = await held_and_closed(running.factory, peers, FRAMES[form])
        await until(lambda: not running.factory.connections)
        await until(lambda: all(ref() is None for ref in refs))


async def held_and_closed(
    factory: ConnectionFactory, peers: list[socket.socket], beginning: bytes
) -> list[weakref.ref[Any]]:
    """Give each connection something to hold, and close it; what has to be freed."""
    for peer in peers:
        peer.sendall(beginning + bytes(32 << 10))
    await until(lambda: sum(one.unfinished for one in factory.connections) == len(peers))
    connections = list(factory.connections)
    for connection in connections:
        connection.resolve(connection.pending(), bytes(UNREAD_BYTES), at_once=True)
    for peer in peers:
        peer.close()
    transports = [connection.transport for connection in connections]
    return [weakref.ref(one) for one in (*connections, *transports)]
