# Tests: tests/broker/test_schedule.py
"""Delayed messages: kept durably, and produced to their topic when they are due.

A delayed message is a record of the internal topic that serves its target, in an envelope, and a
delay of that topic's only group. So what is scheduled survives as records and leases do, and
follows their rules of time (docs/leases.rst): late, never early, whatever the wall clock does, and
after a restart delays go on by broker time. The id of a delayed message is its offset in the
internal topic. `brokerd.broker.delayed.delivery` does the rest: it appends to the target and
settles, in one frame.

Memory: what a delayed record of a group takes (docs/leases.rst, "Cost"); the records themselves are
on disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from typing import Any, NamedTuple

import msgpack

from brokerd.broker.context import Context
from brokerd.broker.journal import (
    BATCH_FRAME_BYTES,
    EVENT_FRAME_BYTES,
    GROUP_PARTITION_FRAME_BYTES,
    RECORD_FRAME_BYTES,
)
from brokerd.broker.leases.service import LeaseService
from brokerd.broker.model.state import State
from brokerd.broker.model.topics import GroupPartition, Topic
from brokerd.broker.records.append import RecordAppender
from brokerd.errors import InvalidRequest
from brokerd.values import Encoding, Format

GROUP_NAME = "schedule"
"""The only group of an internal topic: its delays are those of the messages."""

DELAY_MAX_US = 10 * 365 * 86_400 * 1_000_000
"""Longest delay: ten years."""

LATER_FRAME_BYTES = RECORD_FRAME_BYTES + EVENT_FRAME_BYTES + 32
"""More than a delayed message takes in a frame besides its own bytes."""

BATCH_LATER_BYTES = BATCH_FRAME_BYTES + GROUP_PARTITION_FRAME_BYTES
"""What delayed messages of a topic take once, whatever their number."""

LATENESS_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0)
"""Upper bounds of the buckets in which lateness is counted; the last bucket has none."""


PREVIEW_BYTES = 64
"""What a list of delayed messages shows of each."""


class Scheduled(NamedTuple):
    """A message that waits."""

    id: int
    due_us: int
    """Broker time. Of one that is due and not in memory: now."""
    partition: int | None
    """The partition that was asked for; None when it is chosen when the message is due."""
    size: int | None
    """Bytes of key, value and metadata; None, as all below and ``partition`` is then, if it is not
    in memory."""
    key: bytes | None = None
    """The first `PREVIEW_BYTES` of the key."""
    encoding: int | None = None
    preview: bytes | None = None
    """The first `PREVIEW_BYTES` of the value."""


class Envelope(NamedTuple):
    """What the internal record's metadata holds."""

    due_us: int
    """Broker time at which the message was to be due, as it was when the message came."""
    partition: int | None
    metadata: bytes | None
    """The message's own."""
    forever: bool = False
    """Whether it was said that the message never expires, whatever its topic's own TTL."""


@dataclass
class ScheduleCounters:
    """What the schedule has done since the broker started."""

    scheduled: int = 0
    fired: int = 0
    cancelled: int = 0
    expired: int = 0
    """Dropped when they were due, because they had expired."""
    lost: int = 0
    """Given up, because they could not be read, or their topic is lost."""
    lateness_seconds: float = 0.0
    lateness: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_SECONDS) + 1))
    """How many fired so late, by `LATENESS_SECONDS`."""

    def late(self, seconds: float) -> None:
        """Count one that fired so late."""
        self.lateness_seconds += seconds
        self.lateness[bisect_left(LATENESS_SECONDS, seconds)] += 1

    def status(self) -> dict[str, Any]:
        """As a status shows it."""
        return {
            "scheduled": self.scheduled,
            "fired": self.fired,
            "cancelled": self.cancelled,
            "expired": self.expired,
            "lost": self.lost,
            "lateness_seconds": self.lateness_seconds,
            "lateness": list(self.lateness),
        }


class Schedule:
    """Takes delayed messages in, lists and cancels them.

    ``open_internal(topic)`` makes the internal topic of a topic, if it has none yet;
    ``added(group_partition)`` is told of every message that was scheduled, ``over(group_partition,
    offset)`` of each that was cancelled.
    """

    def __init__(
        self,
        context: Context,
        appender: RecordAppender,
        leases: LeaseService,
        counters: ScheduleCounters,
        open_internal: Callable[[Topic], Topic],
        added: Callable[[GroupPartition], None],
        over: Callable[[GroupPartition, int], None],
    ) -> None:
        self._state = context.state
        self._journal = context.journal
        self._time = context.time
        self._appender = appender
        self._leases = leases
        self.counters = counters
        self._open_internal = open_internal
        self._added = added
        self._over = over

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
        """Produce a message in ``delay_us``; returns its schedule id.

        Its partition is chosen then, by key, unless one is asked for. It expires at broker time
        ``expires_at_us``, 0 for never; None: as the topic's records do, from then on. Raises
        `InvalidRequest` for a delay that is not 1 us to ten years, `UnknownPartition`, `NoSpace` or
        `Congested`.
        """
        check_delay(delay_us)
        if partition_index is not None:
            topic.partition(partition_index)
        self.open(topic)
        size = len(value) + len(key or b"") + len(metadata or b"")
        self._journal.admit(size + LATER_FRAME_BYTES + BATCH_LATER_BYTES)
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

    def open(self, topic: Topic) -> None:
        """Make sure that a topic can have delayed messages. Raises `NoSpace` or `Congested`."""
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
        """As `produce`, after `open` and admission, alone or with others.

        A message is admitted with `LATER_FRAME_BYTES`, all of them with `BATCH_LATER_BYTES` once;
        its delay and its partition are checked before.
        """
        group_partition = schedule_group_partition(self._state, topic)
        assert group_partition is not None, "the schedule was opened"
        store = group_partition.store
        due_us = self._time.time_us() + delay_us
        envelope = (due_us, partition_index, metadata, True)
        offset = self._appender.append(
            group_partition.partition,
            value,
            encoding,
            key,
            msgpack.packb(envelope if expires_at_us == 0 else envelope[:-1]),
            producer_format,
            None,
            expires_at_us or 0,
        )
        before = len(store.events)
        store.delay(self._time.now_us(), offset, delay_us)
        self._leases.touch_added(group_partition, before)
        self.counters.scheduled += 1
        self._added(group_partition)
        return offset

    def cancel(self, topic_name: str, schedule_id: int) -> bool:
        """Let a delayed message never be produced; False when it was already, or never was there.

        Raises `UnknownTopic`, `NoSpace` or `Congested`.
        """
        topic = self._state.existing_topic(topic_name)
        group_partition = schedule_group_partition(self._state, topic)
        if group_partition is None or not 0 <= schedule_id < group_partition.partition.next_offset:
            return False
        self._journal.admit_events(EVENT_FRAME_BYTES)
        store = group_partition.store
        before = len(store.events)
        settled = store.settle(
            self._time.now_us(), group_partition.partition.next_offset, schedule_id, True
        )
        self._leases.touch_added(group_partition, before)
        if settled:
            self.counters.cancelled += 1
            self._over(group_partition, schedule_id)
        return settled

    def scheduled(self, topic_name: str, first_id: int = 0) -> Iterator[Scheduled]:
        """The messages of a topic that wait, by id, from ``first_id`` on; use it in one turn.

        Those that are due and wait for room in the log are among them. Raises `UnknownTopic`.
        """
        group_partition = schedule_group_partition(
            self._state, self._state.existing_topic(topic_name)
        )
        if group_partition is None:
            return
        time_us = self._time.time_us()
        ahead_us = time_us - self._time.now_us()
        partition, store = group_partition.partition, group_partition.store
        waiting = ((offset, ready_us + ahead_us) for offset, ready_us in store.delays(first_id))
        late = ((offset, None) for offset in store.open(first_id, partition.next_offset))
        for offset, due_us in merge(waiting, late):
            chunk = partition.find(offset)
            if chunk is None or chunk.hole_end(offset) > offset:
                yield Scheduled(offset, time_us if due_us is None else due_us, None, None)
            else:
                record = chunk.record(offset - chunk.base)
                inner = opened(record.metadata)
                size = len(record.value) + len(record.key or b"") + len(inner.metadata or b"")
                if due_us is None:
                    due_us = min(inner.due_us, time_us)
                key = None if record.key is None else record.key[:PREVIEW_BYTES]
                preview = record.value[:PREVIEW_BYTES]
                yield Scheduled(
                    offset, due_us, inner.partition, size, key, record.encoding, preview
                )


def check_delay(delay_us: int) -> None:
    """Raise `InvalidRequest` for a delay that no message may have."""
    if not 0 < delay_us <= DELAY_MAX_US:
        raise InvalidRequest(
            f"a message may be delayed by a microsecond up to {DELAY_MAX_US // 1_000_000} seconds "
            f"(ten years), not by {delay_us / 1e6}"
        )


def schedule_group_partition(state: State, topic: Topic) -> GroupPartition | None:
    """Where the delayed messages of a topic wait; None while it never had any."""
    return None if topic.internal is None else group_partition_of(state, topic.internal)


def group_partition_of(state: State, internal: Topic) -> GroupPartition:
    """Where the delayed messages of an internal topic wait."""
    group = internal.groups.get(GROUP_NAME)
    if group is None:
        group = internal.groups[GROUP_NAME] = state.new_group(internal, GROUP_NAME)
        group.partitions[0].leave_out_gaps()
    return group.partitions[0]


def opened(metadata: bytes | None) -> Envelope:
    """The envelope in the metadata of a record of an internal topic."""
    return Envelope(*msgpack.unpackb(metadata))
