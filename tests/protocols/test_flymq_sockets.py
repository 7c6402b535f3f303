"""FlyMQ on real sockets: TLS, answers of megabytes, slow readers, and scans beside other work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import gatherResults
from twisted.internet.threads import deferToThread

from brokerd.broker import Broker
from brokerd.client.flymq import FlymqClient, FlymqError
from brokerd.codecs import flymq
from brokerd.protocols.flymq import fetch, filtered_fetch
from brokerd.protocols.flymq.connection import FlymqFactory, FlymqSettings
from tests.certificates import tls
from tests.codecs.flymq_answers import consumed
from tests.protocols import serving
from tests.protocols.flymq_desk import LIMITS, MIB
from tests.protocols.serving import SECONDS, Served, no_faults, reactor, until

__all__ = ["no_faults"]


def served(
    tmp_path: Path, endpoint: str = "tcp:0"
) -> AbstractAsyncContextManager[Served[FlymqFactory]]:
    """A broker that listens for this format alone."""
    return serving.served(tmp_path, "flymq", endpoint, made)


def made(broker: Broker) -> FlymqFactory:
    return FlymqFactory(broker, reactor, LIMITS, FlymqSettings(partitions=2))


def client_of(running: Served[FlymqFactory], **options: Any) -> FlymqClient:
    return FlymqClient(running.address, timeout=SECONDS, **options)


def converse(client: FlymqClient) -> None:
    """Each operation once, with values of all sizes."""
    client.create_topic("orders", 2)
    values = [bytes([number]) * size for number, size in enumerate([0, 1, 70_000, MIB, 33_000_000])]
    for offset, value in enumerate(values):
        stored = client.produce("orders", value, key=b"k", partition=1)
        assert (stored.partition, stored.offset) == (1, offset)
        assert abs(stored.timestamp_ms / 1000 - time.time()) < 60
    for offset, value in enumerate(values):
        for zero_copy in (False, True):
            assert client.consume("orders", 1, offset, zero_copy=zero_copy) == (b"k", value)
    for binary in (False, True):
        found, offset = [], 0
        while (fetched := client.fetch("orders", 1, offset, 10, binary=binary)).records:
            found += [record.value for record in fetched.records]
            offset = fetched.next_offset
        assert found == values
    assert client.subscribe("orders", "g", 1, "earliest") == 0
    client.commit("orders", "g", 1, 2)
    assert client.get_offset("orders", "g", 1) == 2
    assert client.get_lag("orders", "g", 1).lag == 3
    assert client.list_topics() == ("orders",)
    place = client.cluster_metadata("orders").topics[0].partitions[0]
    assert place.leader_address == f"{client.address.host}:{client.address.port}"
    with pytest.raises(FlymqError, match="topic not found: none"):
        client.fetch("none", 0, 0)
    client.delete_topic("orders")


@pytest_twisted.ensureDeferred
async def test_plain_sockets_carry_a_whole_conversation(tmp_path: Path, no_faults: None) -> None:
    def work(running: Served[FlymqFactory]) -> None:
        with client_of(running) as client:
            converse(client)

    async with served(tmp_path) as running:
        await deferToThread(work, running)
        await until(lambda: not running.factory.connections)


@pytest_twisted.ensureDeferred
async def test_tls_carries_the_same_conversation(tmp_path: Path, no_faults: None) -> None:
    endpoint, context = tls(tmp_path)

    def work(running: Served[FlymqFactory]) -> None:
        with client_of(running, ssl_context=context, server_hostname="broker") as client:
            converse(client)

    async with served(tmp_path, endpoint) as running:
        await deferToThread(work, running)
        await until(lambda: not running.factory.connections)


@pytest_twisted.ensureDeferred
async def test_a_peer_that_reads_slowly_gets_every_byte(tmp_path: Path, no_faults: None) -> None:
    """Several answers of megabytes, read in small pieces."""

    def work(running: Served[FlymqFactory]) -> None:
        with client_of(running) as client:
            client.create_topic("t", 1)
            client.produce("t", b"v" * (5 * MIB), key=b"k")
        with running.plain() as peer:
            request = flymq.encode_request(flymq.Consume("t", 0, 0, flymq.Opcode.CONSUME_ZERO_COPY))
            answer = consumed(b"k", b"v" * (5 * MIB), flymq.Opcode.CONSUME_ZERO_COPY)
            peer.sendall(request * 4)
            received = bytearray()
            while len(received) < 4 * len(answer):
                received += peer.recv(100_000)
                time.sleep(0.0005)
            assert bytes(received) == answer * 4

    async with served(tmp_path) as running:
        await deferToThread(work, running)


@pytest_twisted.ensureDeferred
async def test_a_request_in_two_writes_of_header_and_payload_is_one(
    tmp_path: Path, no_faults: None
) -> None:
    """As the Go client sends it."""

    def work(running: Served[FlymqFactory]) -> None:
        with running.plain() as peer:
            for number in range(5):
                data = flymq.encode_request(flymq.CreateTopic(f"t{number}", 1))
                peer.sendall(data[:8])
                time.sleep(0.01)
                peer.sendall(data[8:])
                assert peer.recv(65_536) == flymq.ok(flymq.Opcode.CREATE_TOPIC)

    async with served(tmp_path) as running:
        await deferToThread(work, running)


@pytest_twisted.ensureDeferred
async def test_the_error_before_the_end_survives_what_the_peer_goes_on_sending(
    tmp_path: Path, no_faults: None
) -> None:
    """A connection closed on unread bytes would be reset, and the answer with it."""

    def work(running: Served[FlymqFactory]) -> None:
        for _ in range(5):
            with running.plain() as peer:
                peer.sendall(b"\xaf\1\1\1\2\0\0\1" + bytes(8 * MIB))
                answer = b"".join(iter(lambda: peer.recv(65_536), b""))
                ((opcode, _, payload),) = flymq.FrameReader().feed(answer)
                assert opcode == flymq.Opcode.ERROR
                assert "over the limit" in flymq.error_text(payload)
                peer.sendall(bytes(MIB))

    async with served(tmp_path) as running:
        await deferToThread(work, running)
        await until(lambda: not running.factory.connections)


@pytest_twisted.ensureDeferred
async def test_others_are_served_while_scans_run(tmp_path: Path, no_faults: None) -> None:
    """A regular expression made to be slow, over a megabyte, by four clients at once."""
    over = threading.Event()
    pauses: list[float] = []

    def fill(running: Served[FlymqFactory]) -> None:
        with client_of(running) as client:
            client.create_topic("t", 1)
            produce = flymq.Produce("t", None, b"ab" * 50)
            for _ in range(10):
                client.send_many([produce] * 1000)

    def scan(running: Served[FlymqFactory]) -> None:
        with client_of(running) as client:
            fetched = client.fetch("t", 0, 0, 10, "(?s).*a.{200}c")
            assert fetched == ((), 10_000)

    def beside(running: Served[FlymqFactory]) -> None:
        with client_of(running) as client:
            while not over.is_set():
                began = time.monotonic()
                client.list_topics()
                pauses.append(time.monotonic() - began)

    def run(work: Callable[[Served[FlymqFactory]], None], running: Served[FlymqFactory]) -> Any:
        return deferToThread(work, running)

    async with served(tmp_path) as running:
        await run(fill, running)
        watching = run(beside, running)
        await gatherResults([run(scan, running) for _ in range(4)], consumeErrors=True)
        over.set()
        await watching
    assert len(pauses) > 20
    # The pauses are short beside the scans, which a busy machine makes longer, too.
    assert sorted(pauses)[len(pauses) * 9 // 10] < sum(pauses) / 40


@pytest_twisted.ensureDeferred
@pytest.mark.parametrize("kind", ["tcp", "tls"])
async def test_a_scan_whose_client_has_left_ends_long_before_the_log(
    tmp_path: Path, no_faults: None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Be its end noticed by a goodbye or not. The scan waits here until its client has left."""
    endpoint, context = tls(tmp_path) if kind == "tls" else ("tcp:0", None)
    monkeypatch.setattr(filtered_fetch, "CONTENT_READS", 2)
    examined: list[int] = []
    begun, left = threading.Event(), threading.Event()

    def work(running: Served[FlymqFactory]) -> None:
        with client_of(running, ssl_context=context, server_hostname="broker") as client:
            client.create_topic("t", 1)
            for _ in range(20):
                client.send_many([flymq.Produce("t", None, b"ab" * 50)] * 1000)
        with running.plain() as peer:
            if context is not None:
                peer = context.wrap_socket(peer, server_hostname="broker")
            peer.sendall(
                flymq.encode_request(flymq.Fetch("t", 0, 0, 1, "(?s).*a.{200}c", sdk=True))
            )
            assert begun.wait(SECONDS)
            peer.close()
            left.set()

    class Watched(filtered_fetch.FilteredFetch):
        def __call__(self, done: Any) -> None:
            def completed(records: Any, next_offset: int, error: Any) -> None:
                examined.append(next_offset)
                done(records, next_offset, error)

            super().__call__(completed)

        def _go_on(self, steps: Iterator[None]) -> None:
            begun.set()
            assert left.wait(SECONDS)
            super()._go_on(steps)

    monkeypatch.setattr(fetch, "FilteredFetch", Watched)
    async with served(tmp_path, endpoint) as running:
        await deferToThread(work, running)
        await until(lambda: not running.factory.connections)
    assert all(offset < 15_000 for offset in examined), examined
