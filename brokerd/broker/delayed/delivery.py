# Tests: tests/broker/test_schedule.py
"""Delayed messages that are due: appended to their topic and settled, in one frame.

A timer says which schedule is due, and each turn of the reactor fires about `FIRE_BYTES`, the
schedules in turns. What has left memory is read back first. A message for which there is no room
stays due and is tried again: late, never lost, never twice. Those that are due at the same time are
fired in the order in which they came; those that are late, in the order in which they were due,
but for a tenth of a second.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from twisted.logger import Logger

from brokerd.broker.context import Context
from brokerd.broker.delayed.prefetch import DelayedPrefetch, Message, message_of
from brokerd.broker.delayed.schedule import (
    ScheduleCounters,
    group_partition_of,
    opened,
)
from brokerd.broker.journal import (
    BATCH_FRAME_BYTES,
    EVENT_FRAME_BYTES,
    GROUP_PARTITION_FRAME_BYTES,
    RECORD_FRAME_BYTES,
    Congested,
    DelayedCall,
)
from brokerd.broker.leases.service import LeaseService
from brokerd.broker.leases.timers import LeaseTimers
from brokerd.broker.model.chunks import Chunk
from brokerd.broker.model.topics import GroupPartition, Partition, Topic
from brokerd.broker.records.append import RecordAppender
from brokerd.broker.records.cold_reader import READ_AHEAD_BYTES, ColdReader, Unreadable
from brokerd.broker.records.fetch import Expiry
from brokerd.errors import BrokerdError, UnknownPartition

FIRE_BYTES = 1 << 20
"""About how many bytes are fired in one turn of the reactor."""

MESSAGE_BYTES = 2048
"""What a message counts besides its own bytes, and a look at a schedule of which none is due, so
that a turn does no more than 512 of either."""

START_GROUP_PARTITIONS = 500
"""Schedules that one turn sees to after the start."""

STEP_RECORDS = 64
"""Messages of one schedule that are fired before the next schedule has its turn."""

EXPIRE_STEP = 256
"""Delays of a schedule that end in one go."""

SLICE_US = 100_000
"""Messages that are due within so long of one another may be fired in the order they came in."""

READ_MIN_BYTES = 64 * 1024
"""What is read ahead for a message far from the one before; doubled while they are near."""

NEAR_RECORDS = 256

RETRY_SECONDS = 1.0
"""When to try again what failed for want of space, or for another reason that may pass."""

TRIM_SECONDS = 60.0
"""How often the internal topics let go of what is over."""

TRIM_GROUP_PARTITIONS = 100
"""Internal topics that are trimmed in one frame."""

FRAME_BYTES = (
    RECORD_FRAME_BYTES + 2 * BATCH_FRAME_BYTES + GROUP_PARTITION_FRAME_BYTES + EVENT_FRAME_BYTES
)
"""More than firing one message takes in a frame, besides its own bytes."""


class DelayedDelivery:
    """Fires what is due.

    ``remove(starts, reason)`` moves start offsets forward, as `TopicAdmin.remove`.
    """

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
        self._journal = context.journal
        self._clock = context.clock
        self._time = context.time
        self._appender = appender
        self._leases = leases
        self._reader = reader
        self._expiry = expiry
        self._counters = counters
        self._prefetch = prefetch
        self._remove = remove
        self._timers = LeaseTimers(context.clock, context.time, self._due)
        self._ready: OrderedDict[GroupPartition, None] = OrderedDict()
        """Schedules of which something may be due, in turns."""
        self._reading: set[GroupPartition] = set()
        self._read_to: dict[GroupPartition, tuple[int, int]] = {}
        """Where the last read of a schedule ended, and how much it read ahead."""
        self._starting: list[Topic] = []
        """Internal topics that are not looked at yet since the start."""
        self._start_call: DelayedCall | None = None
        self._over: dict[GroupPartition, None] = {}
        """Schedules whose beginning may be over."""
        self._turn_call: DelayedCall | None = None
        self._trim_call: DelayedCall | None = None
        self._parked = False
        self._late = False
        self._stopped = False

    def start(self) -> None:
        """Begin to fire; after the groups were resumed."""
        self._starting = [topic for topic in self._state.by_id.values() if topic.internal_of]
        self._go_on_starting()

    def _go_on_starting(self) -> None:
        """See to some schedules that were there at the start, then to the others."""
        self._start_call = None
        part, self._starting = (
            self._starting[:START_GROUP_PARTITIONS],
            self._starting[START_GROUP_PARTITIONS:],
        )
        for topic in part:
            if not topic.deleted:
                group_partition = group_partition_of(self._state, topic)
                self._timers.schedule(group_partition)
                self._wake(group_partition)
                self._prefetch.expect(group_partition)
                self._moved(group_partition)
        if self._starting:
            self._start_call = self._clock.callLater(0, self._go_on_starting)

    def stop(self) -> None:
        """Fire nothing more."""
        self._stopped = True
        self._timers.stop()
        self._prefetch.stop()
        for call in (self._start_call, self._turn_call, self._trim_call):
            if call is not None and call.active():
                call.cancel()

    @property
    def held_bytes(self) -> int:
        """What messages take in memory that were read before they are due."""
        return self._prefetch.held_bytes

    def added(self, group_partition: GroupPartition) -> None:
        """A message was scheduled."""
        self._timers.schedule(group_partition)
        self._prefetch.expect(group_partition)

    # -- what is due --------------------------------------------------------------------------

    def _due(self, group_partition: GroupPartition, now_us: int) -> None:
        """Something of a schedule is due; the timer is set anew when all of that is fired."""
        self._wake(group_partition)

    def _wake(self, group_partition: GroupPartition) -> None:
        if group_partition not in self._reading:
            self._ready[group_partition] = None
            self._turn_later(0)

    def _turn_later(self, seconds: float) -> None:
        if self._turn_call is None and not (self._parked or self._stopped):
            self._turn_call = self._clock.callLater(seconds, self._turn)

    def _turn(self) -> None:
        """Fire what one turn may, the schedules in turns."""
        self._turn_call = None
        left = FIRE_BYTES
        while self._ready and left > 0:
            group_partition, _ = self._ready.popitem(last=False)
            try:
                left -= max(self._fire(group_partition), MESSAGE_BYTES)
            except Congested:
                self._park(group_partition)
                return
            except BrokerdError as error:
                self._retry(group_partition, error)
                return
        if self._ready:
            self._turn_later(0)

    def _park(self, group_partition: GroupPartition) -> None:
        """Go on with this schedule when the log has room."""
        self._ready[group_partition] = None
        self._ready.move_to_end(group_partition, last=False)
        self._parked = True
        self._journal.when_uncongested(self._uncongested)

    def _uncongested(self) -> None:
        self._parked = False
        if not self._stopped and self._turn_call is None:
            self._turn()

    def _retry(self, group_partition: GroupPartition, error: BrokerdError) -> None:
        """Go on in a while: the disk is full, or the broker is about to stop."""
        self._ready[group_partition] = None
        if not self._late:
            self._late = True
            self._log.warn(
                "delayed messages are late: {error}; they are tried again every {seconds} s",
                error=error,
                seconds=RETRY_SECONDS,
                event_id="schedule-late",
            )
        self._turn_later(RETRY_SECONDS)

    # -- firing -------------------------------------------------------------------------------

    def _fire(self, group_partition: GroupPartition, loaded: Chunk | None = None) -> int:
        """Fire some messages of a schedule, and see to it that the others follow; what they count.

        ``loaded`` was just read, and may be in no cache.
        """
        size = 0
        for _ in range(STEP_RECORDS):
            offset = self._first_due(group_partition)
            if offset is None:
                return size
            message = self._message(group_partition, offset, loaded)
            if message is None:
                self._read(group_partition, offset)
                return size
            if self._expiry.is_past(message.expires_at_us):
                self._journal.admit_events(EVENT_FRAME_BYTES)
                self._settle(group_partition, offset)
                self._counters.expired += 1
            else:
                size += self._fire_one(group_partition, offset, message)
            size += MESSAGE_BYTES
        self._wake(group_partition)
        return size

    def _message(
        self, group_partition: GroupPartition, offset: int, loaded: Chunk | None
    ) -> Message | None:
        """A message that is in memory."""
        message = self._prefetch.look(group_partition, offset)
        if message is not None:
            return message
        chunk = loaded
        if chunk is None or not chunk.base <= offset < chunk.end:
            chunk = group_partition.partition.find(offset)
        return None if chunk is None else message_of(chunk, offset)

    def _first_due(self, group_partition: GroupPartition) -> int | None:
        """The first message that is due; None, and the timer is set, when there is none.

        By the order in which they came among those that are due within `SLICE_US`, and no others
        join them before they are fired: or those that came late would wait while others come due.
        """
        if group_partition.partition.topic.deleted:
            return None
        store, end = group_partition.store, group_partition.partition.next_offset
        offset = store.next_open(end)
        if offset < 0:
            due_us, now_us = store.next_due_us(), self._time.now_us()
            if due_us is not None and due_us <= now_us:
                store.expire(min(now_us, due_us + SLICE_US), EXPIRE_STEP)
                offset = store.next_open(end)
            if offset < 0:
                self._timers.schedule(group_partition)
        return None if offset < 0 else offset

    def _fire_one(self, group_partition: GroupPartition, offset: int, message: Message) -> int:
        """Append a message to its topic and settle it; its bytes."""
        target = self._state.by_id.get(group_partition.partition.topic.internal_of)
        if target is None:
            self._lose(group_partition, offset, "its topic is lost")
            return 0
        value, key, wrapped, encoding, producer_format, expires_at_us = message
        due_us, partition, metadata, forever = opened(wrapped)
        size = len(value) + len(key or b"") + len(metadata or b"")
        self._journal.admit(size + FRAME_BYTES)
        self._appender.append(
            choose(target, key, partition),
            value,
            encoding,
            key,
            metadata,
            producer_format,
            None,
            expires_at_us or (0 if forever else None),
        )
        self._settle(group_partition, offset)
        self._counters.fired += 1
        self._late = False
        if not self._time.lead_us():
            self._counters.late(max(0, self._time.time_us() - due_us) / 1e6)
        return size

    def _settle(self, group_partition: GroupPartition, offset: int) -> None:
        """Be done with a message; the event was admitted."""
        store = group_partition.store
        before = len(store.events)
        store.settle(self._time.now_us(), group_partition.partition.next_offset, offset, True)
        self._leases.touch_added(group_partition, before)
        self.over(group_partition, offset)

    def _lose(self, group_partition: GroupPartition, offset: int, problem: str) -> None:
        """Settle a message that can never be fired, and say so."""
        self._journal.admit_events(EVENT_FRAME_BYTES)
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

    def _read(self, group_partition: GroupPartition, offset: int) -> None:
        """Have a message read from disk, and those behind it that are likely to be wanted."""
        self._reading.add(group_partition)
        end, ahead = self._read_to.get(group_partition, (-1, 0))
        near = end <= offset < end + NEAR_RECORDS
        ahead = min(2 * ahead, READ_AHEAD_BYTES) if near else READ_MIN_BYTES
        self._read_to[group_partition] = (offset + 1, ahead)
        self._reader.load(
            group_partition.partition, offset, partial(self._loaded, group_partition, offset), ahead
        )

    def _loaded(
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
                self._fire(group_partition, chunk)
            elif isinstance(error, Unreadable):
                self._lose(group_partition, offset, str(error))
                self._wake(group_partition)
            else:
                raise BrokerdError(str(error))
        except Congested:
            self._park_or_wake(group_partition)
        except BrokerdError as refusal:
            self._retry(group_partition, refusal)

    def _park_or_wake(self, group_partition: GroupPartition) -> None:
        if self._parked:
            self._ready[group_partition] = None
        else:
            self._park(group_partition)

    # -- letting go ---------------------------------------------------------------------------

    def over(self, group_partition: GroupPartition, offset: int) -> None:
        """A message is fired, cancelled or lost: its record is needed no more."""
        self._prefetch.drop(group_partition, offset)
        self._moved(group_partition)

    def _moved(self, group_partition: GroupPartition) -> None:
        self._over[group_partition] = None
        if self._trim_call is None and not self._stopped:
            self._trim_call = self._clock.callLater(TRIM_SECONDS, self._trim)

    def _trim(self) -> None:
        """Move the start offsets of internal topics to their floors: they pin no segment then."""
        self._trim_call = None
        group_partitions = [
            group_partition
            for group_partition in self._over
            if not group_partition.partition.topic.deleted
        ]
        part, rest = (
            group_partitions[:TRIM_GROUP_PARTITIONS],
            group_partitions[TRIM_GROUP_PARTITIONS:],
        )
        seconds = 0.0
        try:
            self._remove(
                [
                    (group_partition.partition, group_partition.store.floor)
                    for group_partition in part
                ],
                "fired",
            )
        except BrokerdError:  # no room: in a minute
            rest, seconds = group_partitions, TRIM_SECONDS
        self._over = dict.fromkeys(rest)
        if rest:
            self._trim_call = self._clock.callLater(seconds, self._trim)
        for group_partition in self._read_to.keys() - self._reading:
            del self._read_to[group_partition]


def choose(topic: Topic, key: bytes | None, index: int | None) -> Partition:
    """The partition for a message that is due: the one asked for, else by key, else in turn."""
    try:
        return topic.choose(key, index)
    except UnknownPartition:  # what is left of a topic after damage may have fewer
        return topic.choose(key)
