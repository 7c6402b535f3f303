"""A broker whose archive is in a bucket: real sockets, threads, files; a rollup without Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_twisted
from moto.server import ThreadedMotoServer
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent

from brokerd.archive.storage.address import ObjectAddress, object_address
from brokerd.client.flymq import FlymqClient
from brokerd.server.assembly import BrokerCore
from brokerd.server.config import Config
from brokerd.server.sections import Archive
from tests.archive.s3 import SECRET, environment, make_bucket
from tests.cross.rolling import roll_up_all
from tests.protocols.serving import listening, opened, until

COUNT = 3_000
TOPIC = "t"


class Server:
    """A server that speaks S3; what is in it stays when it stops."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self._port = self._server.get_host_and_port()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    for name, text in environment(server.url).items():
        monkeypatch.setenv(name, text)
    yield server
    server.stop()


@pytest.fixture
def bucket(server: Server) -> ObjectAddress:
    return object_address(f"s3://{make_bucket(server.url)}/archive")


def value(offset: int) -> bytes:
    return b"%d " % offset * (offset % 40 + 1)


VALUES = [value(offset) for offset in range(COUNT)]


def config(bucket: ObjectAddress) -> Config:
    return Config(archive=Archive(uri=str(bucket), keep_wal_bytes=0, poll_seconds=1))


def read(address: str, first: int = 0) -> list[bytes]:
    """All values of the topic, as a client gets them."""
    values: list[bytes] = []
    with FlymqClient(address, timeout=60) as client:
        while (fetched := client.fetch(TOPIC, 0, first, 700)).records:
            values += [record.value for record in fetched.records]
            first = fetched.next_offset
    return values


async def fill(data_dir: Path, bucket: ObjectAddress) -> None:
    """Have a broker take records, stop, and have them all sealed and in the archive."""
    async with opened(data_dir, config(bucket)) as core:
        partition = core.broker.topics.create(TOPIC).partition(0)
        for offset in range(COUNT):
            core.broker.appender.produce(partition, value(offset))
        durable: Deferred[None] = Deferred()
        core.broker.group_commit.when_all_durable(lambda: durable.callback(None))
        await durable
    async with opened(data_dir, config(bucket)) as core:  # for a second snapshot
        core.broker.appender.produce(
            core.broker.topics.create("filler").partition(0), b"something new"
        )
    assert roll_up_all(data_dir, bucket).records == COUNT


@asynccontextmanager
async def served(data_dir: Path, bucket: ObjectAddress) -> AsyncIterator[tuple[BrokerCore, str]]:
    """The broker, and where FlyMQ listens."""
    async with AsyncExitStack() as stack:
        core = await stack.enter_async_context(opened(data_dir, config(bucket)))
        address = await stack.enter_async_context(
            listening("flymq", "tcp:0", core.factory("flymq"))
        )
        yield core, address


def let_go(core: BrokerCore, data_dir: Path) -> Callable[[], bool]:
    """Whether the log has no file any more that the archive has."""

    def is_so() -> bool:
        lsn = core.broker.archive_admin.status()["records_lsn"]
        left = (data_dir / "wal").glob("*.wal")
        return lsn > 0 and all(int(path.stem) >= lsn for path in left)

    return is_so


@pytest_twisted.ensureDeferred
async def test_every_offset_is_served_when_the_log_has_let_go(
    tmp_path: Path, bucket: ObjectAddress
) -> None:
    """Journal files go because the bucket has them, and readers notice nothing."""
    data_dir = tmp_path / "data"
    await fill(data_dir, bucket)
    assert not (data_dir / "archive").exists()
    async with served(data_dir, bucket) as (core, address):
        await until(let_go(core, data_dir))
        assert core.broker.archive_admin.status()["address"] == str(bucket)
        assert await deferToThread(read, address) == VALUES
        assert await deferToThread(read, address, 2_500) == [
            value(at) for at in range(2_500, COUNT)
        ]


@pytest_twisted.ensureDeferred
@pytest.mark.slow
async def test_a_server_that_is_down_holds_up_nothing_else(
    tmp_path: Path, server: Server, bucket: ObjectAddress
) -> None:
    """The broker starts, takes records, keeps its journal, says why, stops; then all is there."""
    data_dir = tmp_path / "data"
    await fill(data_dir, bucket)
    server.stop()
    journal = set((data_dir / "wal").glob("*.wal"))
    with capturedLogs() as logs:
        async with served(data_dir, bucket) as (core, address):
            await until(lambda: bool(core.broker.archive_admin.status()["error"]))
            error = core.broker.archive_admin.status()["error"]
            assert f"{bucket}/records/_delta_log cannot be read: no connection to the" in error
            assert await deferToThread(read, address) == VALUES
            assert journal <= set((data_dir / "wal").glob("*.wal"))
            began = time.monotonic()
        assert time.monotonic() - began < 60
        server.start()
        async with served(data_dir, bucket) as (core, address):
            await until(let_go(core, data_dir))
            server.stop()
            await until(lambda: bool(core.broker.archive_admin.reason))
            assert "no connection to the server" in core.broker.archive_admin.reason
            server.start()
            assert await deferToThread(read, address) == VALUES
            await until(lambda: not core.broker.archive_admin.reason)
    said = "\n".join(formatEvent(event) or "" for event in logs)
    assert "the archive cannot be used: s3://" in said
    assert "the archive can be used again" in said
    assert SECRET not in said
    assert "Traceback" not in said
