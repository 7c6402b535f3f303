"""Stand-in for FlyMQ's Go client: bootstrap servers, retries, its high-level consumer.

Header and payload are two writes, Nagle's algorithm is off, and the wait for an answer has no
limit. After a failure without an ERROR frame the client makes up to three attempts in all, each on
a new connection to the next bootstrap server. After an ERROR with ``not leader`` it goes to the
address after ``leader_addr=``, or after 0.5 s to the next server.

Manual use: ``python -m tests.reference.flymq_go --servers 127.0.0.1:9092 TOPIC`` prints a topic.
"""

from __future__ import annotations

import argparse
import gzip
import re
import socket
import struct
import sys
import time
from collections.abc import Sequence

from tests.reference import flymq
from tests.reference.flymq import Fields, PartitionInfo, Record, RecordMetadata
from tests.reference.sockets import Closed, host_and_port, read_exact

CONNECT_SECONDS = 10.0
TRIES = 3
NOT_LEADER_SECONDS = 0.5
FETCH_RECORDS = 100


_ANSWERED_BY = {flymq.AUTH: flymq.AUTH_RESPONSE, flymq.WHOAMI: flymq.WHOAMI}
"""The opcodes of the answers whose opcode the client checks."""


class EmptyMetadata(Exception):
    """CLUSTER_METADATA has no topics; the client takes that for a broken connection."""


def error_text(payload: bytes) -> str:
    """Return the text after a u32 and a u16 if that fits, else the whole payload."""
    if len(payload) >= 6:
        (length,) = struct.unpack(">H", payload[4:6])
        if 6 + length <= len(payload):
            return payload[6 : 6 + length].decode("utf-8", "replace")
    return payload.decode("utf-8", "replace")


class GoClient:
    """The client; connects to the first reachable bootstrap server."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)
        self._next_server = 0
        self._socket: socket.socket | None = None
        self._connect()

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def call(self, opcode: int, payload: bytes, flags: int = flymq.FLAG_BINARY) -> bytes:
        """Send one request, with the module's retries; return the payload of its answer.

        :raises ServerError: for an ERROR frame, with its text after ``server error: ``.
        """
        for tries_left in reversed(range(TRIES)):
            try:
                return self._exchange(opcode, payload, flags)
            except flymq.NotLeaderError as error:
                if not tries_left:
                    raise
                self._follow(str(error))
            except (OSError, Closed, flymq.ProtocolError):
                if not tries_left:
                    raise
                self._connect()
        raise AssertionError("unreachable")

    def _connect(self, first: str | None = None) -> None:
        self.close()
        servers = [] if first is None else [first]
        for _ in self._servers:
            servers.append(self._servers[self._next_server % len(self._servers)])
            self._next_server += 1
        for server in servers:
            try:
                connection = socket.create_connection(host_and_port(server), CONNECT_SECONDS)
            except OSError:
                continue
            connection.settimeout(socket.getdefaulttimeout())
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connection
            return
        raise ConnectionError(f"none of {servers} answers")

    def _follow(self, message: str) -> None:
        leader = re.search(r"leader_addr=(\S+)", message)
        if leader is None:
            time.sleep(NOT_LEADER_SECONDS)
        self._connect(leader and leader[1])

    def _exchange(self, opcode: int, payload: bytes, flags: int) -> bytes:
        if self._socket is None:
            raise Closed("not connected")
        self._socket.sendall(flymq.header(opcode, len(payload), flags))
        self._socket.sendall(payload)
        head = read_exact(self._socket, flymq.HEADER_BYTES)
        magic, version, answered, _, length = struct.unpack(">BBBBI", head)
        if answered not in (_ANSWERED_BY.get(opcode, answered), flymq.ERROR):
            raise flymq.ProtocolError(f"{opcode:#x} was answered with {answered:#x}")
        if (magic, version) != (flymq.MAGIC, flymq.VERSION) or length > flymq.PAYLOAD_BYTES_MAX:
            raise flymq.ProtocolError(f"header {head.hex()}")
        answer = read_exact(self._socket, length)
        if answered == flymq.ERROR:
            message = error_text(answer)
            if "not leader" in message:
                raise flymq.NotLeaderError(message)
            raise flymq.ServerError(f"server error: {message}")
        return answer

    def authenticate(self, user: str, password: str) -> None:
        """Send AUTH, as the client does after connecting with a user.

        :raises AuthenticationError: the login was refused.
        """
        answer = flymq.login(self.call(flymq.AUTH, flymq.text(user) + flymq.text(password)))
        if not answer.success:
            raise flymq.AuthenticationError(f"authentication failed: {answer.error}")

    def whoami(self) -> flymq.Login:
        """Send WHOAMI and read the answer like one to AUTH."""
        return flymq.login(self.call(flymq.WHOAMI, b""))

    def create_topic(self, topic: str, partitions: int) -> None:
        """Send CREATE_TOPIC."""
        self.call(flymq.CREATE_TOPIC, flymq.text(topic) + struct.pack(">i", partitions))

    def list_topics(self) -> list[str]:
        """Send LIST_TOPICS."""
        return Fields(self.call(flymq.LIST_TOPICS, b"")).texts()

    def produce(
        self,
        topic: str,
        value: bytes,
        key: bytes = b"",
        partition: int = -1,
        compression: str = "",
    ) -> RecordMetadata:
        """Send PRODUCE. Compression is gzip of the payload; any other name means none, silently."""
        request = flymq.produce_request(topic, value, key, max(partition, -1))
        if compression != "gzip":
            return flymq.record_metadata(self.call(flymq.PRODUCE, request))
        flags = flymq.FLAG_BINARY | flymq.FLAG_GZIP
        return flymq.record_metadata(self.call(flymq.PRODUCE, gzip.compress(request), flags))

    def consume(
        self, topic: str, partition: int, offset: int, opcode: int = flymq.CONSUME
    ) -> tuple[bytes, bytes]:
        """Send CONSUME or CONSUME_ZERO_COPY; return key and value."""
        request = flymq.text(topic) + struct.pack(">iQ", partition, offset)
        return flymq.key_and_value(self.call(opcode, request))

    def fetch(
        self, topic: str, partition: int, offset: int, most: int, opcode: int = flymq.FETCH
    ) -> tuple[list[Record], int]:
        """Send FETCH or FETCH_BINARY; return records and the next offset."""
        request = flymq.fetch_request(topic, partition, offset, most, "")
        return flymq.fetched(self.call(opcode, request))

    def metadata(self, topic: str) -> tuple[str, list[tuple[int, ...]]]:
        """Send METADATA; return id, leader, oldest and newest offset of each partition."""
        fields = Fields(self.call(flymq.METADATA, flymq.text(topic)))
        name, count = fields.text(), fields.number("I")
        return name, [struct.unpack(">iiQQ", fields.take(24)) for _ in range(count)]

    def subscribe(self, topic: str, group: str, partition: int, mode: str) -> int:
        """Send SUBSCRIBE; return the first offset to read."""
        request = flymq.subscribe_request(topic, group, partition, mode)
        return Fields(self.call(flymq.SUBSCRIBE, request)).number("Q")

    def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Send COMMIT."""
        where = flymq.text(topic) + flymq.text(group) + struct.pack(">iQ", partition, offset)
        self.call(flymq.COMMIT, where)

    def cluster_metadata(self, topic: str) -> dict[str, list[PartitionInfo]]:
        """Send CLUSTER_METADATA.

        :raises EmptyMetadata: after three answers without a topic.
        """
        for _ in range(TRIES):
            answer = self.call(flymq.CLUSTER_METADATA, flymq.text(topic))
            described = flymq.cluster_metadata(answer)
            if described:
                return described
            self._connect()
        raise EmptyMetadata(topic)


class GoConsumer:
    """The high-level consumer: reads all partitions of its topics, commits the group's offsets."""

    def __init__(
        self, client: GoClient, group: str, topics: Sequence[str], mode: str = "latest"
    ) -> None:
        self._client = client
        self._group = group
        self.positions: dict[tuple[str, int], int] = {}
        existing = client.list_topics()
        for topic in topics:
            if topic in existing:
                for partition in self._partitions(topic):
                    where = (topic, group, partition, mode)
                    self.positions[topic, partition] = client.subscribe(*where)

    def _partitions(self, topic: str) -> list[int]:
        try:
            return [info.partition for info in self._client.cluster_metadata(topic)[topic]]
        except (flymq.ServerError, EmptyMetadata):
            return [0]

    def poll(self) -> list[tuple[str, int, Record]]:
        """Send one FETCH for each partition; the next offset counts even without records."""
        received = []
        for (topic, partition), offset in list(self.positions.items()):
            records, next_offset = self._client.fetch(topic, partition, offset, FETCH_RECORDS)
            received += [(topic, partition, record) for record in records]
            self.positions[topic, partition] = next_offset
        return received

    def commit(self) -> None:
        """Send one COMMIT for each partition."""
        for (topic, partition), offset in self.positions.items():
            self._client.commit(topic, self._group, partition, offset)


def main(arguments: Sequence[str]) -> int:
    """Print the records of a topic and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference.flymq_go")
    parser.add_argument("--servers", default=flymq.DEFAULT_ADDRESS, help="comma-separated")
    parser.add_argument("--group", default="go")
    parser.add_argument("topic")
    chosen = parser.parse_args(arguments)
    client = GoClient(chosen.servers.split(","))
    consumer = GoConsumer(client, chosen.group, [chosen.topic], "earliest")
    while received := consumer.poll():
        for topic, partition, record in received:
            print(topic, partition, record, flush=True)
    consumer.commit()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
