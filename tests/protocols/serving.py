"""A broker core in this process that listens on real sockets, for the tests of all formats."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs

from brokerd.broker import Broker
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.server.assembly import BrokerCore, make_core
from brokerd.server.config import Config, Wal
from brokerd.server.endpoints import address_text, parse

reactor: Any = installed_reactor
CONFIG = Config(wal=Wal(segment_bytes=1 << 20))
SECONDS = 120.0
"""A limit for a busy machine. Waits end as soon as they can."""

Factory = TypeVar("Factory", bound=ConnectionFactory)


class Served(Generic[Factory]):
    """A format with its listener."""

    def __init__(self, factory: Factory, address: str) -> None:
        self.factory = factory
        self.address = address

    def plain(self) -> socket.socket:
        """Return a connection without TLS."""
        host, port = self.address.split(":")
        return socket.create_connection((host, int(port)), timeout=SECONDS)


@asynccontextmanager
async def opened(data_dir: Path, config: Config = CONFIG) -> AsyncIterator[BrokerCore]:
    """Yield a core with real threads and files, and stop it as the service does."""
    data_dir.mkdir(exist_ok=True)
    core = make_core(config, data_dir, reactor)
    core.lock()
    await core.open()
    try:
        yield core
    finally:
        await core.drain()
        await core.close()


@asynccontextmanager
async def listening(form: str, endpoint: str, factory: ConnectionFactory) -> AsyncIterator[str]:
    """Listen on a port and yield its address."""
    port = await parse(reactor, form, endpoint).listen(factory)
    try:
        yield address_text(port.getHost())
    finally:
        await maybeDeferred(port.stopListening)


@asynccontextmanager
async def served(
    tmp_path: Path, form: str, endpoint: str, make: Callable[[Broker], Factory]
) -> AsyncIterator[Served[Factory]]:
    """Yield a broker for one format; serving it again finds its data.

    Its stop waits for the answers that are due, and no longer.
    """
    async with opened(tmp_path / "data") as core:
        factory = make(core.broker)
        try:
            async with listening(form, endpoint, factory) as address:
                yield Served(factory, address)
        finally:
            factory.close_all()
            await factory.when_empty().addTimeout(SECONDS, reactor)


async def until(condition: Callable[[], bool]) -> None:
    """Let the reactor turn until a condition holds; fail after two minutes."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        await deferLater(reactor, 0.005, lambda: None)


@pytest.fixture
def no_faults() -> Iterator[None]:
    """Check that the test wrote no traceback to the log."""
    with capturedLogs() as captured:
        yield
    assert [event for event in captured if event.get("log_failure")] == []
