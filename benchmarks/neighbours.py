# Tests: tests/test_stalls.py
"""Measure what a small produce of one client costs while other clients send heavy requests.

``python -m benchmarks.neighbours [--seconds 8] [--only CASE] [--json]``. In each case a broker
process gets heavy requests over several connections, one after the other on each connection. A
client of its own produces a message of a few bytes again and again, and waits for each answer. For
each produce the benchmark takes its latency, and the processor time that the reactor's thread used
between request and answer (``/proc/PID/task/PID/schedstat``): the time for which the other
requests held the reactor.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Any

import msgpack

from brokerd.cli.bench.machine import describe
from brokerd.client.flymq import FlymqClient
from brokerd.codecs.flymq import (
    BeginTransaction,
    CommitTransaction,
    Fetch,
    ListTopics,
    Produce,
    ProduceInTransaction,
)
from brokerd.codecs.flymq.peer import encode_request
from brokerd.codecs.mamamia import Command

from .process import BrokerFailed, BrokerProcess, die_with_parent, interrupt_on_signals

SECONDS = 8.0
TOPICS = 15_000
BATCH = 10_000
WIDE = "wide"
_MAMAMIA = Struct(">IBB")
_PAUSE_SECONDS = 0.002
_READY_SECONDS = 120.0
_TIMEOUT_SECONDS = 120.0
_PIPE_BYTES = 1 << 20
"""For the lines of 200,000 heavy requests, which nobody reads meanwhile: a full pipe stops them."""


def frame(command: int, fields: dict[str, Any]) -> bytes:
    """Return a Mamamia request."""
    return raw_frame(command, msgpack.packb(fields))


def raw_frame(command: int, body: bytes) -> bytes:
    """Return a Mamamia request of these bytes."""
    return _MAMAMIA.pack(len(body) + 2, 1, command) + body


class Wire:
    """A connection that sends encoded requests and reads whole answers of one format."""

    def __init__(self, address: str, wire_format: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb", buffering=1 << 16)
        self._is_flymq = wire_format == "flymq"

    def ask(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer."""
        return self.ask_all([request])[0]

    def ask_all(self, requests: Sequence[bytes]) -> list[bytes]:
        """Send requests in one go, and return the bodies of all answers."""
        self._socket.sendall(b"".join(requests))
        return [self._answer() for _ in requests]

    def ask_admin(self, path: str, body: bytes) -> int:
        """Post JSON to the admin API and return the status."""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += self._read(1)
        fields = dict(line.lower().split(b": ", 1) for line in answer.split(b"\r\n")[1:-2])
        self._read(int(fields[b"content-length"]))
        return int(answer.split()[1])

    def _answer(self) -> bytes:
        """Return the body of the next answer."""
        if self._is_flymq:
            head = self._read(8)
            return self._read(int.from_bytes(head[4:8], "big"))
        head = self._read(4)
        return self._read(int.from_bytes(head, "big"))[2:]

    def _read(self, count: int) -> bytes:
        found = self._answers.read(count)
        if len(found) < count:
            raise ConnectionError("the broker closed the connection")
        return found


# -- Heavy requests --------------------------------------------------------------------------------

Attack = Callable[[Wire, int], Callable[[], None]]
"""Takes a connection and its number; returns a function that makes one heavy request."""


def nothing(wire: Wire, number: int) -> Callable[[], None]:
    return lambda: time.sleep(0.1)


def empty_maps(wire: Wire, number: int) -> Callable[[], None]:
    """Produce a value of 8 million empty maps."""
    count = 8_000_000
    body = b"\x83\xa6log_id\xa4maps\xa7payload\xdd" + count.to_bytes(4, "big")
    request = raw_frame(Command.PRODUCE, body + b"\x80" * count + b"\xa8metadata\xc0")
    return lambda: _check(wire.ask(request))


def delayed_batches(wire: Wire, number: int) -> Callable[[], None]:
    """Produce batches of 10,000 delayed messages."""
    messages = [{"payload": b"x" * 20, "delay": 3600.0}] * BATCH
    request = frame(Command.PRODUCE_BATCH, {"log_id": f"later-{number}", "messages": messages})
    return lambda: _check(wire.ask(request))


def batches(wire: Wire, number: int) -> Callable[[], None]:
    """Produce batches of 10,000 messages of 100 bytes, with metadata."""
    messages = [{"payload": b"x" * 100, "metadata": {"a": 1}}] * BATCH
    request = frame(Command.PRODUCE_BATCH, {"log_id": f"batch-{number}", "messages": messages})
    return lambda: _check(wire.ask(request))


def leases(wire: Wire, number: int) -> Callable[[], None]:
    """Acquire 10,000 messages and settle them in one batch."""
    name = {"log_id": f"leased-{number}", "group_id": "g"}
    full = frame(
        Command.PRODUCE_BATCH, {"log_id": name["log_id"], "messages": [{"payload": b"x"}] * BATCH}
    )
    acquire = frame(
        Command.ACQUIRE_BATCH, {**name, "client_id": "c", "duration": 3600.0, "max": BATCH}
    )

    def once() -> None:
        _check(wire.ask(full))
        leased = msgpack.unpackb(wire.ask(acquire))["messages"]
        settles = [{"message_id": one["id"], "success": True} for one in leased]
        _check(
            wire.ask(frame(Command.SETTLE_BATCH, {**name, "client_id": "c", "settles": settles}))
        )

    return once


def transactions(wire: Wire, number: int) -> Callable[[], None]:
    """Commit transactions of 40 MB in 40 records."""
    value = os.urandom(1_000_000)

    def once() -> None:
        answer = wire.ask(encode_request(BeginTransaction()))
        transaction = answer[2 : 2 + int.from_bytes(answer[:2], "big")].decode()
        for _ in range(40):
            wire.ask(encode_request(ProduceInTransaction(transaction, f"txn-{number}", value)))
        wire.ask(encode_request(CommitTransaction(transaction)))

    return once


def small_transactions(wire: Wire, number: int) -> Callable[[], None]:
    """Commit transactions of 40,000 records of 10 bytes, sent in one go."""
    count = 40_000

    def once() -> None:
        answer = wire.ask(encode_request(BeginTransaction()))
        transaction = answer[2 : 2 + int.from_bytes(answer[:2], "big")].decode()
        one = encode_request(ProduceInTransaction(transaction, f"txn-{number}", b"0123456789"))
        for _ in range(count // 1000):
            wire.ask_all([one] * 1000)
        wire.ask(encode_request(CommitTransaction(transaction)))

    return once


def topic_lists(wire: Wire, number: int) -> Callable[[], None]:
    """List 15,000 topics."""
    request = encode_request(ListTopics())
    return lambda: _check_size(wire.ask(request), TOPICS)


def small_produces(wire: Wire, number: int) -> Callable[[], None]:
    """Produce small messages, 1,000 in one go."""
    return _flood(wire, b"x" * 20, 1000)


def windows(wire: Wire, number: int) -> Callable[[], None]:
    """Produce messages of 100 bytes, 64 in one go."""
    return _flood(wire, b"x" * 100, 64)


def _flood(wire: Wire, payload: bytes, count: int) -> Callable[[], None]:
    one = frame(Command.PRODUCE, {"log_id": "flood", "payload": payload, "metadata": None})

    def once() -> None:
        wire.ask_all([one] * count)

    return once


def fetches(wire: Wire, number: int) -> Callable[[], None]:
    """Fetch 20 records of 1 MB."""
    topic = f"large-{number}"
    for _ in range(20):
        wire.ask(encode_request(Produce(topic, None, os.urandom(1_000_000))))
    request = encode_request(Fetch(topic, 0, 0, 20, sdk=True))
    return lambda: _check_size(wire.ask(request), 20_000_000)


def filtered_fetches(wire: Wire, number: int) -> Callable[[], None]:
    """Fetch from 100,000 records with a filter that no record passes."""
    topic = f"filtered-{number}"
    one = encode_request(Produce(topic, None, b"x" * 100))
    for _ in range(100):
        wire.ask_all([one] * 1000)
    request = encode_request(Fetch(topic, 0, 0, 100_000, filter="no such text", sdk=True))
    return lambda: _check_size(wire.ask(request), 1)


def acquires(wire: Wire, number: int) -> Callable[[], None]:
    """Lease 64 messages in each of 400 new groups, sent in one go."""
    name = {"log_id": f"grouped-{number}"}
    _check(wire.ask(frame(Command.PRODUCE_BATCH, {**name, "messages": [{"payload": b"x"}] * 64})))
    rounds: Iterator[int] = count()

    def once() -> None:
        turn, lease = next(rounds), {**name, "client_id": "c", "duration": 3600.0, "max": 64}
        requests = [
            frame(Command.ACQUIRE_BATCH, {**lease, "group_id": f"{turn}-{group}"})
            for group in range(400)
        ]
        for answer in wire.ask_all(requests):
            _check(answer)

    return once


def new_groups(wire: Wire, number: int) -> Callable[[], None]:
    """Lease a message in each of 100 new groups of a topic with many partitions, in one go."""
    rounds: Iterator[int] = count()
    lease = {"log_id": WIDE, "client_id": "c", "duration": 3600.0}

    def once() -> None:
        turn = next(rounds)
        requests = [
            frame(Command.ACQUIRE_NEXT, {**lease, "group_id": f"{number}-{turn}-{group}"})
            for group in range(100)
        ]
        for answer in wire.ask_all(requests):
            _check(answer)

    return once


def refused_bodies(wire: Wire, number: int) -> Callable[[], None]:
    """Post bodies of 11 MB to the admin API that have too many values."""
    body = b'{"records":[%s]}' % b",".join([b'{"value":1}'] * 900_000)
    return lambda: _check_status(wire.ask_admin(f"/api/v1/topics/api-{number}/records", body), 413)


def api_records(wire: Wire, number: int) -> Callable[[], None]:
    """Produce 10,000 records of 1,500 bytes over the admin API, in one request."""
    record = json.dumps({"value": "x" * 1500}).encode()
    body = b'{"records":[%s]}' % b",".join([record] * BATCH)
    return lambda: _check_status(wire.ask_admin(f"/api/v1/topics/api-{number}/records", body), 200)


def _check_status(status: int, expected: int) -> None:
    if status != expected:
        raise BrokerFailed(f"the admin API answered {status}, not {expected}")


def _check_size(answer: bytes, least: int) -> None:
    if len(answer) < least:
        raise BrokerFailed(f"an answer of {least} bytes or more has {len(answer)}")


def _check(answer: bytes) -> None:
    found = msgpack.unpackb(answer)
    if "error" in found:
        raise BrokerFailed(f"a request was refused: {found['error']}")


@dataclass(frozen=True)
class Case:
    """Heavy requests of one kind over several connections."""

    name: str
    attack: Attack
    connections: int = 8
    wire_format: str = "mamamia"
    topics: int = 0
    partitions: int = 0
    """Partitions of the topic `WIDE`, each with a record."""


CASES = {
    case.name: case
    for case in (
        Case("idle", nothing, 1),
        Case("maps", empty_maps),
        Case("delayed", delayed_batches),
        Case("batches", batches),
        Case("leases", leases),
        Case("transactions", transactions, 4, "flymq"),
        Case("records", small_transactions, 4, "flymq"),
        Case("topics", topic_lists, 8, "flymq", TOPICS),
        Case("flood", small_produces),
        Case("windows", windows, 16),
        Case("fetches", fetches, 4, "flymq"),
        Case("filters", filtered_fetches, 4, "flymq"),
        Case("acquires", acquires, 4),
        Case("groups", new_groups, 4, partitions=1_000),
        Case("refused", refused_bodies, 2, "admin"),
        Case("api", api_records, 2, "admin"),
    )
}


def attack(case: Case, address: str) -> int:
    """Send the heavy requests of a case until the parent ends this process."""
    print("ready", flush=True)

    def run(number: int) -> None:
        wire = Wire(address, case.wire_format)
        once = case.attack(wire, number)
        while True:
            once()
            print("done", flush=True)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(case.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1


# -- The measure -----------------------------------------------------------------------------------


@dataclass
class Found:
    """The figures of one case."""

    case: str
    produces: int
    heavy_requests: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    processor_p99_ms: float
    processor_longest_ms: float
    """Most processor time of the reactor's thread between a request and its answer."""
    memory_mb: float
    """Resident memory at its peak."""


def measure(case: Case, directory: Path, seconds: float) -> Found:
    """Run one case in a broker of its own and return its figures.

    :raises BrokerFailed: the broker or the heavy requests fail.
    """
    log = directory / f"{case.name}.log"
    with BrokerProcess(
        directory / case.name, log, formats=("mamamia", "flymq"), settings=()
    ) as broker:
        broker.start()
        wire = Wire(broker.address, "mamamia")
        small = frame(Command.PRODUCE, {"log_id": "small", "payload": b"small", "metadata": None})
        _check(wire.ask(small))
        if case.topics:
            with FlymqClient(broker.address_of("flymq"), timeout=_TIMEOUT_SECONDS) as client:
                for number in range(case.topics):
                    client.create_topic(f"topic-{number:05}")
        if case.partitions:
            with FlymqClient(broker.address_of("flymq"), timeout=_TIMEOUT_SECONDS) as client:
                client.create_topic(WIDE, case.partitions)
            for index in range(case.partitions):
                _check(
                    wire.ask(
                        frame(
                            Command.PRODUCE,
                            {
                                "log_id": WIDE,
                                "payload": b"x",
                                "metadata": None,
                                "partition": index,
                            },
                        )
                    )
                )
        command = [sys.executable, "-m", "benchmarks.neighbours", "--attack", case.name]
        with subprocess.Popen(
            [*command, broker.address_of(case.wire_format)],
            stdout=subprocess.PIPE,
            pipesize=_PIPE_BYTES,
            preexec_fn=die_with_parent,
        ) as heavy:
            try:
                assert heavy.stdout is not None
                begun = time.monotonic()
                for _ in range(1 if case.name == "idle" else 2):
                    heavy.stdout.readline()
                    if heavy.poll() is not None or time.monotonic() - begun > _READY_SECONDS:
                        raise BrokerFailed(f"{case.name}: the heavy requests ended")
                times = _small_produces(broker, wire, small, seconds)
            finally:
                heavy.kill()
            done = heavy.stdout.read().count(b"done")
        latencies = sorted(one[0] for one in times)
        processor = sorted(one[1] for one in times)
        return Found(
            case.name,
            len(times),
            done,
            round(statistics.median(latencies), 2),
            round(latencies[len(times) * 99 // 100], 2),
            round(latencies[-1], 1),
            round(processor[len(times) * 99 // 100], 2),
            round(processor[-1], 1),
            round(broker.memory_bytes("VmHWM") / 1e6, 0),
        )


def _small_produces(
    broker: BrokerProcess, wire: Wire, small: bytes, seconds: float
) -> list[tuple[float, float]]:
    """Produce for ``seconds``, at least once.

    :return: (latency, processor time) of each produce in ms.
    """
    clock = Path(f"/proc/{broker.pid}/task/{broker.pid}/schedstat")

    def busy_ms() -> float:
        return int(clock.read_text().split()[0]) / 1e6

    times = []
    end = time.monotonic() + seconds
    while not times or time.monotonic() < end:
        busy, begun = busy_ms(), time.monotonic()
        _check(wire.ask(small))
        times.append(((time.monotonic() - begun) * 1000, busy_ms() - busy))
        time.sleep(_PAUSE_SECONDS)
    return times


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbours")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="a case (default: 8)")
    parser.add_argument("--only", action="append", choices=CASES, help="one case; repeatable")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--attack", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.attack is not None:
        with suppress(ConnectionError, BrokenPipeError):
            return attack(CASES[options.attack[0]], options.attack[1])
        return 1
    interrupt_on_signals()
    out = sys.stderr if options.json else sys.stdout
    found = []
    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name:
            machine = describe(Path(name))
            print(machine.text(), file=out, flush=True)
            for case in options.only or CASES:
                one = measure(CASES[case], Path(name), options.seconds)
                found.append(one)
                print(
                    f"  {one.case:<13} {one.produces:>6} small, {one.heavy_requests:>5} heavy; "
                    f"latency p50 {one.p50_ms:.2f} p99 {one.p99_ms:.2f} longest "
                    f"{one.longest_ms:.1f} ms; processor p99 {one.processor_p99_ms:.2f} longest "
                    f"{one.processor_longest_ms:.1f} ms; {one.memory_mb:.0f} MB",
                    file=out,
                    flush=True,
                )
            if options.json:
                cases = [asdict(one) for one in found]
                print(json.dumps({"machine": asdict(machine), "cases": cases}))
    except (BrokerFailed, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
