# Tests: tests/test_turns.py
"""Measure what one turn costs at least.

``python -m benchmarks.turns [--rounds 5] [--only NAME] [--json]``.

A client sends one small request on each connection, waits for all answers, and repeats. The servers
do more and more of what a broker does, each in a process of its own:

* ``loop``: a loop over epoll in Python that answers with constant bytes.
* ``sync``: the same, and before the answers ``pwrite`` of 512 bytes and ``fdatasync``.
* ``thread-waited``: brokerd's own `ThreadPool` syncs, and the loop waits for it.
* ``thread-wakes``: the thread writes to an eventfd instead.
* ``twisted``: a Protocol on Twisted's epoll reactor.
* ``twisted-direct``: the same by `brokerd.protocols.base.transport`, as brokerd does it.
* ``brokerd``: PRODUCE of Mamamia.

Figures are microseconds of processor time for each message, all threads, and the messages a second.
The servers take turns in each round; the table has the least time and the median rate.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from brokerd.cli.bench.formats.mamamia import produce_frame
from brokerd.cli.bench.machine import describe
from brokerd.cli.bench.scenarios import PRODUCE, request
from brokerd.worker_pool import ThreadPool

from .process import BrokerFailed, BrokerProcess, interrupt_on_signals

SHAPES = (1, 64)
"""Connections, each with one request in flight."""
_FRAME = b"f" * 512
_FILE_BYTES = 8 << 20
_REQUEST = produce_frame("bench", 100)
_ANSWER = request(PRODUCE, {"message_id": 100_000})

Sync = Callable[[], None]
"""Makes the messages of a turn durable, and returns then."""
Serve = Callable[[socket.socket, Path], None]


def _journal(path: Path) -> Sync:
    """Return a function that writes the next frame of a file and syncs it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for position in range(0, _FILE_BYTES, 1 << 20):
        os.pwrite(descriptor, bytes(1 << 20), position)
    os.fsync(descriptor)
    position = 0

    def sync() -> None:
        nonlocal position
        os.pwrite(descriptor, _FRAME, position)
        os.fdatasync(descriptor)
        position = (position + len(_FRAME)) % _FILE_BYTES

    return sync


def _no_journal(path: Path) -> Sync:
    return lambda: None


def _waited_for(path: Path) -> Sync:
    """Return a function that syncs in a thread, as brokerd's log does for a single request."""
    sync = _journal(path)
    pool = ThreadPool(lambda function: function())
    pool.start()

    def hand_over() -> None:
        pool.submit(sync, lambda result, error: None)
        pool.wait(1.0)

    return hand_over


def _waking(path: Path) -> Sync:
    """Return a function that syncs in a thread, which wakes the caller through a poll."""
    sync = _journal(path)
    event = os.eventfd(0)
    poll = select.epoll()
    poll.register(event, select.EPOLLIN)
    reports: list[Callable[[], object]] = []

    def call_from_thread(report: Callable[[], object]) -> None:
        reports.append(report)
        os.eventfd_write(event, 1)

    pool = ThreadPool(call_from_thread)
    pool.start()

    def hand_over() -> None:
        pool.submit(sync, lambda result, error: None)
        poll.poll()
        os.eventfd_read(event)
        reports.pop()()

    return hand_over


def _loop(make_sync: Callable[[Path], Sync], listener: socket.socket, path: Path) -> None:
    """Serve from a loop over epoll: read what is there, sync once, answer."""
    sync = make_sync(path)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    socks: dict[int, socket.socket] = {}
    while True:
        waiting = []
        for descriptor, _ in poll.poll():
            sock = socks.get(descriptor)
            if sock is None:
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                socks[sock.fileno()] = sock
                poll.register(sock, select.EPOLLIN)
            elif sock.recv(65536):
                waiting.append(sock)
            else:
                poll.unregister(sock)
                del socks[descriptor]
        if waiting:
            sync()
            for sock in waiting:
                sock.send(_ANSWER)


def _twisted(directly: bool, listener: socket.socket, path: Path) -> None:
    """Serve from Twisted's epoll reactor, with one sync a turn in place."""
    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.protocol import Factory, Protocol

    from brokerd.protocols.base.transport import DirectReads, read_directly, send

    reactor: Any = EPollReactor()  # type: ignore[no-untyped-call]
    reads = read_directly(reactor) if directly else DirectReads(reactor)
    sync = _journal(path)
    waiting: list[Any] = []

    def turn_end() -> None:
        sync()
        for one in waiting:
            if directly:
                send(one.transport, _ANSWER)
            else:
                one.transport.write(_ANSWER)
        waiting.clear()

    class Answering(Protocol):
        transport: Any

        def connectionMade(self) -> None:
            self.transport.setTcpNoDelay(True)

        def dataReceived(self, data: bytes) -> None:
            if not waiting:
                reads.call_at_turn_end(turn_end)
            waiting.append(self)

    listener.setblocking(False)
    reactor.adoptStreamPort(listener.fileno(), socket.AF_INET, Factory.forProtocol(Answering))
    reactor.run(installSignalHandlers=False)


class Server(NamedTuple):
    """A server to measure."""

    what: str
    serve: Serve | None
    """None: a broker."""


SERVERS = {
    "loop": Server("recv and send", functools.partial(_loop, _no_journal)),
    "sync": Server("sync in place", functools.partial(_loop, _journal)),
    "thread-waited": Server("sync in a thread, waited for", functools.partial(_loop, _waited_for)),
    "thread-wakes": Server("sync in a thread, wakes the poll", functools.partial(_loop, _waking)),
    "twisted": Server("Twisted, sync in place", functools.partial(_twisted, False)),
    "twisted-direct": Server("Twisted, read directly", functools.partial(_twisted, True)),
    "brokerd": Server("PRODUCE of Mamamia", None),
}


@contextmanager
def _running(name: str, directory: Path) -> Iterator[tuple[str, int]]:
    """Run a server; yield its address and process id."""
    serve = SERVERS[name].serve
    if serve is None:
        with BrokerProcess(directory / "data", directory / "log", formats=["mamamia"]) as broker:
            broker.start()
            yield broker.address, broker.pid
        return
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        process = get_context("fork").Process(
            target=serve, args=(listener, directory / "journal"), daemon=True
        )
        process.start()
        host, port = listener.getsockname()
    try:
        assert process.pid is not None
        yield f"{host}:{port}", process.pid
    finally:
        process.kill()
        process.join()


def _processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def measure(name: str, connections: int, seconds: float, directory: Path) -> tuple[float, float]:
    """Return microseconds of processor time for each message, and messages a second."""
    with tempfile.TemporaryDirectory(dir=directory) as place, _running(name, Path(place)) as server:
        address, pid = server
        host, _, port = address.rpartition(":")
        socks = [socket.create_connection((host, int(port))) for _ in range(connections)]
        for sock in socks:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _exchange(socks, seconds / 4)
        before = _processor_seconds(pid)
        begun = time.monotonic()
        messages = _exchange(socks, seconds)
        took = time.monotonic() - begun
        used = _processor_seconds(pid) - before
        for sock in socks:
            sock.close()
    return used * 1e6 / messages, messages / took


def _exchange(socks: Sequence[socket.socket], seconds: float) -> int:
    """Send on all connections and wait for all answers, at least once; return the messages."""
    end = time.monotonic() + seconds
    messages = 0
    while not messages or time.monotonic() < end:
        for sock in socks:
            sock.send(_REQUEST)
        for sock in socks:
            if not sock.recv(65536):
                raise BrokerFailed("the server closed the connection")
        messages += len(socks)
    return messages


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.turns",
        epilog="servers:\n" + "\n".join(f"  {name:<16}{one.what}" for name, one in SERVERS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", choices=SERVERS, metavar="SERVER", help="one server; repeatable"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of all servers (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="each (default: 1)")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    interrupt_on_signals()
    out = sys.stderr if options.json else sys.stdout
    names = options.only or list(SERVERS)
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as directory:
            machine = describe(Path(directory))
            print(f"durability: fsync (the default); {machine.text()}", file=out, flush=True)
            for _ in range(options.rounds):
                for connections in SHAPES:
                    for name in names:
                        figures = measure(name, connections, options.seconds, Path(directory))
                        found.setdefault((name, connections), []).append(figures)
    except (BrokerFailed, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    heads = "".join(f"{f'{count} x 1 us':>12}{'messages/s':>12}" for count in SHAPES)
    print(f"{'server':<50}{heads}", file=out)
    servers = []
    for name in names:
        line = f"{name:<16}{SERVERS[name].what:<34}"
        for connections in SHAPES:
            runs = found[name, connections]
            least = min(used for used, _ in runs)
            rate = median(rate for _, rate in runs)
            line += f"{least:>12.1f}{rate:>12,.0f}"
            servers.append(
                {"server": name, "connections": connections, "us": least, "msgs_per_s": rate}
            )
        print(line, file=out)
    if options.json:
        print(json.dumps({"machine": asdict(machine), "durability": "fsync", "servers": servers}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
