# Tests: tests/broker/test_schedule.py
"""Delivers delayed messages that are due: appends each to its topic and settles it, in one frame.

A timer reports schedules with due messages. Each reactor turn delivers about `TURN_BYTES`, the
schedules in turn. Messages that are only on disk are read first. A message without room in the log
stays due, and the broker tries again: it may be late, but it is neither lost nor delivered twice.
Messages with the same due time are delivered in the order of their arrival. Late messages are
delivered in the order of their due times, to a precision of `SLICE_US`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from twisted.logger import Logger

from brokerd.broker.clock import Timer
from brokerd.broker.context import Context
from brokerd.broker.delayed.prefetch import DelayedPrefetch, Message, message_of
from brokerd.broker.delayed.schedule import (
    ScheduleCounters,
    decode_envelope,
    group_partition_of,
)
from brokerd.broker.group_commit import (
    ENTRY_OVERHEAD_BYTES,
    EVENT_PAIR_BYTES,
    GROUP_EVENTS_OVERHEAD_BYTES,
    Congested,
)
from brokerd.broker.leases.service import LeaseService
from brokerd.broker.leases.timers import LeaseTimers
from brokerd.broker.model.chunks import Chunk
from brokerd.broker.model.topics import GroupPartition, Partition, Topic
from brokerd.broker.records.append import RecordAppender
from brokerd.broker.records.cold_reader import READ_AHEAD_BYTES, ColdReader, Unreadable
from brokerd.broker.records.fetch import Expiry
from brokerd.broker.records.size import record_frame_bytes
from brokerd.errors import BrokerdError, UnknownPartition

TURN_BYTES = 1 << 20
"""About how many bytes one reactor turn delivers."""

MESSAGE_BYTES = 2048
"""A message counts this much besides its own bytes, and so does a schedule without a due message.
So a reactor turn handles at most 512 of them."""

START_GROUP_PARTITIONS = 500
"""Schedules that one reactor turn takes up after the start."""

SCHEDULE_BATCH = 64
"""Messages of one schedule that are delivered before those of the next schedule."""

END_DUE_MAX = 256
"""Delays of a schedule that end in one call of its lease store."""

SLICE_US = 100_000
"""Late messages with due times this close are delivered in the order of their arrival."""

READ_MIN_BYTES = 64 * 1024
"""Bytes to read for a message far from the one read before. The next reads nearby double it."""

NEAR_RECORDS = 256
"""A message is near the last read if at most this many records lie between them."""

RETRY_SECONDS = 1.0
"""Wait before another attempt, after an error that may pass, such as a full disk."""

TRIM_SECONDS = 60.0
"""Interval between trims of internal topics."""

TRIM_GROUP_PARTITIONS = 100
"""Internal topics that are trimmed in one frame."""

DELIVERY_FRAME_BYTES = 2 * ENTRY_OVERHEAD_BYTES + GROUP_EVENTS_OVERHEAD_BYTES + EVENT_PAIR_BYTES
"""More than the delivery of a message takes in a frame, besides `record_frame_bytes`."""


class DelayedDelivery:
    """Appends due messages to their topics. ``remove`` is `TopicAdmin.remove`."""

    _log = Logger()

    def __init__(
        self,
        context: Context,
        appender: RecordAppender,
        leases: LeaseService,
        reader: ColdReader,
        expiry: Expiry,
        counters: ScheduleCounters,
        prefetch: DelayedPrefetch,
        remove: Callable[[list[tuple[Partition, int]], str], int],
    ) -> None:
        self._state = context.state
        self._group_commit = context.group_commit
        self._clock = context.clock
        self._time = context.time
        self._appender = appender
        self._leases = leases
        self._reader = reader
        self._expiry = expiry
        self._counters = counters
        self._prefetch = prefetch
        self._remove = remove
        self._timers = LeaseTimers(context.clock, context.time, self._on_due)
        self._ready: OrderedDict[GroupPartition, None] = OrderedDict()
        """Schedules that may have due messages, the next one first."""
        self._reading: set[GroupPartition] = set()
        """Schedules that wait for a read."""
        self._read_to: dict[GroupPartition, tuple[int, int]] = {}
        """The offset after the last read of a schedule, and the bytes of that read."""
        self._starting: list[Topic] = []
        """Internal topics to take up after the start."""
        self._start_call: Timer | None = None
        self._to_trim: dict[GroupPartition, None] = {}
        """Schedules with messages settled since the last trim."""
        self._run_call: Timer | None = None
        self._trim_call: Timer | None = None
        self._is_congested = False
        self._is_late = False
        self._stopped = False

    def start(self) -> None:
        """Begin to deliver. The leases must have been resumed."""
        self._starting = [topic for topic in self._state.by_id.values() if topic.internal_of]
        self._start_some()

    def _start_some(self) -> None:
        """Take up some schedules of the last run, and the others in later reactor turns."""
        self._start_call = None
        some = self._starting[:START_GROUP_PARTITIONS]
        self._starting = self._starting[START_GROUP_PARTITIONS:]
        for topic in some:
            if not topic.deleted:
                group_partition = group_partition_of(self._state, topic)
                self.message_added(group_partition)
                self._wake(group_partition)
                self._trim_later(group_partition)
        if self._starting:
            self._start_call = self._clock.callLater(0, self._start_some)

    def stop(self) -> None:
        """Deliver no more messages."""
        self._stopped = True
        self._timers.stop()
        self._prefetch.stop()
        for call in (self._start_call, self._run_call, self._trim_call):
            if call is not None and call.active():
                call.cancel()

    @property
    def held_bytes(self) -> int:
        """Bytes of memory for messages that were read ahead."""
        return self._prefetch.held_bytes

    def message_added(self, group_partition: GroupPartition) -> None:
        """Set the timer of a schedule and plan its prefetch, after a start or a new message."""
        self._timers.schedule(group_partition)
        self._prefetch.plan(group_partition)

    # -- due schedules ------------------------------------------------------------------------

    def _on_due(self, group_partition: GroupPartition, now_us: int) -> None:
        """Handle a schedule's timer. `_next_due` sets it again after the last due message."""
        self._wake(group_partition)

    def _wake(self, group_partition: GroupPartition) -> None:
        if group_partition not in self._reading:
            self._ready[group_partition] = None
            self._run_later(0)

    def _run_later(self, seconds: float) -> None:
        if self._run_call is None and not (self._is_congested or self._stopped):
            self._run_call = self._clock.callLater(seconds, self._run)

    def _run(self) -> None:
        """Deliver up to `TURN_BYTES`, the schedules in turn."""
        self._run_call = None
        left = TURN_BYTES
        while self._ready and left > 0:
            group_partition, _ = self._ready.popitem(last=False)
            try:
                left -= max(self._deliver_some(group_partition), MESSAGE_BYTES)
            except Congested:
                self._wait_for_room(group_partition)
                return
            except BrokerdError as error:
                self._retry(group_partition, error)
                return
        if self._ready:
            self._run_later(0)

    def _wait_for_room(self, group_partition: GroupPartition) -> None:
        """Pause until the log has room, then begin with this schedule."""
        self._ready[group_partition] = None
        if not self._is_congested:
            self._ready.move_to_end(group_partition, last=False)
            self._is_congested = True
            self._group_commit.when_uncongested(self._on_room)

    def _on_room(self) -> None:
        self._is_congested = False
        if not self._stopped and self._run_call is None:
            self._run()

    def _retry(self, group_partition: GroupPartition, error: BrokerdError) -> None:
        """Try again later: the disk is full, or the broker stops."""
        self._ready[group_partition] = None
        if not self._is_late:
            self._is_late = True
            self._log.warn(
                "delayed messages are late: {error}; the broker tries again every {seconds} s",
                error=error,
                seconds=RETRY_SECONDS,
                event_id="schedule-late",
            )
        self._run_later(RETRY_SECONDS)

    # -- delivery -----------------------------------------------------------------------------

    def _deliver_some(self, group_partition: GroupPartition, loaded: Chunk | None = None) -> int:
        """Deliver some messages of a schedule and arrange for the others; return the size done.

        ``loaded`` is the chunk that was just read. The caches may not have it.
        """
        size = 0
        for _ in range(SCHEDULE_BATCH):
            offset = self._next_due(group_partition)
            if offset is None:
                return size
            message = self._find_message(group_partition, offset, loaded)
            if message is None:
                self._start_read(group_partition, offset)
                return size
            if self._expiry.is_past(message.expires_at_us):
                self._group_commit.admit_events(EVENT_PAIR_BYTES)
                self._settle(group_partition, offset)
                self._counters.expired += 1
            else:
                size += self._deliver(group_partition, offset, message)
            size += MESSAGE_BYTES
        self._wake(group_partition)
        return size

    def _find_message(
        self, group_partition: GroupPartition, offset: int, loaded: Chunk | None
    ) -> Message | None:
        """Return a message if it is in memory."""
        message = self._prefetch.get(group_partition, offset)
        if message is not None:
            return message
        chunk = loaded
        if chunk is None or not chunk.base <= offset < chunk.end:
            chunk = group_partition.partition.find(offset)
        return None if chunk is None else message_of(chunk, offset)

    def _next_due(self, group_partition: GroupPartition) -> int | None:
        """Return the offset of the next due message; without one, set the timer and return None.

        Messages due within `SLICE_US` are open together and are delivered by offset. The next ones
        join them only when all are delivered. Otherwise a steady stream of due messages with low
        offsets would delay those with high offsets.
        """
        if group_partition.partition.topic.deleted:
            return None
        store, end = group_partition.store, group_partition.partition.next_offset
        offset = store.next_open(end)
        if offset < 0:
            due_us, now_us = store.next_due_us(), self._time.monotonic_us()
            if due_us is not None and due_us <= now_us:
                store.end_due(min(now_us, due_us + SLICE_US), END_DUE_MAX)
                offset = store.next_open(end)
            if offset < 0:
                self._timers.schedule(group_partition)
        return None if offset < 0 else offset

    def _deliver(self, group_partition: GroupPartition, offset: int, message: Message) -> int:
        """Append a message to its topic and settle it; return its size in bytes."""
        target = self._state.by_id.get(group_partition.partition.topic.internal_of)
        if target is None:
            self._give_up(group_partition, offset, "its topic is lost")
            return 0
        value, key, wrapped, encoding, producer_format, expires_at_us = message
        due_us, partition, metadata, forever = decode_envelope(wrapped)
        size = record_frame_bytes(value, key, metadata)
        self._group_commit.admit(size + DELIVERY_FRAME_BYTES)
        self._appender.append(
            choose_partition(target, key, partition),
            value,
            encoding,
            key,
            metadata,
            producer_format,
            None,
            expires_at_us or (0 if forever else None),
        )
        self._settle(group_partition, offset)
        self._counters.delivered += 1
        self._is_late = False
        if not self._time.lead_us():
            self._counters.count_lateness(max(0, self._time.time_us() - due_us) / 1e6)
        return size

    def _settle(self, group_partition: GroupPartition, offset: int) -> None:
        """Settle a message. The caller has had the event admitted to the log."""
        store = group_partition.store
        before = len(store.events)
        store.settle(self._time.monotonic_us(), group_partition.partition.next_offset, offset, True)
        self._leases.add_new_events(group_partition, before)
        self.message_settled(group_partition, offset)

    def _give_up(self, group_partition: GroupPartition, offset: int, problem: str) -> None:
        """Settle a message that can never be delivered, and log an error."""
        self._group_commit.admit_events(EVENT_PAIR_BYTES)
        self._settle(group_partition, offset)
        self._counters.lost += 1
        self._log.error(
            "delayed message {offset} of topic id {topic_id} cannot be produced: {problem}",
            offset=offset,
            topic_id=group_partition.partition.topic.internal_of,
            problem=problem,
            event_id="scheduled-lost",
        )

    # -- reading ------------------------------------------------------------------------------

    def _start_read(self, group_partition: GroupPartition, offset: int) -> None:
        """Start to read a message from disk, and those behind it that are probably due soon."""
        self._reading.add(group_partition)
        end, ahead = self._read_to.get(group_partition, (-1, 0))
        near = end <= offset < end + NEAR_RECORDS
        ahead = min(2 * ahead, READ_AHEAD_BYTES) if near else READ_MIN_BYTES
        self._read_to[group_partition] = (offset + 1, ahead)
        self._reader.load(
            group_partition.partition,
            offset,
            partial(self._on_read, group_partition, offset),
            ahead,
        )

    def _on_read(
        self,
        group_partition: GroupPartition,
        offset: int,
        chunk: Chunk | None,
        error: Exception | None,
    ) -> None:
        self._reading.discard(group_partition)
        if self._stopped or group_partition.partition.topic.deleted:
            return
        try:
            if chunk is not None:
                self._read_to[group_partition] = (chunk.end, self._read_to[group_partition][1])
                self._deliver_some(group_partition, chunk)
            elif isinstance(error, Unreadable):
                if self._next_due(group_partition) == offset:  # else it was cancelled meanwhile
                    self._give_up(group_partition, offset, str(error))
                self._wake(group_partition)
            else:
                raise BrokerdError(str(error))
        except Congested:
            self._wait_for_room(group_partition)
        except BrokerdError as refusal:
            self._retry(group_partition, refusal)

    # -- trimming -----------------------------------------------------------------------------

    def message_settled(self, group_partition: GroupPartition, offset: int) -> None:
        """Free the memory of a settled message, and trim its topic later."""
        self._prefetch.drop(group_partition, offset)
        self._trim_later(group_partition)

    def _trim_later(self, group_partition: GroupPartition) -> None:
        self._to_trim[group_partition] = None
        if self._trim_call is None and not self._stopped:
            self._trim_call = self._clock.callLater(TRIM_SECONDS, self._trim)

    def _trim(self) -> None:
        """Move start offsets of internal topics to their floors, so that segments can go."""
        self._trim_call = None
        waiting = [each for each in self._to_trim if not each.partition.topic.deleted]
        starts = [(each.partition, each.store.floor) for each in waiting[:TRIM_GROUP_PARTITIONS]]
        rest, seconds = waiting[TRIM_GROUP_PARTITIONS:], 0.0
        try:
            self._remove(starts, "fired")
        except BrokerdError:  # the log has no room
            rest, seconds = waiting, TRIM_SECONDS
        self._to_trim = dict.fromkeys(rest)
        if rest:
            self._trim_call = self._clock.callLater(seconds, self._trim)
        for group_partition in self._read_to.keys() - self._reading:
            del self._read_to[group_partition]


def choose_partition(topic: Topic, key: bytes | None, index: int | None) -> Partition:
    """Return the partition for a message: the requested one, else by key, else round-robin."""
    try:
        return topic.choose(key, index)
    except UnknownPartition:  # after damage, a topic may have fewer partitions
        return topic.choose(key)
