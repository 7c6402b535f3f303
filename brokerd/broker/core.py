# Tests: tests/broker/test_broker.py
"""The broker: topics, records, leases. Values in, values out; no wire, no disk.

Every method applies its change at once and returns; `Broker.journal` says with which commit it
becomes durable, and the Protocol holds the answer until then. All methods must be called in one
thread, the reactor's; only `Broker.replay` may run elsewhere, before `Broker.start`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from twisted.logger import Logger

from brokerd.broker.chunks import Chunk, ChunkCache
from brokerd.broker.clock import BrokerTime
from brokerd.broker.journal import (
    BATCH_FRAME_BYTES,
    EVENT_FRAME_BYTES,
    LANE_FRAME_BYTES,
    RECORD_FRAME_BYTES,
    Clock,
    Journal,
    Touched,
)
from brokerd.broker.overview import Counters, GroupInfo, Overview
from brokerd.broker.quarantine import OffsetRange, Place, Quarantine
from brokerd.broker.reads import ColdReader, Loaded
from brokerd.broker.snapshotter import Snapshotter
from brokerd.broker.state import State, topic_created_entry
from brokerd.broker.timetable import Timetable
from brokerd.broker.topics import ConsumerGroup, Lane, Partition, Topic, check_name
from brokerd.broker.waiters import Waiter, Waiters
from brokerd.errors import BrokerdError, LimitExceeded, UnknownOffset, UnknownTopic
from brokerd.groups import DeadLetter, GroupSettings
from brokerd.values import Encoding, Format, Grant
from brokerd.wal import Committer, Damage, RecoveryReport, Snapshots, Wal

MAX_PARTITIONS = 32_767

LAPSE_AND_CHANGE = 2
"""Events that one settle, extend or dead letter may make: the lease had lapsed, and its own."""

EXPIRE_STEP = 1024
"""Leases and delays of a lane that are ended in one go; the reactor has its turn between steps."""


@dataclass(frozen=True)
class BrokerSettings:
    """Limits and policies of one broker; see etc/brokerd.toml for the reasons."""

    tail_cache_bytes: int = 64 << 20
    read_cache_bytes: int = 32 << 20
    frame_bytes: int = 8 << 20
    max_uncommitted_bytes: int = 32 << 20
    mark_quiet_us: int = 100_000
    snapshot_interval_bytes: int = 256 << 20
    max_topics: int = 100_000
    groups: GroupSettings = field(default_factory=GroupSettings)


class Taking(Protocol):
    """Says which records an acquire may lease.

    ``lane`` is set before a lane is asked; ``takes(offset)`` is called with each record about to
    be leased and False ends the lane's turn; ``stopped`` true ends the whole acquire.
    """

    lane: Lane
    stopped: bool

    def takes(self, offset: int) -> bool: ...


class Broker:
    """The one owner of topics, groups and the journal."""

    _log = Logger()

    def __init__(
        self,
        wal: Wal,
        snapshots: Snapshots,
        readers: Committer,
        snapshot_writer: Committer,
        clock: Clock,
        wall: Callable[[], float],
        settings: BrokerSettings,
        data_dir: str = "DATA_DIR",
    ) -> None:
        self.settings = settings
        self.counters = Counters()
        self.quarantine = Quarantine(data_dir)
        self._wal = wal
        self._clock = clock
        self.time = BrokerTime(wall, clock.seconds, self._report_jump)
        self._state = State(settings.groups)
        self._tail = ChunkCache(settings.tail_cache_bytes, self._is_durable)
        self._cold = ChunkCache(settings.read_cache_bytes, lambda chunk: True)
        self._reader = ColdReader(wal, readers, self._cold, self.quarantine)
        self._waiters = Waiters(clock)
        self._timetable = Timetable(clock, self.time, self._due)
        self._snapshotter = Snapshotter(
            self._state,
            wal,
            snapshots,
            snapshot_writer,
            clock,
            self.time,
            settings.snapshot_interval_bytes,
            idle=lambda: not self.journal.gathered_bytes,
        )
        frame_bytes = min(settings.frame_bytes, wal.options.segment_bytes // 4)
        self.journal = Journal(
            wal,
            clock,
            self.time,
            self._tail,
            frame_bytes=frame_bytes,
            max_uncommitted_bytes=settings.max_uncommitted_bytes,
            mark_quiet_us=settings.mark_quiet_us,
            before_frame=self._serve_touched,
            after_frame=self._snapshotter.step,
        )
        self._overview = Overview(
            self._state, wal, self.time, self.counters, self.find, settings.groups.max_attempts
        )
        self._events_max = frame_bytes // (2 * EVENT_FRAME_BYTES)
        """How many events one request may cause: a frame takes them, whatever its segment."""
        self._recovery: RecoveryReport | None = None
        self.ready = False

    # -- life ---------------------------------------------------------------------------------

    def replay(self) -> RecoveryReport:
        """Rebuild the state from the newest snapshot and the log; may take long."""
        self._recovery = self._snapshotter.replay()
        return self._recovery

    def start(self) -> None:
        """Begin to serve. Live leases get their full duration again, counted from here."""
        if self._recovery is not None:
            self._tell_damage(self._recovery)
        self._report_ahead(self.time.resume_from(self._state.last_time_us))
        now_us = self.time.now_us()
        self.journal.start()
        if self._recovery is not None and self._recovery.damages:
            self.journal.mark_damage()
        for lane in self._state.lanes():
            _leave_out_gaps(lane)
            lane.store.resume(now_us, self._state.behind_us)
            self._timetable.schedule(lane)
        self.ready = True

    def stop(self) -> None:
        """Take no new work and hand what is left, and a mark, to the log.

        The caller then closes the log, and may call `write_last_snapshot` after that.
        """
        self.ready = False
        self._timetable.stop()
        self._snapshotter.stop()
        self.journal.close()

    def write_last_snapshot(self) -> None:
        """Write a snapshot of the state at the end of the closed log. Blocks."""
        self._snapshotter.write_last()

    def _tell_damage(self, report: RecoveryReport) -> None:
        """Say what the replay found damaged, by the names of topics."""
        for damage in self._state.recorded.values():
            self.quarantine.on_record(_place(damage), self._ranges(damage))
        for damage in report.damages:
            self.quarantine.found(_place(damage), self._ranges(damage))
        for partition, gaps in self._state.new_gaps.items():
            for first, end in gaps:
                self.quarantine.left_out(
                    OffsetRange(partition.topic.name, partition.index, first, end)
                )

    def _ranges(self, damage: Damage) -> Iterator[OffsetRange]:
        """What a damage took, by the names of topics."""
        for topic_id, partition, first, end in damage.lost:
            topic = self._state.by_id.get(topic_id)
            name = f"(id {topic_id})" if topic is None else topic.name
            yield OffsetRange(name, partition, first, end)

    def _report_jump(self, from_us: int, to_us: int) -> None:
        self._log.warn(
            "the wall clock jumped forward by {seconds} s; nothing expires by it for ten minutes",
            seconds=(to_us - from_us) // 1_000_000,
            event_id="clock-jump",
        )

    def _report_ahead(self, ahead_us: int) -> None:
        if ahead_us:
            self._log.warn(
                "the wall clock is {seconds} s past the last entry of the log: the broker was down "
                "or idle, or the clock jumped forward; nothing expires by it for ten minutes",
                seconds=ahead_us // 1_000_000,
                event_id="clock-ahead",
            )

    def _is_durable(self, chunk: Chunk) -> bool:
        return (
            len(chunk.times_us) == len(chunk.values) and chunk.ticket <= self.journal.durable_ticket
        )

    # -- topics -------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic | None:
        """The topic of this name, if there is one."""
        return self._state.by_name.get(name)

    def topics(self) -> Iterator[Topic]:
        """All topics, in order of creation."""
        return iter(self._state.by_id.values())

    def existing_topic(self, name: str) -> Topic:
        topic = self._state.by_name.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}; create it or produce to it first")
        return topic

    def create_topic(self, name: str, partitions: int = 1) -> Topic:
        """Create a topic, or return the one of that name.

        Raises `InvalidName`, `LimitExceeded`, `NoSpace` or `Congested`.
        """
        existing = self._state.by_name.get(name)
        if existing is not None:
            return existing
        check_name(name, "topic name")
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise LimitExceeded(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}")
        if len(self._state.by_name) >= self.settings.max_topics:
            raise LimitExceeded(
                f"there are {len(self._state.by_name)} topics already; raise limits.max_topics"
            )
        topic = Topic(self._state.next_topic_id, name, partitions)
        entry = topic_created_entry(topic)
        self.admit(len(entry.body) + BATCH_FRAME_BYTES)
        self._state.add_topic(topic)
        self.journal.add_entry(entry)
        return topic

    # -- records ------------------------------------------------------------------------------

    def produce(
        self,
        partition: Partition,
        value: bytes,
        encoding: int = Encoding.BYTES,
        key: bytes | None = None,
        metadata: bytes | None = None,
        producer_format: int = Format.UNKNOWN,
        producer_time: int | None = None,
        expires_at_us: int = 0,
    ) -> int:
        """Append one record and return its offset.

        Raises `NoSpace` or `Congested` before anything is changed.
        """
        self.admit(len(value) + len(key or b"") + len(metadata or b"") + RECORD_FRAME_BYTES)
        return self.append(
            partition,
            value,
            encoding,
            key,
            metadata,
            producer_format,
            producer_time,
            expires_at_us,
        )

    def admit(self, size: int, partitions: int = 1) -> None:
        """Make sure that ``size`` more bytes have a place in the log, or raise as `produce`.

        ``size`` counts `RECORD_FRAME_BYTES` for each record, ``partitions`` how many they go to.
        """
        journal = self.journal
        if partitions > 1:
            size += (partitions - 1) * BATCH_FRAME_BYTES
        if journal.gathered_bytes + size > journal.limit_bytes:
            journal.make_room(size)

    def append(
        self,
        partition: Partition,
        value: bytes,
        encoding: int = Encoding.BYTES,
        key: bytes | None = None,
        metadata: bytes | None = None,
        producer_format: int = Format.UNKNOWN,
        producer_time: int | None = None,
        expires_at_us: int = 0,
    ) -> int:
        """Append one record that was admitted, alone or with others, and return its offset."""
        journal = self.journal
        offset = partition.next_offset
        if offset == partition.framed:
            journal.add_partition(partition)
            if partition.chunks.open is None:
                partition.chunks.open = Chunk(offset)
                self._tail.add(partition.chunks, partition.chunks.open)
        chunk = partition.chunks.open
        assert chunk is not None
        chunk.values.append(value)
        chunk.keys.append(key)
        chunk.metadata.append(metadata)
        chunk.encodings.append(encoding)
        chunk.formats.append(producer_format)
        if (
            producer_time is not None
            or expires_at_us
            or chunk.producer_times is not None
            or chunk.expires_at_us is not None
        ):
            chunk.optional_columns(producer_time, expires_at_us)
        partition.next_offset = offset + 1
        size = len(value) + RECORD_FRAME_BYTES
        if key is not None:
            size += len(key)
        if metadata is not None:
            size += len(metadata)
        journal.gathered_bytes += size
        self.counters.records_produced[producer_format] += 1
        self.counters.bytes_produced += len(value)
        return offset

    def find(self, partition: Partition, offset: int) -> Chunk | None:
        """The chunk in memory that holds ``offset``, if any; else `load` it."""
        return partition.chunks.find(offset) or partition.cold.find(offset)

    def load(self, partition: Partition, offset: int, loaded: Loaded) -> None:
        """Read ``offset`` and what follows it from the log; see `ColdReader.load`."""
        self._reader.load(partition, offset, loaded)

    # -- leases -------------------------------------------------------------------------------

    def acquire(
        self,
        topic_name: str,
        group_name: str,
        owner: str,
        duration_us: int,
        limit: int,
        taking: Taking,
    ) -> list[tuple[Lane, Grant]]:
        """Lease up to ``limit`` records that ``taking`` takes, lowest eligible offset first.

        Partitions take turns. Nothing to lease, or no such topic, gives an empty list; a group
        begins to exist with its first event. A very large ``limit`` is cut to what a frame takes.
        Raises `InvalidName`, `NoSpace` or `Congested`.
        """
        topic = self._state.by_name.get(topic_name)
        if topic is None:
            return []
        group = topic.groups.get(group_name)
        if group is None:
            if not any(partition.next_offset for partition in topic.partitions):
                return []  # the lanes of a group cost more than this look
            group = self._new_group(topic, group_name)
        lanes = group.lanes
        if limit > self._events_max:
            limit = self._events_max
        lane_bytes = LANE_FRAME_BYTES + 4 * len(owner)
        self._admit_events(limit * EVENT_FRAME_BYTES + min(limit, len(lanes)) * lane_bytes)
        now_us = self.time.now_us()
        found: list[tuple[Lane, Grant]] = []
        for step in range(len(lanes)):
            lane = lanes[(group.turn + step) % len(lanes)]
            if lane.scheduled_us is not None and lane.scheduled_us <= now_us:
                self._expire(lane, now_us)
            taking.lane = lane
            grants = lane.store.acquire(
                now_us,
                lane.partition.next_offset,
                owner,
                duration_us,
                limit - len(found),
                taking.takes,
                False,
            )
            if grants:
                self._touch(lane, len(grants) * EVENT_FRAME_BYTES + 4 * len(owner))
                if lane.scheduled_us is None or now_us + duration_us < lane.scheduled_us:
                    self._timetable.schedule(lane)
                found += [(lane, grant) for grant in grants]
                if len(found) >= limit:
                    group.turn = (group.turn + step + 1) % len(lanes)
                    break
            if taking.stopped:
                break
        self.counters.leases_granted += len(found)
        return found

    def settle(
        self,
        lane: Lane,
        offset: int,
        success: bool,
        owner: str | None = None,
        token: int | None = None,
        delay_us: int | None = None,
    ) -> bool:
        """Settle a record as processed or failed; True if that changed anything.

        Raises `UnknownOffset`, `NotLeaseOwner`, `LeaseLost`, `NoSpace` or `Congested`.
        """
        self._admit_events(LAPSE_AND_CHANGE * EVENT_FRAME_BYTES)
        store = lane.store
        before = len(store.events)
        try:
            changed = store.settle(
                self.time.now_us(),
                lane.partition.next_offset,
                offset,
                success,
                owner=owner,
                token=token,
                delay_us=delay_us,
            )
        finally:
            self._touch_added(lane, before)
        if changed:
            if success:
                self.counters.settled += 1
            else:
                self.counters.failed += 1
                self._timetable.schedule(lane)
        return changed

    def extend(
        self,
        lane: Lane,
        offset: int,
        duration_us: int,
        owner: str | None = None,
        token: int | None = None,
    ) -> int:
        """Give a live lease a new duration from now; returns what remains, in microseconds.

        Raises `NotLeaseOwner`, `LeaseLost`, `UnknownOffset`, `NoSpace` or `Congested`.
        """
        self._admit_events(LAPSE_AND_CHANGE * EVENT_FRAME_BYTES)
        store = lane.store
        before = len(store.events)
        try:
            remaining_us = store.extend(
                self.time.now_us(), offset, duration_us, owner=owner, token=token
            )
        finally:
            self._touch_added(lane, before)
        self._timetable.schedule(lane)
        return remaining_us

    def dead_letter(self, lane: Lane, offset: int, reason: str) -> bool:
        """Move a record to the group's dead letters, whoever holds its lease.

        False when it is settled or dead already. Raises as `settle`. ``lane`` may be one that an
        earlier acquire named.
        """
        self._admit_events(LAPSE_AND_CHANGE * EVENT_FRAME_BYTES + 4 * len(reason))
        group = lane.partition.topic.groups.get(lane.group.name, lane.group)
        lane = group.lanes[lane.partition.index]
        before = len(lane.store.events)
        changed = lane.store.dead_letter(
            self.time.now_us(), lane.partition.next_offset, offset, reason
        )
        self._touch_added(lane, before, 4 * len(reason))
        return changed

    def lane(self, topic_name: str, group_name: str, index: int, offset: int) -> Lane:
        """A group's lane through the partition that holds ``offset``.

        Use it in the same turn: a group that does not exist yet begins to with its first event.
        Raises `UnknownOffset` when there is no such record, and `InvalidName`.
        """
        topic = self._state.by_name.get(topic_name)
        if (
            topic is None
            or not 0 <= index < len(topic.partitions)
            or not 0 <= offset < topic.partitions[index].next_offset
        ):
            raise UnknownOffset(
                f"topic {topic_name!r} has no record {offset} in partition {index}: "
                "it was never produced"
            )
        group = topic.groups.get(group_name) or self._new_group(topic, group_name)
        return group.lanes[index]

    def _new_group(self, topic: Topic, name: str) -> ConsumerGroup:
        """A group that its topic does not know until it is touched: asking leaves no trace."""
        check_name(name, "group name")
        group = ConsumerGroup(topic, name, self.settings.groups)
        for lane in group.lanes:
            _leave_out_gaps(lane)
            lane.store.skip_tokens(self._state.token_base)
        return group

    def _admit_events(self, size: int) -> None:
        journal = self.journal
        if journal.gathered_bytes + size > journal.limit_bytes:
            journal.make_event_room(size)

    def _touch(self, lane: Lane, size: int, schedule: bool = True) -> None:
        """Have the events of a lane written; ``size`` is what was added."""
        journal = self.journal
        if not lane.dirty:
            journal.add_lane(lane, schedule)
            group = lane.group
            known = lane.partition.topic.groups.get(group.name)
            if known is None:
                group.topic.groups[group.name] = group
            elif known is not group:
                raise ValueError(f"a lane of group {group.name!r} was kept over a turn")
        journal.gathered_bytes += size

    def _touch_added(self, lane: Lane, before: int, string_bytes: int = 0) -> None:
        """Have written what was added to a lane's events since there were ``before`` of them."""
        added = len(lane.store.events) - before
        if added:
            self._touch(lane, added * EVENT_FRAME_BYTES + string_bytes)

    # -- waiting and time ---------------------------------------------------------------------

    def wait(
        self,
        topic_name: str,
        group_name: str,
        wait_us: int,
        attempt: Callable[[], bool],
        timed_out: Callable[[], None],
    ) -> Waiter:
        """Try ``attempt`` again whenever the group may find something; see `Waiters.add`."""
        return self._waiters.add(topic_name, group_name, wait_us, attempt, timed_out)

    def _serve_touched(self, touched: Touched) -> None:
        """Let long polls take what this frame brings, so that one commit serves both."""
        if self._waiters:
            self._waiters.serve({partition.topic.name for partition in touched.partitions})
            for lane in touched.lanes:
                self._waiters.serve_group(lane.partition.topic.name, lane.group.name)

    def _expire(self, lane: Lane, now_us: int) -> int:
        """End some of the leases and delays that are over; how many, -1 if not now.

        What ends by itself forces no commit of its own.
        """
        step = min(EXPIRE_STEP, self._events_max)
        try:
            self._admit_events(min(lane.store.leased, step) * EVENT_FRAME_BYTES)
        except BrokerdError:
            return -1  # no room for the events: leases may end late, never early
        events = lane.store.events
        before = len(events)
        ended = lane.store.expire(now_us, step)
        lapsed = len(events) - before
        if lapsed:
            self.counters.expired += lapsed
            self._touch(lane, lapsed * EVENT_FRAME_BYTES, schedule=False)
        return ended

    def _due(self, lane: Lane, now_us: int) -> int:
        ended = self._expire(lane, now_us)
        if ended >= 0 and self._waiters:
            self._waiters.serve_group(lane.partition.topic.name, lane.group.name)
        return ended

    # -- what can be seen ---------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Counts and sizes, in values that JSON can hold; the admin site shows them."""
        groups, omitted = self._overview.groups()
        return {
            **self._overview.counts(),
            "uncommitted_bytes": self.journal.uncommitted_bytes,
            "tail_cache_bytes": self._tail.used_bytes,
            "read_cache_bytes": self._cold.used_bytes,
            "reads_from_disk": self._reader.reads,
            "snapshots_written": self._snapshotter.written,
            "snapshot_lsn": self._snapshotter.last_lsn,
            "snapshot_error": self._snapshotter.last_error,
            "damage": {
                **self.quarantine.status(),
                "indexes": self._wal.bad_indexes,
                "snapshots": self._snapshotter.damaged,
            },
            "groups": groups,
            "groups_omitted": omitted,
        }

    def dead_letters(
        self, topic_name: str, group_name: str, partition: int = 0, offset: int = 0
    ) -> Iterator[tuple[int, DeadLetter]]:
        """A group's dead letters as (partition, letter), in order, from a partition's offset on.

        Raises `UnknownTopic`; an unknown group has none.
        """
        group = self.existing_topic(topic_name).groups.get(group_name)
        for lane in group.lanes[partition:] if group is not None else ():
            index = lane.partition.index
            for letter in lane.store.dead_letters(offset if index == partition else 0):
                yield index, letter

    def group_info(self, topic_name: str, group_name: str) -> GroupInfo:
        """Where a group stands in a topic; an unknown one is an empty one."""
        return self._overview.group_info(topic_name, group_name)


def _place(damage: Damage) -> Place:
    return Place(damage.name, damage.position, damage.end, damage.problem)


def _leave_out_gaps(lane: Lane) -> None:
    for first, end in lane.partition.gaps:
        lane.store.leave_out(first, end)
