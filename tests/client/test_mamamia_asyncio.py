"""What a user of the asyncio client observes, on an in-memory transport and on sockets."""

from __future__ import annotations

import asyncio
import inspect
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.process import BrokerProcess
from brokerd.client import calls
from brokerd.client.errors import AddressError, ConnectionLost, MamamiaError, OutOfStep
from brokerd.client.mamamia import MamamiaClient as BlockingClient
from brokerd.client.mamamia_asyncio import MamamiaClient, connect
from brokerd.codecs import mamamia as mm
from brokerd.errors import LimitExceeded
from tests.certificates import certificate
from tests.client.test_mamamia import CALLS


class Transport(asyncio.Transport):
    """A transport that keeps what is written, and ends when it is closed."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.written = b""
        self.closing = False
        self._protocol = protocol
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def requests(self) -> list[mm.Request]:
        decoder = mm.Decoder()
        return [decoder.decode(*one) for one in mm.FrameReader().feed(self.written)]


def run(scene: Callable[[MamamiaClient, Transport], Awaitable[None]], **limits: int) -> None:
    async def play() -> None:
        client = MamamiaClient(**limits)
        await scene(client, Transport(client))

    asyncio.run(play())


@pytest.mark.parametrize(("call", "request_sent", "answer", "result"), CALLS)
def test_each_call_sends_its_request_and_returns_its_result(call, request_sent, answer, result):
    async def scene(client: MamamiaClient, transport: Transport) -> None:
        answered = call(client)
        assert transport.requests() == [request_sent]
        client.data_received(answer)
        assert await answered == result

    run(scene)


@pytest.mark.parametrize(
    "name",
    [
        *("produce", "acquire", "settle", "extend", "produce_batch", "acquire_batch"),
        *("settle_batch", "release", "cancel", "group_info"),
    ],
)
def test_the_methods_are_those_of_the_blocking_client(name: str) -> None:
    mine = inspect.signature(getattr(calls, name))
    other = inspect.signature(getattr(BlockingClient, name))
    assert list(mine.parameters) == list(other.parameters)[1:]
    assert getattr(MamamiaClient, name).__doc__ == getattr(calls, name).__doc__


def test_calls_are_answered_in_order_whatever_the_chunks() -> None:
    async def scene(client: MamamiaClient, transport: Transport) -> None:
        made = [client.produce("l", 1), client.settle("l", "g", 0, "c"), client.produce("l", 2)]
        for byte in mm.produced(0) + mm.error(3, "no") + mm.produced(1):
            client.data_received(bytes([byte]))
        first, second, third = await asyncio.gather(*made, return_exceptions=True)
        assert (first, third) == (0, 1)
        assert isinstance(second, MamamiaError) and str(second) == "no"
        assert not transport.closing

    run(scene)


def test_requests_beyond_the_limit_wait_for_answers() -> None:
    async def scene(client: MamamiaClient, transport: Transport) -> None:
        *made, refused = [client.produce("l", n) for n in range(4)]
        with pytest.raises(LimitExceeded):
            await refused
        assert len(transport.requests()) == 2
        client.data_received(mm.produced(0))
        assert len(transport.requests()) == 3
        client.data_received(mm.produced(1) + mm.produced(2))
        assert await asyncio.gather(*made) == [0, 1, 2]

    run(scene, in_flight_max=2, waiting_max=1)


def test_nothing_is_written_while_the_transport_is_full() -> None:
    async def scene(client: MamamiaClient, transport: Transport) -> None:
        client.pause_writing()
        answered = client.produce("l", 1)
        assert transport.written == b""
        client.resume_writing()
        client.data_received(mm.produced(7))
        assert await answered == 7

    run(scene)


def test_a_lost_connection_fails_every_call_and_later_ones_at_once() -> None:
    async def scene(client: MamamiaClient, transport: Transport) -> None:
        made = [client.produce("l", number) for number in range(3)]
        client.connection_lost(ConnectionResetError("reset by peer"))
        found = await asyncio.gather(*made, client.produce("l", 4), return_exceptions=True)
        assert [type(one) for one in found] == [ConnectionLost] * 4
        assert str(found[0]) == "the connection ended: reset by peer"

    run(scene, in_flight_max=1)


@pytest.mark.parametrize(
    "answer", [mm.settled(), mm.frame(1, b"\xc1"), b"\xff\xff\xff\xff", mm.produced(0) * 2]
)
def test_a_peer_out_of_step_is_dropped(answer: bytes) -> None:
    async def scene(client: MamamiaClient, transport: Transport) -> None:
        answered = client.produce("l", 1)
        client.data_received(answer)
        assert transport.closing
        (found,) = await asyncio.gather(answered, return_exceptions=True)
        assert found == 0 or isinstance(found, OutOfStep)
        with pytest.raises(OutOfStep):
            await client.produce("l", 2)

    run(scene)


def test_a_cancelled_call_does_not_disturb_the_others() -> None:
    async def scene(client: MamamiaClient, transport: Transport) -> None:
        first, second = client.produce("l", 1), client.produce("l", 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await first
        client.data_received(mm.produced(0) + mm.produced(1))
        assert await second == 1

    run(scene)


def test_a_wrong_argument_is_raised_at_once() -> None:
    async def scene(client: MamamiaClient, transport: Transport) -> None:
        with pytest.raises(ValueError, match="message_id must be"):
            client.settle("l", "g", 1 << 70, "c")
        assert transport.written == b""

    run(scene)


async def _answer_produces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each PRODUCE with the next id until the peer closes."""
    frames, message_id = mm.FrameReader(), 0
    while data := await reader.read(1 << 16):
        for _ in frames.feed(data):
            writer.write(mm.produced(message_id))
            message_id += 1
    writer.close()


def test_connect_speaks_tcp_tls_and_unix(tmp_path: Path) -> None:
    certificate_file, key_file = certificate(tmp_path)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate_file, key_file)
    trusting = ssl.create_default_context(cafile=str(certificate_file))

    async def play() -> None:
        tcp = await asyncio.start_server(_answer_produces, "127.0.0.1", 0)
        tls = await asyncio.start_server(_answer_produces, "127.0.0.1", 0, ssl=serving)
        unix = await asyncio.start_unix_server(_answer_produces, tmp_path / "s")
        ports = [one.sockets[0].getsockname()[1] for one in (tcp, tls)]
        options: dict[str, Any] = {"ssl_context": trusting, "server_hostname": "broker"}
        for address, given in (
            (f"127.0.0.1:{ports[0]}", {}),
            (f"127.0.0.1:{ports[1]}", options),
            (f"unix:{tmp_path}/s", {}),
        ):
            async with await connect(address, **given) as client:
                made = [client.produce("l", n) for n in range(3)]
                assert await asyncio.gather(*made) == [0, 1, 2]
            with pytest.raises(ConnectionLost):
                await client.produce("l", 4)
        with pytest.raises(ssl.SSLError):
            await connect(f"127.0.0.1:{ports[1]}", ssl_context=ssl.create_default_context())
        for one in (tcp, tls, unix):
            one.close()
        with pytest.raises(ConnectionRefusedError):
            await connect(f"127.0.0.1:{ports[0]}")

    asyncio.run(play())


def test_a_server_that_does_not_speak_tls_is_a_timeout(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def play() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        context = ssl.create_default_context()
        with pytest.raises(TimeoutError):
            await connect(address, ssl_context=context, timeout=0.01)
        server.close()

    asyncio.run(play())


def test_close_ends_also_if_the_broker_does_not_read() -> None:
    async def play() -> None:
        blocked = asyncio.Event()

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await blocked.wait()
            writer.transport.abort()

        server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1)
        client = await connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        made = [client.produce("l", bytes(8 << 20)) for _ in range(4)]
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await client.close(timeout=0.01)
        found = await asyncio.gather(*made, return_exceptions=True)
        assert [type(one) for one in found] == [ConnectionLost] * 4
        blocked.set()
        server.close()

    asyncio.run(play())


@pytest.mark.parametrize("is_tls", [False, True])
def test_close_sends_the_requests_in_flight(is_tls: bool, tmp_path: Path) -> None:
    certificate_file, key_file = certificate(tmp_path)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate_file, key_file)
    options: dict[str, Any] = {}
    if is_tls:
        context = ssl.create_default_context(cafile=str(certificate_file))
        options = {"ssl_context": context, "server_hostname": "broker"}
    received: list[int] = []

    async def play() -> None:
        done = asyncio.Event()

        async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            frames = mm.FrameReader()
            while data := await reader.read(1 << 16):
                received.extend(1 for _ in frames.feed(data))
            writer.close()
            done.set()

        server = await asyncio.start_server(count, "127.0.0.1", 0, ssl=serving if is_tls else None)
        client = await connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", **options)
        made = [client.produce("l", bytes(200_000)) for _ in range(200)]
        await client.close()
        await client.close()
        await done.wait()
        found = await asyncio.gather(*made, return_exceptions=True)
        assert [type(one) for one in found] == [ConnectionLost] * 200
        server.close()

    asyncio.run(play())
    assert len(received) == 200


def test_a_cancelled_close_ends_the_connection() -> None:
    async def play() -> None:
        blocked = asyncio.Event()

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await blocked.wait()
            writer.transport.abort()

        server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1)
        client = await connect(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        made = [client.produce("l", bytes(8 << 20)) for _ in range(4)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await client.close(timeout=60)
        found = await asyncio.gather(*made, return_exceptions=True)
        assert [type(one) for one in found] == [ConnectionLost] * 4
        blocked.set()
        server.close()

    asyncio.run(play())


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(AddressError, match="write host:port"):
        asyncio.run(connect("nowhere"))


ALONE = """
import sys

class OnlyMsgpack:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        # A compiled wheel keeps the code of its modules in brokerd__mypyc.
        ours = ("brokerd", "brokerd__mypyc")
        if top not in sys.stdlib_module_names and top not in (*ours, "msgpack"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyMsgpack())
import asyncio, socket
from brokerd.client.mamamia import MamamiaClient
from brokerd.client.mamamia_asyncio import MamamiaClient as AsyncioClient
from brokerd.codecs.mamamia import produced

def answered(message_id):
    near, far = socket.socketpair()
    far.sendall(produced(message_id))
    return near, far

near, far = answered(1)
with MamamiaClient("host:1", connect=lambda address, timeout: near) as client:
    print(client.produce("orders", {"n": 1}))

async def main():
    near, far = answered(2)
    loop = asyncio.get_running_loop()
    _, client = await loop.create_unix_connection(AsyncioClient, sock=near)
    async with client:
        print(await client.produce("orders", {"n": 1}))

asyncio.run(main())
"""


def test_the_clients_of_mamamia_need_no_other_package_than_msgpack() -> None:
    ran = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("1\n2\n", "")


@pytest.mark.slow
def test_messages_are_produced_and_leased_at_a_broker(tmp_path: Path) -> None:
    async def play(address: str) -> None:
        async with await connect(address) as client:
            made = [client.produce("orders", {"n": number}) for number in range(2_000)]
            ids = await asyncio.gather(*made)
            leased = await client.acquire_batch("orders", "g", "c", 1_000)
            assert [one.payload for one in leased] == [{"n": n} for n in range(1_000)]
            assert await client.release("orders", "g", "c") == 1_000
            assert len(set(ids)) == 2_000
            waiting = client.acquire("later", "g", "c", wait=30.0)
            async with await connect(address) as other:
                await other.produce("later", b"now")
            message = await waiting
            assert message is not None and message.payload == b"now"

    with BrokerProcess(tmp_path / "data", tmp_path / "log") as broker:
        broker.start()
        asyncio.run(play(broker.address))
