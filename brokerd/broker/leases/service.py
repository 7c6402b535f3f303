# Tests: tests/broker/test_broker.py
"""Leases: grants and settles them, reserves space in the journal, ends lapsed ones by a timer.

The lease store (`brokerd.groups`) decides. This module writes its events to the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Protocol

from xxhash import xxh3_64_intdigest

from brokerd.broker.clock import Timer
from brokerd.broker.context import Context
from brokerd.broker.group_commit import (
    EVENT_PAIR_BYTES,
    GROUP_EVENTS_OVERHEAD_BYTES,
    ChangedPartitions,
)
from brokerd.broker.leases.timers import LeaseTimers
from brokerd.broker.leases.waiters import Waiter, Waiters
from brokerd.broker.light_first import LightFirst
from brokerd.broker.model.group_stores import GROUP_MEMORY, NEW_STATE_MEMORY, OPEN_MAX
from brokerd.broker.model.topics import ConsumerGroup, GroupPartition, Topic, check_name
from brokerd.errors import BrokerdError, LimitExceeded, UnknownGroup, UnknownOffset, UnknownTopic
from brokerd.groups import NO_KEY, RANGES_MAX, DeadLetter
from brokerd.groups.view import LEASE_MEMORY
from brokerd.values import Grant

LAPSE_AND_CHANGE = 2
"""Events that one settle, extend or release may write: the lapse of the lease, and its own."""

END_DUE_MAX = 512
"""Leases and delays of a group partition that one step ends, in about 10 ms. The reactor runs
between steps."""

OPENS_MAX = 64
"""Lease stores that one acquire opens. A later reactor turn goes on."""

PACKS_MAX = 100
"""Lease stores that one reactor turn packs at most. They took up to 7 ms."""

PACKS_AT_ONCE = 10
"""Lease stores that are packed before a look at the clock."""

PACK_SECONDS = 0.001
"""Time in which a turn begins to pack stores, unless more than `CROWD` are open."""

CROWD = 2 * OPEN_MAX
"""Open stores from which a turn packs `PACKS_MAX`, so that their memory stays bounded."""

COUNT_US = 1_000_000
"""The shortest time between two counts of all groups."""

UNSYNCED_US = 3_600_000_000
"""The longest wait of `LeaseService.time_from_durable` for a commit."""

LAPSE_FRAME_BYTES = 1 << 20
"""Size of gathered events at which leases that lapsed are written. Fewer wait for other events."""


class LeaseFilter(Protocol):
    """Decides which records an acquire may lease.

    The lease service sets ``group_partition`` before it searches that partition. It calls
    ``accept(offset)`` before each lease. TAKE leases the record, STOP ends the search of the
    partition, GONE settles the record, and ``gone_until(end)`` settles all records up to an offset.
    ``accept_run(first, count)`` may accept the first of ``count`` records in one step: it returns
    how many, 0 to be asked for each.
    ``key_of(offset)`` returns the hash of the record's key in a key-ordered group. ``stopped`` ends
    the whole acquire. ``cut_short`` is set when many records were passed over and the reactor turn
    has to end; more records may follow.
    """

    group_partition: GroupPartition
    stopped: bool
    cut_short: bool

    def accept(self, offset: int) -> int: ...

    def accept_run(self, first: int, count: int) -> int: ...

    def key_of(self, offset: int) -> int: ...


def key_hash(key: bytes | None) -> int:
    """Return the XXH3 of a record's key, 64 bits, for key order; `NO_KEY` without a key."""
    return NO_KEY if key is None else xxh3_64_intdigest(key) or 1


class LeaseService:
    """Grants, settles, extends and ends leases of all groups.

    Callers may keep a group partition. `settle` and the other changes use the current group of that
    name in the same topic, and refuse if the group or its topic was deleted.
    """

    def __init__(
        self, context: Context, waiters: Waiters, events_max: int, max_groups: int
    ) -> None:
        self._state = context.state
        self._group_commit = context.group_commit
        self._time = context.time
        self._waiters = waiters
        self._counters = context.counters
        self.events_max = events_max
        """The most events of one request. They fit into a frame of any segment."""
        self._max_groups = max_groups
        self._groups_left = 0
        """New groups that may begin before the next count."""
        self._counted_us = -COUNT_US
        self.timers = LeaseTimers(context.clock, context.time, self._on_due)
        self._clock = context.clock
        self._trim_call: Timer | None = None
        self._light_first = LightFirst(context.group_commit, context.clock)

    def limit_groups(self, max_groups: int) -> None:
        """Allow this many groups from now on; the next new group counts all."""
        self._max_groups = max_groups
        self._groups_left, self._counted_us = 0, -COUNT_US

    def start(self, now_us: int) -> None:
        """Give each lease its full duration again, and start the timer."""
        for group_partition in self._state.group_partitions():
            due_us = group_partition.resume(now_us, self._state.behind_us)
            # `DelayedDelivery` times the delays of internal topics.
            if due_us is not None and not group_partition.group.topic.internal_of:
                self.timers.schedule_at(group_partition, due_us)
            self._state.stores.trim()
        self._state.stores.crowded = self._trim_later

    def stop(self) -> None:
        """Start no more timers and pack no more stores."""
        self.timers.stop()
        self._state.stores.crowded = lambda: None
        if self._trim_call is not None:
            self._trim_call.cancel()
            self._trim_call = None

    def _trim_later(self) -> None:
        if self._trim_call is None:
            self._trim_call = self._clock.callLater(0, self._trim)

    def _trim(self) -> None:
        """Pack some idle stores, in a reactor turn in which no caller holds a store."""
        self._trim_call = None
        if self._light_first.gives_way():
            self._trim_later()
            return
        stores = self._state.stores
        end_seconds = self._clock.seconds() + PACK_SECONDS
        for _ in range(PACKS_MAX // PACKS_AT_ONCE):
            if not stores.trim(PACKS_AT_ONCE):
                return
            if self._clock.seconds() > end_seconds and stores.open <= CROWD:
                break
        self._trim_later()

    def group_partition(
        self, topic_name: str, group_name: str, index: int, offset: int
    ) -> GroupPartition:
        """Return the group partition of a group for the partition that holds ``offset``.

        The first event of a missing group creates it. Raises `InvalidName`, and `UnknownOffset` if
        no such record exists.
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
        group = topic.groups.get(group_name) or self.new_group(topic, group_name)
        return group.partitions[index]

    def new_group(self, topic: Topic, name: str) -> ConsumerGroup:
        """Return a new group. Its topic does not list it until its first event.

        Raises `InvalidName`, and `LimitExceeded` if the limit of groups or of their memory is
        reached.
        """
        check_name(name, "group name")
        self._state.stores.check_memory(GROUP_MEMORY + NEW_STATE_MEMORY)
        if self._groups_left <= 0:
            self._count_groups()
        return self._state.new_group(topic, name)

    def _count_groups(self) -> None:
        """Count all groups. Raises `LimitExceeded`.

        Counts are rare: after one, groups may begin up to the limit without another count.
        """
        now_us = self._time.monotonic_us()
        if now_us - self._counted_us >= COUNT_US:
            self._counted_us = now_us
            self._groups_left = self._max_groups - sum(
                len(topic.groups) for topic in self._state.by_id.values()
            )
        if self._groups_left <= 0:
            raise LimitExceeded(
                f"there are {self._max_groups} groups already; delete some, or raise limits.groups"
            )

    def acquire(
        self,
        topic_name: str,
        group_name: str,
        owner: str,
        duration_us: int | None,
        limit: int,
        lease_filter: LeaseFilter,
        now_us: int | None = None,
    ) -> list[tuple[GroupPartition, Grant]]:
        """Lease up to ``limit`` records that ``lease_filter`` accepts, lowest offset first.

        Each acquire begins at the next partition in rotation. Without ``duration_us`` the group's
        own duration holds. Return an empty list if no record is eligible or the topic does not
        exist. The first event creates the group. A very large ``limit`` is cut to the events of one
        frame. ``now_us`` is the monotonic time, if the caller has read it. Raises `InvalidName`,
        `NoSpace` or `Congested`, and `LimitExceeded` if the state of groups has no memory for a
        lease.
        """
        group = self._find_group(topic_name, group_name)
        if group is None:
            return []
        stores, wanted = self._state.stores, limit
        if stores.memory_bytes + limit * NEW_STATE_MEMORY > stores.memory_max:
            stores.check_memory()
            limit = stores.room_bytes // NEW_STATE_MEMORY
        if duration_us is None:
            duration_us = group.settings.default_duration_us
        if limit > self.events_max:
            limit = self.events_max
        group_partition_bytes = GROUP_EVENTS_OVERHEAD_BYTES + 4 * len(owner)
        admitted_bytes = (limit + RANGES_MAX) * EVENT_PAIR_BYTES + (
            min(limit, len(group.partitions)) * group_partition_bytes
        )
        self._group_commit.admit_events(admitted_bytes)
        found = self._acquire_in_rotation(
            group, owner, duration_us, limit, lease_filter, admitted_bytes, now_us
        )
        self._counters.leases_granted += len(found)
        if len(found) == limit < wanted:  # there may be more records
            lease_filter.stopped = True
        return found

    def _find_group(self, topic_name: str, group_name: str) -> ConsumerGroup | None:
        """Return the group, a new one, or None if the topic is missing or has no records."""
        topic = self._state.by_name.get(topic_name)
        if topic is None:
            return None
        group = topic.groups.get(group_name)
        if group is None and any(partition.next_offset for partition in topic.partitions):
            group = self.new_group(topic, group_name)
        return group

    def _acquire_in_rotation(
        self,
        group: ConsumerGroup,
        owner: str,
        duration_us: int,
        limit: int,
        lease_filter: LeaseFilter,
        admitted_bytes: int,
        now_us: int | None,
    ) -> list[tuple[GroupPartition, Grant]]:
        """Lease from one partition after the other until ``limit`` or the filter ends the search.

        The next acquire begins after the partition that ended this one, or at that partition if it
        gave no record.
        """
        if now_us is None:
            now_us = self._time.monotonic_us()
        kept, partitions = group.kept, group.topic.partitions
        found: list[tuple[GroupPartition, Grant]] = []
        first, opens_left = group.next_partition, OPENS_MAX
        for step in range(len(partitions)):
            partition = partitions[(first + step) % len(partitions)]
            group_partition = kept.get(partition.index)
            if group_partition is None:
                if not partition.has_records():
                    continue
                group_partition = GroupPartition(group, partition)
            due_us = group_partition.scheduled_us
            if due_us is not None and due_us <= now_us:
                self._end_due(group_partition, now_us, admitted_bytes)
            if group_partition.is_exhausted():
                continue
            if not group_partition.is_open:
                if not opens_left:
                    lease_filter.stopped = lease_filter.cut_short = True
                    group.next_partition = partition.index
                    break
                opens_left -= 1
            grants = self._acquire_from(
                group_partition, now_us, owner, duration_us, limit - len(found), lease_filter
            )
            found += zip(repeat(group_partition), grants, strict=False)
            if len(found) == limit or lease_filter.stopped:
                group.next_partition = (group.next_partition + step + bool(grants)) % len(
                    partitions
                )
                break
        return found

    def _acquire_from(
        self,
        group_partition: GroupPartition,
        now_us: int,
        owner: str,
        duration_us: int,
        limit: int,
        lease_filter: LeaseFilter,
    ) -> list[Grant]:
        """Lease up to ``limit`` records of one partition, and add the events to the frame."""
        store = group_partition.store
        lease_filter.group_partition = group_partition
        before = len(store.events)
        grants = store.acquire(
            now_us,
            group_partition.partition.next_offset,
            owner,
            duration_us,
            limit,
            lease_filter.accept,
            False,
            lease_filter.key_of,
            lease_filter.accept_run if limit > 1 else None,
        )
        added = len(store.events) - before
        if added:
            self.add_to_frame(group_partition, added * EVENT_PAIR_BYTES + 4 * len(owner))
            group_partition.expect_bytes(len(grants) * LEASE_MEMORY)
        else:
            group_partition.discard_store()
        if grants:
            self._schedule_lapse(group_partition, now_us + duration_us)
        # Events about removed records use the space that was admitted for one partition only.
        if len(grants) < limit and (store.cut_short or added > len(grants)):
            lease_filter.stopped = lease_filter.cut_short = True
        return grants

    def _schedule_lapse(self, group_partition: GroupPartition, deadline_us: int) -> None:
        """Set the timer for leases that lapse after this deadline, unless it is set for earlier."""
        due_us = group_partition.scheduled_us
        if due_us is None or deadline_us + 1 < due_us:
            self.timers.schedule(group_partition)

    def wait(
        self,
        topic_name: str,
        group_name: str,
        wait_us: int,
        attempt: Callable[[], bool],
        timed_out: Callable[[], None],
    ) -> Waiter:
        """Try ``attempt`` again whenever the group may have records; see `Waiters.add`."""
        return self._waiters.add(topic_name, group_name, wait_us, attempt, timed_out)

    def time_from_durable(self, group_partition: GroupPartition, grants: Sequence[Grant]) -> None:
        """Start the duration of new leases when the grants are durable and their answer may leave.

        Otherwise a short lease may lapse on a busy disk before its consumer gets the answer. An
        extension before that holds.
        """
        set_deadline = group_partition.store.set_deadline
        unsynced_us = self._time.monotonic_us() + UNSYNCED_US
        for grant in grants:
            set_deadline(grant.offset, grant.token, unsynced_us + grant.duration_us, False)
        begin = partial(self._begin_time, group_partition, grants, unsynced_us)
        self._group_commit.when_all_durable(begin)

    def _begin_time(
        self, group_partition: GroupPartition, grants: Sequence[Grant], unsynced_us: int
    ) -> None:
        if group_partition.group.deleted:
            return
        set_deadline, now_us = group_partition.store.set_deadline, self._time.monotonic_us()
        for grant in grants:
            given_us = unsynced_us + grant.duration_us
            set_deadline(grant.offset, grant.token, now_us + grant.duration_us, True, given_us)
        self._schedule_lapse(group_partition, now_us + min(one.duration_us for one in grants))

    def settle(
        self,
        group_partition: GroupPartition,
        offset: int,
        success: bool,
        owner: str | None = None,
        token: int | None = None,
        delay_us: int | None = None,
        reason: str = "",
        dead: bool = False,
    ) -> bool:
        """Settle a record as processed or failed. Return whether this changed its state.

        A failure may have a ``reason``; with ``dead`` it makes the record a dead letter.

        Raises `UnknownOffset`, `NotLeaseOwner`, `LeaseLost`, `NoSpace` or `Congested`, and
        `LimitExceeded` for a record that was never leased if the state of groups has no memory.
        """
        group_partition = self._current(group_partition)
        stores = self._state.stores
        if (
            stores.memory_bytes + NEW_STATE_MEMORY > stores.memory_max
            and not group_partition.store.knows(offset)
        ):
            stores.check_memory()
        reason_bytes = 4 * len(reason)
        self._group_commit.admit_events(LAPSE_AND_CHANGE * EVENT_PAIR_BYTES + reason_bytes)
        store = group_partition.store
        before = len(store.events)
        try:
            changed = store.settle(
                self._time.monotonic_us(),
                group_partition.partition.next_offset,
                offset,
                success,
                owner=owner,
                token=token,
                delay_us=delay_us,
                reason=reason,
                dead=dead,
            )
        finally:
            self.add_new_events(group_partition, before, reason_bytes)
        if changed:
            if success:
                self._counters.settled += 1
            else:
                self._counters.failed += 1
                self.timers.schedule(group_partition)
        return changed

    def settle_run(
        self,
        group_partition: GroupPartition,
        offsets: Sequence[int],
        owner: str | None,
        tokens: Sequence[int | None],
        now_us: int | None = None,
    ) -> int:
        """Settle records as processed, each under its live lease; return how many.

        Ends before the first record that `settle` has to handle: one without such a lease. Settles
        nothing if the events do not fit the frame at once. Raises `UnknownTopic` or `UnknownGroup`.
        """
        group_partition = self._current(group_partition)
        events = group_partition.store.events
        before = len(events)
        if not self._group_commit.has_room(len(offsets) * LAPSE_AND_CHANGE * EVENT_PAIR_BYTES):
            return 0
        if now_us is None:
            now_us = self._time.monotonic_us()
        settled = group_partition.store.settle_run(now_us, offsets, owner, tokens)
        self.add_new_events(group_partition, before)
        self._counters.settled += settled
        return settled

    def leased_run(
        self, group_partition: GroupPartition, offsets: Sequence[int], now_us: int
    ) -> int:
        """Return how many of the records, from the first on, `settle_run` settles at ``now_us``.

        Raises `UnknownTopic` or `UnknownGroup`.
        """
        return self._current(group_partition).store.leased_run(now_us, offsets)

    def settle_leased(
        self,
        group_partition: GroupPartition,
        offset: int,
        owner: str | None = None,
        token: int | None = None,
    ) -> None:
        """Settle a record as processed under a live lease.

        Raises `NotLeaseOwner`, `LeaseLost` without such a lease, `NoSpace` or `Congested`.
        """
        group_partition = self._current(group_partition)
        self._group_commit.admit_events(LAPSE_AND_CHANGE * EVENT_PAIR_BYTES)
        before = len(group_partition.store.events)
        try:
            group_partition.store.settle_leased(self._time.monotonic_us(), offset, owner, token)
        finally:
            self.add_new_events(group_partition, before)
        self._counters.settled += 1

    def extend(
        self,
        group_partition: GroupPartition,
        offset: int,
        duration_us: int,
        owner: str | None = None,
        token: int | None = None,
    ) -> int:
        """Give a live lease a new duration from now, and return it in microseconds.

        Raises `NotLeaseOwner`, `LeaseLost`, `UnknownOffset`, `NoSpace` or `Congested`.
        """
        group_partition = self._current(group_partition)
        self._group_commit.admit_events(LAPSE_AND_CHANGE * EVENT_PAIR_BYTES)
        store = group_partition.store
        before = len(store.events)
        try:
            remaining_us = store.extend(
                self._time.monotonic_us(), offset, duration_us, owner=owner, token=token
            )
        finally:
            self.add_new_events(group_partition, before)
        self.timers.schedule(group_partition)
        return remaining_us

    def release(
        self,
        group_partition: GroupPartition,
        offset: int,
        owner: str | None = None,
        token: int | None = None,
        delay_us: int = 0,
    ) -> None:
        """End a live lease without a failure; the record is eligible again after ``delay_us``.

        Raises `NotLeaseOwner`, `LeaseLost`, `NoSpace` or `Congested`.
        """
        group_partition = self._current(group_partition)
        self._group_commit.admit_events(LAPSE_AND_CHANGE * EVENT_PAIR_BYTES)
        store = group_partition.store
        before = len(store.events)
        try:
            store.release(
                self._time.monotonic_us(), offset, owner=owner, token=token, delay_us=delay_us
            )
        finally:
            self.add_new_events(group_partition, before)
        self.timers.schedule(group_partition)

    def dead_letter(self, group_partition: GroupPartition, offset: int, reason: str) -> bool:
        """Move a record to the group's dead letters, also if another consumer has its lease.

        Return False if it is settled or a dead letter already. Raises as `settle`.
        """
        group_partition = self._current(group_partition)
        self._group_commit.admit_events(LAPSE_AND_CHANGE * EVENT_PAIR_BYTES + 4 * len(reason))
        before = len(group_partition.store.events)
        changed = group_partition.store.dead_letter(
            self._time.monotonic_us(), group_partition.partition.next_offset, offset, reason
        )
        self.add_new_events(group_partition, before, 4 * len(reason))
        return changed

    def dead_letters(
        self, topic_name: str, group_name: str, partition: int = 0, offset: int = 0
    ) -> Iterator[tuple[int, DeadLetter]]:
        """Yield a group's dead letters as (partition, letter), in order, from an offset on.

        An unknown group has none. Raises `UnknownTopic`.
        """
        group = self._state.existing_topic(topic_name).groups.get(group_name)
        for group_partition in group.used() if group is not None else ():
            index = group_partition.partition.index
            if index < partition or not group_partition.position.dead:
                continue
            for letter in group_partition.store.dead_letters(offset if index == partition else 0):
                yield index, letter

    def _current(self, group_partition: GroupPartition) -> GroupPartition:
        """Return the current group partition of the same group and partition.

        The caller may have got its own in an earlier reactor turn.
        Raises `UnknownTopic` or `UnknownGroup` if its topic or its group was deleted.
        """
        group = group_partition.group
        topic = group.topic
        known = topic.groups.get(group.name)
        if known is group:
            return group.kept.get(group_partition.partition.index, group_partition)
        if group.deleted:
            raise _deleted(group)
        # This group never had an event. Another client may have created the group: then use that
        # one. Else make a new one: records may be removed and tokens used since this one was made.
        known = known or self.new_group(topic, group.name)
        return known.partitions[group_partition.partition.index]

    def add_to_frame(
        self, group_partition: GroupPartition, size: int, schedule: bool = True
    ) -> None:
        """Add a current group partition to the frame. Its new events take ``size`` bytes."""
        if not group_partition.dirty:
            self._group_commit.add_group_partition(group_partition, schedule)
            group = group_partition.group
            if group.name not in group.topic.groups:
                group.enlist()
                self._groups_left -= 1
            group_partition.keep()
        self._group_commit.gathered_bytes += size

    def add_packed(
        self, group_partition: GroupPartition, added: int, string_bytes: int = 0
    ) -> None:
        """Add a group partition to the frame, with so many events of its packed store."""
        if added:
            self.add_to_frame(group_partition, added * EVENT_PAIR_BYTES + string_bytes)

    def add_new_events(
        self, group_partition: GroupPartition, before: int, string_bytes: int = 0
    ) -> None:
        """Add a group partition to the frame, with its events from the number ``before`` on."""
        added = len(group_partition.store.events) - before
        if added:
            size = added * EVENT_PAIR_BYTES + string_bytes
            if group_partition.dirty:
                self._group_commit.gathered_bytes += size
            else:
                self.add_to_frame(group_partition, size)

    def remove_group(self, group: ConsumerGroup) -> None:
        """Remove a group whose group partitions all have the event of its deletion for the frame.

        In the frame, the deletion follows the events of groups that began before it. It raises the
        token base of later groups only, and a replay must do the same.
        """
        self._group_commit.move_to_end(group.used())
        self._state.remove_group(group)

    def serve_changed(self, changed: ChangedPartitions) -> None:
        """Let long polls lease the records of this frame, so that one commit serves both."""
        if self._waiters:
            self._waiters.serve({partition.topic.name for partition in changed.partitions})
            for group_partition in changed.group_partitions:
                self._waiters.serve_group(
                    group_partition.partition.topic.name, group_partition.group.name
                )

    def _end_due(
        self, group_partition: GroupPartition, now_us: int, admitted_bytes: int = 0
    ) -> int:
        """End some of the leases and delays whose time is over. Return how many; -1: try later.

        The events leave ``admitted_bytes`` of the log to the caller. A lapse alone forces no
        commit.
        """
        step = min(END_DUE_MAX, self.events_max)
        size = min(group_partition.store.leased, step) * EVENT_PAIR_BYTES
        try:
            self._group_commit.admit_events(admitted_bytes + size)
        except BrokerdError:
            return -1  # no space for the events: leases may end late, never early
        events = group_partition.store.events
        before = len(events)
        ended = group_partition.store.end_due(now_us, step)
        lapsed = len(events) - before
        if lapsed:
            self._counters.lapsed += lapsed
            self.add_to_frame(group_partition, lapsed * EVENT_PAIR_BYTES, schedule=False)
            if self._group_commit.gathered_bytes > LAPSE_FRAME_BYTES:
                self._group_commit.end_frame_early()  # the journal builds a frame in one step
        return ended

    def _on_due(self, group_partition: GroupPartition, now_us: int) -> int:
        ended = self._end_due(group_partition, now_us)
        if ended >= 0 and self._waiters:
            self._waiters.serve_group(
                group_partition.partition.topic.name, group_partition.group.name
            )
        return ended


def _deleted(group: ConsumerGroup) -> BrokerdError:
    """Return the error for a group partition whose group or topic was deleted since."""
    topic = group.topic
    if topic.deleted:
        return UnknownTopic(f"topic {topic.name!r} was deleted; ask for it again")
    return UnknownGroup(
        f"group {group.name!r} of topic {topic.name!r} was deleted; ask for it again"
    )
