"""Stand-ins for MEGA's clients: the message client with its three scripts, the concurrency test.

Both send a request with one ``sendall``. The message client takes the bytes of **one** ``recv`` of
at most 4,096 bytes for the answer. The concurrency test's client asks for 13 bytes, then for the
remaining ones, each with one ``recv``; an error answer, of 6 bytes, raises an exception in it.
Neither has a time-out. Requests are in the dialect that ends CREATE and CONSUME with a payload
length of 0.

Manual use: ``python -m tests.reference.mega --address localhost:8080 create orders`` (or
``produce``, ``consume``, ``concurrency``).
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from tests.reference.sockets import host_and_port

DEFAULT_ADDRESS = "localhost:8080"
PRODUCE, CONSUME, CREATE_TOPIC = 1, 2, 3
RECEIVE_BYTES = 4096
PRODUCERS, MESSAGES_EACH, CONSUMER_SECONDS = 2, 3, 5.0
TEST_TOPIC = "test-topic"


class ErrorCode(IntEnum):
    """The codes that the message client knows; any other is a ValueError in it."""

    INVALID_REQUEST = 1
    INVALID_MESSAGE_TYPE = 2
    MESSAGE_TOO_LARGE = 3
    TOPIC_NOT_FOUND = 4
    TOPIC_ALREADY_EXISTS = 5
    INVALID_OFFSET = 6
    INTERNAL_ERROR = 7
    NETWORK_ERROR = 8
    RESOURCE_EXHAUSTED = 9


def connect(address: str) -> socket.socket:
    """Connect over IPv4 only, blocking, without options."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.connect(host_and_port(address))
    return connection


def header(correlation_id: int, kind: int, topic: str) -> bytes:
    """Return the begin of every request; the time is now, in Unix milliseconds."""
    name = topic.encode()
    return (
        struct.pack(">iBi", correlation_id, kind, len(name))
        + name
        + struct.pack(">q", int(time.time() * 1000))
    )


class Response(NamedTuple):
    """An answer as the message client reads it; missing fields are None."""

    correlation_id: int
    error: ErrorCode | None = None
    topic: str | None = None
    offset: int | None = None
    next_offset: int | None = None
    payload: str | None = None
    timestamp: int | None = None


class MessageClient:
    """The message client; its correlation id is 1 unless the caller gives another."""

    def __init__(self, address: str) -> None:
        self._socket = connect(address)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def create_topic(self, topic: str, correlation_id: int = 1) -> Response:
        """Create a topic. The name in the answer follows its two length bytes."""
        request = header(correlation_id, CREATE_TOPIC, topic) + struct.pack(">i", 0)
        response, rest = self._call(request)
        return response if response.error else response._replace(topic=rest.decode("utf-8"))

    def produce(self, topic: str, text: str, correlation_id: int = 1) -> Response:
        """Append a message."""
        payload = text.encode("utf-8")
        request = header(correlation_id, PRODUCE, topic) + struct.pack(">i", len(payload)) + payload
        response, rest = self._call(request)
        if response.error:
            return response
        return response._replace(offset=struct.unpack(">i", rest[:4])[0])

    def consume(self, topic: str, offset: int, correlation_id: int = 1) -> Response:
        """Read the message at an offset. Bytes after the first receive are missing, silently."""
        request = header(correlation_id, CONSUME, topic) + struct.pack(">ii", offset, 0)
        response, rest = self._call(request)
        if response.error:
            return response
        next_offset, length = struct.unpack(">ii", rest[:8])
        payload = rest[8 : 8 + length].decode("utf-8")
        return response._replace(next_offset=next_offset, payload=payload)

    def _call(self, request: bytes) -> tuple[Response, bytes]:
        """Return the common part of an answer, and the other bytes of the first receive."""
        self._socket.sendall(request)
        data = self._socket.recv(RECEIVE_BYTES)
        correlation_id, success = struct.unpack(">i?", data[:5])
        if not success:
            return Response(correlation_id, error=ErrorCode(data[5])), b""
        (timestamp,) = struct.unpack(">q", data[5:13])
        return Response(correlation_id, timestamp=timestamp), data[13:]


def create_script(address: str, topic: str) -> Response:
    """Create one topic on a connection of its own."""
    return _once(address, lambda client: client.create_topic(topic))


def produce_script(address: str, topic: str, text: str) -> Response:
    """Produce one message on a connection of its own."""
    return _once(address, lambda client: client.produce(topic, text))


def consume_script(address: str, topic: str, offset: int) -> Response:
    """Consume one message; without the topic the outcome is TOPIC_NOT_FOUND."""
    return _once(address, lambda client: client.consume(topic, offset))


def _once(address: str, call: Callable[[MessageClient], Response]) -> Response:
    client = MessageClient(address)
    try:
        return call(client)
    finally:
        client.close()


class ConcurrentClient:
    """The class inside the concurrency test: ids 1, 2, 3, ...; reads without loops.

    An error answer makes any call raise ``struct.error``.
    """

    def __init__(self, address: str) -> None:
        self._socket = connect(address)
        self._correlation_id = 0

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def create_topic(self, topic: str) -> str:
        """Create a topic and return its name."""
        self._send(CREATE_TOPIC, topic, struct.pack(">i", 0))
        (length,) = struct.unpack(">H", self._socket.recv(2))
        return self._socket.recv(length).decode("utf-8")

    def produce(self, topic: str, payload: bytes) -> int:
        """Append a message and return its offset."""
        self._send(PRODUCE, topic, struct.pack(">i", len(payload)) + payload)
        (offset,) = struct.unpack(">i", self._socket.recv(4))
        return int(offset)

    def consume(self, topic: str, offset: int) -> tuple[int, bytes]:
        """Return next offset and payload."""
        self._send(CONSUME, topic, struct.pack(">ii", offset, 0))
        next_offset, length = struct.unpack(">ii", self._socket.recv(8))
        return next_offset, self._socket.recv(length)

    def _send(self, kind: int, topic: str, rest: bytes) -> None:
        self._correlation_id += 1
        self._socket.sendall(header(self._correlation_id, kind, topic) + rest)
        struct.unpack(">i?q", self._socket.recv(13))


class Outcome:
    """The output of the concurrency test."""

    def __init__(self) -> None:
        self.produced: dict[int, bytes] = {}
        self.consumed: list[str] = []
        self.errors: list[str] = []

    def lines(self) -> list[str]:
        """Return the lines that the user sees."""
        produced = [f"produced {data!r} at {at}" for at, data in sorted(self.produced.items())]
        return [*produced, *(f"consumed {text}" for text in self.consumed), *self.errors]


def concurrency_test(address: str, consumer_seconds: float = CONSUMER_SECONDS) -> Outcome:
    """Run two producers of three messages each and a consumer at once, on a new topic.

    :raises struct.error: the topic exists.
    """
    client = ConcurrentClient(address)
    try:
        client.create_topic(TEST_TOPIC)
    finally:
        client.close()
    outcome = Outcome()
    threads = [
        threading.Thread(target=_produce_some, args=(address, number, outcome))
        for number in range(PRODUCERS)
    ]
    threads.append(threading.Thread(target=consume_for, args=(address, consumer_seconds, outcome)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcome


def _produce_some(address: str, number: int, outcome: Outcome) -> None:
    client = ConcurrentClient(address)
    try:
        for message in range(MESSAGES_EACH):
            payload = f"Message {message} from producer {number}".encode()
            outcome.produced[client.produce(TEST_TOPIC, payload)] = payload
    except (struct.error, OSError) as error:
        outcome.errors.append(f"producer {number}: {error}")
    finally:
        client.close()


def consume_for(address: str, seconds: float, outcome: Outcome) -> None:
    """Consume from offset 0 until the time is up, or until an error answer."""
    client = ConcurrentClient(address)
    offset, end = 0, time.time() + seconds
    try:
        while time.time() < end:
            offset, payload = client.consume(TEST_TOPIC, offset)
            outcome.consumed.append(payload.decode("utf-8"))
    except (struct.error, OSError) as error:
        outcome.errors.append(f"consumer: {error}")
    finally:
        client.close()


def main(arguments: Sequence[str]) -> int:
    """Run one of the scripts and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference.mega")
    parser.add_argument("--address", default=DEFAULT_ADDRESS)
    scripts = parser.add_subparsers(dest="script", required=True)
    for name in ("create", "produce", "consume"):
        scripts.add_parser(name).add_argument("topic")
    scripts.choices["produce"].add_argument("text")
    scripts.choices["consume"].add_argument("offset", type=int)
    scripts.add_parser("concurrency")
    chosen = parser.parse_args(arguments)
    if chosen.script == "create":
        print(create_script(chosen.address, chosen.topic))
    elif chosen.script == "produce":
        print(produce_script(chosen.address, chosen.topic, chosen.text))
    elif chosen.script == "consume":
        print(consume_script(chosen.address, chosen.topic, chosen.offset))
    else:
        print("\n".join(concurrency_test(chosen.address).lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
