# Tests: tests/test_values.py
"""The narrow waist: frozen values that every room may hold, and nothing that acts.

Times are integers in microseconds. ``*_time_us`` is broker time (microseconds since the Unix
epoch, never going backwards); ``now_us`` arguments elsewhere are monotonic time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

MAX_NAME_BYTES = 255
"""Longest topic or group name, in bytes of UTF-8."""

RESERVED_PREFIX = "__brokerd."
"""Topics whose names begin so are the broker's own."""

MAX_PARTITIONS = 32_767
"""Most partitions of a topic: with more, a message id of Mamamia would not hold the offset."""

PARTITION_SHIFT = 48
"""Bits of a message id that are the offset; the partition stands above them."""
_OFFSET_MASK = (1 << PARTITION_SHIFT) - 1

MAX_RECORD_BYTES = (10 << 20) - (64 << 10)
"""Value, key and metadata of the largest record that the admin API takes: with it a frame of the
Mamamia format is full."""


class Encoding(IntEnum):
    """How a record's value bytes are to be read, so that it comes back as it went in."""

    BYTES = 0
    TEXT = 1
    """UTF-8 text."""
    MSGPACK = 2
    """One MessagePack object, kept as the producer wrote it."""


class Format(IntEnum):
    """The wire format a record was produced through."""

    UNKNOWN = 0
    MAMAMIA = 1
    FLYMQ = 2
    BLIPMQ = 3
    RUSTLOG = 4
    MEGA = 5


class Record(NamedTuple):
    """One record of a partition, as read back from the log."""

    offset: int
    value: bytes
    key: bytes | None = None
    encoding: int = Encoding.BYTES
    metadata: bytes | None = None
    """A MessagePack map, or None when the producer sent none (an empty map is not None)."""
    append_time_us: int = 0
    producer_time: int | None = None
    """The producer's own timestamp, any 64-bit integer, stored as given."""
    expires_at_us: int = 0
    """Broker time after which the record is gone; 0 means never."""
    producer_format: int = Format.UNKNOWN


class PackedBytes(Sequence[bytes]):
    """Byte strings that stand behind one another in memory; a slice of them copies nothing."""

    __slots__ = ()

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of all of them together."""

    @abstractmethod
    def copy(self) -> PackedBytes:
        """The same in memory of its own, where there are no others."""

    @abstractmethod
    def behind(self, numbers: Sequence[int]) -> bytes:
        """Each of them behind its number and its length, two big-endian integers of 64 bits."""


def total_bytes(strings: Sequence[bytes]) -> int:
    """Bytes of all of them together."""
    return strings.size if isinstance(strings, PackedBytes) else sum(map(len, strings))


class Columns(NamedTuple):
    """Records as columns, for who wants no more of them."""

    offsets: Sequence[int]
    keys: Sequence[bytes | None] | None
    """None if no record has one."""
    values: Sequence[bytes]


class Records(Sequence[Record]):
    """Records that are columns, and become `Record` values where these are wanted."""

    @abstractmethod
    def columns(self) -> Columns:
        """All of them."""

    @abstractmethod
    def runs(self) -> list[Columns]:
        """All of them, in as many parts as they are held in, so that nothing is copied."""


def runs_of(records: Sequence[Record]) -> list[Columns]:
    """Records as columns, in parts."""
    return records.runs() if isinstance(records, Records) else [columns_of(records)]


def columns_of(records: Sequence[Record]) -> Columns:
    """Records as columns."""
    if isinstance(records, Records):
        return records.columns()
    keys = [record.key for record in records]
    return Columns(
        [record.offset for record in records],
        None if keys.count(None) == len(keys) else keys,
        [record.value for record in records],
    )


class Grant(NamedTuple):
    """A lease just granted on one record."""

    offset: int
    token: int
    """Fences this grant: larger for every later grant of the same group and partition."""
    grants: int
    """How often the record has been leased by this group, this grant included."""
    failures: int
    duration_us: int


def message_id_of(partition: int, offset: int) -> int:
    """One number for a record of a topic, which says its partition and offset."""
    return partition << PARTITION_SHIFT | offset


def split_message_id(message_id: int) -> tuple[int, int]:
    """``(partition, offset)`` of a message id; there may be no such record."""
    return message_id >> PARTITION_SHIFT, message_id & _OFFSET_MASK
