# Tests: tests/broker/test_delayed_prefetch.py
"""Delayed messages that are on disk alone are read shortly before they are due, many at once.

Messages that are due one after the other may lie anywhere in the log. Read one by one when they are
due, they would cost a disk read each. So what is due in the next `AHEAD_US` is looked up now and
then, and read in the order in which it lies in the log, off the reactor's thread; where much is
wanted, a megabyte at a time. What does not come in time is read when it is due.

Memory: `HELD_BYTES`, of which a message takes its own bytes and `MESSAGE_BYTES`.
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
from brokerd.broker.context import Context
from brokerd.broker.journal import DelayedCall
from brokerd.broker.model.chunks import Chunk
from brokerd.broker.model.topics import GroupPartition, Partition
from brokerd.broker.records.cold_reader import READ_AHEAD_BYTES, run_plan
from brokerd.errors import DamagedData
from brokerd.wal import WorkerPool

AHEAD_US = 20_000_000
"""How far ahead is looked."""

LOOK_US = 1_000_000
"""How often a schedule is looked at, at most; as a rule, when half of what was seen is over."""

HELD_BYTES = 64 << 20
MESSAGE_BYTES = 350

LOOK_WANTED = 50_000
"""Messages that one look brings, the earliest; the next look follows soon if there are more."""

SAMPLE = 1_000
"""Messages by which it is estimated which are the earliest."""

SCAN_BLOCKS = 64
"""Blocks of delays that are looked through in one turn of the reactor."""

PLANS = 64
"""Reads that one trip to a thread does."""

RUN_OFFSETS = 1024
"""Messages that lie within so many offsets are read in one go if they are `RUN_WANTED` or more."""

RUN_WANTED = 16

Run = tuple[Callable[[], list[Chunk]], list[int]]
"""A read, which blocks, and the offsets that it is to bring."""


class Message(NamedTuple):
    """What is needed of a record of an internal topic when it is due; less than a `Record`."""

    value: bytes
    key: bytes | None
    metadata: bytes | None
    """The envelope."""
    encoding: int
    producer_format: int
    expires_at_us: int


def message_of(chunk: Chunk, offset: int) -> Message:
    """The message at ``offset`` of a chunk that holds it."""
    index = offset - chunk.base
    return Message(
        chunk.values[index],
        chunk.keys[index],
        chunk.metadata[index],
        chunk.encodings[index],
        chunk.formats[index],
        0 if chunk.expires_at_us is None else chunk.expires_at_us[index],
    )


def bring(runs: list[Run]) -> dict[int, Message]:
    """Read what is wanted; in a thread. What is damaged is left out: it is told when it is due."""
    found: dict[int, Message] = {}
    for read, wanted in runs:
        if wanted[0] in found:
            continue  # the batch of the run before held it
        try:
            chunks = read()
        except DamagedData:
            continue
        for chunk in chunks:
            first, stop = bisect_left(wanted, chunk.base), bisect_left(wanted, chunk.end)
            for offset in wanted[first:stop]:
                found[offset] = message_of(chunk, offset)
    return found


def _bring_archived(
    partition: Partition, lots: list[list[int]], view: ArchiveView
) -> dict[int, Message]:
    """As `bring`, from the archive."""

    def read(wanted: list[int]) -> list[Chunk]:
        rows = view.read(partition.topic.topic_id, partition.index, wanted[0], _ahead_bytes(wanted))
        return [] if rows is None else chunks_of(rows)

    return bring([(partial(read, wanted), wanted) for wanted in lots])


class _Look:
    """One look at a schedule: what of it is wanted until ``bound_us``."""

    def __init__(self, group_partition: GroupPartition, bound_us: int) -> None:
        self.group_partition = group_partition
        self.bound_us = bound_us
        self.blocks = group_partition.store.delayed_blocks(bound_us)
        self.blocks.reverse()
        self.wanted: list[tuple[int, int]] = []
        self.offsets: list[int] = []
        """What is still to be read, last first."""
        self.more = False
        """Whether there is room for what is due a little later."""

    def keep_earliest(self, count: int) -> None:
        """Want about so many, the earliest; look less far ahead for that."""
        if len(self.wanted) > count:
            self.wanted, self.bound_us = earliest(self.wanted, count)
            self.more = count == LOOK_WANTED


def earliest(wanted: list[tuple[int, int]], count: int) -> tuple[list[tuple[int, int]], int]:
    """About ``count`` of more than so many (time, offset), and the time at which they end.

    None that is left out is before one that is not. To sort 100,000 takes longer than a turn may,
    so `SAMPLE` of them say where the end is: of no more than that, the count is exact.
    """
    sample = sorted(wanted[:: -(-len(wanted) // SAMPLE)])
    end = sample[count * len(sample) // len(wanted)]
    return [one for one in wanted if one < end], end[0]


class DelayedPrefetch:
    """Holds delayed messages that were read ahead. ``pool`` runs the reading."""

    def __init__(self, context: Context, pool: WorkerPool, archived: ArchiveReader) -> None:
        self._wal = context.wal
        self._archived = archived
        self._pool = pool
        self._clock = context.clock
        self._time = context.time
        self._held: dict[GroupPartition, dict[int, Message]] = {}
        self.held_bytes = 0
        self._planned: dict[GroupPartition, int] = {}
        self._not_before_us: dict[GroupPartition, int] = {}
        self._heap: list[tuple[int, int, GroupPartition]] = []
        self._count = 0
        self._look: _Look | None = None
        self._call: DelayedCall | None = None
        self._call_us = 0
        self._stopped = False

    def look(self, group_partition: GroupPartition, offset: int) -> Message | None:
        """The message, if it was read ahead."""
        held = self._held.get(group_partition)
        return None if held is None else held.get(offset)

    def drop(self, group_partition: GroupPartition, offset: int) -> None:
        """Hold a message no longer, if it was read ahead."""
        held = self._held.get(group_partition)
        message = None if held is None else held.pop(offset, None)
        if message is not None:
            self.held_bytes -= _size(message)

    def expect(self, group_partition: GroupPartition) -> None:
        """See to it that a schedule is looked at before its next message is due."""
        due_us = group_partition.store.next_due_us()
        if due_us is not None:
            self._plan(group_partition, due_us - AHEAD_US + LOOK_US)

    def stop(self) -> None:
        """Read nothing more."""
        self._stopped = True
        if self._call is not None and self._call.active():
            self._call.cancel()

    # -- when to look -------------------------------------------------------------------------

    def _plan(self, group_partition: GroupPartition, at_us: int) -> None:
        at_us = max(at_us, self._not_before_us.get(group_partition, 0))
        planned_us = self._planned.get(group_partition)
        if planned_us is not None and planned_us <= at_us:
            return
        self._planned[group_partition] = at_us
        self._count += 1
        heapq.heappush(self._heap, (at_us, self._count, group_partition))
        self._call_at(at_us)

    def _call_at(self, at_us: int) -> None:
        if self._stopped or self._look is not None:
            return
        if self._call is not None and self._call.active():
            if self._call_us <= at_us:
                return
            self._call.cancel()
        self._call_us = at_us
        seconds = max(0.0, (at_us - self._time.now_us()) / 1e6)
        self._call = self._clock.callLater(seconds, self._begin)

    def _begin(self) -> None:
        """Look at the schedule whose turn it is."""
        now_us = self._time.now_us()
        while self._heap and self._heap[0][0] <= now_us:
            at_us, _, group_partition = heapq.heappop(self._heap)
            if self._planned.get(group_partition) != at_us:
                continue
            if group_partition.partition.topic.deleted:
                self._forget(group_partition)
                continue
            self._planned[group_partition] = self._not_before_us[group_partition] = now_us + LOOK_US
            self._look = _Look(group_partition, now_us + AHEAD_US)
            self._scan()
            return
        if self._heap:
            self._call_at(self._heap[0][0])

    def _forget(self, group_partition: GroupPartition) -> None:
        self._planned.pop(group_partition, None)
        self._not_before_us.pop(group_partition, None)
        for message in self._held.pop(group_partition, {}).values():
            self.held_bytes -= _size(message)

    def _end(self, look: _Look) -> None:
        """Plan the next look."""
        group_partition = look.group_partition
        self._look = None
        del self._planned[group_partition]
        now_us = self._time.now_us()
        if group_partition.partition.topic.deleted:
            self._forget(group_partition)
        elif (due_us := group_partition.store.next_due_us()) is not None:
            ahead_us = LOOK_US if look.more else max(LOOK_US, (look.bound_us - now_us) // 2)
            self._plan(group_partition, max(now_us + ahead_us, due_us - AHEAD_US + LOOK_US))
        elif self._held.get(group_partition):  # due, and about to be fired
            self._plan(group_partition, now_us + LOOK_US)
        else:
            self._forget(group_partition)
        if self._heap:
            self._call_at(self._heap[0][0])

    # -- what is wanted -----------------------------------------------------------------------

    def _scan(self) -> None:
        """Look through some blocks; when all are, read."""
        look = self._look
        if look is None or self._stopped:
            return
        held = self._held.get(look.group_partition, {})
        partition, store = look.group_partition.partition, look.group_partition.store
        left = min(LOOK_WANTED, max(0, HELD_BYTES - self.held_bytes) // MESSAGE_BYTES)
        for _ in range(min(SCAN_BLOCKS, len(look.blocks))):
            for ready_us, offset in store.delayed_in(look.blocks.pop(), look.bound_us):
                if offset not in held and partition.find(offset) is None:
                    look.wanted.append((ready_us, offset))
        if len(look.wanted) > 2 * left or not look.blocks:
            look.keep_earliest(left)
        if look.blocks:
            self._clock.callLater(0, self._scan)
            return
        look.offsets = sorted((offset for _, offset in look.wanted), reverse=True)
        look.wanted = []
        self._read()

    # -- reading ------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read some of what is wanted."""
        look = self._look
        if look is None or self._stopped:
            return
        partition = look.group_partition.partition
        if not look.offsets or partition.topic.deleted or self.held_bytes >= HELD_BYTES:
            self._end(look)
            return
        runs: list[Run] = []
        cold: list[list[int]] = []
        while look.offsets and len(runs) + len(cold) < PLANS:
            wanted = _next_run(look.offsets)
            try:
                plan = self._wal.plan_read(
                    partition.topic.topic_id, partition.index, wanted[0], _ahead_bytes(wanted)
                )
            except DamagedData:  # told when the message is due
                continue
            is_cold = plan is None and wanted[0] < partition.archived
            if runs if is_cold else cold:  # those come next
                look.offsets += reversed(wanted)
                break
            if is_cold:
                cold.append(wanted)
            else:
                runs.append((partial(run_plan, plan), wanted))
        if cold:
            self._archived.ask(
                partial(_bring_archived, partition, cold), partial(self._brought, cold)
            )
        else:
            lots = [wanted for _, wanted in runs]
            self._pool.submit(partial(bring, runs), partial(self._brought, lots))

    def _brought(
        self, lots: list[list[int]], found: dict[int, Message] | None, error: Exception | None
    ) -> None:
        look = self._look
        if look is None or self._stopped:
            return
        if found is None or error is not None:  # a disk that fails: told when they are due
            self._end(look)
            return
        held = self._held.setdefault(look.group_partition, {})
        delayed = look.group_partition.store.is_delayed
        for offset, message in found.items():
            if delayed(offset):
                held[offset] = message
                self.held_bytes += _size(message)
        again = [o for wanted in lots for o in wanted[1:] if o not in found]
        look.offsets += reversed(again)
        self._read()


def _next_run(offsets: list[int]) -> list[int]:
    """Take from the end of ``offsets``, the lowest, what is read in one go."""
    first = offsets[-1]
    many = len(offsets) >= RUN_WANTED and offsets[-RUN_WANTED] < first + RUN_OFFSETS
    wanted = [offsets.pop()]
    while many and offsets and offsets[-1] < first + RUN_OFFSETS:
        wanted.append(offsets.pop())
    return wanted


def _ahead_bytes(wanted: list[int]) -> int:
    """How much a read brings besides what it must."""
    return READ_AHEAD_BYTES if len(wanted) > 1 else 0


def _size(message: Message) -> int:
    key, metadata = message.key or b"", message.metadata or b""
    return MESSAGE_BYTES + len(message.value) + len(key) + len(metadata)
