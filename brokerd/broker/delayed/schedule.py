# Tests: tests/broker/test_schedule.py
"""Stores, lists and cancels delayed messages: ``broker.delayed``.

A topic with delayed messages has an internal topic with one group. A delayed message is a record of
the internal topic, with an envelope in its metadata, and a delay of that group. So messages survive
a restart as records and leases do, and follow the same rules of time (docs/leases.rst). A message
may be late but is never early, whatever the wall clock does. After a restart delays go on by broker
time. The schedule id of a message is its offset in the internal topic. `DelayedDelivery` appends
due messages to their topics.

Memory: as for a delayed record of a group (docs/leases.rst, "Cost"). The records are on disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from typing import Any, NamedTuple

import msgpack

from brokerd.broker.context import Context
from brokerd.broker.group_commit import (
    ENTRY_OVERHEAD_BYTES,
    EVENT_PAIR_BYTES,
    GROUP_EVENTS_OVERHEAD_BYTES,
)
from brokerd.broker.leases.service import LeaseService
from brokerd.broker.model.state import State
from brokerd.broker.model.topics import GroupPartition, Topic
from brokerd.broker.records.append import RecordAppender, Rows
from brokerd.broker.records.size import record_frame_bytes
from brokerd.errors import InvalidRequest
from brokerd.values import Encoding, Format

GROUP_NAME = "schedule"
"""The only group of an internal topic. It holds the delays of the messages."""

DELAY_MAX_US = 10 * 365 * 86_400 * 1_000_000
"""The longest delay: ten years."""

DELAY_FRAME_BYTES = EVENT_PAIR_BYTES + 32
"""More than the delay and the envelope of one message take in a frame."""

LATENESS_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0)
"""Upper bounds of the buckets of the lateness histogram. The last bucket has no bound."""

PREVIEW_BYTES = 64
"""A list of delayed messages shows this many bytes of each key and value."""


class ScheduledMessage(NamedTuple):
    """A delayed message in a list.

    If the message is not in memory, ``partition`` and all fields from ``size`` on are None.
    """

    id: int
    due_us: int
    """Broker time. If the message is due and not in memory: now."""
    partition: int | None
    """The requested partition; None if the broker chooses one at the delivery."""
    size: int | None
    """Bytes of key, value and metadata."""
    key: bytes | None = None
    """The first `PREVIEW_BYTES` of the key."""
    encoding: int | None = None
    preview: bytes | None = None
    """The first `PREVIEW_BYTES` of the value."""


class Envelope(NamedTuple):
    """The metadata of a record of an internal topic."""

    due_us: int
    """Due time, in broker time, as calculated when the message arrived."""
    partition: int | None
    metadata: bytes | None
    """The metadata of the delayed message."""
    forever: bool = False
    """Whether the producer asked for no expiry, so that the TTL of the topic does not apply."""


class DelayedRows:
    """Delayed messages for one topic, ready for `Schedule.append_run`.

    ``arrived_us`` is the broker time of their arrival, from which the due times in their envelopes
    count.
    """

    __slots__ = ("_arrived_us", "delays_us", "rows")

    def __init__(self, arrived_us: int) -> None:
        self._arrived_us = arrived_us
        self.rows = Rows()
        self.delays_us: list[int] = []

    def add(
        self,
        value: bytes,
        encoding: int,
        key: bytes | None,
        metadata: bytes | None,
        partition_index: int | None,
        delay_us: int,
        expires_at_us: int | None,
    ) -> None:
        """Add a message; arguments as of `Schedule.append`."""
        due_us = self._arrived_us + delay_us
        envelope = encode_envelope(due_us, partition_index, metadata, expires_at_us)
        self.rows.add(value, encoding, key, envelope, expires_at_us or 0)
        self.delays_us.append(delay_us)


@dataclass
class ScheduleCounters:
    """Counts of delayed messages since the broker started."""

    scheduled: int = 0
    delivered: int = 0
    """Delivered to their topics."""
    cancelled: int = 0
    expired: int = 0
    """Dropped at their due times, because they had expired."""
    lost: int = 0
    """Dropped because of damage: the message cannot be read, or its topic is lost."""
    lateness_seconds: float = 0.0
    lateness: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_SECONDS) + 1))
    """Histogram of deliveries by lateness, with the buckets of `LATENESS_SECONDS`."""

    def count_lateness(self, seconds: float) -> None:
        """Add a delivery to the histogram."""
        self.lateness_seconds += seconds
        self.lateness[bisect_left(LATENESS_SECONDS, seconds)] += 1

    def status(self) -> dict[str, Any]:
        """Return the counts by their names in the status."""
        return {
            "scheduled": self.scheduled,
            "fired": self.delivered,
            "cancelled": self.cancelled,
            "expired": self.expired,
            "lost": self.lost,
            "lateness_seconds": self.lateness_seconds,
            "lateness": list(self.lateness),
        }


class Schedule:
    """Stores, lists and cancels delayed messages.

    ``open_internal(topic)`` returns the internal topic of a topic, and creates it if need be.
    ``on_added(group_partition)`` is called for each new message, ``on_cancelled(group_partition,
    offset)`` for each cancelled one.
    """

    def __init__(
        self,
        context: Context,
        appender: RecordAppender,
        leases: LeaseService,
        counters: ScheduleCounters,
        open_internal: Callable[[Topic], Topic],
        on_added: Callable[[GroupPartition], None],
        on_cancelled: Callable[[GroupPartition, int], None],
    ) -> None:
        self._state = context.state
        self._group_commit = context.group_commit
        self._time = context.time
        self._appender = appender
        self._leases = leases
        self.counters = counters
        self._open_internal = open_internal
        self._on_added = on_added
        self._on_cancelled = on_cancelled

    def produce(
        self,
        topic: Topic,
        value: bytes,
        encoding: int = Encoding.BYTES,
        key: bytes | None = None,
        metadata: bytes | None = None,
        producer_format: int = Format.UNKNOWN,
        partition_index: int | None = None,
        delay_us: int = 0,
        expires_at_us: int | None = None,
    ) -> int:
        """Store a message for delivery after ``delay_us``, and return its schedule id.

        Without ``partition_index`` the delivery chooses a partition by key. The message expires at
        broker time ``expires_at_us``; 0 means never, None applies the TTL of the topic from the
        delivery on. Raises `InvalidRequest` for a delay below 1 us or above ten years,
        `UnknownPartition`, `LimitExceeded`, `NoSpace` or `Congested`.
        """
        check_delay(delay_us)
        if partition_index is not None:
            topic.partition(partition_index)
        self.ensure_internal_topic(topic)
        self._group_commit.admit(record_frame_bytes(value, key, metadata) + delays_frame_bytes(1))
        return self.append(
            topic,
            value,
            encoding,
            key,
            metadata,
            producer_format,
            partition_index,
            delay_us,
            expires_at_us,
        )

    def ensure_internal_topic(self, topic: Topic) -> None:
        """Create the internal topic of a topic if need be. Raises `NoSpace` or `Congested`.

        Raises `LimitExceeded` if the state of groups has no memory for delayed messages.
        """
        self._state.stores.check_memory()
        self._open_internal(topic)

    def append(
        self,
        topic: Topic,
        value: bytes,
        encoding: int,
        key: bytes | None,
        metadata: bytes | None,
        producer_format: int,
        partition_index: int | None,
        delay_us: int,
        expires_at_us: int | None = None,
    ) -> int:
        """Store a message as `produce` does, after its checks, the topic and the admission.

        Messages are admitted with `record_frame_bytes` for each and `delays_frame_bytes` for all.
        The caller has checked the delay and the partition.
        """
        group_partition = schedule_group_partition(self._state, topic)
        assert group_partition is not None, "the schedule was opened"
        store = group_partition.store
        due_us = self._time.time_us() + delay_us
        offset = self._appender.append(
            group_partition.partition,
            value,
            encoding,
            key,
            encode_envelope(due_us, partition_index, metadata, expires_at_us),
            producer_format,
            None,
            expires_at_us or 0,
        )
        before = len(store.events)
        store.delay(self._time.monotonic_us(), offset, delay_us)
        self._leases.add_new_events(group_partition, before)
        self.counters.scheduled += 1
        self._on_added(group_partition)
        return offset

    def append_run(self, topic: Topic, messages: DelayedRows, producer_format: int) -> int:
        """Store messages as `append` does, in a fraction of the time; return the first id."""
        group_partition = schedule_group_partition(self._state, topic)
        assert group_partition is not None, "the schedule was opened"
        store = group_partition.store
        first = self._appender.append_rows(
            group_partition.partition, messages.rows, producer_format
        )
        before = len(store.events)
        store.delay_run(self._time.monotonic_us(), first, messages.delays_us)
        self._leases.add_new_events(group_partition, before)
        self.counters.scheduled += len(messages.delays_us)
        self._on_added(group_partition)
        return first

    def cancel(self, topic_name: str, schedule_id: int) -> bool:
        """Cancel a delayed message; return False if it does not exist or is already delivered.

        Raises `UnknownTopic`, `NoSpace` or `Congested`.
        """
        topic = self._state.existing_topic(topic_name)
        group_partition = schedule_group_partition(self._state, topic)
        if group_partition is None or not 0 <= schedule_id < group_partition.partition.next_offset:
            return False
        self._group_commit.admit_events(EVENT_PAIR_BYTES)
        store = group_partition.store
        before = len(store.events)
        settled = store.settle(
            self._time.monotonic_us(), group_partition.partition.next_offset, schedule_id, True
        )
        self._leases.add_new_events(group_partition, before)
        if settled:
            self.counters.cancelled += 1
            self._on_cancelled(group_partition, schedule_id)
        return settled

    def scheduled(self, topic_name: str, first_id: int = 0) -> Iterator[ScheduledMessage]:
        """Yield the delayed messages of a topic by id, from ``first_id`` on.

        They include messages that are due and wait for room in the log. The caller exhausts the
        iterator in the same reactor turn. Raises `UnknownTopic`.
        """
        group_partition = schedule_group_partition(
            self._state, self._state.existing_topic(topic_name)
        )
        if group_partition is None:
            return
        time_us = self._time.time_us()
        ahead_us = time_us - self._time.monotonic_us()
        partition, store = group_partition.partition, group_partition.store
        waiting = ((offset, ready_us + ahead_us) for offset, ready_us in store.delays(first_id))
        late = ((offset, None) for offset in store.open(first_id, partition.next_offset))
        for offset, due_us in merge(waiting, late):
            chunk = partition.find(offset)
            if chunk is None or chunk.hole_end(offset) > offset:
                yield ScheduledMessage(offset, time_us if due_us is None else due_us, None, None)
            else:
                record = chunk.record(offset - chunk.base)
                inner = decode_envelope(record.metadata)
                size = len(record.value) + len(record.key or b"") + len(inner.metadata or b"")
                if due_us is None:
                    due_us = min(inner.due_us, time_us)
                key = None if record.key is None else record.key[:PREVIEW_BYTES]
                preview = record.value[:PREVIEW_BYTES]
                yield ScheduledMessage(
                    offset, due_us, inner.partition, size, key, record.encoding, preview
                )


def delays_frame_bytes(messages: int) -> int:
    """Return the most bytes that delayed messages of one topic take besides their records."""
    if not messages:
        return 0
    return messages * DELAY_FRAME_BYTES + ENTRY_OVERHEAD_BYTES + GROUP_EVENTS_OVERHEAD_BYTES


def check_delay(delay_us: int) -> None:
    """Raise `InvalidRequest` for a delay below 1 us or above ten years."""
    if not 0 < delay_us <= DELAY_MAX_US:
        raise InvalidRequest(
            f"a message may be delayed by a microsecond up to {DELAY_MAX_US // 1_000_000} seconds "
            f"(ten years), not by {delay_us / 1e6}"
        )


def schedule_group_partition(state: State, topic: Topic) -> GroupPartition | None:
    """Return the group partition of a topic's delayed messages; None if it never had any."""
    return None if topic.internal is None else group_partition_of(state, topic.internal)


def group_partition_of(state: State, internal: Topic) -> GroupPartition:
    """Return the group partition of an internal topic. Creates its group if need be."""
    group = internal.groups.get(GROUP_NAME)
    if group is None:
        group = state.new_group(internal, GROUP_NAME)
        group.enlist()
    group_partition = group.partitions[0]
    group_partition.keep()
    return group_partition


def encode_envelope(
    due_us: int, partition_index: int | None, metadata: bytes | None, expires_at_us: int | None
) -> bytes:
    """Return the metadata of a record of an internal topic."""
    envelope = (due_us, partition_index, metadata, True)
    packed: bytes = msgpack.packb(envelope if expires_at_us == 0 else envelope[:-1])
    return packed


def decode_envelope(metadata: bytes | None) -> Envelope:
    """Decode the metadata of a record of an internal topic."""
    return Envelope(*msgpack.unpackb(metadata))
