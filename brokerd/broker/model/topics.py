# Tests: tests/broker/test_broker.py
"""Topics, their partitions, and the consumer groups that read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, overload

from brokerd.broker.model.chunks import Chunk, ChunkList
from brokerd.broker.model.group_stores import (
    EVENT_MEMORY,
    GROUP_MEMORY,
    PACKED_MEMORY,
    GroupStores,
)
from brokerd.errors import (
    InvalidName,
    InvalidRequest,
    NewerFormat,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from brokerd.groups import FrozenGroup, GroupSettings, LeaseStore
from brokerd.groups.packed import (
    Position,
    can_stay_packed,
    change,
    deletion,
    floor,
    is_plain,
    last_token,
    lowest_open,
    may_own,
    pack,
    plain,
    position,
    position_of,
    raise_floor,
    restart,
)
from brokerd.groups.packed import settings as packed_settings
from brokerd.groups.settings import MAX_DURATION_US
from brokerd.groups.view import NO_OFFSET
from brokerd.values import MAX_NAME_BYTES
from brokerd.values import RESERVED_PREFIX as RESERVED_PREFIX
from brokerd.walformat import EventKind, GroupEvent

BYTES_MAX = 1 << 60

_LIMITS = {"retention_us": MAX_DURATION_US, "retention_bytes": BYTES_MAX, "ttl_us": MAX_DURATION_US}
"""The largest value of each setting that is a number."""

_PURGED = int(EventKind.PURGED)

UNCOUNTED_EVENTS_MAX = 16
"""Events after which a frame counts the memory of an open store again. While the groups take more
than half of their memory, each frame does. Until then an event counts as `EVENT_MEMORY`."""

NEAR_MAX = 500
"""The most groups that the search for a similar name looks at."""
NEAR_LETTERS_MAX = 64
"""Longer names are not compared."""
NEAR_RATIO = 0.6
"""Least similarity, as `difflib.get_close_matches` has it."""
NEAR_COST_MAX = 30_000
"""The most work of a search: the sum of the products of lengths. The comparison of two names of 200
letters may take 5 ms, as clients can choose names that are slow to compare."""


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
        return {name: value for name in _SETTINGS if (value := getattr(self, name)) is not None}

    def over(self, defaults: TopicSettings) -> TopicSettings:
        """Return these settings, with values of ``defaults`` in place of None."""
        return TopicSettings(**{**defaults.given(), **self.given()})

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> TopicSettings:
        """Return the settings that `given` describes. Raises `NewerFormat` for an unknown name."""
        unknown = sorted(given.keys() - set(_SETTINGS))
        if unknown:
            raise NewerFormat(
                f"topic setting {unknown[0]!r} is not known to this version; upgrade brokerd"
            )
        return cls(**given)


_SETTINGS = tuple([field.name for field in fields(TopicSettings)])
"""The names of all settings."""


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

    def has_records(self) -> bool:
        """Return whether any offset from the start on has a record: lost ones do not count."""
        start, end = self.start_offset, self.next_offset
        return start < end and (not self.gaps or bool(self.without_gaps(start, end)))

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


_NO_EVENTS: list[GroupEvent] = []
"""The waiting events of most group partitions. Nobody adds to it."""


class GroupPartition:
    """The state of a group in one partition: its lease store, and times of the broker.

    Its group keeps it from its first event on. Before that, the group partition is as any new one,
    and `ConsumerGroup.partitions` makes it again for each access.
    """

    __slots__ = (
        "_counted",
        "_lowest",
        "_packed",
        "_packed_at_us",
        "_settled_start",
        "_store",
        "_uncounted_events",
        "_waiting",
        "dirty",
        "group",
        "is_recent",
        "partition",
        "scheduled_us",
    )

    def __init__(self, group: ConsumerGroup, partition: Partition) -> None:
        self.group = group
        self.partition = partition
        self.dirty = False
        """Whether the journal knows of events that wait for the next frame."""
        self.is_recent = False
        """Whether the store had events since `GroupStores.trim` last examined it."""
        self.scheduled_us: int | None = None
        """When the broker's timer handles this group partition next."""
        self._store: LeaseStore | None = None
        self._packed: bytes | None = None
        """The packed store; None if it is open, or has no event yet."""
        self._packed_at_us = 0
        """The time to which times in the packed store are relative."""
        self._lowest = 0
        """No record below this offset is eligible while the store is packed."""
        self._settled_start = partition.start_offset
        """The start offset below which the records are settled. See `settle_removed`."""
        self._waiting: list[GroupEvent] = _NO_EVENTS
        """Events of a packed store for the next frame. An open store has its own."""
        self._counted = 0
        """Memory of the open store that `GroupStores.memory_bytes` counts."""
        self._uncounted_events = 0
        """Events in frames since that count."""

    @property
    def store(self) -> LeaseStore:
        """The lease store. It is opened if need be. Use it in this reactor turn only."""
        if self._settled_start < self.partition.start_offset:
            self.settle_removed()
        store = self._store
        return self._open() if store is None else store

    def _open(self) -> LeaseStore:
        stores = self.group.stores
        store = LeaseStore(stores.settings)
        if self._packed is not None:
            store.load(self._packed, self._packed_at_us)
            stores.memory_bytes -= PACKED_MEMORY + len(self._packed)
            self._packed = None
            store.events += self._waiting
            self._waiting = _NO_EVENTS
        else:
            self._settle_gaps(store)
            store.skip_tokens(stores.token_base)
        self._store = store
        if self.is_kept:
            self._note_open(store)
        return store

    def _note_open(self, store: LeaseStore) -> None:
        self._counted = store.memory_bytes
        self.group.stores.memory_bytes += self._counted
        self.group.stores.opened(self)

    @property
    def is_kept(self) -> bool:
        """Whether the group keeps this group partition: it had an event."""
        return self.group.kept.get(self.partition.index) is self

    def keep(self) -> None:
        """Let the group keep this group partition, before its first event is logged."""
        kept = self.group.kept.get(self.partition.index)
        assert kept is None or kept is self, "another object has the events of this partition"
        if kept is None:
            self.group.kept[self.partition.index] = self
            if self._store is not None:
                self._note_open(self._store)

    def change_packed(
        self,
        settings: GroupSettings | None = None,
        floor: int | None = None,
        pauses: bool | None = None,
    ) -> int | None:
        """Change settings, seek to ``floor``, pause or end a pause, and do not open the store.

        Return the number of new events. Return None, with no change, if the store is open, has gaps
        to settle, or is not plain.
        """
        self.settle_removed()
        if self._store is not None or self.partition.gaps:
            return None
        packed = self._packed
        if packed is None:
            if self.is_kept:
                return None
            packed = plain(self.partition.start_offset, self.group.stores.token_base)
        elif not is_plain(packed):
            return None
        changed, events = change(packed, settings, floor, pauses)
        if not events:
            return 0
        if self._packed is None:
            self.keep()
        else:
            self.group.stores.memory_bytes -= PACKED_MEMORY + len(packed)
        self._set_packed(changed, self._packed_at_us)
        self._waiting = self._waiting + events
        return len(events)

    def delete_packed(self) -> int | None:
        """Add the event that deletes a packed store; return 1. Return None for an open store.

        The caller removes the group.
        """
        if self._packed is None:
            return None
        self._waiting = [*self._waiting, deletion(self._packed)]
        return 1

    def delete(self) -> None:
        """Add the event that deletes an open store. The caller removes the group."""
        self._free_tables(self.store)
        self.store.delete()

    def _free_tables(self, store: LeaseStore) -> None:
        tables = store.take_tables()
        if tables:
            self.group.stores.free(tables)

    @property
    def is_open(self) -> bool:
        """Whether the store is in memory as objects."""
        return self._store is not None

    @property
    def waiting_events(self) -> list[GroupEvent]:
        """The events for the next frame."""
        return self._waiting if self._store is None else self._store.events

    def pack(self) -> bool:
        """Pack the store; return False if it has to stay open."""
        store = self._store
        if store is None or self.dirty or store.events or not self.is_kept:
            return False
        packed = pack(store)
        if packed is None:
            return False
        self._set_packed(packed, 0)
        store.dispose()
        self._store = None
        self.group.stores.memory_bytes -= self._counted
        self._counted = 0
        return True

    def _set_packed(self, packed: bytes, at_us: int) -> None:
        self._packed, self._packed_at_us = packed, at_us
        self._lowest = lowest_open(packed)
        self.group.stores.memory_bytes += PACKED_MEMORY + len(packed)

    def is_unused(self, encoded: bytes) -> bool:
        """Return whether the store of a snapshot is that of a group partition without events."""
        if not can_stay_packed(encoded) or not is_plain(encoded) or packed_settings(encoded):
            return False
        found, new = position(encoded), self.position
        return found._replace(last_token=0) == new._replace(last_token=0) and (
            found.last_token <= new.last_token
        )

    def load(self, encoded: bytes | Iterable[bytes], at_us: int) -> None:
        """Load the store of a snapshot, with times relative to ``at_us``. Stays packed if small.

        Raises `DamagedData` and `NewerFormat`.
        """
        if isinstance(encoded, bytes) and can_stay_packed(encoded):
            self.keep()
            self._set_packed(encoded, at_us)
        else:
            self.store.load(encoded, at_us)
            self.keep()

    def capture(self, now_us: int) -> tuple[FrozenGroup | bytes, int]:
        """Return an immutable copy for a snapshot, and the time to which its times are relative."""
        self.settle_removed()
        if self._packed is not None:
            return self._packed, self._packed_at_us
        return self.store.freeze(now_us), now_us

    def events_framed(self) -> None:
        """Note that the waiting events are in a frame."""
        self.dirty = False
        self.is_recent = True
        self._waiting = _NO_EVENTS
        if self._store is None:
            return
        events, stores = self._store.events, self.group.stores
        added = len(events)
        events.clear()
        if not self.is_kept:  # deleted
            return
        self._uncounted_events += added
        if (
            self._uncounted_events > UNCOUNTED_EVENTS_MAX
            or stores.memory_bytes > stores.memory_max >> 1
        ):
            self.count_memory()
        else:
            self.expect_bytes(added * EVENT_MEMORY)

    def count_memory(self) -> None:
        """Count the memory of an open store again."""
        self._uncounted_events = 0
        if self._store is not None and self.is_kept:
            counted = self._store.memory_bytes
            self.group.stores.memory_bytes += counted - self._counted
            self._counted = counted

    def expect_bytes(self, size: int) -> None:
        """Count memory for new state now. A later frame counts what the store takes."""
        self._counted += size
        self.group.stores.memory_bytes += size

    def dispose(self) -> None:
        """Drop references of a deleted group partition, so that its memory is freed."""
        stores = self.group.stores
        self.scheduled_us = None
        if self._store is not None:
            self._free_tables(self._store)
            self._store.dispose()
            stores.memory_bytes -= self._counted
            self._counted = 0
            stores.closed(self)
        elif self._packed is not None:
            stores.memory_bytes -= PACKED_MEMORY + len(self._packed)
            self._packed = None

    def discard_store(self) -> None:
        """Drop the store of a group partition without events."""
        if self._store is not None and not self.is_kept:
            self._store.dispose()
            self._store = None

    # -- without opening ----------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """Floor and counts. A packed store stays packed, unless it settles removed records."""
        self.settle_removed()
        if self._store is not None:
            return position_of(self._store)
        if self._packed is not None:
            return position(self._packed)
        if not self.partition.gaps:
            start, token = self.partition.start_offset, self.group.stores.token_base
            return Position(start, 0, 0, 0, 0, 0, NO_OFFSET, token, False)
        found = position_of(self.store)
        self.discard_store()
        return found

    @property
    def settings(self) -> GroupSettings:
        """The settings of the group. A packed store stays packed."""
        if self._store is not None:
            return self._store.settings
        own = None if self._packed is None else packed_settings(self._packed)
        return own or self.group.stores.settings

    @property
    def last_token(self) -> int:
        """Token of the latest grant. A packed store stays packed."""
        if self._store is not None:
            return self._store.last_token
        return self.group.stores.token_base if self._packed is None else last_token(self._packed)

    def may_own(self, owner: str) -> bool:
        """Return False if ``owner`` surely has no lease. A packed store stays packed."""
        if self._store is not None:
            return self._store.owned(owner) > 0
        return self._packed is not None and may_own(self._packed, owner)

    def is_exhausted(self) -> bool:
        """Return True if no record is eligible, as far as is known without opening the store."""
        if self._store is not None:
            return False
        end = self.partition.next_offset
        if self._packed is None:
            return not self.partition.has_records()
        return self._lowest >= end

    def settle_removed(self) -> None:
        """Settle the records below the start offset, before the store is seen or changed.

        No event: replay does the same where the log moves the start offset. `GroupStores` is told
        how many dead letters they were.
        """
        start = self.partition.start_offset
        if self._settled_start >= start:
            return
        if not self.group.deleted and (self._store is not None or self.is_kept):
            self._settle_below(start)
        self._settled_start = start  # only now: what an error ended is done again

    def _settle_below(self, start: int) -> None:
        packed = self._packed
        if packed is not None:
            if is_plain(packed):
                self._raise_floor(packed)
                return
            if floor(packed) >= start and not position(packed).dead:
                return
        store = self._store or self._open()
        if store.floor < start:
            store.settle_gap(0, start)
        letters = store.dead
        if letters:
            store.apply((_PURGED, 0, start, 0, 0, "", ""), 0)
            self.group.stores.letters_removed(self.partition, letters - store.dead)

    def _raise_floor(self, packed: bytes) -> None:
        """Settle the removed records in the bytes of a plain store."""
        start = self.partition.start_offset
        self._packed = raise_floor(packed, start)
        self._lowest = max(self._lowest, start)

    def resume(self, now_us: int, behind_us: int) -> int | None:
        """Settle the gaps and restart the leases after a replay. Return when the first one ends.

        Delays count, too. Arguments as of `LeaseStore.resume`. A packed store stays packed.
        """
        if self._packed is not None and not self.partition.gaps:
            if is_plain(self._packed):
                self._raise_floor(self._packed)
            packed = self._packed
            if floor(packed) >= self.partition.start_offset:
                at_us, self._packed_at_us = self._packed_at_us, now_us
                self._packed, due_us = restart(packed, at_us, now_us, behind_us)
                return due_us
        store = self.store
        self._settle_gaps(store)
        store.resume(now_us, behind_us)
        return store.next_due_us()

    def settle_gaps(self) -> None:
        """Settle the offsets that have no record, or whose record is removed."""
        self._settle_gaps(self.store)

    def _settle_gaps(self, store: LeaseStore) -> None:
        store.settle_gap(0, self.partition.start_offset)
        for first, end in self.partition.gaps:
            store.settle_gap(first, end)


class GroupPartitions(Sequence[GroupPartition]):
    """The group partitions of a group, one for each partition of its topic."""

    __slots__ = ("_group",)

    def __init__(self, group: ConsumerGroup) -> None:
        self._group = group

    def __len__(self) -> int:
        return len(self._group.topic.partitions)

    @overload
    def __getitem__(self, index: int) -> GroupPartition: ...

    @overload
    def __getitem__(self, index: slice) -> list[GroupPartition]: ...

    def __getitem__(self, index: int | slice) -> GroupPartition | list[GroupPartition]:
        group = self._group
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        partition = group.topic.partitions[index]
        return group.kept.get(partition.index) or GroupPartition(group, partition)

    def __iter__(self) -> Iterator[GroupPartition]:
        group, kept = self._group, self._group.kept
        for partition in group.topic.partitions:
            yield kept.get(partition.index) or GroupPartition(group, partition)


class ConsumerGroup:
    """A consumer group of a topic. It keeps the group partitions that had an event."""

    __slots__ = (
        "_deleted",
        "began",
        "kept",
        "members",
        "name",
        "next_partition",
        "stores",
        "topic",
    )

    def __init__(self, topic: Topic, name: str, stores: GroupStores) -> None:
        self.topic = topic
        self.name = name
        self.stores = stores
        self.kept: dict[int, GroupPartition] = {}
        """Group partitions with events, by partition."""
        self.began = stores.snapshots
        """Number of snapshots that were begun before this group."""
        self._deleted = False
        self.next_partition = 0
        """The index of the group partition at which the next acquire begins."""
        self.members: dict[object, str] | None = None
        """The names of members that read by offset; None: the group has none."""

    @property
    def partitions(self) -> GroupPartitions:
        """A group partition for each partition of the topic; those without events are new ones."""
        return GroupPartitions(self)

    def used(self) -> list[GroupPartition]:
        """Return the group partitions with events, in order."""
        return [self.kept[index] for index in sorted(self.kept)]

    @property
    def settings(self) -> GroupSettings:
        """The settings of the group."""
        return self.partitions[0].settings if self.topic.partitions else self.stores.settings

    @property
    def deleted(self) -> bool:
        """Whether this group is deleted. A holder must check this in each reactor turn."""
        return self._deleted or self.topic.deleted

    def enlist(self) -> None:
        """Add this group to its topic, before its first event is logged."""
        self.topic.groups[self.name] = self
        self.stores.memory_bytes += GROUP_MEMORY

    def dispose(self) -> None:
        """Drop references to other objects, so that memory is freed when the last user lets go."""
        if self._deleted:
            return
        self._deleted = True
        self.stores.memory_bytes -= GROUP_MEMORY
        for group_partition in self.kept.values():
            group_partition.dispose()
        self.kept = {}


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
        "traffic",
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
        """Whether this topic is deleted. A holder must check this in each reactor turn."""
        self.ticket = 0
        """The ticket of the frame that creates the topic."""
        self.traffic: Any = None
        """Its `TopicTraffic`, once it has any."""
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

    def rotate(self, count: int) -> list[Partition]:
        """Return the partitions of ``count`` records without a key, the next one in rotation first.

        Each is listed once. If there are more records, they begin with the first one again.
        """
        partitions, following = self.partitions, self._next_partition
        self._next_partition = (following + count) % len(partitions)
        return (partitions[following:] + partitions[:following])[:count]

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
    near = _similar(name, islice(topic.groups, NEAR_MAX))
    meant = f" (is {near!r} meant?)" if near else ""
    return UnknownGroup(
        f"topic {topic.name!r} has no group {name!r}{meant}; a group begins with its first lease, "
        "or with a pause, seek or settings that say create"
    )


def _similar(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar to ``name``; "" if none is. A few milliseconds."""
    nearest, ratio, cost_left = "", NEAR_RATIO, NEAR_COST_MAX
    if len(name) > NEAR_LETTERS_MAX:
        return nearest
    matcher = SequenceMatcher(None, "", name)
    for one in known:
        matcher.set_seq1(one)
        if (
            len(one) > NEAR_LETTERS_MAX
            or matcher.real_quick_ratio() < ratio
            or matcher.quick_ratio() < ratio
        ):
            continue
        cost_left -= len(one) * len(name)
        if cost_left < 0:
            break
        found = matcher.ratio()
        if found >= ratio:
            nearest, ratio = one, found
    return nearest
