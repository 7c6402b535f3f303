"""One client of each wire format, behind one face: write records to a topic, read them back.

A peer is a thin adapter over the format's client in brokerd/client. It speaks to a broker at an
address, blocks, and belongs to one thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import ClassVar, NamedTuple, Self

from brokerd.client.mamamia import MamamiaClient

LARGE = 1_000_000
"""More bytes than any value of these tests."""


class Written(NamedTuple):
    """A record that a client writes; ``key`` is dropped by formats that have none."""

    value: bytes
    key: bytes | None = None


class Seen(NamedTuple):
    """A record as a client reads it; None is what its format does not show."""

    value: object
    offset: int | None
    key: bytes | None


class Peer(AbstractContextManager["Peer"], ABC):
    """A connected client of one wire format."""

    name: ClassVar[str]
    listener: ClassVar[str]
    """The wire format whose listener it speaks to."""
    has_keys: ClassVar[bool] = False
    tells_offsets: ClassVar[bool] = True
    """Whether readers learn offsets."""

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
        """Have the topic, one partition, in the way of this format."""

    @abstractmethod
    def write(self, topic: str, records: Sequence[Written]) -> list[int | None]:
        """Write records, durably, and return the offsets that the broker told."""

    def begin(self, topic: str, reader: str) -> int:
        """Be ready to read what is written from now on; a number for `read`, if it needs one."""
        return 0

    @abstractmethod
    def read(self, topic: str, reader: str, begun: int, count: int) -> list[Seen]:
        """Read ``count`` records from the first on, under the name of a reader."""


class Mamamia(Peer):
    name = listener = "mamamia"
    has_keys = True

    def __init__(self, address: str) -> None:
        self._client = MamamiaClient(address, timeout=20)

    def close(self) -> None:
        self._client.close()

    def make(self, topic: str) -> None:
        """The first message makes it."""

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


PEERS: dict[str, type[Peer]] = {peer.name: peer for peer in (Mamamia,)}
