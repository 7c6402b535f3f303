"""One client of each wire format behind one interface: write records to a topic, read them back.

A peer is a thin adapter over the format's client in brokerd/client. It connects to a broker at an
address, blocks, and belongs to one thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import ClassVar, NamedTuple, Self

from brokerd.client.blipmq import BlipmqClient
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient
from brokerd.client.mega import MegaClient
from brokerd.client.rustlog import RustlogClient
from brokerd.codecs.rustlog import Dialect
from tests.protocols.serving import SECONDS

LARGE = 1_000_000
"""More bytes than any value of these tests."""


class Written(NamedTuple):
    """A record that a client writes; formats without keys drop ``key``."""

    value: bytes
    key: bytes | None = None


class Seen(NamedTuple):
    """A record as a client reads it; fields that its format does not have are None."""

    value: object
    offset: int
    key: bytes | None


class Peer(AbstractContextManager["Peer"], ABC):
    """A connected client of one wire format."""

    name: ClassVar[str]
    listener: ClassVar[str]
    """The wire format of its listener."""
    has_keys: ClassVar[bool] = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def make(self, topic: str) -> None:
        """Create the topic with one partition, in the way of this format."""

    @abstractmethod
    def write(self, topic: str, records: Sequence[Written]) -> list[int | None]:
        """Write records durably, and return the offsets in the answers."""

    def begin(self, topic: str, reader: str) -> int:
        """Prepare to read later records; return a number for `read`, if the format needs one."""
        return 0

    @abstractmethod
    def read(self, topic: str, reader: str, begun: int, count: int) -> list[Seen]:
        """Read ``count`` records from the first on, under the name of a reader."""


class Mamamia(Peer):
    name = listener = "mamamia"
    has_keys = True

    def __init__(self, address: str) -> None:
        self._client = MamamiaClient(address, timeout=SECONDS)

    def close(self) -> None:
        self._client.close()

    def make(self, topic: str) -> None:
        """Do nothing: the first message creates the topic."""

    def write(self, topic: str, records: Sequence[Written]) -> list[int | None]:
        return [self._client.produce(topic, value, key=key) for value, key in records]

    def read(self, topic: str, reader: str, begun: int, count: int) -> list[Seen]:
        seen: list[Seen] = []
        while len(seen) < count:
            leased = self._client.acquire_batch(topic, reader, "worker", count, wait=5.0)
            if not leased:
                break
            seen += [Seen(message.payload, message.id, message.key) for message in leased]
        return seen


class FlyMQ(Peer):
    name = listener = "flymq"
    has_keys = True

    def __init__(self, address: str) -> None:
        self._client = FlymqClient(address, timeout=SECONDS)

    def close(self) -> None:
        self._client.close()

    def make(self, topic: str) -> None:
        self._client.create_topic(topic)

    def write(self, topic: str, records: Sequence[Written]) -> list[int | None]:
        return [self._client.produce(topic, value, key).offset for value, key in records]

    def read(self, topic: str, reader: str, begun: int, count: int) -> list[Seen]:
        """Read by FETCH, and check that CONSUME gives the same."""
        fetched = self._client.fetch(topic, 0, 0, LARGE)
        for record in fetched.records:
            assert self._client.consume(topic, 0, record.offset)[:] == record[1:]
        return [Seen(record.value, record.offset, record.key) for record in fetched.records]


class BlipMQ(Peer):
    """QoS 1. A subscription for each reading is made before the first record is written."""

    name = listener = "blipmq"

    def __init__(self, address: str) -> None:
        self._client = BlipmqClient(address, api_key="key", timeout=SECONDS)

    def close(self) -> None:
        self._client.close()

    def make(self, topic: str) -> None:
        """Do nothing: the first message or subscription creates the topic."""

    def write(self, topic: str, records: Sequence[Written]) -> list[int | None]:
        for record in records:
            self._client.publish(topic, record.value)
        self._client.flush()
        return [None] * len(records)

    def begin(self, topic: str, reader: str) -> int:
        return self._client.subscribe(topic)

    def read(self, topic: str, reader: str, begun: int, count: int) -> list[Seen]:
        """Poll and acknowledge. A delivery tag is Mamamia's id of the message + 1."""
        seen: list[Seen] = []
        while len(seen) < count and (delivery := self._client.receive(begun, timeout=SECONDS)):
            self._client.ack(delivery)
            seen.append(Seen(delivery.message, delivery.tag - 1, None))
        self._client.ping()
        assert self._client.poll(begun) is None
        return seen


class RustLog(Peer):
    listener = "rustlog"
    dialect: ClassVar[Dialect]

    def __init__(self, address: str) -> None:
        self._client = RustlogClient(address, dialect=self.dialect, timeout=SECONDS)

    def close(self) -> None:
        self._client.close()

    def make(self, topic: str) -> None:
        self._client.create_topic(topic)

    def write(self, topic: str, records: Sequence[Written]) -> list[int | None]:
        """Write the first record alone and the others as one batch."""
        values = [record.value for record in records]
        first = self._client.produce(topic, values[:1])
        base = self._client.produce(topic, values[1:])
        return [first, *range(base, base + len(values) - 1)]

    def read(self, topic: str, reader: str, begun: int, count: int) -> list[Seen]:
        return [Seen(value, offset, None) for offset, value in self._client.read(topic)]


class RustLogBinary(RustLog):
    name = "rustlog-binary"
    dialect = Dialect.BINARY


class RustLogJSON(RustLog):
    name = "rustlog-json"
    dialect = Dialect.JSON


class MEGA(Peer):
    name = listener = "mega"

    def __init__(self, address: str) -> None:
        self._client = MegaClient(address, timeout=SECONDS)

    def close(self) -> None:
        self._client.close()

    def make(self, topic: str) -> None:
        self._client.create_topic(topic)

    def write(self, topic: str, records: Sequence[Written]) -> list[int | None]:
        return [*self._client.produce_many(topic, [record.value for record in records])]

    def read(self, topic: str, reader: str, begun: int, count: int) -> list[Seen]:
        return [
            Seen(message.payload, message.next_offset - 1, None)
            for message in self._client.read(topic)
        ]


PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (Mamamia, FlyMQ, BlipMQ, RustLogBinary, RustLogJSON, MEGA)
}
