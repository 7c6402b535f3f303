# Tests: tests/broker/test_group_commit.py
"""Group commit in the broker: changes gather, become a frame, become durable.

A request applies its changes at once, and they gather here. At the end of the reactor turn,
or when the commit in flight ends, they become one frame of the write-ahead log. The *ticket* of a
frame is its number. An answer leaves when the frame with its changes is durable.

Order inside a frame: TOPIC entries, other control entries, then records by partition, then events
by group partition. A control entry that must come after records or events gathered before it needs
a frame of its own: call `GroupCommit.end_frame_early` first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol

import msgpack
from twisted.logger import Logger

from brokerd.broker.callbacks import run_callback
from brokerd.broker.clock import BrokerTime, Clock, Timer
from brokerd.broker.model.chunks import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    RECORD_OVERHEAD_BYTES,
    ChunkCache,
)
from brokerd.broker.model.topics import GroupPartition, Partition
from brokerd.broker.model.traffic import Traffic
from brokerd.errors import BrokerdError, NoSpace, ShuttingDown, StorageFailed
from brokerd.wal import Wal
from brokerd.walformat import (
    LARGE_BODY_BYTES,
    RECORDS_HEADER_BYTES,
    BodyParts,
    Entry,
    EntryKind,
    RecordColumns,
    encode_group_events,
    encode_large_records,
    encode_records,
)

_log = Logger("brokerd.broker.group_commit.GroupCommit")

_RECORDS, _MARK = EntryKind.RECORDS, EntryKind.MARK
_new_entry: Callable[[tuple[Any, ...]], Entry] = partial(tuple.__new__, Entry)
"""`Entry._make` without a step of Python: a frame may have an entry for each record."""

ENTRY_OVERHEAD_BYTES = 256
"""Upper bound of the headers and padding of one entry in a frame."""

EVENT_PAIR_BYTES = 80
"""Upper bound of two group events in their columns: the lapse of a lease, and its consequence."""

GROUP_EVENTS_OVERHEAD_BYTES = 512
"""Upper bound of an entry of group events without its events: headers, padding, group name."""

ADMITTED_EXTRA_BYTES = 1024
"""Bytes that a request may add to those it was admitted with: a topic and a partition."""


LARGE_FRAME_BYTES = 1 << 20
"""Bytes from which a frame does not wait for the changes of later requests. It may take about 10
ms to make a frame of as many bytes, if they are events or small records."""


SMALL_REQUEST_BYTES = 64 << 10
"""Largest request, as bytes of a frame, that passes those that wait for the log."""

PASSING_BYTES_MAX = 1 << 20
"""Most bytes of small requests that pass others between two commits."""


class Congested(BrokerdError):
    """The log has no space yet. The caller tries again when `GroupCommit.when_uncongested` calls.

    Connections do so; clients do not see this error.
    """

    retryable = True


class ChangedPartitions(NamedTuple):
    """Partitions with new records, and group partitions with events, in the next frame.

    Each appears once, in the order of its first change.
    """

    partitions: dict[Partition, None]
    group_partitions: dict[GroupPartition, None]

    def add(
        self, partitions: list[Partition], group_partitions: dict[GroupPartition, None]
    ) -> None:
        self.partitions.update(dict.fromkeys(partitions))
        self.group_partitions.update(group_partitions)


class FrameObserver(Protocol):
    """Observes frames. It must not change what it gets."""

    def frame_built(
        self,
        ticket: int,
        entries: Sequence[Entry],
        partitions: Sequence[Partition],
        group_partitions: Collection[GroupPartition],
    ) -> None:
        """Observe the changes of a frame before they are encoded.

        Its records are those from ``framed_end`` on in the open chunks of ``partitions``, its
        events the waiting ones of ``group_partitions``.
        """

    def frame_durable(self, ticket: int) -> None:
        """Note that all frames up to this ticket are durable."""


class GroupCommit:
    """Gathers changes and hands them to the log, frame by frame.

    ``before_frame`` gets the changes before a frame is built, and may add to them. ``after_frame``
    runs when no change is gathered, so the state in memory equals the log up to
    ``wal.appended_lsn``.

    ``call_at_turn_end(function)`` calls a function once when the requests of the turn are handled.

    ``gathered_bytes`` is an upper bound of the next frame. All gathered changes were admitted, so
    the log always has space for the frame.
    """

    def __init__(
        self,
        wal: Wal,
        clock: Clock,
        call_at_turn_end: Callable[[Callable[[], None]], object],
        time: BrokerTime,
        cache: ChunkCache,
        *,
        frame_bytes: int,
        max_uncommitted_bytes: int,
        mark_quiet_us: int,
        before_frame: Callable[[ChangedPartitions], None],
        after_frame: Callable[[], None],
        traffic: Traffic,
    ) -> None:
        self._traffic = traffic
        self._wal = wal
        self._clock = clock
        self._call_at_turn_end = call_at_turn_end
        self._time = time
        self._cache = cache
        self._frame_bytes = frame_bytes
        self._max_uncommitted_bytes = max_uncommitted_bytes
        self._passing_bytes = min(PASSING_BYTES_MAX, max_uncommitted_bytes // 8)
        self._passed_bytes = 0
        """Bytes of small requests that passed others since the last commit."""
        self._passed_end = 0
        """Where in all gathered bytes the last admission of such a request ends."""
        self._framed_bytes = 0
        """Gathered bytes of all earlier frames."""
        self._mark_quiet_us = mark_quiet_us
        self._before_frame = before_frame
        self._after_frame = after_frame
        self._entries: list[Entry] = []
        self._partitions: list[Partition] = []
        self._group_partitions: dict[GroupPartition, None] = {}
        """Group partitions with events for the next frame, in the order of their entries."""
        self._earlier_changes: ChangedPartitions | None = None
        """Changes in frames of this turn that `end_frame_early` appended."""
        self.gathered_bytes = 0
        """Upper bound of the gathered changes in the log."""
        self.limit_bytes = 0
        """`admit` makes no further check while ``gathered_bytes`` stays below this."""
        self._reserved_bytes = 0
        """Bytes of the frame that `reserving` keeps free."""
        self.durable_ticket = 0
        self.frames = 0
        """Number of frames since the start."""
        self.space_refusals = 0
        """Number of requests refused for lack of space on the disk."""
        self.frame_time_us = 0
        """Broker time of the last frame."""
        self._uncommitted: deque[tuple[int, int]] = deque()
        self._uncommitted_bytes = 0
        self._durable_calls: deque[tuple[int, Callable[[], None], bool, bool]] = deque()
        """Ticket and callback of each, whether a client waits for it, and whether its request was
        light."""
        self._waiting_clients = 0
        self._waiting_light = 0
        self._congested: deque[Callable[[], None]] = deque()
        """Callers of `when_uncongested`, in the order in which they came."""
        self._is_retrying = False
        self._turn_end_scheduled = False
        self._quiet_call: Timer | None = None
        self._last_append_us = 0
        self._last_was_mark = True
        """Whether the last frame held only marks."""
        self._closed = False
        self.chunk_closed: Callable[[int], object] = lambda records: None
        """Called with the number of records of each full chunk."""
        self.events_framed: Callable[[Collection[GroupPartition]], None] | None = None
        """Called with the group partitions whose waiting events become a frame."""
        self.observer: FrameObserver | None = None
        """Observes all frames but marks. After an exception there is no observer any more."""
        self.light_arrives: Callable[[], bool] = lambda: False
        """Returns whether the reactor has a light request to read."""
        wal.on_durable = self._on_durable
        wal.on_room = self._on_room

    def start(self) -> None:
        """Begin to accept work. The log must be open."""
        self.durable_ticket = self._wal.durable_ticket
        self._set_limit()

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes gathered, queued or being written."""
        return self.gathered_bytes + self._uncommitted_bytes

    # -- adding to the frame ------------------------------------------------------------------

    def add_partition(self, partition: Partition) -> None:
        """Note a partition before it gets its first record in this frame."""
        self._schedule()
        self._partitions.append(partition)
        self.gathered_bytes += ENTRY_OVERHEAD_BYTES

    def add_partitions(self, partitions: list[Partition]) -> None:
        """Note partitions that got their first record in this frame just now."""
        self._schedule()
        self._partitions += partitions
        self.gathered_bytes += len(partitions) * ENTRY_OVERHEAD_BYTES

    def add_group_partition(self, group_partition: GroupPartition, schedule: bool = True) -> None:
        """Note that a group partition has events for this frame.

        With ``schedule=False`` they wait until other changes need a frame.
        """
        group_partition.dirty = True
        if schedule:
            self._schedule()
        elif not self.gathered_bytes:
            self._expect_quiet()
        self._group_partitions[group_partition] = None
        self.gathered_bytes += GROUP_EVENTS_OVERHEAD_BYTES

    def move_to_end(self, group_partitions: Iterable[GroupPartition]) -> None:
        """Let the events of these group partitions follow all others that the frame has so far."""
        for group_partition in group_partitions:
            del self._group_partitions[group_partition]
            self._group_partitions[group_partition] = None

    def add_entry(self, entry: Entry) -> None:
        """Add a control entry. It comes before all records and events of this frame."""
        self._schedule()
        self._entries.append(entry)
        self.gathered_bytes += ENTRY_OVERHEAD_BYTES + len(entry.body)

    def _schedule(self) -> None:
        if not self._turn_end_scheduled and not self._wal.busy:
            self._call_at_turn_end(self._turn_end)
            self._turn_end_scheduled = True

    # -- room ---------------------------------------------------------------------------------

    def admit(self, size: int, partitions: int = 1) -> None:
        """Check that the log has space for records of ``size`` bytes, before any is appended.

        ``size`` is the sum of `record_frame_bytes`, ``partitions`` the number of their partitions.
        Raises `Congested` if the caller may try again later, `NoSpace` if the disk is full,
        `ShuttingDown` and `StorageFailed` if the log accepts no more work.
        """
        if partitions > 1:
            size += (partitions - 1) * ENTRY_OVERHEAD_BYTES
        if self.gathered_bytes + size > self.limit_bytes:
            self._check_room(size)

    def has_room(self, size: int, partitions: int = 1) -> bool:
        """Return whether `admit` and `admit_events` surely accept ``size`` bytes."""
        size += (partitions - 1) * ENTRY_OVERHEAD_BYTES
        return self.gathered_bytes + size <= self.limit_bytes

    def admit_events(self, size: int) -> None:
        """Check space for leases, settles and deletions, which may use the reserve of the log.

        Uncommitted bytes do not limit them. Raises `Congested` only while log space is allocated.
        """
        if self.gathered_bytes + size > self.limit_bytes:
            self._check_event_room(size, lambda: self._wal.reserve_room)

    def admit_revocation(self, size: int) -> None:
        """Check space for revocations, which may use the last part of the reserve, too.

        An administrator can then shut out a client that has filled the log.
        """
        if self.gathered_bytes + size > self.limit_bytes:
            self._check_event_room(size, lambda: self._wal.last_room)

    def _check_room(self, size: int) -> None:
        """Check as `admit` does, when ``size`` more bytes would exceed ``limit_bytes``."""
        self._check_open()
        size += ADMITTED_EXTRA_BYTES + self._reserved_bytes
        waits_behind = bool(self._congested) and not self._is_retrying
        if waits_behind or (self._uncommitted_bytes and not self._fits(size)):
            self._schedule()
            if not self._pass(size):
                raise Congested("too much work waits for the disk; try again")
        if self.gathered_bytes + size > min(self._frame_bytes, self._wal.room):
            self.end_frame_early()
        if self._wal.room < size:
            self._no_room(size, "the disk has no room for")

    def _fits(self, size: int) -> bool:
        """Return whether uncommitted bytes leave room for ``size`` more.

        For requests that waited, a few bytes that passed them do not count: otherwise a request of
        more than ``max_uncommitted_bytes`` would never find the log without work.
        """
        if self._is_retrying and self.uncommitted_bytes <= self._passing_bytes:
            return True
        return self.uncommitted_bytes + size <= self._max_uncommitted_bytes

    def _pass(self, size: int) -> bool:
        """Let a small request pass the limit and those that wait; return whether it does.

        So small requests wait for one large commit, and not for several. A request may be admitted
        again before it has gathered its bytes. Then only the difference counts.
        """
        begin = self._framed_bytes + self.gathered_bytes
        counted = max(0, begin + size - max(begin, self._passed_end))
        if size > SMALL_REQUEST_BYTES or self._passed_bytes + counted > self._passing_bytes:
            return False
        self._passed_bytes += counted
        self._passed_end = max(self._passed_end, begin + size)
        return True

    def _check_event_room(self, size: int, room: Callable[[], int]) -> None:
        """Check as `admit_events` does, when ``size`` more bytes would exceed ``limit_bytes``.

        ``room`` returns the bytes that the log has for this kind of work.
        """
        self._check_open()
        size += ENTRY_OVERHEAD_BYTES + GROUP_EVENTS_OVERHEAD_BYTES + self._reserved_bytes
        if self.gathered_bytes + size > min(self._frame_bytes, room()):
            self.end_frame_early()
        if room() < size:
            self._no_room(size, "the disk is full, and not even the reserve of the journal has")

    def _no_room(self, size: int, complaint: str) -> NoReturn:
        error = self._wal.allocation_error
        if error is not None:
            self.space_refusals += 1
            raise NoSpace(f"{complaint} {size} bytes ({error}); free some space, then try again")
        self._wal.request_room(size)
        raise Congested("log space is being allocated; try again")

    def _check_open(self) -> None:
        if self._wal.failed:
            raise StorageFailed("a write to the log failed; the broker is stopping")
        if self._closed:
            raise ShuttingDown("the broker is shutting down; connect again later")

    def _set_limit(self) -> None:
        """Recompute ``limit_bytes``."""
        uncommitted = self._max_uncommitted_bytes - self._uncommitted_bytes
        room = min(self._frame_bytes, uncommitted, self._wal.room)
        if self._closed or self._wal.failed or self._congested:
            room = 0
        self.limit_bytes = room - ADMITTED_EXTRA_BYTES - self._reserved_bytes

    @contextmanager
    def reserving(self, size: int) -> Iterator[None]:
        """Keep ``size`` bytes of the frame free for records in one partition.

        Inside the context, admissions leave this space. Right after it, the caller may append these
        records to the same frame without admission. ``size`` is as in `admit`.
        """
        self._reserved_bytes = size + ENTRY_OVERHEAD_BYTES
        self._set_limit()
        try:
            yield
        finally:
            self._reserved_bytes = 0
            self._set_limit()

    def when_uncongested(self, callback: Callable[[], None]) -> None:
        """Call back once, when a request that raised `Congested` may be tried again."""
        self._congested.append(callback)
        self._set_limit()

    def _on_room(self) -> None:
        self._set_limit()
        self._retry_congested()

    def _retry_congested(self) -> None:
        """Let the waiting callers try again, in the order in which they came.

        A caller that still finds no space stays first, and no other passes it: otherwise large
        requests would wait for ever. A caller that was served in part goes to the end.
        """
        congested = self._congested
        self._is_retrying = True
        try:
            for _ in range(len(congested)):
                callback = congested.popleft()
                waiting = len(congested)
                before = (self._wal.next_ticket, self.gathered_bytes)
                run_callback(callback)
                after = (self._wal.next_ticket, self.gathered_bytes)
                if len(congested) > waiting and after == before:
                    congested.rotate(1)
                    break
        finally:
            self._is_retrying = False
            self._set_limit()

    # -- frames -------------------------------------------------------------------------------

    @property
    def next_ticket(self) -> int:
        """The number of the frame that gathers. Reading it does not end the frame."""
        return self._wal.next_ticket

    def ticket(self) -> int:
        """Return the number of the frame with the newest applied change, and schedule the frame.

        A large frame is made at once: a frame of all large requests of several turns would take
        too long.
        """
        if self.gathered_bytes > LARGE_FRAME_BYTES:
            self.end_frame_early()
        if self.gathered_bytes:
            self._schedule()
            return self._wal.next_ticket
        return self._wal.next_ticket - 1

    def when_durable(
        self, ticket: int, callback: Callable[[], None], is_light: bool = False
    ) -> None:
        """Answer a client by ``callback`` when ``ticket`` is durable.

        Calls must come in the order of tickets. A light request was handled as it arrived.
        """
        self._durable_calls.append((ticket, callback, True, is_light))
        self._waiting_clients += 1
        self._waiting_light += is_light

    def light_waits(self) -> int:
        """Return the ticket of the next commit if a light request waits for a commit, or 0."""
        return self.durable_ticket + 1 if self._waiting_light else 0

    def answer_light_first(self) -> None:
        """Wait for quick commits that light requests wait for. Call it before heavy work begins.

        Otherwise the thread that commits waits for the interpreter until a step of that work ends,
        once before its sync and once after it, and the answer waits for a third step. The first
        commit may be that of earlier requests.
        """
        for _ in range(2):
            ticket = self.durable_ticket
            if self._waiting_light:
                self._wal.wait_if_quick()
            if self.durable_ticket == ticket:
                return

    def when_all_durable(self, callback: Callable[[], None]) -> None:
        """Call back, now or later, when all changes so far are durable."""
        ticket = self.ticket()
        if ticket <= self.durable_ticket:
            callback()
        else:
            self._durable_calls.append((ticket, callback, False, False))

    def _turn_end(self) -> None:
        self._turn_end_scheduled = False
        if not self._wal.busy:
            self._end_frame()
            # A single connection may wait for these answers before it asks again.
            if self._waiting_clients == 1:
                self._wal.wait_if_quick()

    def _end_frame(self) -> None:
        if not self.gathered_bytes and self._earlier_changes is None:
            return
        changed = self._earlier_changes or ChangedPartitions({}, {})
        self._earlier_changes = None
        changed.add(self._partitions, self._group_partitions)
        try:
            self._before_frame(changed)
        except Exception as error:
            self._fail(error)
        else:
            self.append_frame()

    def end_frame_early(self) -> None:
        """Append the gathered changes now. Later changes of this turn go into another frame.

        Long polls are still served at the end of the turn.
        """
        if self._earlier_changes is None:
            self._earlier_changes = ChangedPartitions({}, {})
        self._earlier_changes.add(self._partitions, self._group_partitions)
        self.append_frame()

    def append_frame(self) -> None:
        """Append the gathered changes, if any, to the log as one frame."""
        if not self.gathered_bytes or self._wal.failed:
            return
        try:
            self._build_frame()
            self._after_frame()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Stop the broker: applied changes can be neither written nor undone.

        The next start replays the log. NoSpace also ends here, but admission prevents it.
        """
        _log.failure("a frame could not be made", event_id="frame-failed")
        self._wal.fail(f"a frame could not be made: {type(error).__name__}", error)
        self._set_limit()

    def _build_frame(self) -> None:
        self.frame_time_us = self._time.time_us()
        entries = sorted(self._entries, key=_comes_after_topics)
        ticket = self._wal.next_ticket
        if self.observer is not None:
            self._observe(
                self.observer.frame_built,
                ticket,
                entries,
                self._partitions,
                self._group_partitions,
            )
        if self.events_framed is not None:
            self.events_framed(self._group_partitions)
        for partition in self._partitions:
            self._add_records(entries, partition, ticket)
        group, encoded, body = None, None, b""
        # A change of a whole group has the same events in all partitions.
        for group_partition in self._group_partitions:
            events = group_partition.waiting_events
            if events:
                if events != encoded or group_partition.group is not group:
                    group, encoded = group_partition.group, events.copy()
                    body = encode_group_events(group.name, events)
                entries.append(
                    Entry(
                        EntryKind.GROUP_EVENTS,
                        group_partition.partition.topic.topic_id,
                        group_partition.partition.index,
                        0,
                        len(events),
                        body,
                    )
                )
            group_partition.events_framed()
        self._entries = []
        self._partitions = []
        self._group_partitions = {}
        self._framed_bytes += self.gathered_bytes
        self.gathered_bytes = 0
        if entries:
            self._append_entries(entries)

    def _observe(self, function: Callable[..., None], *arguments: object) -> None:
        """Call the observer. A fault in it ends the observation, and nothing else."""
        try:
            function(*arguments)
        except Exception:
            self.observer = None
            _log.failure("a fault ended the tracing of records", event_id="tracing-failed")

    def _add_records(self, entries: list[Entry], partition: Partition, ticket: int) -> None:
        """Add the gathered records of a partition, in one batch unless they are very small."""
        chunk = partition.chunks.open
        assert chunk is not None, "a partition with gathered records has an open chunk"
        base_offset = partition.framed_end
        count = partition.next_offset - base_offset
        body: bytes | BodyParts | None = None
        if count == 1:
            body = chunk.last_record_body(self.frame_time_us)
        if body is None:
            columns = chunk.columns(base_offset - chunk.base, self.frame_time_us)
            is_large = self.gathered_bytes >= LARGE_BODY_BYTES
            body = encode_large_records(columns) if is_large else encode_records(columns)
            if count > len(body):
                self._add_small_batches(entries, partition, columns)
        size = len(body)
        if count <= size:
            entries.append(_batch(partition, base_offset, count, body))
        topic = partition.topic
        traffic = topic.traffic or self._traffic.of(topic)
        traffic.written_records += count
        traffic.written_bytes += size
        partition.framed_end = base_offset + count
        records = chunk.set_framed(count, self.frame_time_us, ticket, self.durable_ticket)
        self._cache.grow(chunk, size + count * RECORD_OVERHEAD_BYTES)
        if records >= CHUNK_RECORDS or chunk.cached_bytes >= CHUNK_BYTES:
            chunk.close()
            self.chunk_closed(records)
            partition.chunks.open = None

    @staticmethod
    def _add_small_batches(
        entries: list[Entry], partition: Partition, columns: RecordColumns
    ) -> None:
        """Add records of less than a byte each, such as empty ones, in small batches.

        So no range of the log holds more records than bytes. Recovery relies on it: after an
        unreadable range it raises the next offset by the bytes of the range.
        """
        for start in range(0, len(columns.values), RECORDS_HEADER_BYTES):
            stop = start + RECORDS_HEADER_BYTES
            part = RecordColumns._make(
                c if c is None or isinstance(c, int) else c[start:stop] for c in columns
            )
            body = encode_records(part)
            entries.append(_batch(partition, partition.framed_end + start, len(part.values), body))

    def _append_entries(self, entries: list[Entry]) -> None:
        clock = self._time.unlogged()
        if clock:  # it fits: the log reserves space for marks
            entries.append(_mark(clock))
        size = 0
        for entry in entries:
            size += len(entry[5])
        self._last_append_us = self._time.monotonic_us()
        self._last_was_mark = entries[0].kind == _MARK and all(
            entry.kind == _MARK for entry in entries
        )
        ticket = self._wal.append(entries, self.frame_time_us)
        self.frames += 1
        self._uncommitted.append((ticket, size))
        self._uncommitted_bytes += size
        self._set_limit()

    def _on_durable(self, ticket: int) -> None:
        self.durable_ticket = ticket
        self._passed_bytes = self._passed_end = 0
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= ticket:
            self._uncommitted_bytes -= uncommitted.popleft()[1]
        self._set_limit()
        if self.observer is not None:
            self._observe(self.observer.frame_durable, ticket)
        if not self._turn_end_scheduled and not self._wal.busy:
            self._end_frame()
        waiting = self._durable_calls
        while waiting and waiting[0][0] <= ticket:
            _, callback, is_client, is_light = waiting.popleft()
            self._waiting_clients -= is_client
            self._waiting_light -= is_light
            run_callback(callback)
        self._cache.trim()
        if self._congested:
            self._retry_congested()
        self._expect_quiet()

    # -- marks --------------------------------------------------------------------------------

    def _expect_quiet(self) -> None:
        if self._quiet_call is None and not self._closed:
            self._quiet_call = self._clock.callLater(self._mark_quiet_us / 1e6, self._quiet)

    def _quiet(self) -> None:
        """Commit the events that wait for other changes. If nothing was written, write a mark."""
        self._quiet_call = None
        if self._wal.busy or self._closed:
            return
        quiet_us = self._time.monotonic_us() - self._last_append_us
        if self.gathered_bytes:
            self._end_frame()
        elif self._last_was_mark:
            return
        elif quiet_us >= self._mark_quiet_us:
            self.mark()
        self._expect_quiet()

    def mark(self) -> None:
        """Write an empty frame. It records how far the log is synced."""
        self.frame_time_us = self._time.time_us()
        self._append_entries([_mark({})])
        self._after_frame()

    def mark_clock_set(self) -> None:
        """Note in the frame being gathered that an operator set broker time.

        ``ENTRY_OVERHEAD_BYTES`` must be admitted.
        """
        self.add_entry(_mark({"ahead_us": 0, "set": True}))

    def mark_damage(self) -> None:
        """Note in the log that it is served although a part of it is damaged.

        Later events may contradict the lost part, which a repair may bring back. If the log has no
        space, the note is omitted.
        """
        with suppress(NoSpace, Congested):
            self.admit_events(ENTRY_OVERHEAD_BYTES)
            self.add_entry(_mark({"damaged": True}))

    def close(self) -> None:
        """Refuse new work, append the gathered changes, and write a last mark."""
        self._closed = True
        if self._quiet_call is not None:
            self._quiet_call.cancel()
            self._quiet_call = None
        if not self._wal.failed:
            self.append_frame()
            if not self._last_was_mark and not self._wal.failed:
                self.mark()
        self._set_limit()
        self._retry_congested()


def _mark(fields: dict[str, Any]) -> Entry:
    return Entry(EntryKind.MARK, 0, 0, 0, 0, msgpack.packb(fields) if fields else b"")


def _comes_after_topics(entry: Entry) -> bool:
    return entry.kind != EntryKind.TOPIC


def _batch(partition: Partition, base_offset: int, count: int, body: bytes | BodyParts) -> Entry:
    return _new_entry(
        (_RECORDS, partition.topic.topic_id, partition.index, base_offset, count, body)
    )
