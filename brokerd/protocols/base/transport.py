# Tests: tests/protocols/test_transport.py, tests/test_tls_pieces.py
"""Reads, sends and closes that need more than Twisted's public interface.

For a plain TCP or Unix connection with an empty buffer, `send` writes to the socket at once. This
saves a reactor turn and two changes of its poll set per answer. Every other transport, TLS above
all, is used through its public methods. `read_directly` shortens the way from a readable socket to
its connection in Twisted's epoll reactor, decides which connections a turn reads and sends to
first, and calls functions at the end of a turn without a timer. Other reactors are left alone.
"""

from __future__ import annotations

import select
import socket
import sys
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from errno import ENOBUFS, EWOULDBLOCK
from fcntl import ioctl
from itertools import accumulate, islice
from termios import FIONREAD
from typing import Any

from twisted.internet import tcp, unix
from twisted.internet.interfaces import ITCPTransport
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python import log

try:
    from twisted.internet import epollreactor
except ImportError:  # no epoll on this system
    epollreactor = None  # type: ignore[assignment]

_REACTOR_PARTS = (
    "_poller",
    "_selectables",
    "_doReadOrWrite",
    "_disconnectSelectable",
    "threadCallQueue",
)
"""Attributes of the reactor that `read_directly` uses and that are not public."""

_SERVERS = (tcp.Server, unix.Server)
"""Transports of accepted connections."""

QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
"""Linux's socket option to acknowledge received bytes at once."""

AT_ONCE_BYTES = 1024 * 1024
"""Most bytes that `send` and `send_all` write at once. The reactor sends the others in pieces."""

HEAVY_SECONDS = 0.00025
"""A read that takes more processor time, with its requests, is long. A connection is heavy after a
long read if the mean of its reads is more, too. Beside hundreds of heavy ones its next read may be
a second later, so time in which another process had the processor does not count."""

NEWEST_WEIGHT = 1 / 8
"""Weight of the newest read in the moving average: with a mean of 0.1 ms a connection is heavy
after one read of more than 1.3 ms."""

COUNTED_SECONDS = 0.002
"""A read counts in the mean as so long at most: it may have met a garbage collection."""

DUE_MEANS = 1_000
"""A heavy connection that waits is due after this many times its mean. So each waits for a time in
proportion to its cost, and beside hundreds with long reads one with short reads is due first."""

READ_SECONDS = 0.003
"""Time in which a turn begins reads of heavy connections. Also the time after which it leaves light
ones that may have long reads for later. Hundreds of connections that send one request, and then
many at once, would make one turn of a third of a second."""

SMALL_BYTES = 2048
"""A light connection with more bytes to read may have a long read."""

LISTED_SECONDS = 0.000004
"""Time that a turn has at least for reads, for each heavy connection that waits, and for writes,
for each one that is writable, up to `WRITE_SECONDS`. The kernel lists all of them in each turn, in
about a fourth of that."""

SHORT_TURNS = 3
"""Number of turns, from a read of a light connection on, that read one heavy connection only. After
them, the commit of the light one is mostly done, and so is the one that was in flight before."""

WRITE_SECONDS = 0.003
"""Time in which a turn begins writes of connections that are only writable."""

SEND_BYTES = 512 * 1024
"""Most bytes that a writable connection sends in one call. The kernel copies them in some 0.15 ms;
with Twisted's 128 KiB, each GiB takes a tenth more of the processor."""

SEND_PARTS = 1024
"""Most parts of one call (``IOV_MAX`` of Linux)."""

LARGE_BYTES = 64 * 1024
"""Parts of this size or more are not joined with others: the copy would cost more."""


def send_all(transport: Any, parts: Sequence[bytes]) -> None:
    """Send all parts in order; join small ones, and copy no large one.

    Of a plain connection, parts after the first `AT_ONCE_BYTES` are left to the reactor: 20 MB to a
    peer that reads as fast as they are sent would hold it. A TLS connection of brokerd gets a large
    answer with ``write_in_pieces`` (``server/handshakes.py``), and encrypts it as it leaves.
    """
    if len(parts) == 1:
        send(transport, parts[0])
        return
    rest: Sequence[bytes] = ()
    size = sum(map(len, parts))
    if size < LARGE_BYTES:
        send(transport, b"".join(parts))
        return
    if size > AT_ONCE_BYTES:
        if _is_plain(transport):
            count = bisect_right(list(accumulate(map(len, parts))), AT_ONCE_BYTES)
            parts, rest = parts[:count], parts[count:]
        elif hasattr(transport, "write_in_pieces"):
            transport.write_in_pieces(_joined(parts))
            return
    for part in _joined(parts):
        send(transport, part)
    if rest:
        transport.writeSequence(rest)


def _joined(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Yield all parts in order: large ones as they are, small ones between them joined."""
    small: list[bytes] = []
    for part in parts:
        if len(part) < LARGE_BYTES:
            small.append(part)
            continue
        if small:
            yield b"".join(small)
            small.clear()
        yield part
    if small:
        yield b"".join(small)


def _is_plain(transport: Any) -> bool:
    return type(transport) in _SERVERS and not transport.TLS


def send(transport: Any, data: bytes) -> None:
    """Write ``data`` after all earlier writes, to the socket itself where possible."""
    if (
        0 < len(data) <= AT_ONCE_BYTES
        and _is_plain(transport)
        and transport.connected
        and not transport.dataBuffer
        and not transport._tempDataBuffer
    ):
        try:
            sent = transport.socket.send(data)
        except OSError:  # its buffer is full, or the `write` meets the error again
            sent = 0
        if sent == len(data):
            return
        data = data[sent:]
    if len(data) > AT_ONCE_BYTES and hasattr(transport, "write_in_pieces"):
        transport.write_in_pieces((data,))
        return
    transport.write(data)


def send_waiting(transport: Any) -> bool:
    """Send unsent bytes of a connection, at most `SEND_BYTES`; return whether ``doWrite`` is due.

    ``doWrite`` would join all parts before it sends: a copy of 20 MB took 12 ms. Here no part is
    copied. It is due when all bytes are sent, for the steps that follow, and after an error: it
    tries again, with a small copy (`_fill`), and meets the error if it lasts.
    """
    buffer, parts = transport.dataBuffer, transport._tempDataBuffer
    views = [memoryview(buffer)[transport.offset :][:SEND_BYTES]]
    room = SEND_BYTES - len(views[0])
    for part in islice(parts, SEND_PARTS - 1):
        if room <= 0:
            break
        views.append(memoryview(part)[:room])
        room -= len(part)
    try:
        sent = transport.socket.sendmsg(views)
    except OSError as error:
        if error.errno in (EWOULDBLOCK, ENOBUFS):
            return False
        _fill(transport)
        return True
    first = len(buffer) - transport.offset
    if sent < first:
        transport.offset += sent
        return False
    sent -= first
    count = done = 0
    for part in parts:
        if done + len(part) > sent:
            break
        done += len(part)
        count += 1
    transport.dataBuffer, transport.offset = b"", 0
    if done < sent:  # a part is sent in part
        transport.dataBuffer, transport.offset = parts[count], sent - done
        done += len(parts[count])
        count += 1
    del parts[:count]
    transport._tempDataLen -= done
    return not parts and not transport.dataBuffer


def _fill(transport: Any) -> None:
    """Move waiting parts to the buffer until ``doWrite`` has enough and joins no more of them."""
    parts = transport._tempDataBuffer
    rest = memoryview(transport.dataBuffer)[transport.offset :]
    count = moved = 0
    while count < len(parts) and len(rest) + moved < transport.SEND_LIMIT:
        moved += len(parts[count])
        count += 1
    transport.dataBuffer, transport.offset = b"".join([rest, *parts[:count]]), 0
    transport._tempDataLen -= moved
    del parts[:count]


def lose_sending(transport: Any) -> bool:
    """Shut the sending side of a plain connection when everything is sent, and read on.

    Return False and do nothing for TLS and other transports, which close both sides together.
    """
    if not _is_plain(transport):
        return False
    transport.loseWriteConnection()
    return True


def lose_at_once(transport: Any) -> None:
    """Close when everything is sent, without waiting for the peer.

    TLS sends close_notify and need not wait for the peer's (RFC 8446, section 6.1).
    """
    transport.loseConnection()
    if isinstance(transport, TLSMemoryBIOProtocol) and transport.transport is not None:
        transport.transport.loseConnection()


def acknowledge(transport: Any) -> None:
    """Have the kernel acknowledge the bytes read so far at once, without an answer to carry it.

    Works for plain TCP on Linux, until the next bytes arrive. Other transports are left alone.
    """
    if (
        QUICKACK is not None
        and type(transport) is tcp.Server
        and transport.connected
        and not transport.TLS
    ):
        transport.socket.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)


def unsent_bytes(transport: Any) -> int:
    """Return the bytes that were written and that the kernel has not taken; 0 if unknown."""
    waiting_bytes = getattr(transport, "waiting_bytes", 0)
    if isinstance(transport, TLSMemoryBIOProtocol):
        transport = transport.transport
    data_bytes = len(getattr(transport, "dataBuffer", b"")) - getattr(transport, "offset", 0)
    return int(waiting_bytes + data_bytes + getattr(transport, "_tempDataLen", 0))


def prepare(transport: Any) -> None:
    """Switch on TCP_NODELAY and keep-alive where the transport is TCP."""
    # Older releases of Twisted give Unix sockets the methods of TCP and log that they fail.
    if type(transport) is not unix.Server and ITCPTransport.providedBy(transport):
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)


def peer_text(transport: Any) -> str:
    """Return the peer's address without its port, or ``unix`` for a Unix socket."""
    return getattr(transport.getPeer(), "host", None) or "unix"


def readable_bytes(descriptor: int) -> int:
    """Return how many bytes wait in the kernel to be read from a socket (ioctl ``FIONREAD``)."""
    return int.from_bytes(ioctl(descriptor, FIONREAD, bytes(4)), sys.byteorder)


class ReadHistory:
    """The cost of a connection's reads so far: it tells whether the connection is heavy."""

    __slots__ = ("account", "due_seconds", "is_heavy", "mean_seconds", "selectable")

    def __init__(self, selectable: object) -> None:
        self.selectable = weakref.ref(selectable)
        """Its descriptor may be that of a later connection."""
        self.is_heavy = False
        self.due_seconds = 0.0
        """When it is due, while it waits as a heavy one."""
        self.account = ""
        """Its account since then, or ``""``."""
        self.mean_seconds = 2 * HEAVY_SECONDS
        """Moving average of the processor time of its reads. A new connection may be heavy."""

    def note(self, seconds: float) -> None:
        """Count the processor time of a read. A long one of a new connection makes it heavy."""
        self.due_seconds = 0.0
        counted_seconds = min(seconds, COUNTED_SECONDS)
        self.mean_seconds += (counted_seconds - self.mean_seconds) * NEWEST_WEIGHT
        self.is_heavy = seconds > HEAVY_SECONDS and self.mean_seconds > HEAVY_SECONDS


class DirectReads:
    """The direct reads of a reactor, if it has any: what `read_directly` returns."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._poll: Callable[[float | None], None] | None = None
        self.turn_ends: list[Callable[[], None]] = []
        """Functions to call after the events of this turn."""
        self.light_arrives: Callable[[], bool] = lambda: False
        """Whether a connection whose last read was light has bytes to read."""

    def begin(self, poll: Callable[[float | None], None]) -> None:
        """Replace the ``doIteration`` of the reactor."""
        self._poll = self._reactor.__dict__["doIteration"] = poll

    def call_at_turn_end(self, function: Callable[[], None]) -> None:
        """Call ``function`` after the events of this reactor turn.

        Outside of the events of a turn, call it after those of the next one, which does not wait.
        It is what ``callLater(0, function)`` does, without a timer.
        """
        if self._poll is None:
            self._reactor.callLater(0, function)
        else:
            self.turn_ends.append(function)

    def end_turn(self) -> None:
        """Call the functions. An error in one is logged, and the others are called."""
        functions = self.turn_ends[:]
        self.turn_ends.clear()
        for function in functions:
            try:
                function()
            except Exception:
                log.err(None, "a function at the end of a reactor turn failed")

    def undo(self) -> None:
        """Let the reactor poll in its own way again. A second call does nothing."""
        if self._poll is None:
            return
        attributes = self._reactor.__dict__
        if attributes.get("doIteration") is self._poll:
            del attributes["doIteration"]
        self._poll = None
        self.light_arrives = lambda: False
        for function in self.turn_ends:
            self._reactor.callLater(0, function)
        self.turn_ends.clear()


def read_directly(
    reactor: Any,
    before_heavy: Callable[[], object] = lambda: None,
    processor_seconds: Callable[[], float] = time.thread_time,
    account_of: Callable[[Any], str] = lambda transport: "",
) -> DirectReads:
    """Let an epoll reactor call readable TCP connections without a logging context for each event.

    The context and the checks around it cost a third of the way of a small request. Errors are
    logged and close the connection as before, and all other events go the usual way. Other reactors
    are not changed. The result undoes the change, and calls functions at the end of a turn.

    A turn reads light connections first, then heavy ones (`ReadHistory`), those first that are due
    first (`DUE_MEANS`). So light requests have a commit of their own if none is in flight. The turn
    reads heavy connections for `READ_SECONDS`, or one of them when light requests arrive or were
    just read (`SHORT_TURNS`). In any case it reads them for as long as it read light ones, so many
    light ones leave them half of the time, and for `LISTED_SECONDS` for each of them.

    When a turn has read light connections for `READ_SECONDS`, it leaves those for later, as heavy
    ones, that may have a long read: by their mean, or with more than `SMALL_BYTES` to read.

    Accounts take turns in the reads of heavy connections. ``account_of`` returns the account of a
    transport, or ``""``: such a connection takes turns by itself.

    Connections that are only writable come last, for `WRITE_SECONDS` in a turn, those first that
    were written to least recently: the kernel names the others again in the next turn. A turn ends
    its writes before that time when a light request arrives or work in a thread ends, most of all a
    commit, but not before it wrote for as long as it read light connections, and for
    `LISTED_SECONDS` for each one.

    :param before_heavy: called before the reads of heavy connections in a turn that reads one only.
    :param processor_seconds: returns the processor time of this thread.
    """
    reads = DirectReads(reactor)
    if (
        epollreactor is None
        or not isinstance(reactor, epollreactor.EPollReactor)
        or type(reactor).doIteration is not epollreactor.EPollReactor.doPoll
        or not all(hasattr(reactor, name) for name in _REACTOR_PARTS)
    ):
        return reads
    turn_ends = reads.turn_ends
    wait = reactor._poller.poll
    selectables = reactor._selectables
    readable, writable = select.EPOLLIN, select.EPOLLOUT
    histories: dict[int, ReadHistory] = {}
    """By descriptor."""
    account_reads: dict[str, float] = {}
    """Account -> when a heavy connection of it was last read."""
    short_turns = 0
    """Further turns with one read of a heavy connection only."""
    write_turns: dict[int, int] = {}
    """Descriptor -> the number of its last turn with writes."""
    write_turn = 0
    known_seconds = known_processor_seconds = 0.0
    """A moment of this turn, and the processor time then. Only the kernel knows the latter."""

    def read(selectable: tcp.Server) -> None:
        lost: BaseException | None
        try:
            lost = selectable.doRead()
        except BaseException as error:
            lost = error
            log.err(system=selectable.logPrefix())
        if lost:
            reactor._disconnectSelectable(selectable, lost, True)

    def cost_seconds(began_seconds: float, now_seconds: float) -> float:
        """Return a lower bound of the processor time of the read between these times.

        It is exact if the thread had a processor all the time from the known moment to the read.
        The reactor's clock may step back.
        """
        nonlocal known_seconds, known_processor_seconds
        if now_seconds - began_seconds <= HEAVY_SECONDS:
            return max(0.0, now_seconds - began_seconds)
        now_processor_seconds = processor_seconds()
        earlier_seconds = known_processor_seconds + began_seconds - known_seconds
        known_seconds, known_processor_seconds = now_seconds, now_processor_seconds
        return max(0.0, now_processor_seconds - earlier_seconds)

    def in_turn(descriptors: list[int]) -> list[int]:
        """Return heavy connections as they are due, but those of an account one at a time.

        The next one of an account is due as if it had come when the one before it was read.
        """
        descriptors.sort(key=lambda one: histories[one].due_seconds)
        firsts: list[tuple[float, int]] = []
        others: list[int] = []
        accounts: set[str] = set()
        for descriptor in descriptors:
            history = histories[descriptor]
            due_seconds, account = history.due_seconds, history.account
            if account:
                if account in accounts:
                    others.append(descriptor)
                    continue
                accounts.add(account)
                began_seconds = account_reads.get(account, 0.0)
                due_seconds = max(due_seconds, began_seconds + history.mean_seconds * DUE_MEANS)
            firsts.append((due_seconds, descriptor))
        if not accounts:
            return descriptors
        firsts.sort()
        return [*(one for _, one in firsts), *others]

    def read_heavy(descriptors: list[int], light_seconds: float) -> None:
        nonlocal short_turns, known_seconds, known_processor_seconds
        length_seconds = READ_SECONDS
        if short_turns:
            length_seconds = 0.0
            short_turns -= 1
            before_heavy()
        descriptors = in_turn(descriptors)
        began_seconds = known_seconds = reactor.seconds()
        known_processor_seconds = processor_seconds()
        share_ends_seconds = began_seconds + max(light_seconds, len(descriptors) * LISTED_SECONDS)
        end_seconds = began_seconds + length_seconds
        for descriptor in descriptors:
            selectable = selectables.get(descriptor)
            if type(selectable) is not tcp.Server:
                continue
            read(selectable)
            now_seconds = reactor.seconds()
            history = histories[descriptor]
            history.note(cost_seconds(began_seconds, now_seconds))
            if history.account:
                account_reads[history.account] = now_seconds
            began_seconds = now_seconds
            if now_seconds <= share_ends_seconds:
                continue
            if now_seconds > end_seconds or light_arrives():
                break

    def light_arrives() -> bool:
        for descriptor, event in wait(0, len(selectables)):
            selectable = selectables.get(descriptor)
            if event == readable and type(selectable) is tcp.Server:
                history = histories.get(descriptor)
                if history is None or not history.is_heavy:
                    return True
                if history.selectable() is not selectable:
                    return True
        return False

    def write(selectable: Any, descriptor: int, event: int) -> None:
        if not send_waiting(selectable):
            event &= ~writable
        if event:
            log.callWithLogger(selectable, reactor._doReadOrWrite, selectable, descriptor, event)

    def write_some(descriptors: list[int], light_seconds: float) -> None:
        nonlocal write_turn
        write_turn += 1
        descriptors.sort(key=lambda one: write_turns.get(one, 0))
        began_seconds = reactor.seconds()
        end_seconds = began_seconds + WRITE_SECONDS
        listed_seconds = len(descriptors) * LISTED_SECONDS
        look_seconds = began_seconds + max(light_seconds, listed_seconds)
        for descriptor in descriptors:
            selectable = selectables.get(descriptor)
            if type(selectable) not in _SERVERS:
                continue
            write_turns[descriptor] = write_turn
            write(selectable, descriptor, writable)
            now_seconds = reactor.seconds()
            if now_seconds > end_seconds:
                break
            if now_seconds > look_seconds:
                if reactor.threadCallQueue or light_arrives():
                    break
                look_seconds = now_seconds + listed_seconds

    def poll(timeout: float | None) -> None:
        nonlocal short_turns, known_seconds, known_processor_seconds
        light_seconds = 0.0
        heavy_readers: list[int] = []
        writers: list[int] = []
        if turn_ends:
            timeout = 0
        events = wait(-1 if timeout is None else timeout, len(selectables))
        began_seconds = known_seconds = reactor.seconds()
        known_processor_seconds = processor_seconds()
        full_seconds = began_seconds + READ_SECONDS
        is_late = False  # whether ``began_seconds`` is before events that were left for later
        for descriptor, event in events:
            selectable = selectables.get(descriptor)
            if event == readable and type(selectable) is tcp.Server:
                history = histories.get(descriptor)
                if history is None or history.selectable() is not selectable:
                    history = histories[descriptor] = ReadHistory(selectable)
                if began_seconds > full_seconds and not history.is_heavy:
                    history.is_heavy = (
                        history.mean_seconds > HEAVY_SECONDS
                        or readable_bytes(descriptor) > SMALL_BYTES
                    )
                if history.is_heavy:
                    if not history.due_seconds:
                        history.due_seconds = began_seconds + history.mean_seconds * DUE_MEANS
                        history.account = account_of(selectable)
                    heavy_readers.append(descriptor)
                    is_late = True
                    continue
                if is_late:
                    began_seconds = reactor.seconds()
                    is_late = False
                read(selectable)
                now_seconds = reactor.seconds()
                took_seconds = now_seconds - began_seconds
                if 0.0 <= took_seconds <= HEAVY_SECONDS:  # usual: as `ReadHistory.note`
                    history.mean_seconds += (took_seconds - history.mean_seconds) * NEWEST_WEIGHT
                else:
                    history.note(cost_seconds(began_seconds, now_seconds))
                if not history.is_heavy:
                    short_turns = SHORT_TURNS
                    light_seconds += took_seconds
                began_seconds = now_seconds
            elif event == writable and type(selectable) in _SERVERS:
                writers.append(descriptor)
                is_late = True
            elif selectable is not None:
                if event & writable and type(selectable) in _SERVERS:
                    write(selectable, descriptor, event)
                else:
                    log.callWithLogger(
                        selectable, reactor._doReadOrWrite, selectable, descriptor, event
                    )
                now_seconds = reactor.seconds()
                full_seconds += now_seconds - began_seconds
                began_seconds = now_seconds

        if turn_ends:
            reads.end_turn()
        if heavy_readers:
            read_heavy(heavy_readers, light_seconds)
            if turn_ends:
                reads.end_turn()
        if writers:
            write_some(writers, light_seconds)

    reads.light_arrives = light_arrives
    reads.begin(poll)
    return reads
