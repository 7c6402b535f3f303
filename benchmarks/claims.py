# Tests: tests/test_claims.py
"""Measure the memory that clients can take from a broker, and what others then wait.

``python -m benchmarks.claims [--connections 600] [--seconds 15] [--case NAME ...] [--json]``. Each
case has a broker of its own. The cases ``unread-FORMAT`` ask for records of 1 MB and never read.
The case ``unfinished`` sends frames of 3 MB without their last byte. Meanwhile another client
produces and reads a small record, again and again. The benchmark prints the peak of the resident
memory, its value after all clients have left, the budget, and the longest wait of the other client.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from brokerd.client import addresses
from brokerd.client.blipmq import BlipmqClient
from brokerd.client.mamamia import MamamiaClient
from brokerd.client.mega import MegaClient
from brokerd.codecs import blipmq, flymq, mamamia, mega, rustlog

from .admin import fetch_status
from .process import BrokerProcess, interrupt_on_signals

MIB = 1 << 20
TOPIC, PROBE = "large", "probe"
RECORD_BYTES = 1_000_000
RECORDS = 24
ASKED = 20
"""Requests of each connection."""
FRAME_BYTES = 3_000_000
RECEIVE_BYTES = 64 << 10
"""Buffer of the kernel for each client that never reads. With buffers of megabytes, 2,000 clients
exceed the kernel's memory for TCP (``net.ipv4.tcp_mem``), and it drops the packets of all."""
SUBSCRIBERS = 16
"""Clients that make the subscriptions of BlipMQ."""
LEAVE_SECONDS = 120.0
"""Longest time until the broker has noticed that all clients left; paused ones wait for a cut."""
SETTLE_SECONDS = 2.0
_POLL_SECONDS = 0.02
_PROBES = 2
_PROBE_SECONDS = 120.0


@dataclass(frozen=True)
class Measured:
    """The result of a case."""

    case: str
    connections: int
    rest_bytes: int
    """Resident memory before the clients came."""
    peak_bytes: int
    left_bytes: int
    """Resident memory some seconds after they left."""
    limit_bytes: int
    """The budget of claims."""
    cut: int
    """Connections that the broker closed for their claims."""
    probes: int
    probe_seconds: float
    """Longest time of a produce, acquire and settle of another client."""


def reads(wire_format: str, number: int) -> bytes:
    """Return the requests of connection ``number`` for `ASKED` large records.

    In BlipMQ ``number`` is its subscription.
    """
    count = range(ASKED)
    if wire_format == "mamamia":
        acquire = mamamia.Acquire(TOPIC, f"g{number}", "c", 600.0)
        return mamamia.encode_request(acquire) * ASKED
    if wire_format == "flymq":
        return b"".join(flymq.encode_request(flymq.Fetch(TOPIC, 0, at, 1)) for at in count)
    if wire_format == "mega":
        return b"".join(mega.encode_request(mega.Consume(at, TOPIC, 0, at)) for at in count)
    if wire_format == "rustlog":
        encode = rustlog.CODECS[rustlog.Dialect.BINARY].encode_request
        return b"".join(encode(rustlog.Fetch(TOPIC, 0, at, MIB)) for at in count)
    polls = [blipmq.Poll(1_000 + at, number) for at in count]
    return b"".join(map(blipmq.encode, [blipmq.Hello(1), blipmq.Auth(2, "key"), *polls]))


def numbers(wire_format: str, address: str, count: int) -> Sequence[int]:
    """Return the numbers of ``count`` connections for `reads`.

    Those of BlipMQ are new subscriptions to the topic, which several clients make at once.
    """
    if wire_format != "blipmq":
        return range(count)

    def some(share: int) -> list[int]:
        with BlipmqClient(address) as client:
            return [client.subscribe(TOPIC) for _ in range(share, count, SUBSCRIBERS)]

    with ThreadPoolExecutor(SUBSCRIBERS) as threads:
        return [one for found in threads.map(some, range(SUBSCRIBERS)) for one in found]


def unfinished(number: int) -> bytes:
    """Return a frame of Mamamia without its last byte."""
    return struct.pack(">IBB", FRAME_BYTES, 1, 1) + bytes(FRAME_BYTES - 3)


class Peers:
    """Connections that send bytes and never read."""

    def __init__(self, address: str, count: int, make: Callable[[int], bytes]) -> None:
        self._stack = ExitStack()
        self._sockets: dict[socket.socket, memoryview] = {}
        for number in range(count):
            with suppress(OSError):
                opened = addresses.open_socket(addresses.parse_address(address), 10.0)
                self._stack.callback(opened.close)
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
                opened.setblocking(False)
                self._sockets[opened] = memoryview(make(number))

    def send(self) -> None:
        """Send what the broker takes now."""
        for opened, rest in list(self._sockets.items()):
            try:
                sent = opened.send(rest)
            except BlockingIOError:
                continue
            except OSError:
                del self._sockets[opened]
                continue
            if sent == len(rest):
                del self._sockets[opened]
            else:
                self._sockets[opened] = rest[sent:]

    def close(self) -> None:
        self._stack.close()


class Probe(threading.Thread):
    """Another client: it produces, leases and settles a small record, again and again."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.over = threading.Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        with MamamiaClient(self._address, timeout=120.0) as client:
            while not self.over.is_set():
                began = time.monotonic()
                client.produce(PROBE, b"small")
                found = client.acquire(PROBE, "g", "c", 60.0, 1.0)
                if found is not None:
                    client.settle(PROBE, "g", found.id, "c", True)
                self.seconds.append(time.monotonic() - began)
                self.over.wait(0.01)


def cases() -> Iterator[str]:
    """Yield the names of all cases."""
    for wire_format in ("mamamia", "rustlog", "mega", "flymq", "blipmq"):
        yield f"unread-{wire_format}"
    yield "unfinished"


def run_case(
    case: str, directory: Path, connections: int, seconds: float, settings: Sequence[str] = ()
) -> Measured:
    """Run a case on a new broker.

    The clients stay for ``seconds``, and until the probe was served twice, at most two minutes
    more: the disk may be slow.

    :raises ValueError: the case is unknown.
    """
    if case not in cases():
        raise ValueError(f"no case {case!r}")
    _, _, wire_format = case.partition("-")
    with BrokerProcess(directory / "data", directory / "log", settings) as broker:
        broker.start()
        address = broker.address_of(wire_format or "mamamia")
        with MamamiaClient(broker.address) as client:
            client.produce(PROBE, b"first")
        with MegaClient(broker.address_of("mega")) as producer:
            producer.create_topic(TOPIC)
        asking = numbers(wire_format, address, connections)  # a subscription begins at its time
        with MegaClient(broker.address_of("mega")) as producer:
            for number in range(RECORDS):
                producer.produce(TOPIC, bytes([number]) * RECORD_BYTES)

        def make(number: int) -> bytes:
            if not wire_format:
                return unfinished(number)
            return reads(wire_format, asking[number])

        rest = broker.memory_bytes()
        probe = Probe(broker.address)
        probe.start()
        peers = Peers(address, connections, make)
        peak, end = rest, time.monotonic() + seconds
        while (now := time.monotonic()) < end or (
            len(probe.seconds) < _PROBES and now < end + _PROBE_SECONDS
        ):
            peers.send()
            peak = max(peak, broker.memory_bytes())
            time.sleep(_POLL_SECONDS)
        memory = fetch_status(broker.admin).get("memory", {})
        peers.close()
        _await_end(broker)
        left = broker.memory_bytes()
        probe.over.set()
        probe.join(130)
        peak = max(peak, broker.memory_bytes("VmHWM"))
        broker.stop()
    return Measured(
        case,
        connections,
        rest,
        peak,
        left,
        memory.get("limit_bytes", 0),
        memory.get("cut", 0),
        len(probe.seconds),
        round(max(probe.seconds, default=seconds), 3),
    )


def _await_end(broker: BrokerProcess) -> None:
    """Wait until the broker serves the probe alone, and then for the return of its memory."""
    end = time.monotonic() + LEAVE_SECONDS
    while time.monotonic() < end and sum(fetch_status(broker.admin)["connections"].values()) > 1:
        time.sleep(0.2)
    time.sleep(SETTLE_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print a table, or JSON with ``--json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__)
    parser.add_argument("--connections", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--case", action="append", choices=list(cases()), metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    interrupt_on_signals()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    done = []
    if not options.json:
        print(f"{'case':<20}{'peers':>7}{'rest':>7}{'peak':>7}{'left':>7}{'budget':>8}", end="")
        print(f"{'cut':>6}{'probes':>8}{'longest s':>11}   (MiB)")
    for case in options.case or cases():
        with tempfile.TemporaryDirectory(prefix="brokerd-claims-") as directory:
            found = run_case(
                case, Path(directory), options.connections, options.seconds, options.set
            )
        done.append(found)
        if not options.json:
            sizes = (found.rest_bytes, found.peak_bytes, found.left_bytes)
            print(
                f"{found.case:<20}{found.connections:>7}"
                + "".join(f"{size // MIB:>7}" for size in sizes)
                + f"{found.limit_bytes // MIB:>8}{found.cut:>6}{found.probes:>8}"
                + f"{found.probe_seconds:>11.3f}",
                flush=True,
            )
    if options.json:
        print(json.dumps([asdict(one) for one in done]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
