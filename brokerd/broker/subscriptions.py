# Tests: tests/broker/test_subscriptions.py
"""Subscriptions: consumer groups that have numbers for names and end when they are unused.

A subscription is a consumer group that begins at the end of each partition of its topic. Consumers
lease and settle in that group. The broker never gives an id again. An entry SUBSCRIPTION and the
beginning or end of the group are one frame: docs/broker.rst, section "Subscriptions", and
docs/wal-format.rst, section "SUBSCRIPTION body".

A subscription ends when it is unused for its grace period: never early, and late by up to a second
for each `EXAMINED_MAX` subscriptions. A start of the broker counts as use.

Memory: about 500 bytes each besides the group, and at most ``subscriptions_max`` of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgpack

from brokerd.broker.clock import Timer
from brokerd.broker.context import Context
from brokerd.broker.group_commit import (
    ENTRY_OVERHEAD_BYTES,
    EVENT_PAIR_BYTES,
    GROUP_EVENTS_OVERHEAD_BYTES,
)
from brokerd.broker.leases.service import LeaseService
from brokerd.broker.model.group_stores import NEW_STATE_MEMORY
from brokerd.broker.model.state import Encode
from brokerd.broker.model.topics import ConsumerGroup, GroupPartition, Partition, Topic
from brokerd.errors import BrokerdError, LimitExceeded, NewerFormat
from brokerd.groups import GroupSettings
from brokerd.wal import Frame, SnapshotChunk
from brokerd.walformat import Entry, EntryKind

GROUP_PREFIX = "__blipmq."
"""Start of the group names; the id follows."""

ID_OF_GROUP_MAX = 1 << 48
"""No broker has given so many ids: a client made a group with a higher number."""

SWEEP_SECONDS = 1.0
EXAMINED_MAX = 1_000
"""Subscriptions that a sweep examines. Sweeps are `SWEEP_SECONDS` apart."""
ENDS_MAX = 50
"""Subscriptions that a sweep ends. After so many, the next sweep follows in `ENDS_SECONDS`."""
ENDS_SECONDS = 0.05

SNAPSHOT_SUBSCRIPTIONS = 7
CHUNK_SUBSCRIPTIONS = 10_000
"""Subscriptions in one chunk of a snapshot."""

StartOffsets = Mapping[int, int]
"""The first offset by partition. Partitions without an entry begin at their end."""

OffsetFound = Callable[[int | None, Exception | None], None]
FindOffset = Callable[[Partition, int, OffsetFound], None]


class Subscription:
    """A subscription. It ends with its topic or its group, too."""

    __slots__ = ("grace_us", "group_name", "qos", "subscription_id", "topic_id", "used_us")

    def __init__(
        self,
        subscription_id: int,
        topic_id: int,
        group_name: str,
        qos: int,
        grace_us: int,
        used_us: int,
    ) -> None:
        self.subscription_id = subscription_id
        self.topic_id = topic_id
        self.group_name = group_name
        self.qos = qos
        self.grace_us = grace_us
        self.used_us = used_us
        """Monotonic time of the last use."""


class Subscriptions:
    """All subscriptions of a broker."""

    def __init__(
        self,
        context: Context,
        leases: LeaseService,
        create_topic: Callable[[str], Topic],
        offset_at_time: FindOffset,
        subscriptions_max: int,
    ) -> None:
        self._state = context.state
        self._group_commit = context.group_commit
        self._leases = leases
        self._clock = context.clock
        self._time = context.time
        self._create_topic = create_topic
        self._offset_at_time = offset_at_time
        self.subscriptions_max = subscriptions_max
        self._known: dict[int, Subscription] = {}
        self._next_id = 1
        self._to_look_at: deque[int] = deque()
        self._sweep_call: Timer | None = None
        context.state.appliers[EntryKind.SUBSCRIPTION] = self._apply
        context.state.loaders[SNAPSHOT_SUBSCRIPTIONS] = self._load
        context.state.captures.append(self._captures)

    # -- life ---------------------------------------------------------------------------------

    def start(self, now_us: int, was_damaged: bool = False) -> None:
        """Begin to end unused subscriptions. Each has its whole grace period from ``now_us`` on.

        With ``was_damaged``, the log may have lost ids. The ids of existing groups are skipped.
        """
        if was_damaged:
            self._skip_ids_of_groups()
        for subscription in self._known.values():
            subscription.used_us = now_us
        self._sweep_later()

    def stop(self) -> None:
        """Stop the sweeps."""
        if self._sweep_call is not None:
            self._sweep_call.cancel()
            self._sweep_call = None

    # -- use ----------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Return the number of subscriptions."""
        return len(self._known)

    def subscribe(
        self,
        topic_name: str,
        qos: int,
        max_deliveries: int,
        lease_us: int,
        grace_us: int,
        start_offsets: StartOffsets | None = None,
    ) -> int:
        """Create a subscription, and its topic if it does not exist; return its id.

        Its group counts grants and has at most ``max_deliveries`` (0 counts as 1). Its leases last
        ``lease_us`` and double. Raises `InvalidName`, `LimitExceeded`, `NoSpace`, `Congested`. Then
        nothing is changed, but the topic may be created.
        """
        if len(self._known) >= self.subscriptions_max:
            raise LimitExceeded(
                f"there are {len(self._known)} subscriptions already, the most that a broker has; "
                "subscriptions without polls will expire"
            )
        topic = self._create_topic(topic_name)
        subscription_id = self._free_id(topic)
        settings = GroupSettings(
            max_attempts=max(1, max_deliveries),
            attempts="grants",
            default_duration_us=lease_us,
            lease_doubling=True,
        )
        subscription = Subscription(
            subscription_id,
            topic.topic_id,
            f"{GROUP_PREFIX}{subscription_id}",
            qos,
            grace_us,
            self._time.monotonic_us(),
        )
        self._begin(topic, subscription, settings, start_offsets or {})
        self._known[subscription_id] = subscription
        self._next_id = subscription_id + 1
        self._sweep_later()
        return subscription_id

    def find(self, subscription_id: int) -> tuple[Subscription, ConsumerGroup] | None:
        """Return a subscription and its group; None if it does not exist."""
        subscription = self._known.get(subscription_id)
        if subscription is None:
            return None
        group = self._group(subscription)
        return None if group is None else (subscription, group)

    def use(self, subscription: Subscription) -> None:
        """Begin the grace period of a subscription anew."""
        subscription.used_us = self._time.monotonic_us()

    def start_offsets_at(
        self,
        topic_name: str,
        time_us: int,
        found: Callable[[StartOffsets | None, Exception | None], None],
    ) -> None:
        """Find a broker time's offset in each partition, and call ``found(offsets, None)``.

        Call ``found(None, error)`` if a search fails; see `offset_at_time`. A topic that does not
        exist has no partitions.
        """
        topic = self._state.by_name.get(topic_name)
        start_offsets: dict[int, int] = {}
        left = list(topic.partitions) if topic is not None else []

        def step(offset: int | None, error: Exception | None) -> None:
            if error is not None:
                found(None, error)
                return
            if offset is not None:
                start_offsets[left.pop().index] = offset
            if left:
                self._offset_at_time(left[-1], time_us, step)
            else:
                found(start_offsets, None)

        step(None, None)

    # -- beginning and end --------------------------------------------------------------------

    def end_with_group(self, topic_name: str, group_name: str) -> bool:
        """End a subscription by its group, with the group. Return False for other groups.

        Raises `NoSpace` and `Congested`.
        """
        digits = group_name.removeprefix(GROUP_PREFIX)
        subscription = self._known.get(int(digits)) if digits.isdecimal() else None
        if subscription is None or subscription.group_name != group_name:
            return False
        group = self._group(subscription)
        if group is None or group.topic.name != topic_name:
            return False
        self._end(subscription)
        return True

    def _skip_ids_of_groups(self) -> None:
        for topic in self._state.by_id.values():
            for name in topic.groups:
                number = name.removeprefix(GROUP_PREFIX)
                if number != name and number.isdecimal() and int(number) < ID_OF_GROUP_MAX:
                    self._next_id = max(self._next_id, int(number) + 1)

    def _free_id(self, topic: Topic) -> int:
        """Return the next id whose group does not exist."""
        subscription_id = self._next_id
        while f"{GROUP_PREFIX}{subscription_id}" in topic.groups:
            subscription_id += 1
        return subscription_id

    def _begin(
        self,
        topic: Topic,
        subscription: Subscription,
        settings: GroupSettings,
        start_offsets: StartOffsets,
    ) -> None:
        """Write a subscription and the beginning of its group in one frame."""
        group = self._leases.new_group(topic, subscription.group_name)
        self._state.stores.check_memory(len(group.partitions) * NEW_STATE_MEMORY)
        text_bytes = 4 * len(settings.to_json())
        entry = _entry(
            topic.topic_id,
            op="made",
            id=subscription.subscription_id,
            group=subscription.group_name,
            qos=subscription.qos,
            grace_us=subscription.grace_us,
        )
        group_partition_bytes = GROUP_EVENTS_OVERHEAD_BYTES + 2 * EVENT_PAIR_BYTES + text_bytes
        self._group_commit.admit(
            ENTRY_OVERHEAD_BYTES + len(entry.body) + len(group.partitions) * group_partition_bytes
        )
        self._group_commit.add_entry(entry)
        for group_partition in group.partitions:
            floor = _floor(group_partition, start_offsets)
            added = group_partition.change_packed(settings, floor)
            if added is not None:
                self._leases.add_packed(group_partition, added, text_bytes)
                continue
            group_partition.store.configure(settings)
            group_partition.store.seek(floor)
            group_partition.settle_gaps()
            self._leases.add_new_events(group_partition, 0, text_bytes)

    def _end(self, subscription: Subscription) -> None:
        """Delete a subscription and its group in one frame. Raises `Congested`, `NoSpace`."""
        group = self._group(subscription)
        group_partitions = group.used() if group is not None else []
        entry = _entry(subscription.topic_id, op="over", id=subscription.subscription_id)
        self._group_commit.admit_events(
            ENTRY_OVERHEAD_BYTES
            + len(entry.body)
            + len(group_partitions) * (GROUP_EVENTS_OVERHEAD_BYTES + EVENT_PAIR_BYTES)
        )
        self._group_commit.add_entry(entry)
        for group_partition in group_partitions:
            added = group_partition.delete_packed()
            if added is not None:
                self._leases.add_packed(group_partition, added)
                continue
            before = len(group_partition.store.events)
            group_partition.delete()
            self._leases.add_new_events(group_partition, before)
        if group is not None:
            self._leases.remove_group(group)
        del self._known[subscription.subscription_id]

    def _group(self, subscription: Subscription) -> ConsumerGroup | None:
        topic = self._state.by_id.get(subscription.topic_id)
        return None if topic is None else topic.groups.get(subscription.group_name)

    def _sweep_later(self, seconds: float = SWEEP_SECONDS) -> None:
        if self._known and self._sweep_call is None:
            self._sweep_call = self._clock.callLater(seconds, self._sweep)

    def _sweep(self) -> None:
        """Examine some subscriptions, and end the unused ones."""
        self._sweep_call = None
        now_us = self._time.monotonic_us()
        if not self._to_look_at:
            self._to_look_at.extend(self._known)
        ends = 0
        for _ in range(min(EXAMINED_MAX, len(self._to_look_at))):
            subscription = self._known.get(self._to_look_at.popleft())
            if subscription is None or not self._is_over(subscription, now_us):
                continue
            try:
                self._end(subscription)
            except BrokerdError:
                break  # no space for the entry: it ends late, never early
            ends += 1
            if ends == ENDS_MAX:
                break
        self._sweep_later(SWEEP_SECONDS if ends < ENDS_MAX else ENDS_SECONDS)

    def _is_over(self, subscription: Subscription, now_us: int) -> bool:
        unused_us = now_us - subscription.used_us
        return unused_us > subscription.grace_us or self._group(subscription) is None

    # -- what survives a restart --------------------------------------------------------------

    def _apply(self, frame: Frame, entry: Entry) -> None:
        """Apply an entry. To apply an entry that a chunk holds already changes nothing."""
        fields = msgpack.unpackb(entry.body)
        op, subscription_id = fields["op"], fields["id"]
        if op not in ("made", "over"):
            raise NewerFormat(
                f"the frame at {frame.lsn} says {op!r} of a subscription, which this version does "
                "not know; upgrade brokerd"
            )
        if op == "over":
            self._known.pop(subscription_id, None)
        else:
            self._know(
                subscription_id,
                entry.topic_id,
                fields["group"],
                fields["qos"],
                fields["grace_us"],
            )

    def _know(
        self, subscription_id: int, topic_id: int, group_name: str, qos: int, grace_us: int
    ) -> None:
        self._known[subscription_id] = Subscription(
            subscription_id, topic_id, group_name, qos, grace_us, 0
        )
        self._next_id = max(self._next_id, subscription_id + 1)

    def _captures(self, lsn: int) -> list[Encode]:
        """Return the chunks of all subscriptions. Once an id was given there is at least one."""
        if self._next_id == 1:
            return []
        known = list(self._known.values())  # the fields that a chunk has never change
        firsts = range(0, max(1, len(known)), CHUNK_SUBSCRIPTIONS)
        return [partial(_chunk, lsn, first, self._next_id, known) for first in firsts]

    def _load(self, lsn: int, fields: dict[str, Any]) -> None:
        self._next_id = max(self._next_id, fields["next_id"])
        for row in fields["subscriptions"]:
            self._know(*row)


def _entry(topic_id: int, **fields: object) -> Entry:
    return Entry(EntryKind.SUBSCRIPTION, topic_id, 0, 0, 0, msgpack.packb(fields))


def _floor(group_partition: GroupPartition, start_offsets: StartOffsets) -> int:
    partition = group_partition.partition
    floor = start_offsets.get(partition.index, partition.next_offset)
    return min(max(floor, partition.start_offset), partition.next_offset)


def _chunk(lsn: int, first: int, next_id: int, subscriptions: list[Subscription]) -> SnapshotChunk:
    rows = [
        (one.subscription_id, one.topic_id, one.group_name, one.qos, one.grace_us)
        for one in subscriptions[first : first + CHUNK_SUBSCRIPTIONS]
    ]
    fields = {"next_id": next_id, "subscriptions": rows}
    return SnapshotChunk(SNAPSHOT_SUBSCRIPTIONS, b"%d" % first, lsn, msgpack.packb(fields))
