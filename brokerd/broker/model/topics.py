# Tests: tests/broker/test_broker.py
"""Topics, their partitions, and the consumer groups that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import islice
from typing import Any

from brokerd.broker.model.chunks import Chunk, ChunkList
from brokerd.errors import (
    InvalidName,
    InvalidRequest,
    NewerFormat,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from brokerd.groups import GroupSettings, LeaseStore
from brokerd.groups.settings import MAX_DURATION_US
from brokerd.values import MAX_NAME_BYTES
from brokerd.values import RESERVED_PREFIX as RESERVED_PREFIX

BYTES_MAX = 1 << 60

_LIMITS = {"retention_us": MAX_DURATION_US, "retention_bytes": BYTES_MAX, "ttl_us": MAX_DURATION_US}
"""The largest value of each setting that is a number."""

NEAR_MAX = 500
"""The most groups that the search for a similar name compares. It takes milliseconds."""


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it may name a topic or group, else raise `InvalidName`.

    Up to 255 bytes of UTF-8 without control characters. The empty name is allowed here because
    Mamamia's programs may use it; formats with a narrower rule check their own.
    """
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise InvalidName(
            f"{what} is longer than {MAX_NAME_BYTES} bytes of UTF-8: {name[:32]!r}...; "
            "use a shorter one"
        )
    if not name.isprintable() and any(
        ord(letter) < 32 or 127 <= ord(letter) < 160 or 0xD800 <= ord(letter) < 0xE000
        for letter in name
    ):
        raise InvalidName(f"{what} holds a control character: {name!r}; leave it out")
    return name


@dataclass(frozen=True)
class TopicSettings:
    """Retention of a topic. None: the default of the broker's configuration; 0: no limit."""

    retention_us: int | None = None
    """Age at which records are removed."""
    retention_bytes: int | None = None
    """Bytes of the newest records that each partition keeps, approximately."""
    ttl_us: int | None = None
    """Time to live of records without one of their own."""
    compact: bool | None = None
    """Whether the archive keeps only the latest record of each key; None: it keeps all."""

    def given(self) -> dict[str, Any]:
        """Return the settings that are not None, by name, for the log and snapshots."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def over(self, defaults: TopicSettings) -> TopicSettings:
        """Return these settings, with values of ``defaults`` in place of None."""
        return TopicSettings(**{**defaults.given(), **self.given()})

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> TopicSettings:
        """Return the settings that `given` describes. Raises `NewerFormat` for an unknown name."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(given.keys() - known)
        if unknown:
            raise NewerFormat(
                f"topic setting {unknown[0]!r} is not known to this version; upgrade brokerd"
            )
        return cls(**given)


def check_settings(settings: TopicSettings) -> None:
    """Raise `InvalidRequest` for settings that make no sense."""
    for name, most in _LIMITS.items():
        value = getattr(settings, name)
        if value is not None and not 0 <= value <= most:
            raise InvalidRequest(f"{name} must be 0 (no limit) to {most}, not {value}")


def fnv1a_32(data: bytes) -> int:
    """Return the FNV-1a hash, 32 bits (RFC 9923). FlyMQ's programs choose partitions by it."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


class Partition:
    """One partition: the next offset to assign and the newest records."""

    __slots__ = (
        "archived_end",
        "chunks",
        "cold",
        "framed_end",
        "gaps",
        "index",
        "next_offset",
        "start_offset",
        "topic",
    )

    def __init__(self, topic: Topic, index: int) -> None:
        self.topic = topic
        self.index = index
        self.next_offset = 0
        self.start_offset = 0
        """Records below this offset are removed: the broker neither delivers nor leases them."""
        self.archived_end = 0
        """Records below this offset are in an archive, and may be missing from the log."""
        self.framed_end = 0
        """Offsets below this are in a frame that the log has."""
        self.chunks = ChunkList()
        self.cold = ChunkList()
        """Chunks read back from the log or the archive."""
        self.gaps: list[tuple[int, int]] = []
        """Ranges (first, end) of offsets whose records are lost, or which damaged bytes may have
        assigned. All groups have settled them: see `LeaseStore.settle_gap`."""

    def find(self, offset: int) -> Chunk | None:
        """Return the chunk in memory that holds ``offset``, or None."""
        return self.chunks.find(offset) or self.cold.find(offset)

    def restore(self, next_offset: int) -> None:
        """Continue at ``next_offset``. It must be above all offsets ever assigned."""
        self.next_offset = self.framed_end = next_offset

    def move_start(self, offset: int) -> None:
        """Remove the records below ``offset``."""
        if offset > self.start_offset:
            self.start_offset = offset
            self.forget_gaps()

    def forget_gaps(self) -> None:
        """Forget the gaps below the start offset."""
        self.gaps = [gap for gap in self.gaps if gap[1] > self.start_offset]

    def skip_offsets(self, count: int) -> None:
        """Skip the next ``count`` offsets."""
        self.gaps.append((self.next_offset, self.next_offset + count))
        self.restore(self.next_offset + count)

    def add_gap(self, first: int, end: int) -> None:
        """Mark these offsets as empty. They must be below the next offset."""
        self.gaps += self.without_gaps(first, end)

    def remove_gap(self, first: int, end: int) -> None:
        """Take these offsets out of the gaps: a batch holds them, which may be damaged."""
        self.gaps = [
            piece
            for gap in self.gaps
            for piece in ((gap[0], min(gap[1], first)), (max(gap[0], end), gap[1]))
            if piece[0] < piece[1]
        ]

    def without_gaps(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range of offsets that are in no gap."""
        parts = []
        for gap_first, gap_end in sorted(self.gaps):
            if first < min(gap_first, end):
                parts.append((first, min(gap_first, end)))
            first = max(first, gap_end)
        if first < end:
            parts.append((first, end))
        return parts


class GroupPartition:
    """The state of a group in one partition: its lease store, and times of the broker."""

    __slots__ = ("dirty", "group", "partition", "scheduled_us", "store")

    def __init__(self, group: ConsumerGroup, partition: Partition, store: LeaseStore) -> None:
        self.group = group
        self.partition = partition
        self.store = store
        self.dirty = False
        """Whether the journal knows of events that wait for the next frame."""
        self.scheduled_us: int | None = None
        """When the broker's timer handles this group partition next."""

    def settle_gaps(self) -> None:
        """Settle the offsets that have no record, or whose record is removed."""
        self.store.settle_gap(0, self.partition.start_offset)
        for first, end in self.partition.gaps:
            self.store.settle_gap(first, end)


class ConsumerGroup:
    """A consumer group of a topic. It has a group partition for each partition."""

    __slots__ = ("_deleted", "members", "name", "next_partition", "partitions", "topic")

    def __init__(self, topic: Topic, name: str, settings: GroupSettings) -> None:
        self.topic = topic
        self.name = name
        self.partitions: list[GroupPartition] = []
        self._deleted = False
        self.next_partition = 0
        """The index of the group partition at which the next acquire begins."""
        self.members: dict[object, str] | None = None
        """The names of subscribers that read by offset; None: the group has none."""
        self.grow(settings)

    def grow(self, settings: GroupSettings) -> None:
        """Add a group partition for each new partition of the topic."""
        for partition in self.topic.partitions[len(self.partitions) :]:
            self.partitions.append(GroupPartition(self, partition, LeaseStore(settings)))

    @property
    def deleted(self) -> bool:
        """Whether this group is deleted. A holder must check this in each turn of the reactor."""
        return self._deleted or self.topic.deleted

    def dispose(self) -> None:
        """Drop references to other objects, so that memory is freed when the last user lets go."""
        self._deleted = True
        for group_partition in self.partitions:
            group_partition.scheduled_us = None
            group_partition.store.dispose()
        self.partitions = []


class Topic:
    """A topic; its id is never used again, not even for a topic of the same name."""

    __slots__ = (
        "_next_partition",
        "deleted",
        "groups",
        "internal",
        "internal_of",
        "name",
        "partitions",
        "settings",
        "ticket",
        "topic_id",
    )

    def __init__(
        self,
        topic_id: int,
        name: str,
        partition_count: int,
        settings: TopicSettings | None = None,
        internal_of: int = 0,
    ) -> None:
        self.topic_id = topic_id
        self.name = name
        self.settings = settings or TopicSettings()
        self.internal_of = internal_of
        """Id of the topic that this internal topic serves; 0 for a topic with a public name."""
        self.internal: Topic | None = None
        """The internal topic that serves this topic, or None."""
        self.deleted = False
        """Whether this topic is deleted. A holder must check this in each turn of the reactor."""
        self.ticket = 0
        """The ticket of the frame that creates the topic."""
        self.partitions: list[Partition] = []
        self.groups: dict[str, ConsumerGroup] = {}
        self._next_partition = 0
        self.grow(partition_count)

    def grow(self, partition_count: int) -> None:
        """Add partitions until there are ``partition_count``."""
        for index in range(len(self.partitions), partition_count):
            self.partitions.append(Partition(self, index))

    def choose(self, key: bytes | None, index: int | None = None) -> Partition:
        """Return the partition for a new record.

        It is the partition ``index`` if given, else that of the key's hash, else the next in
        rotation.
        """
        partitions = self.partitions
        if index is not None:
            return self.partition(index)
        if len(partitions) == 1:
            return partitions[0]
        if self.deleted:
            raise self._is_gone()
        if key is not None:
            return partitions[fnv1a_32(key) % len(partitions)]
        following = self._next_partition
        self._next_partition = (following + 1) % len(partitions)
        return partitions[following]

    def partition(self, index: int) -> Partition:
        if 0 <= index < len(self.partitions):
            return self.partitions[index]
        if self.deleted:
            raise self._is_gone()
        raise UnknownPartition(
            f"topic {self.name!r} has no partition {index}; it has {len(self.partitions)}, "
            "numbered from 0"
        )

    def dispose(self) -> None:
        """Drop the partitions, which refer to their topic. Their last user then frees them."""
        self.partitions = []
        self.internal = None

    def _is_gone(self) -> UnknownTopic:
        return UnknownTopic(f"topic {self.name!r} was deleted; ask for it again")


def unknown_group(topic: Topic, name: str) -> UnknownGroup:
    """Return the error for a missing group; it names a similar group if there is one."""
    near = get_close_matches(name, islice(topic.groups, NEAR_MAX), 1)
    meant = f" (is {near[0]!r} meant?)" if near else ""
    return UnknownGroup(
        f"topic {topic.name!r} has no group {name!r}{meant}; a group begins with its first lease, "
        "or with a pause, seek or settings that say create"
    )
