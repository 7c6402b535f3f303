"""Stand-ins for RustLog's programs: ping, producer, consumer, simple and metrics client, admin.

They speak the binary dialect, as all of its programs do. Each request is one write. Each answer is
read as four bytes of length and then as many bytes, one request at a time on one connection. A
program prints its results and returns its exit code. The originals always dial 127.0.0.1:9092.

Manual use: ``python -m tests.reference.rustlog --address 127.0.0.1:9092 consumer --group g``.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from tests.reference.sockets import host_and_port, read_exact

DEFAULT_ADDRESS = "127.0.0.1:9092"
FRAME_BYTES_MAX = 10_485_760
FETCH_BYTES = 1 << 20

PRODUCE, FETCH, OFFSET_COMMIT, OFFSET_FETCH, CREATE_TOPIC = range(1, 6)
LIST_TOPICS, DESCRIBE_TOPIC, DESCRIBE_PARTITION, METRICS_FETCH = range(6, 10)
ERROR, PING = 0xFE, 0xFF


class Refused(Exception):
    """An error answer; the programs print its code and text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"error {code}: {text}")
        self.code = code
        self.text = text


class InvalidAnswer(Exception):
    """The program cannot read an answer."""


class Fetched(NamedTuple):
    """A fetch answer, which has no offsets of its own: record i is at start + i."""

    records: list[bytes]
    next_offset: int


class Answer:
    """Reads the fields of an answer in order."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._position = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes unchanged."""
        taken = self._payload[self._position : self._position + count]
        if len(taken) < count:
            raise InvalidAnswer(f"{count} bytes wanted, {len(taken)} left")
        self._position += count
        return taken

    def number(self, form: str) -> int:
        """Return the next number, in a format of ``struct``."""
        value: int = struct.unpack(f">{form}", self.take(struct.calcsize(form)))[0]
        return value

    def text(self) -> str:
        """Return the next string after its u16 length."""
        return self.take(self.number("H")).decode()


def text(value: str) -> bytes:
    """Encode a string after its u16 length."""
    data = value.encode()
    return struct.pack(">H", len(data)) + data


class Connection:
    """One TCP connection, with Nagle's algorithm on and no time-out, as in the originals."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_connection(host_and_port(address))

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def call(self, request_type: int, fields: bytes = b"") -> Answer:
        """Send a request in one write and return its answer.

        :raises Refused: for an error answer.
        :raises InvalidAnswer: for an answer of another type, or a length outside the limits.
        """
        payload = bytes([request_type]) + fields
        self._socket.sendall(struct.pack(">I", len(payload)) + payload)
        (length,) = struct.unpack(">I", read_exact(self._socket, 4))
        if not 1 <= length <= FRAME_BYTES_MAX:
            raise InvalidAnswer(f"frame of {length} bytes")
        answer = Answer(read_exact(self._socket, length))
        answer_type = answer.number("B")
        if answer_type == ERROR:
            raise Refused(answer.number("H"), answer.text())
        if answer_type != request_type:
            raise InvalidAnswer(f"answer of type {answer_type:#04x} to {request_type:#04x}")
        return answer

    def produce(self, topic: str, partition: int, records: Sequence[bytes]) -> tuple[int, int]:
        """Produce a batch; return its base offset and count."""
        body = b"".join(struct.pack(">I", len(record)) + record for record in records)
        fields = text(topic) + struct.pack(">II", partition, len(records)) + body
        answer = self.call(PRODUCE, fields)
        return answer.number("Q"), answer.number("I")

    def fetch(self, group: str, topic: str, partition: int, offset: int) -> Fetched:
        """Return records from an offset; an empty group means none."""
        where = struct.pack(">IQI", partition, offset, FETCH_BYTES)
        answer = self.call(FETCH, text(group) + text(topic) + where)
        records = [answer.take(answer.number("I")) for _ in range(answer.number("I"))]
        return Fetched(records, answer.number("Q"))

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """Return the offset that a group committed."""
        fields = text(group) + text(topic) + struct.pack(">I", partition)
        answer = self.call(OFFSET_FETCH, fields)
        return answer.number("Q") if answer.number("B") == 1 else None

    def commit(self, group: str, topic: str, partition: int, offset: int) -> bool:
        """Commit an offset; return whether it was stored."""
        fields = text(group) + text(topic) + struct.pack(">IQ", partition, offset)
        return self.call(OFFSET_COMMIT, fields).number("B") == 1


def ping(address: str) -> int:
    """Run the ping program: ask for a Pong."""
    with Connection(address) as connection:
        connection.call(PING)
    print("Pong")
    return 0


def producer(address: str) -> int:
    """Run the producer: three records to partition 0 of ``demo``, which must exist."""
    with Connection(address) as connection:
        try:
            base, count = connection.produce("demo", 0, [b"hello", b"from", b"rustlog"])
        except Refused as refusal:
            print(refusal)
            return 1
    print(f"produced {count} records at offset {base}")
    return 0


def consumer(address: str, group: str | None = None) -> int:
    """Run the consumer: read partition 0 of ``demo``, or a group's new records, and commit them."""
    with Connection(address) as connection:
        try:
            start = 0
            if group is not None:
                start = connection.committed(group, "demo", 0) or 0
            fetched = connection.fetch(group or "", "demo", 0, start)
            for number, record in enumerate(fetched.records):
                print(f"{start + number}: {record.decode(errors='replace')}")
            if group is not None:
                stored = connection.commit(group, "demo", 0, fetched.next_offset)
                print(f"committed {fetched.next_offset}" if stored else "not committed")
        except Refused as refusal:
            print(refusal)
            return 1
    return 0


def simple_client(address: str) -> int:
    """Run the simple client: ping, three records to ``events``, fetch; go on after errors."""
    with Connection(address) as connection:
        steps: list[Callable[[], object]] = [
            lambda: connection.call(PING) and "Pong",
            lambda: connection.produce("events", 0, [b"event-1", b"event-2", b"event-3"]),
            lambda: connection.fetch("", "events", 0, 0).records,
        ]
        for step in steps:
            try:
                print(step())
            except Refused as refusal:
                print(refusal)
    return 0


def metrics_client(address: str) -> int:
    """Run the metrics client: print the text after a u32 length."""
    with Connection(address) as connection:
        answer = connection.call(METRICS_FETCH)
        print(answer.take(answer.number("I")).decode())
    return 0


def _create_topic(connection: Connection, arguments: argparse.Namespace) -> object:
    fields = text(arguments.name) + struct.pack(">I", arguments.partitions)
    created = connection.call(CREATE_TOPIC, fields).number("B") == 1
    return {"partitions": arguments.partitions, "success": created, "topic": arguments.name}


def _list_topics(connection: Connection, _: argparse.Namespace) -> object:
    answer = connection.call(LIST_TOPICS)
    return [
        {"name": answer.text(), "partitions": answer.number("I")} for _ in range(answer.number("I"))
    ]


def _describe_topic(connection: Connection, arguments: argparse.Namespace) -> object:
    answer = connection.call(DESCRIBE_TOPIC, text(arguments.name))
    described: dict[str, Any] = {"topic": answer.text(), "partition_count": answer.number("I")}
    described["partitions"] = [
        {"partition": answer.number("I"), "high_watermark": answer.number("Q")}
        for _ in range(answer.number("I"))
    ]
    return described


def _describe_partition(connection: Connection, arguments: argparse.Namespace) -> object:
    fields = text(arguments.name) + struct.pack(">I", arguments.partition)
    answer = connection.call(DESCRIBE_PARTITION, fields)
    return {
        "topic": answer.text(),
        "partition": answer.number("I"),
        "high_watermark": answer.number("Q"),
    }


def admin(address: str, arguments: Sequence[str]) -> int:
    """Run the admin program: one request on a connection of its own, JSON with sorted members."""
    parser = argparse.ArgumentParser(prog="admin")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("create-topic")
    command.add_argument("name")
    command.add_argument("--partitions", type=int, required=True)
    command.set_defaults(run=_create_topic)
    commands.add_parser("list-topics").set_defaults(run=_list_topics)
    command = commands.add_parser("describe-topic")
    command.add_argument("name")
    command.set_defaults(run=_describe_topic)
    command = commands.add_parser("describe-partition")
    command.add_argument("name")
    command.add_argument("partition", type=int)
    command.set_defaults(run=_describe_partition)
    chosen = parser.parse_args(arguments)
    with Connection(address) as connection:
        try:
            print(json.dumps(chosen.run(connection, chosen), sort_keys=True))
        except Refused as refusal:
            print(refusal, file=sys.stderr)
            return 1
    return 0


PROGRAMS: dict[str, Callable[[str], int]] = {
    "ping": ping,
    "producer": producer,
    "simple-client": simple_client,
    "metrics-client": metrics_client,
}


def main(arguments: Sequence[str]) -> int:
    """Run one of the programs and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference.rustlog")
    parser.add_argument("--address", default=DEFAULT_ADDRESS)
    parser.add_argument("program", choices=[*PROGRAMS, "consumer", "admin"])
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    if chosen.program == "admin":
        return admin(chosen.address, chosen.rest)
    if chosen.program == "consumer":
        consumer_parser = argparse.ArgumentParser(prog="consumer")
        consumer_parser.add_argument("--group")
        return consumer(chosen.address, consumer_parser.parse_args(chosen.rest).group)
    return PROGRAMS[chosen.program](chosen.address)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
