# Tests: tests/test_values.py
"""Frozen values that every package may use; they have no behaviour.

Times are integers in microseconds. ``*_time_us`` is broker time (microseconds since the Unix epoch,
never going backwards). ``now_us`` elsewhere is monotonic time, of ``BrokerTime.monotonic_us``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

MAX_NAME_BYTES = 255
"""Longest topic or group name, in bytes of UTF-8."""

RESERVED_PREFIX = "__brokerd."
"""Prefix of the broker's internal topics."""

MAX_PARTITIONS = 32_767
"""Most partitions of a topic: with more, a message id of Mamamia would not hold the offset."""

PARTITION_SHIFT = 48
"""Bits of the offset in a message id; the partition is above them."""
_OFFSET_MASK = (1 << PARTITION_SHIFT) - 1

ADMIN_RECORD_BYTES = (10 << 20) - (64 << 10)
"""Most bytes of value, key and metadata together in the admin API; they fill a frame of Mamamia."""


class Encoding(IntEnum):
    """Type of a record's value, so that it comes back as it was sent."""

    BYTES = 0
    TEXT = 1
    """UTF-8 text."""
    MSGPACK = 2
    """One MessagePack object, kept as the producer wrote it."""


class Format(IntEnum):
    """Wire format of a record's producer."""

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
    """Byte strings that are adjacent in memory; a slice of them copies nothing."""

    __slots__ = ()

    @property
    @abstractmethod
    def size(self) -> int:
        """Total size in bytes."""

    @abstractmethod
    def copy(self) -> PackedBytes:
        """Return a copy in memory of its own."""

    @abstractmethod
    def packed_after(self, numbers: Sequence[int]) -> bytes:
        """Return the strings packed: each after its number and its length, two big-endian 64-bit
        integers.
        """


def total_bytes(strings: Sequence[bytes]) -> int:
    """Return the total size of the strings in bytes."""
    return strings.size if isinstance(strings, PackedBytes) else sum(map(len, strings))


class Columns(NamedTuple):
    """Records as columns: offsets, keys and values only."""

    offsets: Sequence[int]
    keys: Sequence[bytes | None] | None
    """None if no record has a key."""
    values: Sequence[bytes]
    value_size: int | None = None
    """The size of each value, if it is known that all have the same."""


class Records(Sequence[Record]):
    """Records stored as columns; an item becomes a `Record` on access."""

    @abstractmethod
    def columns(self) -> Columns:
        """Return all records as columns."""

    @abstractmethod
    def runs(self) -> list[Columns]:
        """Return all records in the parts in which they are stored; copies nothing."""


def runs_of(records: Sequence[Record]) -> list[Columns]:
    """Return records as columns, in parts."""
    return records.runs() if isinstance(records, Records) else [columns_of(records)]


def columns_of(records: Sequence[Record]) -> Columns:
    """Return records as columns."""
    if isinstance(records, Records):
        return records.columns()
    keys = [record.key for record in records]
    return Columns(
        [record.offset for record in records],
        None if keys.count(None) == len(keys) else keys,
        [record.value for record in records],
    )


class Grant(NamedTuple):
    """A new lease on one record."""

    offset: int
    token: int
    """Fencing token: larger for every later grant of the same group and partition."""
    grants: int
    """Number of leases of the record by this group, this one included."""
    failures: int
    duration_us: int


def message_id_of(partition: int, offset: int) -> int:
    """Return the message id of a record: one number for partition and offset."""
    return partition << PARTITION_SHIFT | offset


def split_message_id(message_id: int) -> tuple[int, int]:
    """Return ``(partition, offset)`` of a message id; the record need not exist."""
    return message_id >> PARTITION_SHIFT, message_id & _OFFSET_MASK
