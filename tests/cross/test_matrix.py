"""What any format writes any other reads: values to the byte, keys and offsets; over real sockets.

The same again after SIGKILL of a real process, after a start from a snapshot, and from the archive.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread

from benchmarks.admin import fetch_status
from benchmarks.process import BrokerProcess
from brokerd.client.mamamia import MamamiaClient
from tests.cross.matrix import Begun, cells, difference, expected, read, write_all
from tests.cross.serving import LISTENERS, archive_all, serve_all, serve_archived

FREQUENT_SNAPSHOTS = ("wal.segment_bytes=1MiB", "wal.snapshot_interval_bytes=1MiB")


class Filled(NamedTuple):
    """A broker that holds every writer's records."""

    addresses: dict[str, str]
    begun: Begun
    stage: str


async def running(stack: AsyncExitStack, directory: Path) -> Filled:
    """A core in this process, on real sockets, threads and files."""
    addresses = await serve_all(stack, directory)
    begun = await deferToThread(write_all, addresses, ["running"])
    return Filled(addresses, begun, "running")


def started_again(
    stack: ExitStack,
    directory: Path,
    stage: str,
    settings: tuple[str, ...],
    wait: Callable[[BrokerProcess], None],
) -> Filled:
    """A process that was filled, killed by SIGKILL and started again."""
    broker = stack.enter_context(BrokerProcess(directory / "data", directory / "log", settings))
    broker.start()
    begun = write_all({form: broker.address_of(form) for form in LISTENERS}, [stage])
    wait(broker)
    log_bytes = fetch_status(broker.admin)["wal"]["durable_lsn"]
    broker.kill()
    broker.start()
    from_the_log = fetch_status(broker.admin)["recovery"]["bytes"] > log_bytes / 2
    assert from_the_log is (stage == "killed")
    return Filled({form: broker.address_of(form) for form in LISTENERS}, begun, stage)


def replayed(broker: BrokerProcess) -> None:
    """No snapshot: the next start replays every frame."""
    assert fetch_status(broker.admin)["snapshots_written"] == 0


def snapshot_covers_all(broker: BrokerProcess) -> None:
    """A snapshot of all that was written: the next start reads it, and few frames after it."""
    written_lsn = fetch_status(broker.admin)["wal"]["durable_lsn"]
    deadline = time.monotonic() + 120
    with MamamiaClient(broker.address_of("mamamia")) as client:
        while fetch_status(broker.admin)["snapshot_lsn"] < written_lsn:
            assert time.monotonic() < deadline, "no snapshot was written"
            client.produce("filler", bytes(100_000))


async def archived(stack: AsyncExitStack, directory: Path) -> Filled:
    """A core whose records are in the archive, and in its log no more."""
    async with AsyncExitStack() as filling:
        addresses = await serve_all(filling, directory)
        begun = await deferToThread(write_all, addresses, ["archived"])
    await archive_all(directory)
    core, addresses = await serve_archived(stack, directory)
    assert core.broker.archive_reader.reads == 0
    return Filled(addresses, begun, "archived")


STAGES = ("running", "killed", "snapshot", "archived")


@pytest_twisted.async_yield_fixture(scope="module", params=STAGES)
async def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Filled]:
    """Each writer's topic, full, in a broker that runs, or was killed, or has a snapshot."""
    stage = request.param
    directory = tmp_path_factory.mktemp(stage)
    async with AsyncExitStack() as stack:
        if stage == "running":
            yield await running(stack, directory)
        elif stage == "archived":
            yield await archived(stack, directory)
        else:
            processes = stack.enter_context(ExitStack())
            settings, wait = {
                "killed": ((), replayed),
                "snapshot": (FREQUENT_SNAPSHOTS, snapshot_covers_all),
            }[stage]
            yield await deferToThread(started_again, processes, directory, stage, settings, wait)


@pytest.mark.parametrize(("writer", "reader"), cells())
@pytest_twisted.ensureDeferred
async def test_what_one_format_writes_another_reads(
    filled: Filled, writer: str, reader: str
) -> None:
    """Every value to the byte, in order, with its offset and key where the reader shows them."""
    cell = writer, reader, filled.stage
    seen = await deferToThread(read, filled.addresses, filled.begun, cell)
    assert difference(seen, expected(writer, reader)) == []
