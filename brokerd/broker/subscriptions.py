# Tests: tests/broker/test_subscriptions.py
"""Subscriptions: places in a topic that have numbers for names, and end when nobody uses them.

A subscription is a consumer group of its topic, begun at the end of every partition; what is leased
and settled through it is done with that group. Its id is given once, to nobody else, ever; the
entry SUBSCRIPTION that says so, and the group's beginning or end, are one frame: docs/broker.rst,
section "Subscriptions", and docs/wal-format.rst, section "SUBSCRIPTION body".

One that is not used for its grace is over: never early, and late by up to a second for each
`EXAMINED_MAX` of them. A start counts as use.

Memory: about 500 bytes each, besides its group; at most ``subscriptions_max`` of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgpack

from brokerd.broker.context import Context
from brokerd.broker.journal import (
    BATCH_FRAME_BYTES,
    EVENT_FRAME_BYTES,
    GROUP_PARTITION_FRAME_BYTES,
    DelayedCall,
)
from brokerd.broker.leases.service import LeaseService
from brokerd.broker.model.state import Encode
from brokerd.broker.model.topics import ConsumerGroup, GroupPartition, Partition, Topic
from brokerd.errors import BrokerdError, LimitExceeded, NewerFormat
from brokerd.groups import GroupSettings
from brokerd.wal import Frame, SnapshotChunk
from brokerd.walformat import Entry, EntryKind

GROUP_PREFIX = "__blipmq."
"""Names of the groups, before the id."""

ID_OF_GROUP_MAX = 1 << 48
"""No broker has given so many: a group with such a name was made by somebody else."""

SWEEP_SECONDS = 1.0
EXAMINED_MAX = 1_000
"""Subscriptions that are looked at in a turn, every `SWEEP_SECONDS`."""
ENDS_MAX = 50
"""Subscriptions that are ended in a turn; then, after `ENDS_SECONDS`, the next are looked at."""
ENDS_SECONDS = 0.05

SNAPSHOT_SUBSCRIPTIONS = 7
CHUNK_SUBSCRIPTIONS = 10_000
"""Subscriptions in one chunk of a snapshot."""

Floors = Mapping[int, int]
"""Where to begin, by partition; at the end of those that are not named."""

OffsetFound = Callable[[int | None, Exception | None], None]
FindOffset = Callable[[Partition, int, OffsetFound], None]


class Subscription:
    """One subscription. It is over when its topic or its group is gone, too."""

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
        self._journal = context.journal
        self._leases = leases
        self._clock = context.clock
        self._time = context.time
        self._create_topic = create_topic
        self._offset_at_time = offset_at_time
        self._subscriptions_max = subscriptions_max
        self._known: dict[int, Subscription] = {}
        self._next_id = 1
        self._to_look_at: deque[int] = deque()
        self._sweep_call: DelayedCall | None = None
        context.state.appliers[EntryKind.SUBSCRIPTION] = self._apply
        context.state.loaders[SNAPSHOT_SUBSCRIPTIONS] = self._load
        context.state.captures.append(self._captures)

    # -- life ---------------------------------------------------------------------------------

    def start(self, now_us: int, was_damaged: bool = False) -> None:
        """Begin to end what nobody uses; each has its whole grace from ``now_us`` on.

        With ``was_damaged``, ids may have been given of which the log tells no more: those that
        groups still have are not given again.
        """
        if was_damaged:
            self._skip_ids_of_groups()
        for subscription in self._known.values():
            subscription.used_us = now_us
        self._sweep_later()

    def stop(self) -> None:
        """End no more subscriptions."""
        if self._sweep_call is not None:
            self._sweep_call.cancel()
            self._sweep_call = None

    # -- use ----------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many subscriptions there are."""
        return len(self._known)

    def subscribe(
        self,
        topic_name: str,
        qos: int,
        max_deliveries: int,
        lease_us: int,
        grace_us: int,
        floors: Floors | None = None,
    ) -> int:
        """Make a subscription, and its topic if there is none; returns its id.

        Its group counts grants, has at most ``max_deliveries`` (0 counts as 1), and leases that
        last ``lease_us`` and double. Raises `InvalidName`, `LimitExceeded`, `NoSpace`, `Congested`
        before anything is changed, but that the topic may have been made.
        """
        if len(self._known) >= self._subscriptions_max:
            raise LimitExceeded(
                f"there are {len(self._known)} subscriptions already, the most that a broker has; "
                "those that nobody polls will expire"
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
            self._time.now_us(),
        )
        self._begin(topic, subscription, settings, floors or {})
        self._known[subscription_id] = subscription
        self._next_id = subscription_id + 1
        self._sweep_later()
        return subscription_id

    def use(self, subscription_id: int) -> tuple[Subscription, ConsumerGroup] | None:
        """A subscription and its group, used now; None when it is over or never was."""
        subscription = self._known.get(subscription_id)
        if subscription is None:
            return None
        group = self._group(subscription)
        if group is None:
            return None
        subscription.used_us = self._time.now_us()
        return subscription, group

    def topic_name(self, subscription_id: int) -> str | None:
        """The topic of a subscription, which is not used by that; None as in `use`."""
        subscription = self._known.get(subscription_id)
        group = None if subscription is None else self._group(subscription)
        return None if group is None else group.topic.name

    def floors_at(
        self,
        topic_name: str,
        time_us: int,
        found: Callable[[Floors | None, Exception | None], None],
    ) -> None:
        """Call ``found(floors, None)`` with where a broker time is in each partition, later.

        ``found(None, error)`` when that cannot be told; see `offset_at_time`. A topic that does not
        exist has no partitions.
        """
        topic = self._state.by_name.get(topic_name)
        floors: dict[int, int] = {}
        left = list(topic.partitions) if topic is not None else []

        def step(offset: int | None, error: Exception | None) -> None:
            if error is not None:
                found(None, error)
                return
            if offset is not None:
                floors[left.pop().index] = offset
            if left:
                self._offset_at_time(left[-1], time_us, step)
            else:
                found(floors, None)

        step(None, None)

    # -- beginning and end --------------------------------------------------------------------

    def end_with_group(self, topic_name: str, group_name: str) -> bool:
        """End the subscription that a group belongs to, and the group; False if it is no such one.

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
        """The next id whose group nobody has made."""
        subscription_id = self._next_id
        while f"{GROUP_PREFIX}{subscription_id}" in topic.groups:
            subscription_id += 1
        return subscription_id

    def _begin(
        self, topic: Topic, subscription: Subscription, settings: GroupSettings, floors: Floors
    ) -> None:
        """Put a subscription and the beginning of its group into one frame."""
        group = self._leases.new_group(topic, subscription.group_name)
        text_bytes = 4 * len(settings.to_json())
        entry = _entry(
            topic.topic_id,
            op="made",
            id=subscription.subscription_id,
            group=subscription.group_name,
            qos=subscription.qos,
            grace_us=subscription.grace_us,
        )
        group_partition_bytes = GROUP_PARTITION_FRAME_BYTES + 2 * EVENT_FRAME_BYTES + text_bytes
        self._journal.admit(
            BATCH_FRAME_BYTES + len(entry.body) + len(group.partitions) * group_partition_bytes
        )
        self._journal.add_entry(entry)
        for group_partition in group.partitions:
            group_partition.store.configure(settings)
            group_partition.store.seek(_floor(group_partition, floors))
            group_partition.leave_out_gaps()
            self._leases.touch_added(group_partition, 0, text_bytes)

    def _end(self, subscription: Subscription) -> None:
        """Forget a subscription and its group, in one frame. Raises `Congested`, `NoSpace`."""
        group = self._group(subscription)
        group_partitions = group.partitions if group is not None else []
        entry = _entry(subscription.topic_id, op="over", id=subscription.subscription_id)
        self._journal.admit_events(
            BATCH_FRAME_BYTES
            + len(entry.body)
            + len(group_partitions) * (GROUP_PARTITION_FRAME_BYTES + EVENT_FRAME_BYTES)
        )
        self._journal.add_entry(entry)
        for group_partition in group_partitions:
            before = len(group_partition.store.events)
            group_partition.store.delete()
            self._leases.touch_added(group_partition, before)
        if group is not None:
            self._state.remove_group(group)
        del self._known[subscription.subscription_id]

    def _group(self, subscription: Subscription) -> ConsumerGroup | None:
        topic = self._state.by_id.get(subscription.topic_id)
        return None if topic is None else topic.groups.get(subscription.group_name)

    def _sweep_later(self, seconds: float = SWEEP_SECONDS) -> None:
        if self._known and self._sweep_call is None:
            self._sweep_call = self._clock.callLater(seconds, self._sweep)

    def _sweep(self) -> None:
        """Look at some subscriptions and end those that nobody uses."""
        self._sweep_call = None
        now_us = self._time.now_us()
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
                break  # no room for the entry: it ends late, never early
            ends += 1
            if ends == ENDS_MAX:
                break
        self._sweep_later(SWEEP_SECONDS if ends < ENDS_MAX else ENDS_SECONDS)

    def _is_over(self, subscription: Subscription, now_us: int) -> bool:
        unused_us = now_us - subscription.used_us
        return unused_us > subscription.grace_us or self._group(subscription) is None

    # -- what survives a restart --------------------------------------------------------------

    def _apply(self, frame: Frame, entry: Entry) -> None:
        """Do what an entry says. What a chunk holds already, applied again, changes nothing."""
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
        """All subscriptions as they are now, in chunks; one at least, once an id was given."""
        if self._next_id == 1:
            return []
        rows = [
            (one.subscription_id, one.topic_id, one.group_name, one.qos, one.grace_us)
            for one in self._known.values()
        ]
        firsts = range(0, max(1, len(rows)), CHUNK_SUBSCRIPTIONS)
        return [partial(_chunk, lsn, first, self._next_id, rows) for first in firsts]

    def _load(self, lsn: int, fields: dict[str, Any]) -> None:
        self._next_id = max(self._next_id, fields["next_id"])
        for row in fields["subscriptions"]:
            self._know(*row)


def _entry(topic_id: int, **fields: object) -> Entry:
    return Entry(EntryKind.SUBSCRIPTION, topic_id, 0, 0, 0, msgpack.packb(fields))


def _floor(group_partition: GroupPartition, floors: Floors) -> int:
    partition = group_partition.partition
    floor = floors.get(partition.index, partition.next_offset)
    return min(max(floor, partition.start_offset), partition.next_offset)


def _chunk(
    lsn: int, first: int, next_id: int, rows: list[tuple[int, int, str, int, int]]
) -> SnapshotChunk:
    fields = {"next_id": next_id, "subscriptions": rows[first : first + CHUNK_SUBSCRIPTIONS]}
    return SnapshotChunk(SNAPSHOT_SUBSCRIPTIONS, b"%d" % first, lsn, msgpack.packb(fields))
