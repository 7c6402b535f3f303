# Tests: tests/broker/test_delayed_prefetch.py
"""Reads delayed messages that are only on disk shortly before they are due.

Messages with close due times may lie anywhere in the log. Reading each of them when it is due would
cost one disk read a message. So this module scans a schedule now and then for the messages that are
due in the next `AHEAD_US`. A thread reads them in the order of the log. Where many wanted messages
lie close together, one read brings up to a megabyte. A message that does not arrive in time is read
when it is due.

Memory: `HELD_BYTES`, and one planned scan for each schedule. A message counts with its own bytes
and `MESSAGE_BYTES`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from brokerd.archive.contract.view import ArchiveView
from brokerd.broker.archive.chunks import chunks_of
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.clock import Timer
from brokerd.broker.context import Context
from brokerd.broker.model.chunks import Chunk
from brokerd.broker.model.topics import GroupPartition, Partition
from brokerd.broker.records.cold_reader import READ_AHEAD_BYTES, run_plan
from brokerd.errors import DamagedData
from brokerd.worker_pool import WorkerPool

AHEAD_US = 20_000_000
"""A scan finds messages that are due within this time."""

SCAN_INTERVAL_US = 1_000_000
"""Shortest time between two scans of a schedule. The next scan usually begins at half of the time
that the last one covered."""

HELD_BYTES = 64 << 20
MESSAGE_BYTES = 350

PLANS_SLACK = 1024
"""Plans without effect that never cause a rebuild, so that a small heap is not rebuilt often."""

SCAN_MESSAGES_MAX = 50_000
"""Messages that one scan reads, the earliest first. If there are more, the next scan is soon."""

SAMPLE = 1_000
"""Messages from which `earliest` estimates its time limit."""

SCAN_BLOCKS = 64
"""Blocks of delays that are scanned in one reactor turn."""

READS_MAX = 64
"""Reads that one call of a thread does."""

RUN_OFFSETS = 1024
"""One read serves all wanted messages within this many offsets, if there are `RUN_WANTED`."""

RUN_WANTED = 16

PlannedRead = tuple[Callable[[], list[Chunk]], list[int]]
"""A blocking read, and the offsets that are wanted from it."""


class Message(NamedTuple):
    """The columns of an internal topic's record that its delivery needs."""

    value: bytes
    key: bytes | None
    metadata: bytes | None
    """The envelope."""
    encoding: int
    producer_format: int
    expires_at_us: int


def message_of(chunk: Chunk, offset: int) -> Message:
    """Return the message at ``offset``, which the chunk holds."""
    index = offset - chunk.base
    return Message(
        chunk.values[index],
        chunk.keys[index],
        chunk.metadata[index],
        chunk.encodings[index],
        chunk.formats[index],
        0 if chunk.expires_at_us is None else chunk.expires_at_us[index],
    )


def read_messages(reads: list[PlannedRead]) -> dict[int, Message]:
    """Execute reads in a thread and return the wanted messages by offset.

    The result omits damaged messages. The delivery reports them when they are due.
    """
    found: dict[int, Message] = {}
    for read, offsets in reads:
        if offsets[0] in found:
            continue  # the batch of the read before held it
        try:
            chunks = read()
        except DamagedData:
            continue
        for chunk in chunks:
            first, stop = bisect_left(offsets, chunk.base), bisect_left(offsets, chunk.end)
            for offset in offsets[first:stop]:
                found[offset] = message_of(chunk, offset)
    return found


def _read_archived(
    partition: Partition, runs: list[list[int]], view: ArchiveView
) -> dict[int, Message]:
    """Do the work of `read_messages` with the archive."""

    def read(offsets: list[int]) -> list[Chunk]:
        ahead_bytes = _ahead_bytes(offsets)
        rows = view.read(partition.topic.topic_id, partition.index, offsets[0], ahead_bytes)
        return [] if rows is None else chunks_of(rows)

    return read_messages([(partial(read, offsets), offsets) for offsets in runs])


class _Scan:
    """One scan of a schedule: the messages to read that are due before ``bound_us``."""

    def __init__(self, group_partition: GroupPartition, bound_us: int) -> None:
        self.group_partition = group_partition
        self.bound_us = bound_us
        self.blocks = group_partition.store.delayed_blocks(bound_us)
        self.blocks.reverse()
        self.found: list[tuple[int, int]] = []
        """(time, offset) of each message to read, while the scan goes on."""
        self.offsets: list[int] = []
        """Offsets still to read, the highest first."""
        self.has_more = False
        """Whether the scan left out later messages although there is memory for them."""

    def keep_earliest(self, count: int) -> None:
        """Keep about ``count`` messages, the earliest, and lower ``bound_us`` accordingly."""
        if len(self.found) > count:
            self.found, self.bound_us = earliest(self.found, count)
            self.has_more = count == SCAN_MESSAGES_MAX


def earliest(found: list[tuple[int, int]], count: int) -> tuple[list[tuple[int, int]], int]:
    """Return about ``count`` of the (time, offset) pairs, and the time of the first one left out.

    The pairs are more than ``count``. Every pair that is left out is later than every pair that is
    returned. Sorting 100,000 pairs takes longer than a reactor turn may, so the limit comes from
    `SAMPLE` of them. The count is exact for up to `SAMPLE` pairs.
    """
    sample = sorted(found[:: -(-len(found) // SAMPLE)])
    end = sample[count * len(sample) // len(found)]
    return [pair for pair in found if pair < end], end[0]


class DelayedPrefetch:
    """Holds delayed messages that were read ahead. ``pool`` runs the reads."""

    def __init__(self, context: Context, pool: WorkerPool, archive_reader: ArchiveReader) -> None:
        self._wal = context.wal
        self._archive_reader = archive_reader
        self._pool = pool
        self._clock = context.clock
        self._time = context.time
        self._held: dict[GroupPartition, dict[int, Message]] = {}
        self.held_bytes = 0
        self._planned_us: dict[GroupPartition, int] = {}
        """When the next scan of a schedule begins."""
        self._not_before_us: dict[GroupPartition, int] = {}
        self._heap: list[tuple[int, int, GroupPartition]] = []
        """(time, number, schedule) of each planned scan. A later plan makes an entry invalid."""
        self._plans_max = PLANS_SLACK
        """Size of the heap at which more than half of the plans may be without effect."""
        self._count = 0
        self._scan: _Scan | None = None
        """The scan under way."""
        self._call: Timer | None = None
        self._call_us = 0
        self._stopped = False

    def get(self, group_partition: GroupPartition, offset: int) -> Message | None:
        """Return the message if it was read ahead."""
        held = self._held.get(group_partition)
        return None if held is None else held.get(offset)

    def drop(self, group_partition: GroupPartition, offset: int) -> None:
        """Free the memory of a message if it was read ahead."""
        held = self._held.get(group_partition)
        message = None if held is None else held.pop(offset, None)
        if message is not None:
            self.held_bytes -= _size(message)

    def plan(self, group_partition: GroupPartition) -> None:
        """Plan a scan of a schedule before its next message is due."""
        due_us = group_partition.store.next_due_us()
        if due_us is not None:
            self._plan_at(group_partition, due_us - AHEAD_US + SCAN_INTERVAL_US)

    def stop(self) -> None:
        """Start no more reads and ignore the results of threads."""
        self._stopped = True
        if self._call is not None and self._call.active():
            self._call.cancel()

    # -- when to scan -------------------------------------------------------------------------

    def _plan_at(self, group_partition: GroupPartition, at_us: int) -> None:
        at_us = max(at_us, self._not_before_us.get(group_partition, 0))
        planned_us = self._planned_us.get(group_partition)
        if planned_us is not None and planned_us <= at_us:
            return
        self._planned_us[group_partition] = at_us
        self._count += 1
        heapq.heappush(self._heap, (at_us, self._count, group_partition))
        if len(self._heap) > self._plans_max:
            self._drop_plans()
        self._call_at(at_us)

    def _drop_plans(self) -> None:
        """Drop the plans that were replaced, and those for deleted topics."""
        live = []
        for plan in self._heap:
            at_us, _, group_partition = plan
            if self._planned_us.get(group_partition) != at_us:
                continue
            if group_partition.partition.topic.deleted:
                self._forget(group_partition)
            else:
                live.append(plan)
        heapq.heapify(live)
        self._heap = live
        self._plans_max = 2 * len(live) + PLANS_SLACK

    def _call_at(self, at_us: int) -> None:
        if self._stopped or self._scan is not None:
            return
        if self._call is not None and self._call.active():
            if self._call_us <= at_us:
                return
            self._call.cancel()
        self._call_us = at_us
        seconds = max(0.0, (at_us - self._time.monotonic_us()) / 1e6)
        self._call = self._clock.callLater(seconds, self._begin_scan)

    def _begin_scan(self) -> None:
        """Scan the schedule with the earliest planned time, if that time has come."""
        now_us = self._time.monotonic_us()
        while self._heap and self._heap[0][0] <= now_us:
            at_us, _, group_partition = heapq.heappop(self._heap)
            if self._planned_us.get(group_partition) != at_us:
                continue
            if group_partition.partition.topic.deleted:
                self._forget(group_partition)
                continue
            next_us = now_us + SCAN_INTERVAL_US
            self._planned_us[group_partition] = self._not_before_us[group_partition] = next_us
            self._scan = _Scan(group_partition, now_us + AHEAD_US)
            self._scan_blocks()
            return
        if self._heap:
            self._call_at(self._heap[0][0])

    def _forget(self, group_partition: GroupPartition) -> None:
        self._planned_us.pop(group_partition, None)
        self._not_before_us.pop(group_partition, None)
        for message in self._held.pop(group_partition, {}).values():
            self.held_bytes -= _size(message)

    def _end_scan(self, scan: _Scan) -> None:
        """Plan the next scan of the schedule."""
        group_partition = scan.group_partition
        self._scan = None
        self._planned_us.pop(group_partition, None)
        now_us = self._time.monotonic_us()
        if group_partition.partition.topic.deleted:
            self._forget(group_partition)
        elif (due_us := group_partition.store.next_due_us()) is not None:
            wait_us = SCAN_INTERVAL_US
            if not scan.has_more:
                wait_us = max(wait_us, (scan.bound_us - now_us) // 2)
            next_us = max(now_us + wait_us, due_us - AHEAD_US + SCAN_INTERVAL_US)
            self._plan_at(group_partition, next_us)
        elif self._held.get(group_partition):  # due, and about to be delivered
            self._plan_at(group_partition, now_us + SCAN_INTERVAL_US)
        else:
            self._forget(group_partition)
        if self._heap:
            self._call_at(self._heap[0][0])

    # -- scanning -----------------------------------------------------------------------------

    def _scan_blocks(self) -> None:
        """Scan some blocks, and begin to read after the last one."""
        scan = self._scan
        if scan is None or self._stopped:
            return
        held = self._held.get(scan.group_partition, {})
        partition, store = scan.group_partition.partition, scan.group_partition.store
        room = min(SCAN_MESSAGES_MAX, max(0, HELD_BYTES - self.held_bytes) // MESSAGE_BYTES)
        for _ in range(min(SCAN_BLOCKS, len(scan.blocks))):
            for ready_us, offset in store.delayed_in(scan.blocks.pop(), scan.bound_us):
                if offset not in held and partition.find(offset) is None:
                    scan.found.append((ready_us, offset))
        if len(scan.found) > 2 * room or not scan.blocks:
            scan.keep_earliest(room)
        if scan.blocks:
            self._clock.callLater(0, self._scan_blocks)
            return
        scan.offsets = sorted((offset for _, offset in scan.found), reverse=True)
        scan.found = []
        self._read()

    # -- reading ------------------------------------------------------------------------------

    def _read(self) -> None:
        """Start reads in a thread: all from the journal, or all from the archive."""
        scan = self._scan
        if scan is None or self._stopped:
            return
        partition = scan.group_partition.partition
        if not scan.offsets or partition.topic.deleted or self.held_bytes >= HELD_BYTES:
            self._end_scan(scan)
            return
        reads: list[PlannedRead] = []
        archived: list[list[int]] = []
        while scan.offsets and len(reads) + len(archived) < READS_MAX:
            offsets = _next_run(scan.offsets)
            try:
                plan = self._wal.plan_read(
                    partition.topic.topic_id, partition.index, offsets[0], _ahead_bytes(offsets)
                )
            except DamagedData:  # reported when the message is due
                continue
            is_archived = plan is None and offsets[0] < partition.archived_end
            if reads if is_archived else archived:  # another source: the next call reads it
                scan.offsets += reversed(offsets)
                break
            if is_archived:
                archived.append(offsets)
            else:
                reads.append((partial(run_plan, plan), offsets))
        if archived:
            self._archive_reader.ask(
                partial(_read_archived, partition, archived), partial(self._on_read, archived)
            )
        else:
            runs = [offsets for _, offsets in reads]
            self._pool.submit(partial(read_messages, reads), partial(self._on_read, runs))

    def _on_read(
        self, runs: list[list[int]], found: dict[int, Message] | None, error: Exception | None
    ) -> None:
        scan = self._scan
        if scan is None or self._stopped:
            return
        if found is None or error is not None:  # the delivery reports it when they are due
            self._end_scan(scan)
            return
        held = self._held.setdefault(scan.group_partition, {})
        is_delayed = scan.group_partition.store.is_delayed
        for offset, message in found.items():
            if is_delayed(offset):
                held[offset] = message
                self.held_bytes += _size(message)
        missing = [o for offsets in runs for o in offsets[1:] if o not in found]
        scan.offsets += reversed(missing)
        self._read()


def _next_run(offsets: list[int]) -> list[int]:
    """Remove the offsets of the next read from the end of ``offsets``, and return them."""
    first = offsets[-1]
    is_dense = len(offsets) >= RUN_WANTED and offsets[-RUN_WANTED] < first + RUN_OFFSETS
    run = [offsets.pop()]
    while is_dense and offsets and offsets[-1] < first + RUN_OFFSETS:
        run.append(offsets.pop())
    return run


def _ahead_bytes(offsets: list[int]) -> int:
    """Return how many bytes a read may bring besides its first record."""
    return READ_AHEAD_BYTES if len(offsets) > 1 else 0


def _size(message: Message) -> int:
    key, metadata = message.key or b"", message.metadata or b""
    return MESSAGE_BYTES + len(message.value) + len(key) + len(metadata)
