"""Sends on real sockets with a stand-in for the reactor; turns of an epoll reactor that reads."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from twisted.internet import tcp, unix
from twisted.internet.abstract import FileDescriptor
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.posixbase import _DisconnectSelectableMixin
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.selectreactor import SelectReactor
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from brokerd.protocols.base import transport
from brokerd.protocols.base.transport import (
    AT_ONCE_BYTES,
    DUE_MEANS,
    HEAVY_SECONDS,
    LARGE_BYTES,
    READ_SECONDS,
    SEND_BYTES,
    SHORT_TURNS,
    SMALL_BYTES,
    acknowledge,
    lose_sending,
    prepare,
    read_directly,
    send,
    send_all,
    send_waiting,
    unsent_bytes,
)

KIB = 1024


class Watch:
    """What a reactor is asked to look at."""

    def __init__(self) -> None:
        self.readers: set[Any] = set()
        self.writers: set[Any] = set()
        self.addReader = self.readers.add
        self.addWriter = self.writers.add
        self.removeReader = self.readers.discard
        self.removeWriter = self.writers.discard


class Ends:
    """A server's transport and the client's socket."""

    def __init__(self, kind: type[tcp.Server]) -> None:
        self.watch: Any = Watch()
        if kind is unix.Server:
            mine, self.peer = socket.socketpair()
            self.transport: Any = unix.Server(mine, Protocol(), None, None, 0, self.watch)
        else:
            with socket.create_server(("127.0.0.1", 0)) as listening:
                self.peer = socket.create_connection(listening.getsockname())
                mine, _ = listening.accept()
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * KIB)
            self.transport = tcp.Server(mine, Protocol(), ("", 0), None, 0, self.watch)
        self.peer.setblocking(False)

    def read(self) -> bytes:
        """What has arrived."""
        data = b""
        while True:
            try:
                part = self.peer.recv(1 << 20)
            except BlockingIOError:
                return data
            if not part:
                return data
            data += part

    def read_all(self) -> bytes:
        """What arrives while the reactor's part is played."""
        data = self.read()
        while self.transport in self.watch.writers:
            assert self.transport.doWrite() is None
            data += self.read()
        return data

    def fill(self) -> bytes:
        """Send until the kernel takes no more; what was sent."""
        sent = b""
        while self.transport not in self.watch.writers:
            part = b"%07d," % len(sent) * 1000
            send(self.transport, part)
            sent += part
        return sent

    def close(self) -> None:
        self.peer.close()
        if hasattr(self.transport, "socket"):
            self.transport.socket.close()


@pytest.fixture(params=[tcp.Server, unix.Server], ids=["tcp", "unix"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    ends = Ends(request.param)
    yield ends
    ends.close()


def test_a_small_answer_is_there_without_a_turn_of_the_reactor(ends: Ends) -> None:
    """The peer can read it although the reactor was not even asked to look."""
    send(ends.transport, b"answer")
    assert ends.read() == b"answer"
    assert not ends.watch.writers


def test_what_the_kernel_does_not_take_follows_in_order(ends: Ends) -> None:
    """A partial send keeps every byte and its place."""
    sent = ends.fill()
    assert ends.transport in ends.watch.writers
    assert ends.read_all() == sent
    send(ends.transport, b"more")
    assert ends.read() == b"more"


def test_nothing_overtakes_what_is_buffered(ends: Ends) -> None:
    """Once something waits, everything goes behind it, also when the kernel has room again."""
    sent = ends.fill()
    for number in range(5):
        send(ends.transport, b"<%d>" % number)
    early = ends.read()
    send(ends.transport, b"<late>")
    assert early + ends.read_all() == sent + b"<0><1><2><3><4><late>"


def test_nothing_overtakes_what_the_reactor_has_sent_in_part(ends: Ends) -> None:
    """The reactor keeps the rest of a part in another place than what came after it."""
    sent = ends.fill() + b"x" * 1024 * KIB
    send(ends.transport, b"x" * 1024 * KIB)
    early = ends.read()
    assert ends.transport.doWrite() is None
    early += ends.read()
    send(ends.transport, b"<late>")
    assert early + ends.read_all() == sent + b"<late>"


def test_a_large_answer_goes_as_far_as_the_kernel_takes_it(ends: Ends) -> None:
    """Without a turn of the reactor, and more than Twisted sends in one."""
    ends.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096 * KIB)
    data = bytes(range(256)) * 2 * KIB
    send(ends.transport, data)
    early = ends.read()
    assert len(early) > ends.transport.SEND_LIMIT
    assert unsent_bytes(ends.transport) == len(data) - len(early)
    assert early + ends.read_all() == data


def test_a_very_large_answer_is_left_to_the_reactor(ends: Ends) -> None:
    """It is not copied for the sake of its first part, and holds nobody up."""
    data = bytes(range(256)) * 8 * KIB
    send(ends.transport, data)
    assert ends.read() == b""
    assert ends.read_all() == data


def test_answers_of_a_connection_that_closes_are_sent_before_its_end(ends: Ends) -> None:
    sent = ends.fill()
    ends.transport.loseConnection()
    send(ends.transport, b"last")
    data = ends.read()
    while ends.transport.doWrite() is None:
        data += ends.read()
    assert data + ends.read() == sent + b"last"


def test_a_peer_that_is_gone_is_the_reactors_to_notice(ends: Ends) -> None:
    """Sending to it raises nothing, and the next write tells the reactor."""
    ends.peer.close()
    for _ in range(100):
        send(ends.transport, b"x" * KIB)
        if ends.transport in ends.watch.writers:
            break
    assert isinstance(ends.transport.doWrite(), Exception)


def test_a_send_to_a_connection_that_was_lost_does_nothing(ends: Ends) -> None:
    ends.transport.connectionLost(Failure(ConnectionDone()))
    send(ends.transport, b"late")
    assert not ends.watch.writers


def test_a_full_buffer_pauses_the_producer_and_an_empty_one_resumes_it(ends: Ends) -> None:
    """Back-pressure sees what `send` buffered."""
    told: list[str] = []

    class Producer:
        def pauseProducing(self) -> None:
            told.append("pause")

        def resumeProducing(self) -> None:
            told.append("resume")

        def stopProducing(self) -> None:
            told.append("stop")

    ends.transport.registerProducer(Producer(), True)
    ends.fill()
    send(ends.transport, b"x" * 100 * KIB)
    assert told[0] == "pause"
    ends.read_all()
    assert told[-1] == "resume"


def test_small_answers_are_not_delayed_and_vanished_peers_are_noticed() -> None:
    ends = Ends(tcp.Server)
    prepare(ends.transport)
    assert ends.transport.getTcpNoDelay()
    assert ends.transport.getTcpKeepAlive()
    ends.close()


def test_a_unix_socket_has_no_tcp_options_and_says_nothing_about_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older releases of Twisted would log a failure for each connection."""
    monkeypatch.setattr(unix.Server, "setTcpNoDelay", tcp.Server.setTcpNoDelay)
    ends = Ends(unix.Server)
    with capturedLogs() as captured:
        prepare(ends.transport)
    assert captured == []
    ends.close()


class Encrypting(TLSMemoryBIOProtocol):
    """A TLS transport that notes what it is asked to write."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.asked.append(data)


def test_tls_takes_the_public_road() -> None:
    """Bytes are given to the encrypting transport, never to a socket below it."""
    transport = Encrypting()
    send(transport, b"secret")
    assert transport.asked == [b"secret"]


def test_a_connection_that_started_tls_takes_the_public_road() -> None:
    ends = Ends(tcp.Server)
    asked: list[bytes] = []
    ends.transport.TLS = True
    ends.transport.write = asked.append
    send(ends.transport, b"secret")
    assert asked == [b"secret"]
    assert ends.read() == b""
    ends.close()


def test_a_transport_that_is_not_tcp_is_left_as_it_is() -> None:
    prepare(object())


@implementer(ITCPTransport)
class AnyTcp:
    """Another reactor's transport, or one wrapped by a library."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def write(self, data: bytes) -> None:
        self.calls.append(("write", data))

    def setTcpNoDelay(self, enabled: bool) -> None:
        self.calls.append(("no delay", enabled))

    def setTcpKeepAlive(self, enabled: bool) -> None:
        self.calls.append(("keep alive", enabled))


def test_other_transports_need_only_the_public_interface() -> None:
    transport = AnyTcp()
    prepare(transport)
    send(transport, b"x")
    assert transport.calls == [("no delay", True), ("keep alive", True), ("write", b"x")]


def test_answers_in_parts_arrive_in_order(ends: Ends) -> None:
    """Small and large ones mixed, more than the kernel takes at once."""
    parts = [bytes([65 + number]) * size for number, size in enumerate([1, 300_000, 5, 6, 70_000])]
    send_all(ends.transport, parts)
    assert ends.read_all() == b"".join(parts)


def test_small_answers_are_joined_and_large_ones_are_not_copied() -> None:
    transport = AnyTcp()
    large = b"x" * LARGE_BYTES
    send_all(transport, [b"a", b"b", large, b"c", b"d"])
    assert transport.calls == [("write", b"ab"), ("write", large), ("write", b"cd")]
    assert transport.calls[1][1] is large


def large_parts(ends: Ends) -> bytes:
    """Leave 5 MiB in parts of many sizes to the reactor; return them joined."""
    ends.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1024 * KIB)
    sizes = [1 << 20, 1, 60_000, 1 << 20, *[5] * 2000, 100_000, 100_000, 100_000, 7, 3 << 20]
    parts = [bytes([65 + number % 26]) * size for number, size in enumerate(sizes)]
    for part in parts:
        ends.transport.write(part)
    return b"".join(parts)


def test_parts_that_wait_arrive_in_order_a_bounded_send_after_the_other(ends: Ends) -> None:
    """`send_waiting` sends all of them, and ``doWrite`` finds nothing to join."""
    data, transport = large_parts(ends), ends.transport
    sent = b""
    while transport in ends.watch.writers:
        waiting = unsent_bytes(transport)
        is_done = send_waiting(transport)
        arrived = ends.read()
        assert len(arrived) <= SEND_BYTES
        assert unsent_bytes(transport) == waiting - len(arrived)
        assert is_done == (len(sent) + len(arrived) == len(data))
        if is_done:
            assert (transport.dataBuffer, transport._tempDataBuffer) == (b"", [])
            assert transport.doWrite() is None
        sent += arrived
    assert sent == data


def test_a_large_part_that_waits_is_not_copied(ends: Ends) -> None:
    large = bytes(1 << 20)
    ends.transport.write(large)
    ends.transport.write(bytes(1 << 20))
    assert not send_waiting(ends.transport)
    assert ends.transport.dataBuffer is large
    assert ends.transport._tempDataLen == 1 << 20


def test_a_full_socket_keeps_what_waits(ends: Ends) -> None:
    sent = ends.fill()
    send(ends.transport, b"<late>")
    waiting = unsent_bytes(ends.transport)
    assert not send_waiting(ends.transport)
    assert unsent_bytes(ends.transport) == waiting
    assert ends.read() + ends.read_all() == sent + b"<late>"


def test_an_error_that_passes_loses_no_bytes(ends: Ends) -> None:
    """The kernel may lack memory for the list of parts, and have some for the next send."""
    data = large_parts(ends)
    plain = ends.transport.socket

    def without_memory(views: object) -> int:
        raise OSError(errno.ENOMEM, "no memory")

    sent = ends.read()
    waiting = unsent_bytes(ends.transport)
    ends.transport.socket = SimpleNamespace(sendmsg=without_memory, send=plain.send)
    assert send_waiting(ends.transport)
    assert unsent_bytes(ends.transport) == waiting
    assert ends.transport.doWrite() is None
    ends.transport.socket = plain
    assert sent + ends.read_all() == data


def test_an_error_that_lasts_is_the_reactors_to_notice(ends: Ends) -> None:
    """``doWrite`` does not join megabytes for a peer that is gone."""
    large_parts(ends)
    ends.peer.close()
    is_due = [send_waiting(ends.transport) for _ in range(3)]
    assert is_due[-1]
    assert isinstance(ends.transport.doWrite(), Exception)
    assert len(ends.transport.dataBuffer) <= 1 << 20


def test_most_of_a_giant_answer_is_left_to_the_reactor(ends: Ends) -> None:
    """A peer that reads as fast as it is sent would hold the reactor for all of it."""
    ends.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096 * KIB)
    read_at_once: list[bytes] = []
    plain = ends.transport.socket

    def sent_and_read(data: bytes) -> int:
        count = plain.send(data)
        read_at_once.append(ends.read())
        return int(count)

    ends.transport.socket = SimpleNamespace(send=sent_and_read)
    parts = [bytes([number]) * size for number in range(30) for size in (16, 200_000)]
    send_all(ends.transport, parts)
    ends.transport.socket = plain
    early = b"".join(read_at_once)
    assert 0 < len(early) <= AT_ONCE_BYTES
    assert unsent_bytes(ends.transport) == sum(map(len, parts)) - len(early)
    assert early + ends.read_all() == b"".join(parts)


def test_the_sending_side_is_shut_once_everything_is_sent_and_reading_goes_on(ends: Ends) -> None:
    """A peer in the middle of its request reads the last answer, and then the end."""
    sent = ends.fill()
    assert lose_sending(ends.transport)
    assert ends.read_all() == sent
    ends.peer.setblocking(True)
    assert ends.peer.recv(1) == b""
    ends.peer.sendall(b"rest of the request")
    assert ends.transport.connected
    assert not ends.transport.disconnecting


def test_tls_is_not_half_closed(ends: Ends) -> None:
    """Its goodbye is a message, which could not be sent any more."""
    ends.transport.TLS = True
    assert not lose_sending(ends.transport)
    assert not lose_sending(Encrypting())
    with pytest.raises(BlockingIOError):
        ends.peer.recv(1)


def quickack(ends: Ends) -> bool:
    """Whether the kernel acknowledges at once, as it says."""
    option = ends.transport.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
    return bool(option)


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="an option of Linux")
def test_what_was_read_may_be_acknowledged_at_once() -> None:
    """On plain TCP; nothing is said to a transport that is gone, or speaks TLS."""
    ends = Ends(tcp.Server)
    try:
        for flag, value in (("TLS", True), ("connected", 0)):
            ends.transport.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            was = getattr(ends.transport, flag)
            setattr(ends.transport, flag, value)
            acknowledge(ends.transport)
            assert not quickack(ends)
            setattr(ends.transport, flag, was)
        acknowledge(ends.transport)
        assert quickack(ends)
    finally:
        ends.close()


def test_other_transports_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So are systems that cannot."""
    ends = Ends(unix.Server)
    acknowledge(ends.transport)
    acknowledge(object())
    ends.close()
    monkeypatch.setattr("brokerd.protocols.base.transport.QUICKACK", None)
    plain = Ends(tcp.Server)
    plain.transport.socket.close()
    acknowledge(plain.transport)
    plain.close()


class Echo(Protocol):
    """Answers what it reads; fails for a question mark."""

    transport: Any

    def __init__(self) -> None:
        self.lost: list[type[BaseException]] = []

    def dataReceived(self, data: bytes) -> None:
        if data == b"?":
            raise ValueError("a fault of the protocol")
        self.transport.write(data)

    def connectionLost(self, reason: Any = None) -> None:
        self.lost.append(reason.type)


class Accepted(NamedTuple):
    """An accepted connection, and its client's socket."""

    peer: socket.socket
    protocol: Echo


class Selectables(dict[int, Any]):
    """What a reactor watches, by descriptor. `look` is called for each event."""

    look: Callable[[], None] = staticmethod(lambda: None)

    def get(self, *arguments: Any) -> Any:
        self.look()
        return super().get(*arguments)


class Loop:
    """An epoll reactor that the test turns, and its first connection."""

    def __init__(self) -> None:
        self.reactor: Any = EPollReactor()
        self.selectables = Selectables(self.reactor._selectables)
        self.reactor._selectables = self.selectables
        self.waited_seconds = 0.0
        """Time in which another process had the processor."""
        self.before_heavy: Callable[[], object] = lambda: None
        self.account_of: Callable[[Any], str] = lambda transport: ""
        self.reads = read_directly(
            self.reactor,
            lambda: self.before_heavy(),
            lambda: self.reactor.seconds() - self.waited_seconds,
            lambda transport: self.account_of(transport),
        )
        self.usual = 0
        usual = self.reactor._doReadOrWrite

        def counted(*arguments: Any) -> None:
            self.usual += 1
            usual(*arguments)

        self.reactor._doReadOrWrite = counted
        self._peers: list[socket.socket] = []
        self.peer, self.protocol = self.connect()

    def connect(self, accepted: Callable[[], object] = lambda: None) -> Accepted:
        """Make a connection. Call ``accepted`` before the reactor adopts it."""
        protocol = Echo()
        factory = Factory()
        factory.buildProtocol = lambda _: protocol  # type: ignore[assignment]
        with socket.create_server(("127.0.0.1", 0)) as listening:
            peer = socket.create_connection(listening.getsockname(), 10)
            self._peers.append(peer)
            with listening.accept()[0] as mine:
                accepted()
                self.reactor.adoptStreamConnection(mine.fileno(), socket.AF_INET, factory)
        return Accepted(peer, protocol)

    def turn(self) -> None:
        """Wait for an event, and let the reactor handle it."""
        self.reactor.doIteration(10)

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        for reader in self.reactor.removeAll():
            reader.connectionLost(Failure(ConnectionDone()))
        self.reactor._poller.close()


END = -1
ANSWERS = -2


class Crowd:
    """Connections of a loop whose requests take time on a clock of the test.

    Each request asks for the end of its turn.
    """

    def __init__(self, loop: Loop, cost: float = 2 * HEAVY_SECONDS, size: int = 3) -> None:
        self._loop = loop
        self.now = 0.0
        loop.reactor.seconds = lambda: self.now
        self.cost = dict.fromkeys(range(size), cost)
        """The time of a request in seconds, by connection."""
        self.waits = dict.fromkeys(range(size), 0.0)
        """The part of it without a processor."""
        self.order: list[int] = []
        """What the last turn handled: numbers of connections, `END` for each end, and `ANSWERS`."""
        self.meanwhile: Callable[[], None] = lambda: None
        """Called within the next request."""
        self._peers: dict[int, socket.socket] = {}
        self._protocols: dict[int, Echo] = {}
        self.join(0, Accepted(loop.peer, loop.protocol))
        for number in range(1, size):
            self.join(number, loop.connect())

    def join(self, number: int, one: Accepted) -> None:
        """Take a connection as that of this number."""
        self._peers[number] = one.peer
        self._protocols[number] = one.protocol
        one.protocol.dataReceived = partial(self._received, number)  # type: ignore[method-assign]

    def _received(self, number: int, data: bytes) -> None:
        self.now += self.cost[number]
        self._loop.waited_seconds += self.waits[number]
        if not self._loop.reads.turn_ends:
            self._loop.reads.call_at_turn_end(lambda: self.order.append(END))
        self.order.append(number)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()

    def pass_over(self) -> None:
        """Let the time pass that it takes to look at an event."""
        self.now += 0.4 * HEAVY_SECONDS

    def accounts(self, names: dict[int, str]) -> None:
        """Let connections belong to these accounts."""
        names_by_protocol = {id(self._protocols[number]): name for number, name in names.items()}
        self._loop.account_of = lambda one: names_by_protocol.get(id(one.protocol), "")

    def answer_light_first(self) -> None:
        """From now on, note when the reactor lets light requests have their answers."""
        self._loop.before_heavy = partial(self.order.append, ANSWERS)

    def send(self, *numbers: int, size: int = 1) -> None:
        """Send so many bytes, as one request, on each of these connections."""
        for number in numbers:
            self._peers[number].sendall(b"x" * size)

    def turn(self) -> None:
        self.order.clear()
        self._loop.turn()


class Writers:
    """Three connections of a loop with much to send, and one for requests.

    Each send takes ``cost`` on a clock of the test.
    """

    def __init__(self, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cost = 0.0001
        self.crowd = Crowd(loop, cost=0.0, size=2)
        self.reactor = loop.reactor
        self.crowd_send = partial(self.crowd.send, 0)
        self._loop = loop
        self.others = [loop.connect() for _ in range(3)]
        self._sends = 0
        self.meanwhile: Callable[[], object] = lambda: None
        """Called within the next send."""
        monkeypatch.setattr(transport, "send_waiting", self._send)
        for one in self.others:
            one.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            one.protocol.transport.write(bytes(50 << 20))

    def _send(self, one: Any) -> bool:
        self._sends += 1
        self.crowd.now += self.cost
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return False

    def turn(self) -> int:
        """Let the reactor handle its events, and return the number of sends."""
        self._sends = 0
        self.crowd.turn()
        return self._sends


@pytest.fixture
def writers(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Writers:
    return Writers(loop, monkeypatch)


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


class TestReadDirectly:
    def test_a_readable_connection_gets_its_bytes(self, loop: Loop) -> None:
        """And one that is also writable goes the usual way."""
        loop.peer.sendall(b"hello")
        loop.turn()
        assert not loop.usual
        loop.turn()
        assert loop.usual == 1 and loop.peer.recv(100) == b"hello"

    @pytest.mark.parametrize("readable", [b"", b"hello"])
    def test_a_writable_connection_does_not_join_all_that_waits(
        self, loop: Loop, readable: bytes
    ) -> None:
        transport = loop.protocol.transport
        for _ in range(20):
            transport.write(bytes(1 << 20))
        loop.peer.sendall(readable)
        loop.turn()
        assert loop.usual == bool(readable)  # doRead, and not doWrite, which joins
        assert len(transport.dataBuffer) == 1 << 20
        assert transport._tempDataLen == (19 << 20) + len(readable)

    def test_many_writable_connections_take_turns(self, loop: Loop) -> None:
        """Each look at the clock costs a second, so a turn has time for one write."""
        more = [loop.connect() for _ in range(2)]
        transports = [loop.protocol.transport, *[one.protocol.transport for one in more]]
        for one_transport in transports:
            one_transport.write(bytes(8 << 20))
        seconds = iter(range(1000))
        loop.reactor.seconds = lambda: next(seconds)
        served = []
        for _ in range(6):
            before = [unsent_bytes(one) for one in transports]
            loop.turn()
            after = [unsent_bytes(one) for one in transports]
            served += [n for n in range(3) if after[n] < before[n]]
        assert sorted(served[:3]) == sorted(served[3:]) == [0, 1, 2]

    def test_a_light_request_that_arrives_ends_the_turn_of_writes(self, writers: Writers) -> None:
        assert writers.turn() == 3
        writers.meanwhile = writers.crowd_send
        assert writers.turn() == 1
        assert writers.turn() == 3
        assert writers.crowd.order[0] == 0

    def test_the_end_of_work_in_a_thread_ends_the_turn_of_writes(self, writers: Writers) -> None:
        """Most of all, the end of a commit: its answers wait."""
        writers.meanwhile = lambda: writers.reactor.callFromThread(lambda: None)
        assert writers.turn() == 1

    def test_a_descriptor_that_the_turn_gave_to_another_is_not_written(
        self, writers: Writers
    ) -> None:
        """A listening port, say, has no buffer of bytes to send."""
        selectables = writers.reactor._selectables
        before = dict(selectables)
        other = dict.fromkeys([one.protocol.transport.fileno() for one in writers.others], object())
        writers.meanwhile = lambda: selectables.update(other)
        try:
            assert writers.turn() == 1
        finally:
            selectables.update(before)

    def test_writes_have_as_much_time_as_light_requests(self, writers: Writers) -> None:
        """Else a crowd of light connections leaves them one write in a turn."""
        writers.crowd.cost.update({0: 1.5 * writers.cost})
        writers.meanwhile = writers.crowd_send
        writers.crowd_send()
        assert writers.turn() == 2

    def test_of_many_writable_connections_a_turn_writes_several(
        self, writers: Writers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each look for light requests lists them all."""
        monkeypatch.setattr(transport, "LISTED_SECONDS", 0.4 * writers.cost)
        writers.meanwhile = writers.crowd_send
        assert writers.turn() == 2

    def test_the_time_to_pass_over_writable_connections_makes_no_other_one_heavy(
        self, loop: Loop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writers = Writers(loop, monkeypatch)
        loop.selectables.look = writers.crowd.pass_over
        writers.crowd_send()
        writers.turn()
        writers.crowd_send()
        assert loop.reads.light_arrives()

    def test_a_light_request_goes_before_heavy_ones(self, loop: Loop) -> None:
        """And its turn ends before a heavy one is handled."""
        crowd = Crowd(loop)
        crowd.cost.update({2: 0.0})
        crowd.send(0, 1, 2)
        crowd.turn()
        for _ in range(6):
            crowd.send(0, 1, 2)
            crowd.turn()
            assert crowd.order in ([2, END, 0, END], [2, END, 1, END])

    def test_light_requests_get_their_answers_before_a_heavy_read(self, loop: Loop) -> None:
        """In turns that read one heavy connection, because a light one was read."""
        crowd = Crowd(loop)
        crowd.answer_light_first()
        crowd.cost.update({2: 0.0})
        crowd.send(0, 1, 2)
        crowd.turn()
        assert ANSWERS not in crowd.order
        crowd.send(0, 1, 2)
        crowd.turn()
        assert crowd.order in ([2, END, ANSWERS, 0, END], [2, END, ANSWERS, 1, END])
        for _ in range(SHORT_TURNS):
            crowd.turn()
            crowd.send(0, 1)
        crowd.turn()
        assert ANSWERS not in crowd.order

    def test_only_light_connections_have_light_requests(self, loop: Loop) -> None:
        crowd = Crowd(loop)
        crowd.cost.update({2: 0.0})
        crowd.send(0, 1, 2)
        crowd.turn()
        reads = loop.reads
        assert not reads.light_arrives()
        crowd.send(0, 1)
        assert not reads.light_arrives()
        crowd.send(2)
        assert reads.light_arrives()
        crowd.turn()
        assert not reads.light_arrives()
        crowd.send(2)
        reads.undo()
        assert not reads.light_arrives()

    def test_heavy_connections_take_turns(self, loop: Loop) -> None:
        """One in a turn, because each takes all of its time."""
        crowd = Crowd(loop, cost=1.1 * READ_SECONDS)
        crowd.send(0, 1, 2)
        crowd.turn()
        served = []
        for _ in range(6):
            crowd.send(0, 1, 2)
            crowd.turn()
            served += [one for one in crowd.order if one != END]
        assert sorted(served[:3]) == sorted(served[3:]) == [0, 1, 2]

    def test_a_turn_has_several_heavy_requests_if_no_light_one_comes(self, loop: Loop) -> None:
        crowd = Crowd(loop)
        crowd.send(0, 1, 2)
        crowd.turn()
        crowd.send(0, 1, 2)
        crowd.turn()
        assert sorted(crowd.order) == [END, 0, 1, 2]

    def test_a_light_request_that_arrives_ends_the_turn_of_heavy_ones(self, loop: Loop) -> None:
        crowd = Crowd(loop)
        crowd.send(1, 2)
        crowd.turn()
        crowd.send(1, 2)
        crowd.meanwhile = lambda: crowd.send(0)
        crowd.cost.update({0: 0.0})
        crowd.turn()
        assert len([one for one in crowd.order if one != END]) == 1
        crowd.turn()
        assert crowd.order[0] == 0

    def test_many_light_requests_leave_heavy_ones_half_of_the_time(self, loop: Loop) -> None:
        """Else a turn with hundreds of light requests reads one heavy connection of twenty."""
        crowd = Crowd(loop, size=12)
        light, heavy = range(5), range(5, 12)
        crowd.cost.update(dict.fromkeys(light, 0.8 * HEAVY_SECONDS))
        crowd.send(*heavy)
        crowd.turn()
        crowd.send(*light, *heavy)
        crowd.turn()
        served = [one for one in crowd.order if one != END]
        assert sorted(served[:5]) == list(light)
        # 2 ms of light requests, and requests of 1 ms until 2 ms are over
        assert 2 <= len(served[5:]) <= 3

    @pytest.mark.parametrize(
        ("first_seconds", "shorts", "size"), [(0.0, 0, 1), (0.002, 5, 1), (0.0, 6, SMALL_BYTES + 1)]
    )
    def test_a_light_request_goes_before_many_long_ones_that_come_at_once(
        self, loop: Loop, first_seconds: float, shorts: int, size: int
    ) -> None:
        """Their connections are light, because they are new or sent so many short ones before."""
        crowd = Crowd(loop, cost=0.0, size=40)
        *others, spare, last = range(40)
        crowd.cost.update(dict.fromkeys(others, first_seconds))
        for number in range(8):
            crowd.send(last)
            crowd.turn()
            for one in others[: 40 * (number < shorts)]:
                crowd.send(one)
                crowd.turn()
            crowd.cost.update(dict.fromkeys(others, 0.0))
        crowd.send(spare)
        crowd.turn()  # the kernel now names the last one after the others
        crowd.cost.update(dict.fromkeys(others, 2 * HEAVY_SECONDS))
        crowd.send(*others, size=size)
        crowd.send(last)
        crowd.turn()
        earlier = crowd.order[: crowd.order.index(last)]
        assert END not in earlier
        assert READ_SECONDS / 2 < len(earlier) * 2 * HEAVY_SECONDS < 1.3 * READ_SECONDS
        served = {*crowd.order}
        for _ in others:
            crowd.send(last)
            crowd.turn()
            served.update(crowd.order)
        assert {*others} <= served

    def test_of_heavy_connections_those_with_short_reads_are_due_first_for_a_time(
        self, loop: Loop
    ) -> None:
        """One that waits is due in time, however many with shorter reads come."""
        crowd = Crowd(loop, cost=1.1 * READ_SECONDS, size=12)
        *others, short = range(12)
        crowd.cost[short] = 2 * HEAVY_SECONDS
        for number in range(12):
            crowd.send(number)
            crowd.turn()
        crowd.send(*others)
        crowd.turn()
        crowd.send(short)
        crowd.turn()
        assert crowd.order[0] == short
        crowd.now += 2 * HEAVY_SECONDS * DUE_MEANS
        for _ in range(9):
            crowd.send(short)
            crowd.turn()
            assert short not in crowd.order
        crowd.turn()
        assert short in crowd.order

    def test_one_long_read_among_short_ones_may_be_a_garbage_collection(self, loop: Loop) -> None:
        """After some short ones, its connection goes before those that a turn leaves, again."""
        crowd = Crowd(loop, size=40)
        *others, spare, last = range(40)
        for cost in (*[HEAVY_SECONDS / 4] * 20, 0.05, *[HEAVY_SECONDS / 4] * 4):
            crowd.cost[last] = cost
            crowd.send(last)
            crowd.turn()
        crowd.send(spare)
        crowd.turn()
        crowd.send(*others, last)
        crowd.turn()
        assert crowd.order.index(last) < crowd.order.index(END)

    @pytest.mark.parametrize("share", [0.3, 1.1])
    def test_accounts_take_turns_in_the_reads_of_heavy_connections(
        self, loop: Loop, share: float
    ) -> None:
        """However many connections each has; without an account each takes turns by itself."""
        crowd = Crowd(loop, cost=share * READ_SECONDS, size=12)
        accounts = dict.fromkeys(range(8), "big") | {8: "one", 9: "", 10: ""}
        crowd.accounts(accounts)
        for number in range(11):
            crowd.send(number)
            crowd.turn()
        crowd.send(*range(11))
        first: list[int] = []
        while len(first) < 4:
            crowd.turn()
            first += [number for number in crowd.order if number != END]
        assert sorted(accounts[number] for number in first[:4]) == ["", "", "big", "one"]

    def test_the_time_of_other_events_leaves_no_connection(self, loop: Loop) -> None:
        """Such as hundreds of new connections."""
        crowd = Crowd(loop, cost=HEAVY_SECONDS / 10, size=4)
        crowd.send(3)
        mine, peer = socket.socketpair()
        with mine, peer:

            class Other(FileDescriptor):
                def doWrite(self) -> None:
                    crowd.now += 2 * READ_SECONDS
                    self.stopWriting()

            other = Other(loop.reactor)
            other.fileno = mine.fileno  # type: ignore[method-assign]
            other.startWriting()
            crowd.send(0, 1, 2, size=SMALL_BYTES + 1)
            crowd.turn()
        assert crowd.now > 2 * READ_SECONDS
        assert crowd.order == [3, 0, 1, 2, END]

    def test_of_many_heavy_connections_a_turn_reads_several(
        self, loop: Loop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each turn lists them all. One read in a turn cost three of its times, of 3,000."""
        crowd = Crowd(loop, size=6)
        crowd.cost.update({0: 0.0})
        crowd.send(*range(1, 6))
        crowd.turn()
        for listed_seconds, count in ((0.0, 1), (HEAVY_SECONDS, 3)):
            monkeypatch.setattr(transport, "LISTED_SECONDS", listed_seconds)
            crowd.send(*range(6))
            crowd.turn()
            served = [one for one in crowd.order if one != END]
            assert served[0] == 0 and len(served) == 1 + count

    def test_the_time_to_pass_over_heavy_connections_makes_no_other_one_heavy(
        self, loop: Loop
    ) -> None:
        crowd = Crowd(loop, size=5)
        loop.selectables.look = crowd.pass_over
        crowd.cost.update({4: 0.0})
        crowd.send(0, 1, 2, 3)
        crowd.turn()
        for _ in range(2):
            crowd.send(0, 1, 2, 3, 4)
            crowd.turn()
            assert crowd.order[0] == 4

    def test_time_in_which_the_reactor_waits_makes_no_connection_light(self, loop: Loop) -> None:
        """It waits for events, and for a commit before heavy reads."""
        crowd = Crowd(loop)
        crowd.cost.update({2: 0.0})

        def wait() -> None:
            crowd.now += 1.0
            loop.waited_seconds += 1.0

        loop.before_heavy = wait
        wait()
        crowd.send(0)
        crowd.turn()
        for _ in range(2):
            crowd.send(0, 2)
            crowd.turn()
            assert crowd.order == [2, END, 0, END]

    def test_a_heavy_connection_that_the_turn_closes_is_not_read(self, loop: Loop) -> None:
        others = [loop.connect() for _ in range(2)]
        crowd = Crowd(loop, size=1)
        for number, one in enumerate(others, 1):
            crowd.cost[number], crowd.waits[number] = crowd.cost[0], 0.0
            crowd.join(number, one)
        connections = [loop.protocol, *[one.protocol for one in others]]
        crowd.send(0, 1, 2)
        crowd.turn()

        def close() -> None:
            for number in {0, 1, 2} - {*crowd.order}:
                connections[number].transport.connectionLost(Failure(ConnectionDone()))

        crowd.send(0, 1, 2)
        crowd.meanwhile = close
        crowd.turn()
        assert len(crowd.order) == 2 and crowd.order[1] == END

    def test_a_connection_is_light_again_after_a_short_request(self, loop: Loop) -> None:
        crowd = Crowd(loop)
        crowd.send(0, 1)
        crowd.turn()
        crowd.cost.update({0: 0.0})
        crowd.send(0)
        crowd.turn()
        crowd.send(0, 1)
        crowd.turn()
        assert crowd.order == [0, END, 1, END]

    def test_a_connection_is_light_although_its_request_waited_for_a_processor(
        self, loop: Loop
    ) -> None:
        crowd = Crowd(loop)
        crowd.waits[0] = crowd.cost[0] = 2 * HEAVY_SECONDS
        crowd.send(0, 1)
        crowd.turn()
        crowd.send(1, 0)
        crowd.turn()
        assert crowd.order == [0, END, 1, END]

    def test_a_heavy_connection_is_light_after_a_request_that_waited_for_a_processor(
        self, loop: Loop
    ) -> None:
        crowd = Crowd(loop)
        crowd.send(0, 1)
        crowd.turn()
        crowd.waits[0] = crowd.cost[0]
        crowd.send(0)
        crowd.turn()
        crowd.send(0, 1)
        crowd.turn()
        assert crowd.order == [0, END, 1, END]

    @pytest.mark.parametrize("step_seconds", [-3600.0, 3600.0])
    def test_a_step_of_the_clock_makes_no_connection_light(
        self, loop: Loop, step_seconds: float
    ) -> None:
        crowd = Crowd(loop)
        crowd.cost[0] += step_seconds
        crowd.waits[0] = step_seconds
        crowd.cost[2] = 0.0
        crowd.send(0)
        crowd.turn()
        crowd.cost[0] = crowd.cost[1]
        crowd.waits[0] = 0.0
        crowd.send(0, 1)
        crowd.turn()
        crowd.send(0, 1, 2)
        crowd.turn()
        assert crowd.order[:2] == [2, END]

    def test_a_connection_with_mostly_short_requests_is_light_after_a_long_one(
        self, loop: Loop
    ) -> None:
        """After several long ones it is heavy."""
        crowd = Crowd(loop)
        crowd.cost.update({0: HEAVY_SECONDS / 4})
        for _ in range(8):
            crowd.send(0)
            crowd.turn()
        crowd.cost.update({0: 2 * HEAVY_SECONDS})
        crowd.send(0, 1)
        crowd.turn()
        light = []
        for _ in range(6):
            crowd.send(0)
            light.append(loop.reads.light_arrives())
            crowd.turn()
        assert light[0] and not light[-1]

    def test_a_very_long_request_does_not_outweigh_many_short_ones(self, loop: Loop) -> None:
        crowd = Crowd(loop)
        crowd.cost[0] = 100 * HEAVY_SECONDS
        crowd.send(0, 1)
        crowd.turn()
        crowd.cost[0] = 0.0
        for _ in range(12):
            crowd.send(0)
            crowd.turn()
        crowd.cost[0] = 2 * HEAVY_SECONDS
        for _ in range(2):
            crowd.send(1, 0)
            crowd.turn()
            assert crowd.order == [0, END, 1, END]

    def test_a_new_connection_with_the_descriptor_of_a_heavy_one_is_light(self, loop: Loop) -> None:
        crowd = Crowd(loop)
        crowd.send(0, 1)
        crowd.turn()
        heavy = loop.protocol.transport
        descriptor = heavy.fileno()
        fillers: list[int] = []

        def free() -> None:
            """Leave no lower descriptor free, then close the heavy connection."""
            while not fillers or fillers[-1] < descriptor:
                fillers.append(os.dup(loop.peer.fileno()))
            heavy.abortConnection()
            loop.reactor.runUntilCurrent()

        new = loop.connect(accepted=free)
        for filler in fillers:
            os.close(filler)
        assert new.protocol.transport.fileno() == descriptor
        crowd.join(0, new)
        crowd.send(0, 1)
        assert loop.reads.light_arrives()
        crowd.turn()
        assert crowd.order == [0, END, 1, END]

    def test_the_end_of_a_connection_is_told_once(self, loop: Loop) -> None:
        loop.peer.close()
        loop.turn()
        assert loop.protocol.lost == [ConnectionDone]

    def test_a_fault_is_logged_and_closes_the_connection(self, loop: Loop) -> None:
        loop.peer.sendall(b"?")
        with capturedLogs() as logs:
            loop.turn()
        assert [event["failure"].type for event in logs if "failure" in event] == [ValueError]
        assert loop.protocol.lost == [ValueError]
        assert loop.peer.recv(1) == b""

    def test_a_turn_without_events_ends(self, loop: Loop) -> None:
        loop.reactor.doIteration(0)
        loop.reactor.callFromThread(lambda: None)
        loop.reactor.doIteration(None)

    def test_a_request_is_served_before_the_end_of_its_turn(self, loop: Loop) -> None:
        order: list[str] = []

        def received(data: bytes) -> None:
            loop.reads.call_at_turn_end(lambda: order.append("end"))
            order.append("request")

        loop.protocol.dataReceived = received  # type: ignore[method-assign]
        loop.peer.sendall(b"hello")
        loop.turn()
        assert order == ["request", "end"]

    def test_a_function_that_asks_again_is_called_in_the_next_turn(self, loop: Loop) -> None:
        calls: list[int] = []

        def again() -> None:
            calls.append(1)
            if len(calls) < 3:
                loop.reads.call_at_turn_end(again)

        loop.reads.call_at_turn_end(again)
        for turn in range(1, 4):
            loop.reactor.doIteration(None)
            assert len(calls) == turn

    def test_a_fault_at_the_end_of_a_turn_is_logged_and_stops_no_other(self, loop: Loop) -> None:
        called: list[int] = []

        def fail() -> None:
            raise ValueError("a fault")

        loop.reads.call_at_turn_end(fail)
        loop.reads.call_at_turn_end(lambda: called.append(1))
        with capturedLogs() as logs:
            loop.reactor.doIteration(None)
        assert [event["failure"].type for event in logs if "failure" in event] == [ValueError]
        assert called == [1]

    def test_an_undo_leaves_the_functions_to_timers(self, loop: Loop) -> None:
        called: list[int] = []
        loop.reads.call_at_turn_end(lambda: called.append(1))
        loop.reads.undo()
        loop.reads.call_at_turn_end(lambda: called.append(2))
        loop.reactor.runUntilCurrent()
        assert called == [1, 2]

    def test_it_can_be_undone(self, loop: Loop) -> None:
        loop.reads.undo()
        loop.reads.undo()
        loop.peer.sendall(b"hello")
        loop.turn()
        assert loop.usual == 1

    def test_other_reactors_are_left_alone(self) -> None:
        class Other(EPollReactor):
            def doIteration(self, timeout: float | None) -> None: ...

        for reactor in (Clock(), SelectReactor(), Other()):
            before = dict(reactor.__dict__)
            read_directly(reactor).undo()
            assert reactor.__dict__ == before
            called: list[int] = []
            read_directly(reactor).call_at_turn_end(partial(called.append, 1))
            assert len(reactor.getDelayedCalls()) == 1

    def test_a_reactor_without_the_expected_parts_is_left_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(_DisconnectSelectableMixin, "_disconnectSelectable")
        reactor = EPollReactor()
        read_directly(reactor)
        assert "doIteration" not in reactor.__dict__


def test_unsent_bytes_are_those_that_the_kernel_has_not_taken() -> None:
    """Both buffers of a transport of Twisted count; an unknown transport has none."""
    transport = SimpleNamespace(dataBuffer=b"abc", offset=1, _tempDataLen=5)
    assert unsent_bytes(transport) == 7
    assert unsent_bytes(object()) == 0
