"""Readers of every format that are in the middle of the archive while jobs change its files.

Real sockets, threads and files; the rollup and the compaction are the job's, without Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent

from brokerd.client.blipmq import BlipmqClient
from brokerd.client.flymq import FlymqClient, FlymqError
from brokerd.client.mamamia import MamamiaClient
from brokerd.client.mega import Code, MegaClient, MegaError
from brokerd.client.rustlog import RustlogClient
from brokerd.codecs.rustlog import Dialect
from brokerd.server.assembly import BrokerCore
from tests.cross.rolling import remove
from tests.cross.serving import ARCHIVED, archive_all, listen_all, serve_archived
from tests.protocols.serving import SECONDS, opened

COUNT = 300
TOPIC = "t"
LOG = 30
"""Records that are appended when all others are in the archive."""


def value(offset: int) -> bytes:
    return b"%d " % offset * (offset % 400 + 1)


class Place(NamedTuple):
    """Where a reader's broker is, and what it began with."""

    addresses: dict[str, str]
    subscription: int


Read = Callable[[Place], Iterator[bytes]]
"""Reads values from the first record on, one by one, until there are no more."""


def flymq(place: Place) -> Iterator[bytes]:
    with FlymqClient(place.addresses["flymq"], timeout=SECONDS) as client:
        offset = 0
        while (fetched := client.fetch(TOPIC, 0, offset, 7)).records:
            yield from (record.value for record in fetched.records)
            offset = fetched.next_offset


def consumed(place: Place) -> Iterator[bytes]:
    """CONSUME, which tells nothing of where to go on."""
    with FlymqClient(place.addresses["flymq"], timeout=SECONDS) as client:
        offset = 0
        while records := client.fetch(TOPIC, 0, offset, 1).records:
            yield client.consume(TOPIC, 0, records[0].offset).value
            offset = records[0].offset + 1


def mega(place: Place) -> Iterator[bytes]:
    with MegaClient(place.addresses["mega"], timeout=SECONDS) as client:
        for message in client.read(TOPIC):
            yield message.payload


def rustlog(place: Place, dialect: Dialect) -> Iterator[bytes]:
    with RustlogClient(place.addresses["rustlog"], dialect=dialect, timeout=SECONDS) as client:
        for _, payload in client.read(TOPIC):
            yield payload


def rustlog_json(place: Place) -> Iterator[bytes]:
    return rustlog(place, Dialect.JSON)


def rustlog_binary(place: Place) -> Iterator[bytes]:
    return rustlog(place, Dialect.BINARY)


def mamamia(place: Place) -> Iterator[bytes]:
    with MamamiaClient(place.addresses["mamamia"], timeout=SECONDS) as client:
        while message := client.acquire(TOPIC, "readers", "worker"):
            client.settle(TOPIC, "readers", message.id, "worker")
            yield message.payload


def mamamia_ordered(place: Place) -> Iterator[bytes]:
    """In batches of a group with key order; no record has a key."""
    with MamamiaClient(place.addresses["mamamia"], timeout=SECONDS) as client:
        while leased := client.acquire_batch(TOPIC, "ordered", "worker", 9):
            for message in leased:
                yield message.payload
            for message in leased:
                client.settle(TOPIC, "ordered", message.id, "worker")


def blipmq(place: Place) -> Iterator[bytes]:
    with BlipmqClient(place.addresses["blipmq"], api_key="key", timeout=SECONDS) as client:
        message = b""
        while message != value(COUNT + LOG - 1):
            delivery = client.receive(place.subscription, timeout=SECONDS)
            assert delivery is not None
            client.ack(delivery)
            message = delivery.message
            yield message
        assert client.receive(place.subscription, timeout=1) is None


READERS: list[Read] = [
    flymq,
    consumed,
    mega,
    rustlog_json,
    rustlog_binary,
    mamamia,
    mamamia_ordered,
    blipmq,
]


def subscribe(addresses: dict[str, str]) -> int:
    with BlipmqClient(addresses["blipmq"], api_key="key", timeout=SECONDS) as client:
        return client.subscribe(TOPIC)


def problem(core: BrokerCore, condition: str) -> str:
    """Return why a condition stands; "" if it does not."""
    (probe,) = (one.probe for one in core.conditions() if one.name == condition)
    return probe()


async def append(core: BrokerCore, first: int, end: int) -> None:
    partition = core.broker.topics.create(TOPIC).partition(0)
    for offset in range(first, end):
        core.broker.appender.produce(partition, value(offset))
    durable: Deferred[None] = Deferred()
    core.broker.group_commit.when_all_durable(lambda: durable.callback(None))
    await durable


class Filled(NamedTuple):
    """What a broker left behind whose first records are in the archive alone."""

    directory: Path
    subscription: int
    """Of BlipMQ, begun before the first record."""


@pytest_twisted.async_yield_fixture(scope="module")
async def filled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Filled]:
    directory = tmp_path_factory.mktemp("filled")
    async with AsyncExitStack() as filling:
        core = await filling.enter_async_context(opened(directory, ARCHIVED))
        addresses = await listen_all(filling, core)
        core.broker.topics.create(TOPIC)
        subscription = await deferToThread(subscribe, addresses)
        await append(core, 0, COUNT)
    await archive_all(directory)
    async with AsyncExitStack() as serving:
        core, _ = await serve_archived(serving, directory)
        await append(core, COUNT, COUNT + LOG)
    yield Filled(directory, subscription)


class Archived(NamedTuple):
    """A broker of a test's own, which begins as the filled one ended."""

    core: BrokerCore
    directory: Path
    place: Place

    async def refresh(self) -> Exception | None:
        """Have the broker look at its archive; what was wrong with that."""
        looked: Deferred[Exception | None] = Deferred()
        self.core.broker.archive_refresher.refresh(looked.callback)
        return await looked

    async def remove(self, removed: Callable[[int], object]) -> int:
        """Have compaction remove some records; how many it did."""
        topic_id = self.core.broker.topics.existing(TOPIC).topic_id
        return await deferToThread(remove, self.directory, topic_id, removed)


async def serve(stack: AsyncExitStack, directory: Path, subscription: int) -> Archived:
    core = await stack.enter_async_context(opened(directory, ARCHIVED))
    return Archived(core, directory, Place(await listen_all(stack, core), subscription))


@pytest_twisted.async_yield_fixture
async def archived(filled: Filled, tmp_path: Path) -> AsyncIterator[Archived]:
    directory = Path(shutil.copytree(filled.directory, tmp_path / "data"))
    async with AsyncExitStack() as stack:
        found = await serve(stack, directory, filled.subscription)
        assert await found.refresh() is None
        yield found


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("is_refreshed", [True, False])
@pytest_twisted.ensureDeferred
async def test_a_reader_goes_on_when_the_files_it_reads_are_replaced(
    archived: Archived, read: Read, is_refreshed: bool
) -> None:
    """Every record once, in order, whether or not the broker knows of the new files yet."""
    got: list[bytes] = []
    with closing(read(archived.place)) as reader:
        for at in (20, 100, 220, COUNT - 5):
            got += await deferToThread(list, islice(reader, at - len(got)))
            assert len(got) == at
            assert await archived.remove(lambda offset, at=at: offset < at - 10 and offset % 3) > 0
            if is_refreshed:
                assert await archived.refresh() is None
        got += await deferToThread(list, reader)
    assert got == [value(offset) for offset in range(COUNT + LOG)]
    assert archived.core.broker.archive_reader.reads > 0
    assert archived.core.broker.status()["damage"]["reads"] == 0


@pytest.mark.parametrize("read", READERS)
@pytest_twisted.ensureDeferred
async def test_a_reader_that_comes_later_gets_what_is_left(archived: Archived, read: Read) -> None:
    """Holes of all lengths, from the first record on and at the end of the archive."""

    def is_removed(offset: int) -> bool:
        return offset < 10 or 50 <= offset < 200 or offset % 7 == 0 or offset >= COUNT - 3

    await archived.remove(is_removed)
    assert await archived.refresh() is None
    got = await deferToThread(list, read(archived.place))
    kept = [offset for offset in range(COUNT) if not is_removed(offset)]
    assert got == [value(offset) for offset in [*kept, *range(COUNT, COUNT + LOG)]]


@pytest_twisted.ensureDeferred
async def test_an_archive_that_is_not_there_is_missed_until_it_is_brought_back(
    filled: Filled, tmp_path: Path
) -> None:
    """Meanwhile what is in it alone is refused, and the rest is served."""
    directory = Path(shutil.copytree(filled.directory, tmp_path / "data"))
    (directory / "archive").rename(tmp_path / "elsewhere")
    async with AsyncExitStack() as stack:
        archived = await serve(stack, directory, filled.subscription)
        address = archived.place.addresses["flymq"]
        client = stack.enter_context(FlymqClient(address, timeout=SECONDS))
        with pytest.raises(FlymqError, match=r"archive.*; try again"):
            await deferToThread(client.fetch, TOPIC, 0, 5, 3)
        fetched = await deferToThread(client.fetch, TOPIC, 0, COUNT, 3)
        assert [one.value for one in fetched.records] == [value(COUNT + n) for n in range(3)]
        (tmp_path / "elsewhere").rename(directory / "archive")
        assert await archived.refresh() is None
        fetched = await deferToThread(client.fetch, TOPIC, 0, 5, 3)
        assert [one.value for one in fetched.records] == [value(5), value(6), value(7)]
        assert archived.core.broker.status()["damage"]["reads"] == 0


@pytest_twisted.ensureDeferred
async def test_who_is_told_a_code_alone_is_told_why_by_log_and_health(
    filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MEGA's errors have no text."""
    monkeypatch.setattr("brokerd.broker.archive.reader.FAILING_SECONDS", 0.0)
    directory = Path(shutil.copytree(filled.directory, tmp_path / "data"))
    (directory / "archive").rename(tmp_path / "elsewhere")
    async with AsyncExitStack() as stack:
        archived = await serve(stack, directory, filled.subscription)
        client = stack.enter_context(MegaClient(archived.place.addresses["mega"], timeout=SECONDS))
        with capturedLogs() as captured, pytest.raises(MegaError) as refused:
            await deferToThread(client.consume, TOPIC, 5)
        assert refused.value.code is Code.INTERNAL_ERROR
        events = [one for one in captured if one.get("event_id") == "archive-read-failed"]
        (line,) = map(formatEvent, events)
        assert "the archive cannot be used" in line and "try again" in line
        assert "cannot be read from the archive" in problem(archived.core, "archive-unreadable")
        (tmp_path / "elsewhere").rename(directory / "archive")
        assert await archived.refresh() is None
        assert (await deferToThread(client.consume, TOPIC, 5)).payload == value(5)
        assert problem(archived.core, "archive-unreadable") == ""
