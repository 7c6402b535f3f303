"""Stand-ins for BlipMQ's clients: bench publisher and subscriber, matrix harness, two samples.

All leave Nagle's algorithm on and write each frame by itself, so that ACK and POLL are two small
segments. All begin with HELLO (correlation id 1) and AUTH (2) and wait for the answers. Of these
they check only the frame type. Further frames count on from 3; an ACK carries the delivery tag
instead. The bench publisher never reads after that and drops its connection. The bench subscriber
has one POLL pending at a time and waits 50 ms for a frame. After a frame other than PUBLISH it
sleeps 5 ms. It ends when all subscribers together have ``count`` messages each. The original has no
other end; ``seconds_max`` adds one here. The samples wait for ever.

Manual use, the subscriber first: ``python -m tests.reference.blipmq subscriber --addr
127.0.0.1:5555 --count 1000 --qos 1`` (or ``publisher``, ``matrix``, ``test-client``, ``sample``).
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from tests.reference.sockets import Closed, host_and_port

DEFAULT_ADDRESS = "127.0.0.1:5555"
BENCH_KEY, BENCH_SUBJECT = "bench-key", "bench"
FRAME_BYTES_MAX = 16 * 1024 * 1024
READ_SECONDS, BACK_OFF_SECONDS, PAUSE_SECONDS = 0.050, 0.005, 0.5
SIZES, PARALLEL, QOS = (100, 1024, 4096), (1, 4, 16), (0, 1)

HELLO, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL = range(1, 10)


class Panic(Exception):
    """An answer of the wrong type, or against a sample's expectation; it ends the client."""


class Frame(NamedTuple):
    """One frame, in either direction."""

    kind: int
    correlation_id: int
    payload: bytes


class Message(NamedTuple):
    """The message in a PUBLISH frame."""

    qos: int
    topic: str
    body: bytes


def message_of(frame: Frame) -> Message:
    """Decode the payload of a PUBLISH."""
    qos, length = struct.unpack(">BH", frame.payload[:3])
    return Message(qos, frame.payload[3 : 3 + length].decode(), frame.payload[3 + length :])


class Connection:
    """A connection after HELLO and AUTH, in that order, each answered by an ACK."""

    def __init__(self, address: str, api_key: str) -> None:
        self._socket = socket.create_connection(host_and_port(address))
        self._patience = self._socket.gettimeout()
        self._buffer = b""
        self._correlation_id = 0
        self.hello = self._answered(HELLO, struct.pack(">H", 1))
        key = api_key.encode()
        self._answered(AUTH, struct.pack(">H", len(key)) + key)

    def close(self) -> None:
        """Drop the connection, even with unread bytes."""
        self._socket.close()

    def send(self, kind: int, payload: bytes, correlation_id: int | None = None) -> int:
        """Send one frame in one write; return its correlation id."""
        if correlation_id is None:
            self._correlation_id += 1
            correlation_id = self._correlation_id
        length = 9 + len(payload)
        self._socket.sendall(struct.pack(">IBQ", length, kind, correlation_id) + payload)
        return correlation_id

    def read(self, seconds: float | None = None) -> Frame:
        """Return the next frame; keep the bytes of an unfinished one.

        :raises TimeoutError: no whole frame came in ``seconds``.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            frame = self._whole_frame()
            if frame is not None:
                return frame
            if end is None:
                self._socket.settimeout(self._patience)
            else:
                self._socket.settimeout(max(end - time.monotonic(), 0.0001))
            chunk = self._socket.recv(65536)
            if not chunk:
                raise Closed("end of stream")
            self._buffer += chunk

    def publish(self, topic: str, qos: int, body: bytes) -> None:
        """Send a PUBLISH without waiting."""
        name = topic.encode()
        self.send(PUBLISH, struct.pack(">BH", qos, len(name)) + name + body)

    def subscribe(self, topic: str, qos: int) -> int:
        """Send a SUBSCRIBE and return the id in its ACK."""
        name = topic.encode()
        frame = self._answered(SUBSCRIBE, struct.pack(">H", len(name)) + name + bytes([qos]))
        (subscription,) = struct.unpack(">Q", frame.payload)
        if not subscription:
            raise Panic("subscription id 0")
        return int(subscription)

    def poll(self, subscription: int) -> int:
        """Send a POLL without waiting; return its correlation id."""
        return self.send(POLL, struct.pack(">Q", subscription))

    def ack(self, subscription: int, tag: int) -> None:
        """Send an ACK of a delivery without waiting."""
        self.send(ACK, struct.pack(">Q", subscription), tag)

    def _whole_frame(self) -> Frame | None:
        if len(self._buffer) < 4:
            return None
        (length,) = struct.unpack(">I", self._buffer[:4])
        if not 9 <= length <= FRAME_BYTES_MAX:
            raise Panic(f"frame of {length} bytes")
        if len(self._buffer) < 4 + length:
            return None
        data, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
        return Frame(data[0], int.from_bytes(data[1:9]), data[9:])

    def _answered(self, kind: int, payload: bytes) -> Frame:
        self.send(kind, payload)
        frame = self.read()
        if frame.kind != ACK:
            raise Panic(f"frame type {frame.kind} in answer to {kind}: {frame.payload!r}")
        return frame


class Case(NamedTuple):
    """One row of the matrix."""

    size: int = 100
    publishers: int = 1
    subscribers: int = 1
    qos: int = 1
    messages: int = 1000
    """Sum over all publishers."""


class Tally:
    """The sums over all subscribers of a case."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.lock = threading.Lock()
        self.received = 0
        self.timeouts = 0
        self.others: list[Frame] = []
        self.bodies: list[list[bytes]] = []
        self.waits: list[float] = []
        """Seconds from a POLL to its message."""
        self.seconds = 0.0

    def is_done(self) -> bool:
        """Return whether the subscribers end."""
        return self.received >= self.wanted


def bench_publisher(address: str, subject: str, case: Case, api_key: str = BENCH_KEY) -> float:
    """Run all publishers of a case; return the seconds until the last one disconnected."""
    shares = [case.messages // case.publishers] * case.publishers
    shares[0] += case.messages % case.publishers
    began = time.monotonic()
    threads = [
        threading.Thread(target=_publish, args=(address, subject, case, share, api_key))
        for share in shares
    ]
    _run(threads)
    return time.monotonic() - began


def _publish(address: str, subject: str, case: Case, count: int, api_key: str) -> None:
    connection = Connection(address, api_key)
    padding = bytes(case.size - 8)
    for _ in range(count):
        connection.publish(subject, case.qos, struct.pack("<Q", time.time_ns()) + padding)
    connection.close()


def bench_subscriber(
    address: str,
    subject: str,
    case: Case,
    api_key: str = BENCH_KEY,
    subscribed: threading.Semaphore | None = None,
    seconds_max: float | None = None,
) -> Tally:
    """Run all subscribers of a case until they have all messages; return the tally.

    :param subscribed: released once by each subscriber after its SUBSCRIBE.
    :param seconds_max: limit of the duration.
    """
    tally = Tally(case.messages * case.subscribers)
    end = None if seconds_max is None else time.monotonic() + seconds_max
    began = time.monotonic()
    threads = [
        threading.Thread(
            target=_consume, args=(address, subject, case, api_key, tally, subscribed, end)
        )
        for _ in range(case.subscribers)
    ]
    _run(threads)
    tally.seconds = time.monotonic() - began
    return tally


def _consume(
    address: str,
    subject: str,
    case: Case,
    api_key: str,
    tally: Tally,
    subscribed: threading.Semaphore | None,
    end: float | None,
) -> None:
    connection = Connection(address, api_key)
    subscription = connection.subscribe(subject, case.qos)
    bodies: list[bytes] = []
    tally.bodies.append(bodies)
    if subscribed is not None:
        subscribed.release()
    while not tally.is_done() and (end is None or time.monotonic() < end):
        asked = time.monotonic()
        connection.poll(subscription)
        try:
            frame = connection.read(READ_SECONDS)
        except TimeoutError:
            tally.timeouts += 1
            time.sleep(BACK_OFF_SECONDS)
            continue
        if frame.kind != PUBLISH:
            tally.others.append(frame)
            time.sleep(BACK_OFF_SECONDS)
            continue
        message = message_of(frame)
        bodies.append(message.body)
        with tally.lock:
            tally.received += 1
            tally.waits.append(time.monotonic() - asked)
        if message.qos == 1:
            connection.ack(subscription, frame.correlation_id)
    connection.close()


def matrix_case(address: str, subject: str, case: Case, seconds_max: float | None = None) -> Tally:
    """Run publishers and subscribers at once, as the harness does; return the tally."""
    tallies: list[Tally] = []
    publishing = threading.Thread(target=bench_publisher, args=(address, subject, case))

    def subscribe() -> None:
        tallies.append(bench_subscriber(address, subject, case, seconds_max=seconds_max))

    _run([publishing, threading.Thread(target=subscribe)])
    return tallies[0]


def round_trips(address: str, topic: str, bodies: Sequence[bytes]) -> list[Message]:
    """Run the test client: SUBSCRIBE, then for each body PUBLISH, POLL, read and ACK."""
    connection = Connection(address, "test-api-key")
    subscription = connection.subscribe(topic, 1)
    delivered = []
    for body in bodies:
        connection.publish(topic, 1, body)
        connection.poll(subscription)
        frame = connection.read()
        if frame.kind != PUBLISH:
            raise Panic(f"frame type {frame.kind} in answer to POLL")
        delivered.append(message_of(frame))
        connection.ack(subscription, frame.correlation_id)
    connection.close()
    return delivered


def sample(address: str, topic: str = "demo") -> Message:
    """Run the sample of the documents: one PUBLISH, one POLL, and a panic at any other answer."""
    connection = Connection(address, "dev-key")
    if connection.hello.payload != bytes(8):
        raise Panic("the ACK of HELLO names a subscription")
    subscription = connection.subscribe(topic, 1)
    connection.publish(topic, 1, b"hi")
    connection.poll(subscription)
    frame = connection.read()
    if frame.kind != PUBLISH:
        raise Panic(f"frame type {frame.kind} in answer to POLL: {frame.payload!r}")
    connection.ack(subscription, frame.correlation_id)
    connection.close()
    return message_of(frame)


def _run(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _report(case: Case, tally: Tally) -> dict[str, object]:
    waits = sorted(tally.waits) or [0.0]
    return {
        **case._asdict(),
        "received": tally.received,
        "wanted": tally.wanted,
        "seconds": round(tally.seconds, 3),
        "msgs_per_s": round(tally.received / tally.seconds) if tally.seconds else 0,
        "poll_p50_ms": round(waits[len(waits) // 2] * 1000, 2),
        "poll_p99_ms": round(waits[len(waits) * 99 // 100] * 1000, 2),
        "polls_timed_out": tally.timeouts,
        "other_frames": len(tally.others),
    }


def _matrix(chosen: argparse.Namespace) -> None:
    reports = []
    for size, publishers, subscribers, qos in product(SIZES, chosen.counts, chosen.counts, QOS):
        case = Case(size, publishers, subscribers, qos, chosen.messages)
        tally = matrix_case(chosen.addr, chosen.subject, case, chosen.seconds_max)
        reports.append(_report(case, tally))
        print(json.dumps(reports[-1]), flush=True)
        time.sleep(random.uniform(0, PAUSE_SECONDS))
    if chosen.results_dir is not None:
        (chosen.results_dir / "blipmq.json").write_text(json.dumps(reports, indent=2))


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.reference.blipmq")
    programs = parser.add_subparsers(dest="program", required=True)
    for name in ("publisher", "subscriber", "matrix", "test-client", "sample"):
        program = programs.add_parser(name)
        program.add_argument("--addr", "--address", default=DEFAULT_ADDRESS)
        program.add_argument("--api-key", default=BENCH_KEY)
        program.add_argument("--subject", default=BENCH_SUBJECT)
    for name in ("subscriber", "matrix"):
        programs.choices[name].add_argument("--seconds-max", type=float, help="not in the original")
    for name in ("publisher", "subscriber"):
        program = programs.choices[name]
        program.add_argument("--count", type=int, default=10_000)
        program.add_argument("--message-size", type=int, default=100)
        program.add_argument("--parallelism", type=int, default=1)
        program.add_argument("--qos", type=int, default=1)
    program = programs.choices["matrix"]
    program.add_argument("--broker", choices=["blipmq"], default="blipmq")
    program.add_argument("--messages", type=int, default=10_000)
    program.add_argument("--counts", type=int, nargs="+", default=PARALLEL)
    program.add_argument("--results-dir", type=Path)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one of the programs and return the exit code."""
    chosen = _arguments().parse_args(arguments)
    if chosen.program == "matrix":
        _matrix(chosen)
    elif chosen.program == "test-client":
        print(round_trips(chosen.addr, chosen.subject, [b"one", b"two"]))
    elif chosen.program == "sample":
        print(sample(chosen.addr))
    else:
        n, qos = chosen.parallelism, chosen.qos
        case = Case(chosen.message_size, n, n, qos, chosen.count)
        if chosen.program == "publisher":
            seconds = bench_publisher(chosen.addr, chosen.subject, case, chosen.api_key)
            print(json.dumps({**case._asdict(), "seconds": round(seconds, 3)}))
        else:
            tally = bench_subscriber(
                chosen.addr, chosen.subject, case, chosen.api_key, None, chosen.seconds_max
            )
            print(json.dumps(_report(case, tally)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
