"""Stand-in for pyflymq: FlyMQClient, producers, consumers and the consumer group.

Every call is one request and one answer under a lock, through buffered files that are new for each
call. The header and a payload over 8 KiB are two writes, and read-ahead is discarded. The connect
time-out, 10 s, stays on the socket as the read time-out. Of an answer's opcode only ``FF`` matters,
but an unknown opcode is a ``ValueError`` that leaves the payload unread. After a broken connection
the next call connects again.

Manual use: ``python -m tests.reference.pyflymq --address 127.0.0.1:9092 TOPIC`` tails a topic.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from tests.reference import flymq
from tests.reference.flymq import Fields, Lag, PartitionInfo, Record, RecordMetadata
from tests.reference.sockets import Closed, host_and_port

CONNECT_SECONDS, CONNECT_ROUNDS, ROUND_PAUSE_SECONDS = 10.0, 3, 1.0
POLL_RECORDS = 500
COMMIT_SECONDS = 5.0
SEND_TRIES = 3

KNOWN_OPCODES = {
    *range(0x01, 0x0A),
    *range(0x10, 0x16),
    *range(0x20, 0x23),
    *(0x30, 0x31, 0x35),
    *range(0x40, 0x44),
    *range(0x50, 0x54),
    *range(0x60, 0x67),
    *range(0x70, 0x73),
    *(0xA0, 0xA1, 0xFF),
}


def error_text(payload: bytes) -> str:
    """Return the text of an ERROR: after a u32 and a u16, or the bytes that follow both."""
    if len(payload) < 6:
        return payload.decode("utf-8", "replace")
    (length,) = struct.unpack(">H", payload[4:6])
    end = 6 + length if 6 + length <= len(payload) else len(payload)
    return payload[6:end].decode("utf-8", "replace")


class FlyMQClient:
    """The client; connects at once, without a frame, because it has no user."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = self._connect()

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def call(self, opcode: int, payload: bytes) -> bytes:
        """Send one request and return the payload of its answer.

        :raises ServerError: for an ERROR frame.
        :raises ValueError: for an opcode that the client does not know.
        :raises Closed: at the end of the stream; also any OSError. The socket is dropped.
        """
        with self._lock:
            if self._socket is None:
                self._socket = self._connect()
            try:
                return self._exchange(self._socket, opcode, payload)
            except (OSError, Closed):
                self.close()
                raise

    def _connect(self) -> socket.socket:
        for last_round in (*[False] * (CONNECT_ROUNDS - 1), True):
            for server in self._servers:
                connection = self._dial(*host_and_port(server))
                if connection is not None:
                    return connection
            if not last_round:
                time.sleep(ROUND_PAUSE_SECONDS)
        raise ConnectionError(f"none of {self._servers} answers")

    @staticmethod
    def _dial(host: str, port: int) -> socket.socket | None:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, where in sorted(
            resolved, key=lambda entry: entry[0] != socket.AF_INET6
        ):
            connection = socket.socket(family, kind, protocol)
            connection.settimeout(CONNECT_SECONDS)
            try:
                connection.connect(where)
            except OSError:
                connection.close()
                continue
            return connection
        return None

    @staticmethod
    def _exchange(connection: socket.socket, opcode: int, payload: bytes) -> bytes:
        with connection.makefile("wb") as writer:
            writer.write(flymq.header(opcode, len(payload)))
            writer.write(payload)
        with connection.makefile("rb") as reader:
            head = reader.read(flymq.HEADER_BYTES)
            if len(head) < flymq.HEADER_BYTES:
                raise Closed("end of stream in a header")
            magic, _, answered, _, length = struct.unpack(">BBBBI", head)
            if magic != flymq.MAGIC or length > flymq.PAYLOAD_BYTES_MAX:
                raise flymq.ProtocolError(f"header {head.hex()}")
            if answered not in KNOWN_OPCODES:
                raise ValueError(f"{answered} is not a valid OpCode")
            answer = reader.read(length)
            if len(answer) < length:
                raise Closed("end of stream in a payload")
        if answered == flymq.ERROR:
            message = error_text(answer)
            if "not leader" in message.lower():
                raise flymq.NotLeaderError(message)
            raise flymq.ServerError(message)
        return answer

    # -- logins -----------------------------------------------------------------------------------

    def authenticate(self, user: str, password: str) -> flymq.Login:
        """Send AUTH. The client does not repeat it after a reconnect.

        :raises AuthenticationError: the login was refused.
        :raises ProtocolError: the answer has another layout than the reference server's.
        """
        answer = flymq.login(self.call(flymq.AUTH, flymq.text(user) + flymq.text(password)))
        if not answer.success:
            raise flymq.AuthenticationError(answer.error)
        return answer

    def whoami(self) -> tuple[bool, str, list[str], list[str]]:
        """Send WHOAMI; return whether the user is logged in, the name, roles and permissions."""
        fields = Fields(self.call(flymq.WHOAMI, b""))
        return bool(fields.number("?")), fields.text(), fields.texts(), fields.texts()

    # -- topics -----------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Send CREATE_TOPIC and ignore the answer."""
        self.call(flymq.CREATE_TOPIC, flymq.text(topic) + struct.pack(">i", partitions))

    def delete_topic(self, topic: str) -> None:
        """Send DELETE_TOPIC and ignore the answer."""
        self.call(flymq.DELETE_TOPIC, flymq.text(topic))

    def list_topics(self) -> list[str]:
        """Send LIST_TOPICS."""
        return Fields(self.call(flymq.LIST_TOPICS, b"")).texts()

    def cluster_metadata(self, topic: str = "") -> dict[str, list[PartitionInfo]]:
        """Send CLUSTER_METADATA for one topic, or for all."""
        return flymq.cluster_metadata(self.call(flymq.CLUSTER_METADATA, flymq.text(topic)))

    # -- records ----------------------------------------------------------------------------------

    def produce(
        self, topic: str, value: bytes, key: bytes = b"", partition: int = -1
    ) -> RecordMetadata:
        """Send PRODUCE; by default the broker chooses the partition."""
        request = flymq.produce_request(topic, value, key, partition)
        return flymq.record_metadata(self.call(flymq.PRODUCE, request))

    def consume(self, topic: str, offset: int, partition: int = 0) -> tuple[bytes, bytes]:
        """Send CONSUME; return key and value."""
        request = flymq.text(topic) + struct.pack(">iQ", partition, offset)
        return flymq.key_and_value(self.call(flymq.CONSUME, request))

    def fetch(
        self, topic: str, partition: int, offset: int, most: int = 10, pattern: str = ""
    ) -> tuple[list[Record], int]:
        """Send FETCH; return records and the next offset."""
        request = flymq.fetch_request(topic, partition, offset, most, pattern)
        return flymq.fetched(self.call(flymq.FETCH, request))

    # -- groups -----------------------------------------------------------------------------------

    def subscribe(self, topic: str, group: str, partition: int, mode: str) -> int:
        """Send SUBSCRIBE; return the first offset to read."""
        request = flymq.subscribe_request(topic, group, partition, mode)
        return Fields(self.call(flymq.SUBSCRIBE, request)).number("Q")

    def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Send COMMIT of the next offset to read and ignore the answer."""
        where = _group_partition(topic, group, partition)
        self.call(flymq.COMMIT, where + struct.pack(">Q", offset))

    def get_committed_offset(self, topic: str, group: str, partition: int = 0) -> int:
        """Send GET_OFFSET."""
        where = _group_partition(topic, group, partition)
        return Fields(self.call(flymq.GET_OFFSET, where)).number("Q")

    def reset_offset(
        self, topic: str, group: str, partition: int, mode: str, offset: int | None = None
    ) -> None:
        """Send RESET_OFFSET to earliest, latest or an offset."""
        where = _group_partition(topic, group, partition) + flymq.text(mode, "B")
        tail = b"" if offset is None else struct.pack(">Q", offset)
        self.call(flymq.RESET_OFFSET, where + tail)

    def get_lag(self, topic: str, group: str, partition: int = 0) -> Lag:
        """Send GET_LAG."""
        where = _group_partition(topic, group, partition)
        return Lag(*struct.unpack(">4Q", Fields(self.call(flymq.GET_LAG, where)).take(32)))


def _group_partition(topic: str, group: str, partition: int) -> bytes:
    return flymq.text(topic) + flymq.text(group) + struct.pack(">i", partition)


class HighLevelProducer:
    """Groups records in the client; each is a PRODUCE, with three attempts at any failure."""

    def __init__(self, client: FlyMQClient, batch_records: int = 16) -> None:
        self._client = client
        self._batch_records = batch_records
        self._waiting: list[tuple[str, bytes, bytes]] = []
        self.sent: list[RecordMetadata] = []

    def send(self, topic: str, value: bytes, key: bytes = b"") -> None:
        """Add a record, and flush once there are enough of them."""
        self._waiting.append((topic, value, key))
        if len(self._waiting) >= self._batch_records:
            self.flush()

    def flush(self) -> None:
        """Send the waiting records."""
        waiting, self._waiting = self._waiting, []
        for topic, value, key in waiting:
            self.sent.append(self._try(topic, value, key))

    def _try(self, topic: str, value: bytes, key: bytes) -> RecordMetadata:
        for _ in range(SEND_TRIES - 1):
            try:
                return self._client.produce(topic, value, key)
            except (flymq.FlymqError, OSError, Closed):
                continue
        return self._client.produce(topic, value, key)


class Consumer:
    """Reads one partition; a group gives the first offset, without a group it is 0.

    An empty answer does not move its position, even if its ``next`` differs.
    """

    def __init__(
        self,
        client: FlyMQClient,
        topic: str,
        group: str | None = None,
        partition: int = 0,
        mode: str = "latest",
        pattern: str = "",
    ) -> None:
        self._client = client
        self._where = (topic, partition)
        self._group = group
        self._pattern = pattern
        self.position = 0
        if group is not None:
            self.position = client.subscribe(topic, group, partition, mode)

    def poll(self) -> list[Record]:
        """Send one FETCH from the consumer's position."""
        topic, partition = self._where
        records, next_offset = self._client.fetch(
            topic, partition, self.position, POLL_RECORDS, self._pattern
        )
        if records:
            self.position = next_offset
        return records

    def __iter__(self) -> Iterator[Record]:
        """Yield records for ever; fetch without a pause while none come."""
        while True:
            yield from self.poll()

    def commit(self) -> None:
        """Send COMMIT of the position."""
        assert self._group is not None
        topic, partition = self._where
        self._client.commit(topic, self._group, partition, self.position)

    def seek_to_end(self) -> None:
        """Send SUBSCRIBE with ``latest`` and take the offset in its answer."""
        topic, partition = self._where
        self.position = self._client.subscribe(topic, self._group or "", partition, "latest")


class HighLevelConsumer:
    """Reads partition 0 from offset 0 without SUBSCRIBE (``client.consumer()``); close commits."""

    def __init__(self, client: FlyMQClient, topic: str, group: str) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self.position = 0

    def poll(self) -> list[Record]:
        """Send one FETCH."""
        records, next_offset = self._client.fetch(self._topic, 0, self.position, POLL_RECORDS)
        if records:
            self.position = next_offset
        return records

    def commit(self) -> None:
        """Send COMMIT of the position."""
        self._client.commit(self._topic, self._group, 0, self.position)

    def close(self) -> None:
        """Send COMMIT once more."""
        self.commit()


class ConsumerGroup:
    """Reads all partitions of topics that match patterns (``+`` one level, ``#`` all others).

    Its thread sends FETCH after FETCH without a pause. Every five seconds it sends one COMMIT, for
    the partition that it polls at that moment.
    """

    def __init__(
        self,
        client: FlyMQClient,
        group: str,
        patterns: Sequence[str],
        receive: Callable[[str, int, Record], None],
        mode: str = "latest",
        commit_seconds: float = COMMIT_SECONDS,
    ) -> None:
        self._client = client
        self._group = group
        self._patterns = list(patterns)
        self._receive = receive
        self._mode = mode
        self._commit_seconds = commit_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.positions: dict[tuple[str, int], int] = {}
        self.commits: list[tuple[str, int, int]] = []

    def start(self) -> None:
        """Find topics and partitions, subscribe, and begin to poll in a thread."""
        for topic in self._client.list_topics():
            if any(matches(pattern, topic) for pattern in self._patterns):
                for partition in self._partitions(topic):
                    where = (topic, self._group, partition, self._mode)
                    self.positions[topic, partition] = self._client.subscribe(*where)
        self._thread.start()

    def stop(self) -> None:
        """End the thread without a commit."""
        self._stopping.set()
        self._thread.join()

    def _partitions(self, topic: str) -> list[int]:
        try:
            return [info.partition for info in self._client.cluster_metadata(topic)[topic]]
        except flymq.ServerError:
            return [0]

    def _run(self) -> None:
        committed_at = time.monotonic()
        for topic, partition in itertools.cycle(list(self.positions)):
            if self._stopping.is_set():
                return
            offset = self.positions[topic, partition]
            records, next_offset = self._client.fetch(topic, partition, offset, POLL_RECORDS)
            for record in records:
                self._receive(topic, partition, record)
            if records:
                self.positions[topic, partition] = offset = next_offset
            if time.monotonic() - committed_at >= self._commit_seconds:
                self._client.commit(topic, self._group, partition, offset)
                self.commits.append((topic, partition, offset))
                committed_at = time.monotonic()


def matches(pattern: str, topic: str) -> bool:
    """Return whether a topic matches MQTT's wildcards; levels are split on ``/``."""
    levels = topic.split("/")
    for number, wanted in enumerate(pattern.split("/")):
        if wanted == "#":
            return True
        if number >= len(levels) or wanted not in ("+", levels[number]):
            return False
    return len(levels) == len(pattern.split("/"))


def main(arguments: Sequence[str]) -> int:
    """Print a topic's records as they come, until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference.pyflymq")
    parser.add_argument("--address", default=flymq.DEFAULT_ADDRESS)
    parser.add_argument("--group")
    parser.add_argument("--mode", default="earliest")
    parser.add_argument("topic")
    chosen = parser.parse_args(arguments)
    client = FlyMQClient([chosen.address])
    for record in Consumer(client, chosen.topic, chosen.group, mode=chosen.mode):
        print(record, flush=True)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
