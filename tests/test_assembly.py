"""The core on real sockets, threads and files: started, spoken to, stopped, started again."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent

from brokerd.admin.conditions import Conditions
from brokerd.archive.contract.bounds import decode_bounds
from brokerd.archive.serve.lazy import LazyArchive
from brokerd.broker import Broker
from brokerd.broker.status.damage import DamagedBytes
from brokerd.client.mamamia import ConnectionLost, MamamiaClient
from brokerd.client.mamamia_async import connect
from brokerd.codecs import mamamia as mm
from brokerd.errors import DamagedData, StorageFailed
from brokerd.server.assembly import (
    BrokerCore,
    connection_limits,
    make_core,
    memory_budget_bytes,
)
from brokerd.server.config import Config, Limits, Wal
from brokerd.server.endpoints import address_text, parse
from tests.certificates import tls
from tests.protocols.serving import CONFIG, SECONDS, no_faults, reactor, until

__all__ = ["no_faults"]

MIB = 1 << 20

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


class Served:
    """A core that listens."""

    def __init__(self, core: BrokerCore, port: Any) -> None:
        self.core = core
        self.port = port
        self.address = address_text(port.getHost())

    async def ask(self, call: Callable[[MamamiaClient], Any], **options: Any) -> Any:
        """Call a client of its own, in a thread."""

        def work() -> Any:
            with MamamiaClient(self.address, timeout=SECONDS, **options) as client:
                return call(client)

        return await deferToThread(work)

    def connections(self) -> int:
        return self.core.status()["connections"]["mamamia"]

    async def stop(self) -> None:
        """As the service does."""
        await self.port.stopListening()
        await self.core.drain()
        await self.core.close()

    async def crash(self) -> None:
        await self.port.stopListening()
        self.core.abandon()


async def serve(data_dir: Path, endpoint: str = "tcp:0", config: Config = CONFIG) -> Served:
    data_dir.mkdir(exist_ok=True)
    core = make_core(config, data_dir, reactor)
    core.lock()
    await core.open()
    return Served(core, await parse(reactor, "mamamia", endpoint).listen(core.factory("mamamia")))


@asynccontextmanager
async def served(data_dir: Path, endpoint: str = "tcp:0") -> AsyncIterator[Served]:
    running = await serve(data_dir, endpoint)
    try:
        yield running
    finally:
        await running.stop()


@pytest_twisted.ensureDeferred
async def test_a_broker_goes_on_where_it_stopped(tmp_path: Path, no_faults: None) -> None:
    """Messages, leases and settles are there after a clean stop, and ids go on."""
    running = await serve(tmp_path)

    def first(client: MamamiaClient) -> None:
        for number in range(5):
            assert client.produce("orders", {"n": number}, key="k") == number
        assert client.acquire("orders", "g", "c").payload == {"n": 0}  # type: ignore[union-attr]
        client.settle("orders", "g", 0, "c")
        assert client.acquire("orders", "g", "c").id == 1  # type: ignore[union-attr]

    await running.ask(first)
    await running.stop()

    def second(client: MamamiaClient) -> None:
        assert client.group_info("orders", "g").leased == 1
        client.settle("orders", "g", 1, "c")
        messages = client.acquire_batch("orders", "g", "c", 10)
        assert [message.id for message in messages] == [2, 3, 4]
        assert client.produce("orders", b"more") == 5

    async with served(tmp_path) as again:
        assert again.core.status()["recovery"]["cut"] is None
        await again.ask(second)


@pytest_twisted.ensureDeferred
async def test_the_job_of_the_archive_finds_what_it_needs(tmp_path: Path, no_faults: None) -> None:
    """Whether the broker stopped well or not; and the log stays the one it is."""
    bounds = tmp_path / "state" / "bounds"
    running = await serve(tmp_path)
    log_id = (tmp_path / "state" / "log_id").read_bytes()
    await running.ask(lambda client: client.produce("orders", b"x"))
    await until(bounds.exists)
    await running.stop()
    (topic,) = decode_bounds(bounds.read_bytes()).topics
    assert (topic.name, topic.partitions[0].next) == ("orders", 1)
    async with served(tmp_path) as again:
        assert (tmp_path / "state" / "log_id").read_bytes() == log_id
        assert again.core.status()["archive"]["bounds"]["error"] is None


@pytest_twisted.ensureDeferred
async def test_what_was_acknowledged_survives_a_crash(tmp_path: Path, no_faults: None) -> None:
    running = await serve(tmp_path)
    messages = [mm.BatchMessage(b"%d" % number) for number in range(1000)]
    produced = await running.ask(lambda client: client.produce_batch("orders", messages))
    await running.ask(lambda client: client.acquire("orders", "g", "c"))
    await running.crash()
    async with served(tmp_path) as again:
        state = await again.ask(lambda client: client.group_info("orders", "g"))
        assert produced == tuple(range(1000))
        assert (state.next, state.leased) == (1000, 1)


@pytest_twisted.ensureDeferred
async def test_many_clients_at_once_lose_and_double_nothing(
    tmp_path: Path, no_faults: None
) -> None:
    """Threads, sockets and commits interleave; each message is delivered to one consumer."""

    def produce(client: MamamiaClient) -> list[int]:
        answers = client.send_many([mm.Produce("orders", b"x" * 100)] * 500)
        return [answer.message_id for answer in answers if isinstance(answer, mm.Produced)]

    def consume(client: MamamiaClient) -> list[int]:
        taken = []
        while message := client.acquire("orders", "g", f"c{id(client)}", wait=0.2):
            client.settle("orders", "g", message.id, f"c{id(client)}")
            taken.append(message.id)
        return taken

    async with served(tmp_path) as running:
        work = [running.ask(produce) for _ in range(4)] + [running.ask(consume) for _ in range(4)]
        results = [await result for result in [Deferred.fromCoroutine(part) for part in work]]
        produced = sorted(chain.from_iterable(results[:4]))
        consumed = sorted(chain.from_iterable(results[4:]))
        assert produced == list(range(2000))
        rest = await running.ask(consume)
        assert sorted(consumed + rest) == produced


@pytest_twisted.ensureDeferred
async def test_the_deferred_client_is_served_too(tmp_path: Path, no_faults: None) -> None:
    async with served(tmp_path) as running:
        client = await connect(clientFromString(reactor, f"tcp:{running.address}"))
        waiting = client.acquire("orders", "g", "c", wait=20)
        other = await connect(clientFromString(reactor, f"tcp:{running.address}"))
        assert await other.produce("orders", b"x") == 0
        assert (await waiting).payload == b"x"
        client.close()
        other.close()


LOCKS = """
import sys
from pathlib import Path
from twisted.internet import reactor
from brokerd.server.assembly import make_core
from brokerd.server.config import Config
make_core(Config(), Path(sys.argv[1]), reactor).lock()
"""


@pytest_twisted.ensureDeferred
async def test_another_process_does_not_get_the_directory(tmp_path: Path) -> None:
    """One broker a directory; after a clean stop the next one may have it."""

    def lock() -> str:
        command = [sys.executable, "-c", LOCKS, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    async with served(tmp_path):
        assert "DirectoryLocked" in await deferToThread(lock)
    assert await deferToThread(lock) == ""


@pytest_twisted.ensureDeferred
async def test_large_messages_cross_slow_sockets_whole(tmp_path: Path, no_faults: None) -> None:
    """Partial sends, pauses and resumes of a real socket change no byte."""
    payloads = [os.urandom(3 * MIB) for _ in range(4)]

    def work(client: MamamiaClient) -> None:
        for payload in payloads:
            client.produce("orders", payload)
        answers = client.send_many([mm.Acquire("orders", "g", "c")] * 4)
        assert [answer.message.payload for answer in answers] == payloads  # type: ignore[union-attr]

    async with served(tmp_path) as running:
        await running.ask(work)


@pytest_twisted.ensureDeferred
async def test_a_peer_that_shuts_its_sending_side_gets_all_answers(
    tmp_path: Path, no_faults: None
) -> None:
    requests = [mm.Produce("orders", b"x")] * 50 + [mm.Acquire("orders", "g", "c", 30.0, 60.0)] * 51

    def work() -> bytes:
        host, port = running.address.split(":")
        with socket.create_connection((host, int(port)), timeout=SECONDS) as peer:
            peer.sendall(b"".join(map(mm.encode_request, requests)))
            peer.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: peer.recv(65_536), b""))

    async with served(tmp_path) as running:
        answers = mm.FrameReader().feed(await deferToThread(work))
        assert len(answers) == 101
        assert mm.decode_response(*answers[-1]) == mm.Acquired(None)


@pytest_twisted.ensureDeferred
async def test_a_process_that_dies_in_a_long_poll_gets_no_message(
    tmp_path: Path, no_faults: None
) -> None:
    async with served(tmp_path) as running:
        host, port = running.address.split(":")
        with socket.create_connection((host, int(port))) as peer:
            peer.sendall(mm.encode_request(mm.Acquire("orders", "g", "dead", 30.0, 60.0)))
            await until(lambda: running.core.status()["long_polls"] == 1)
        await until(lambda: running.connections() == 0)
        await running.ask(lambda client: client.produce("orders", b"x"))
        message = await running.ask(lambda client: client.acquire("orders", "g", "alive"))
        assert message.payload == b"x"


@pytest_twisted.ensureDeferred
async def test_a_stop_answers_long_polls_and_leaves_nobody_connected(
    tmp_path: Path, no_faults: None
) -> None:
    running = await serve(tmp_path)
    host, port = running.address.split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(20)]
    polls = [
        Deferred.fromCoroutine(
            running.ask(lambda client: client.acquire("orders", "g", "c", wait=60.0))
        )
        for _ in range(3)
    ]
    await until(lambda: running.connections() == 23 and running.core.status()["long_polls"] == 3)
    await running.stop()
    assert [await poll for poll in polls] == [None] * 3
    assert all(peer.recv(1) == b"" for peer in idle)
    for peer in idle:
        peer.close()


@pytest_twisted.ensureDeferred
async def test_a_stop_does_not_wait_for_an_archive_that_never_answers(
    tmp_path: Path, no_faults: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says so; the log is closed well, and the directory is free."""
    asked, away = threading.Event(), threading.Event()

    def refresh(archive: LazyArchive) -> None:
        asked.set()
        away.wait()

    monkeypatch.setattr(LazyArchive, "refresh", refresh)
    monkeypatch.setattr("brokerd.server.assembly.ARCHIVE_STOP_SECONDS", 0.05)
    running = await serve(tmp_path)
    await running.ask(lambda client: client.produce("orders", b"x"))
    assert asked.wait(SECONDS)
    with capturedLogs() as captured:
        await running.stop()
    away.set()
    lines = [formatEvent(event) for event in captured if event.get("event_id") == "archive-hangs"]
    assert lines == ["the archive did not answer within 0.05 s; the stop goes on without it"]
    monkeypatch.undo()
    async with served(tmp_path) as again:
        assert again.core.status()["recovery"]["cut"] is None


@pytest.mark.parametrize(
    ("call", "thread"), [("fdatasync", "wal-commit-0"), ("rename", "snapshots-0")]
)
@pytest_twisted.ensureDeferred
async def test_a_stop_does_not_wait_for_ever_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, thread: str
) -> None:
    """It fails with the name of the thread; the next start has what was acknowledged."""
    back = threading.Event()
    for name in ("fsync", "fdatasync"):  # a disk that is only slow is not to be told
        monkeypatch.setattr(f"os.{name}", lambda descriptor: None)
    monkeypatch.setattr("brokerd.server.assembly.CLOSE_SECONDS", 0.2)
    monkeypatch.setattr("brokerd.server.assembly.JOIN_SECONDS", 0.1)
    running = await serve(tmp_path)
    assert await running.ask(lambda client: client.produce("orders", b"x")) == 0
    real = getattr(os, call)

    def hang(*of: Any) -> Any:
        back.wait()
        return real(*of)

    monkeypatch.setattr(f"os.{call}", hang)
    with pytest.raises(StorageFailed, match=f"thread .*{thread}.* did not end; .*{tmp_path} hang"):
        await running.stop()
    running.core.abandon()
    monkeypatch.undo()
    back.set()
    async with served(tmp_path) as again:
        assert await again.ask(lambda client: client.produce("orders", b"y")) == 1


@pytest_twisted.ensureDeferred
async def test_a_stop_writes_bounds_and_snapshot_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk delays the stop by one of them, not by both."""
    running = await serve(tmp_path)
    barrier = threading.Barrier(2, timeout=SECONDS)
    writes = running.core.broker.last_writes()
    both = [lambda write=write: (barrier.wait(), write()) for write in writes]
    monkeypatch.setattr(running.core.broker, "last_writes", lambda: both)
    with capturedLogs() as captured:
        await running.stop()
    assert len(writes) == 2 and not barrier.broken
    assert not [event for event in captured if event.get("event_id") == "snapshot-failed"]


@pytest_twisted.ensureDeferred
async def test_a_failed_sync_is_told_and_never_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends without an answer; the next start has what was acknowledged before."""
    running = await serve(tmp_path)
    told: list[BaseException] = []
    running.core.on_fatal = told.append
    assert await running.ask(lambda client: client.produce("orders", b"x")) == 0

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("os.fdatasync", broken)
    with pytest.raises(ConnectionLost):
        await running.ask(lambda client: client.produce("orders", b"y"))
    assert [type(error) for error in told] == [StorageFailed]
    monkeypatch.undo()
    await running.crash()
    async with served(tmp_path) as again:
        state = await again.ask(lambda client: client.group_info("orders", "g"))
        assert state.next in (1, 2)


@pytest_twisted.ensureDeferred
async def test_a_fault_after_the_replay_fails_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the service would wait for it for ever."""

    def faulty(broker: Broker) -> None:
        raise DamagedData("as asked for")

    monkeypatch.setattr(Broker, "start", faulty)
    core = make_core(CONFIG, tmp_path, reactor)
    core.lock()
    with pytest.raises(DamagedData):
        await core.open().addTimeout(SECONDS, reactor)
    core.abandon()


@pytest_twisted.ensureDeferred
async def test_tls_carries_the_same_conversation(tmp_path: Path, no_faults: None) -> None:
    endpoint, context = tls(tmp_path)
    payload = os.urandom(2 * MIB)

    def work(client: MamamiaClient) -> None:
        for _ in range(3):
            client.produce("orders", payload)
        answers = client.send_many([mm.Acquire("orders", "g", "c")] * 3)
        assert [answer.message.payload for answer in answers] == [payload] * 3  # type: ignore[union-attr]

    async with served(tmp_path / "data", endpoint) as running:
        await running.ask(work, ssl_context=context, server_hostname="broker")
        await until(lambda: running.connections() == 0)


@pytest_twisted.ensureDeferred
async def test_a_tls_connection_closed_by_the_broker_is_gone(
    tmp_path: Path, no_faults: None
) -> None:
    """The goodbye of TLS is read although no more requests are."""
    endpoint, context = tls(tmp_path)

    def work() -> bytes:
        host, port = running.address.split(":")
        plain = socket.create_connection((host, int(port)), timeout=SECONDS)
        with context.wrap_socket(plain, server_hostname="broker") as peer:
            peer.sendall(mm.encode_request(mm.Produce("orders", b"x")) + b"\xff\xff\xff\xff")
            data = b"".join(iter(lambda: peer.recv(65_536), b""))
            peer.unwrap()
            return data

    async with served(tmp_path / "data", endpoint) as running:
        assert await deferToThread(work) == mm.produced(0)
        await until(lambda: running.connections() == 0)


@pytest_twisted.ensureDeferred
async def test_a_unix_socket_carries_the_same_conversation(tmp_path: Path, no_faults: None) -> None:
    path = tmp_path / "s"
    async with served(tmp_path / "data", f"unix:{path}") as running:
        assert running.address == f"unix:{path}"
        assert await running.ask(lambda client: client.produce("orders", b"x")) == 0


@pytest_twisted.ensureDeferred
async def test_hundreds_of_idle_connections_are_kept(tmp_path: Path, no_faults: None) -> None:
    """All are open, a request among them is answered, and a stop ends them all."""
    running = await serve(tmp_path)
    host, port = running.address.split(":")

    def open_all() -> list[socket.socket]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda _: socket.create_connection((host, int(port))), range(500)))

    peers = await deferToThread(open_all)
    await until(lambda: running.connections() == 500)
    assert await running.ask(lambda client: client.produce("orders", b"x")) == 0
    await running.stop()
    for peer in peers:
        peer.close()


@pytest_twisted.ensureDeferred
async def test_starved_is_said_while_the_disk_has_no_room_and_not_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alert fires for a full disk, never for the ordinary allocation of the next segment."""
    monkeypatch.setattr("brokerd.wal.RealDisk.free_bytes", lambda disk, path: 10 * MIB)
    async with served(tmp_path) as running:
        assert running.core.status()["wal"]["starved"] == 1
        monkeypatch.undo()
        await until(lambda: running.core.status()["wal"]["starved"] == 0)
        assert running.core.status()["wal"]["allocation_error"] is None
        await running.ask(lambda client: client.produce("orders", b"x"))
        status = running.core.status()["wal"]
        assert 1 <= status["commits"] <= status["frames"]


@pytest_twisted.ensureDeferred
async def test_the_limit_on_connections_is_one_for_all_listeners(
    tmp_path: Path, no_faults: None
) -> None:
    """One too many is closed wherever it comes, and is told as refused there."""
    config = Config(wal=Wal(segment_bytes=1 << 20), limits=Limits(connections=2))
    core = make_core(config, tmp_path, reactor)
    core.lock()
    await core.open()
    forms = ("mamamia", "flymq+rustlog", "mega")
    ports = {form: await parse(reactor, form, "tcp:0").listen(core.factory(form)) for form in forms}

    def connected(form: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", ports[form].getHost().port), timeout=SECONDS)

    def is_closed(peer: socket.socket) -> bool:
        return peer.recv(1) == b""

    async def until_open(count: int) -> None:
        await until(lambda: sum(core.status()["connections"].values()) == count)

    with connected("mamamia"), connected("flymq+rustlog") as shared:
        await until_open(2)
        shared.sendall(b"\xaf")
        await until(lambda: core.status()["connections"]["flymq"] == 1)
        for form in forms:
            with connected(form) as third:
                assert await deferToThread(is_closed, third)
        refused = core.status()["connections_refused"]
        assert {form: refused[form] for form in (*forms, "flymq")} == {
            **dict.fromkeys(forms, 1),
            "flymq": 0,
        }
    await until_open(0)
    with connected("mega"):
        await until_open(1)
    for port in ports.values():
        await port.stopListening()
    await core.drain()
    await core.close()


def test_connections_leave_the_log_some_descriptors() -> None:
    """A broker with too many clients refuses clients; it does not stop for lack of a file."""
    assert connection_limits(CONFIG, 1024).connections == 1024 - 128
    assert connection_limits(CONFIG, 65536).connections == CONFIG.limits.connections
    assert connection_limits(CONFIG, 64).connections == 1


@pytest.mark.parametrize(
    ("memory", "budget"),
    [(128 << 20, 64 << 20), (2 << 30, 256 << 20), (64 << 30, 1 << 30)],
)
def test_peers_may_claim_an_eighth_of_the_memory_up_to_a_gigabyte(memory: int, budget: int) -> None:
    assert memory_budget_bytes(CONFIG, memory) == budget
    config = Config(limits=Limits(memory=80 << 20))
    assert memory_budget_bytes(config, memory) == 80 << 20


def test_one_budget_serves_all_listeners_and_leaves_transactions_their_part() -> None:
    config = Config(limits=Limits(memory=256 << 20))
    core = make_core(config, Path("/nowhere"), reactor)  # opens nothing
    assert core.memory.total_bytes == 192 << 20
    assert core.broker.settings.max_transaction_bytes == 64 << 20
    shared = core.factory("flymq+rustlog")
    assert shared.memory is core.factory("mega").memory is core.memory
    core.broker.transactions.begin()
    memory = core.status()["memory"]
    assert (memory["budget_bytes"], memory["limit_bytes"]) == (256 << 20, 192 << 20)
    assert memory["kind_limit_bytes"]["transactions"] == 64 << 20
    assert memory["claimed_bytes"]["transactions"] == core.broker.transactions.held_bytes > 0
    assert memory["claimed_bytes"].keys() == memory["kind_limit_bytes"].keys()


def test_limits_reach_the_listeners_in_their_units() -> None:
    config = Config(
        limits=Limits(
            connections=5,
            frame_bytes=2048,
            in_flight_requests=7,
            in_flight_bytes=65_536,
            idle_seconds=3,
            unfinished_frame_seconds=4,
        )
    )
    limits = connection_limits(config)
    assert (limits.connections, limits.frame_bytes, limits.in_flight_requests) == (5, 2048, 7)
    assert (limits.in_flight_bytes, limits.idle_us) == (65_536, 3_000_000)
    assert limits.unfinished_frame_us == 4_000_000


def degraded(core: BrokerCore) -> str:
    """Return the reasons of all standing conditions."""
    conditions = Conditions()
    conditions.add(core.conditions())
    conditions.check()
    return conditions.reason


def test_a_degraded_core_names_its_directory(tmp_path: Path) -> None:
    """What health and page say of damage has a command that can be run as it stands."""
    core = make_core(CONFIG, tmp_path, reactor)
    core.broker.damage.found(DamagedBytes("00000000000000000000.wal", 4096, 4200, "bad"), [])
    assert degraded(core).endswith(f"run brokerctl --data-dir {tmp_path} wal verify")


def test_a_core_is_degraded_without_an_archive_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is wrong is said, too."""
    core = make_core(CONFIG, tmp_path, reactor)
    assert degraded(core) == ""
    monkeypatch.setattr(type(core.broker.archive_admin), "reason", "the archive is away")
    assert degraded(core) == "the archive is away"
    core.broker.damage.found(DamagedBytes("a.wal", 0, 1, "odd"), [])
    assert "places: 1" in degraded(core) and degraded(core).endswith("; the archive is away")


def test_a_core_is_degraded_while_broker_time_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(CONFIG, tmp_path, reactor)
    monkeypatch.setattr(core.broker.time, "ahead_us", 86_400_000_000)
    assert "86400 s ahead of the time by which records are removed" in degraded(core)


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("repaired", [False, True], ids=["", "after a repair"])
async def test_a_segment_that_is_brought_back_is_served_to_every_group(
    tmp_path: Path, no_faults: None, repaired: bool
) -> None:
    """Started on without it, stopped cleanly, started on with it again."""
    running = await serve(tmp_path)
    for _ in range(4):
        messages = [mm.BatchMessage(bytes(1_500)) for _ in range(500)]
        await running.ask(lambda client, them=messages: client.produce_batch("orders", them))
    await running.stop()
    segment = sorted((tmp_path / "wal").glob("*.wal"))[2]
    content = segment.read_bytes()
    segment.unlink()
    if repaired:
        program = "from brokerd.cli.main import main; main()"
        command = [sys.executable, "-c", program, "--data-dir", str(tmp_path), "wal", "repair"]
        assert await deferToThread(subprocess.call, command, stdout=subprocess.DEVNULL) == 0

    def drain(client: MamamiaClient, group: str) -> int:
        found = 0
        while messages := client.acquire_batch("orders", group, "c", 500):
            found += len(messages)
        return found

    running = await serve(tmp_path)
    without = await running.ask(lambda client: drain(client, "g"))
    assert bool(degraded(running.core)) is not repaired
    await running.stop()
    segment.write_bytes(content)
    async with served(tmp_path) as again:
        assert degraded(again.core) == ""
        assert without < 2_000
        assert await again.ask(lambda client: drain(client, "new")) == 2_000
        assert await again.ask(lambda client: client.group_info("orders", "g").lag) == 2_000
