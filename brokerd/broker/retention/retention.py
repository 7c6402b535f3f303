# Tests: tests/broker/test_retention.py
"""Removes records past the limits of their topics: moves start offsets, so that segments can go.

A round visits all partitions that have a limit, in short steps that do not block the reactor. A
read thread searches the log for the new start offset. Ages are differences between the records'
append times and the time for removal (`BrokerTime.removal_us`). The dead letters of the groups are
read in cooperative slices, because a group that is packed, or that settles removed records first,
takes 0.1 ms.

A dead letter younger than ``dead_letter_us`` holds back retention of its partition, and so does a
named stream that holds its topic (`brokerd.broker.streams`). Neither holds back removals on
request.

After each round `SegmentCleaner` deletes segments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from brokerd.broker.archive.bounds import HeldFrom
from brokerd.broker.clock import StepTimer
from brokerd.broker.context import Context
from brokerd.broker.group_commit import Congested
from brokerd.broker.model.topics import GroupPartition, Partition, TopicSettings
from brokerd.broker.retention.limits import Answer, LimitQuery, NewStart, RetentionLimits
from brokerd.broker.retention.segment_cleaner import SegmentCleaner
from brokerd.broker.slices import Pace, SliceOwner, SliceQueue
from brokerd.errors import BrokerdError
from brokerd.groups.view import END_OF_OFFSETS
from brokerd.walformat import EventKind

STEP_PARTITIONS = 100
"""Partitions that one step queries."""

STEP_SECONDS = 0.002
"""Reactor time that one step may take."""

PAUSE_SECONDS = 0.01
"""Pause between steps."""

VISIT_LETTERS_MAX = 1_000
"""Dead letters of a group in a partition that one visit reads; more visits follow."""

DAY_US = 86_400 * 1_000_000

_DEAD = int(EventKind.DEAD)

NO_LIMITS = TopicSettings(retention_us=0, retention_bytes=0, ttl_us=0)

Remove = Callable[[list[tuple[Partition, int]], str], int]
"""`TopicAdmin.remove`."""


@dataclass(frozen=True)
class RetentionSettings:
    """Default limits of topics, and the interval of the rounds."""

    topics: TopicSettings = NO_LIMITS
    dead_letter_us: int = 7 * DAY_US
    """How long a dead letter holds back retention after its last attempt."""
    check_us: int = 60 * 1_000_000
    stream_hold_us: int = 7 * DAY_US
    """How long a named stream holds back retention after its last report; 0: never."""
    stream_hold_bytes: int = 10 << 30
    """The most bytes of the journal behind a named stream that holds back retention."""


class Retention:
    """Visits the partitions every ``check_us``. ``remove`` moves their start offsets.

    Each round first calls ``drop_holds``, for the holds of streams that are over their limits.
    """

    _log = Logger()

    def __init__(
        self,
        context: Context,
        limits: RetentionLimits,
        remove: Remove,
        segment_cleaner: SegmentCleaner,
        settings: RetentionSettings,
        held_from: HeldFrom,
        drop_holds: Callable[[], None],
        slices: SliceQueue,
    ) -> None:
        self._state = context.state
        self._group_commit = context.group_commit
        self._limits = limits
        self._clock = context.clock
        self._time = context.time
        self._remove = remove
        self._segment_cleaner = segment_cleaner
        self._settings = settings
        self._held_from = held_from
        self._drop_holds = drop_holds
        self._slices = slices
        self._owner = SliceOwner()
        self._pace = Pace(slices, self._owner)
        self._starts: dict[Partition, tuple[int, str]] = {}
        """Start offsets that were found and do not hold yet, each with its reason."""
        self._new_letters: dict[Partition, int] = {}
        """The first dead letter since groups are read, by partition that is read."""
        self._todo: Iterator[tuple[Partition, TopicSettings] | None] | None = None
        self._timer = StepTimer(context.clock)
        self._errors = 0
        self._last_error: str | None = None

    def start(self) -> None:
        """Start the first round after ``check_us``."""
        self._segment_cleaner.start()
        self._timer.call_later(self._settings.check_us / 1e6, self._round)

    def stop(self) -> None:
        """Start no more work and ignore the results of threads."""
        self._timer.stop()
        self._segment_cleaner.stop()

    def status(self) -> dict[str, Any]:
        """Return the number of errors, the last error, and the bytes that wait for a snapshot."""
        return {
            "errors": self._errors + self._segment_cleaner.errors,
            "last_error": self._last_error or self._segment_cleaner.last_error,
            "waiting_bytes": self._segment_cleaner.waiting_bytes,
        }

    # -- a round ------------------------------------------------------------------------------

    def _round(self) -> None:
        self._last_error = None
        self._drop_holds()
        self._todo = self._limited()
        self._step()

    def _limited(self) -> Iterator[tuple[Partition, TopicSettings] | None]:
        """Yield the partitions that have limits and records, with their limits; else None."""
        for topic in list(self._state.by_id.values()):
            limits = topic.settings.over(self._settings.topics)
            if not (limits.retention_us or limits.retention_bytes):
                yield None
                continue
            for partition in topic.partitions:
                yield (partition, limits) if partition.start_offset < partition.framed_end else None

    def _step(self) -> None:
        assert self._todo is not None
        wanted: list[tuple[Partition, TopicSettings, int]] = []
        until = self._clock.seconds() + STEP_SECONDS
        for one in self._todo:
            if one is not None:
                wanted.append((*one, one[0].framed_end))
            if len(wanted) >= STEP_PARTITIONS or self._clock.seconds() >= until:
                break
        else:
            self._todo = None
        if wanted:
            # The plans search the index, which holds durable offsets only.
            self._group_commit.when_all_durable(lambda: self._search(wanted))
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._todo is not None:
            self._timer.call_later(PAUSE_SECONDS, self._step)
        else:
            self._segment_cleaner.run(
                lambda: self._timer.call_later(self._settings.check_us / 1e6, self._round)
            )

    def _search(self, wanted: list[tuple[Partition, TopicSettings, int]]) -> None:
        if self._timer.is_stopped:
            return
        time_us = self._time.removal_us()
        queries = [
            self._limits.query(partition, limits, end, time_us)
            for partition, limits, end in wanted
            if not partition.topic.deleted
        ]
        self._limits.find(queries, lambda found, error: self._found(queries, found, error))

    def _found(
        self, queries: list[LimitQuery], found: list[Answer] | None, error: Exception | None
    ) -> None:
        if self._timer.is_stopped:
            return
        if error is not None:
            self._failed("search for new start offsets", error)
        moves: list[tuple[Partition, NewStart]] = []
        for query, one in zip(queries, found or (), strict=found is not None):
            partition = query.partition
            if isinstance(one, Exception):
                self._failed(f"topic {partition.topic.name!r} partition {partition.index}", one)
            elif one is not None:
                moves.append((partition, one))
        self._move(moves)

    def _move(self, moves: list[tuple[Partition, NewStart]]) -> None:
        """Move start offsets in slices, then continue the round."""
        if not moves:
            self._go_on()
            return
        self._pace = Pace(self._slices, self._owner)
        if self._settings.dead_letter_us:
            self._group_commit.events_framed = self._note_new_letters
        moving = Deferred.fromCoroutine(self._move_all(moves))
        moving.addErrback(self._move_failed)
        moving.addCallback(self._moved)

    async def _move_all(self, moves: list[tuple[Partition, NewStart]]) -> None:
        for partition, found in moves:
            is_old = found.by_time >= found.by_size
            reason = "retention_time" if is_old else "retention_bytes"
            before, more = -1, True
            while more and before < partition.start_offset < max(found):
                before = partition.start_offset
                await self._rest()
                if self._timer.is_stopped or partition.topic.deleted:
                    break
                start, more = await self._held_back(partition, max(found))
                self._starts[partition] = start, reason
                if more:
                    await self._remove_all()
        await self._remove_all()

    async def _rest(self) -> None:
        """Wait for the next slice if this one is used up. What was found is moved before."""
        if self._pace.is_over:
            await self._remove_all()
            await self._pace.next_slice()

    async def _remove_all(self) -> None:
        """Move the start offsets that were found, when the log has room. One frame a reason."""
        while self._starts and not self._timer.is_stopped:
            try:
                self._remove_now()
            except Congested:
                await self._room()
            else:
                for partition in self._starts:
                    del self._new_letters[partition]
                self._starts.clear()

    def _remove_now(self) -> None:
        """Move the start offsets that were found, but past nothing that is held since then."""
        self._group_commit.end_frame_early()  # tells the dead letters of this turn
        starts: dict[str, list[tuple[Partition, int]]] = {}
        for partition, (start, reason) in self._starts.items():
            if not partition.topic.deleted:
                held = self._held_from(partition)
                start = min(start, self._new_letters[partition])
                start = start if held is None else min(start, held)
                starts.setdefault(reason, []).append((partition, start))
        for reason, these in starts.items():
            self._remove(these, reason)

    def _room(self) -> Deferred[None]:
        """Return a Deferred that fires when the log may have room."""
        has_room: Deferred[None] = Deferred()
        self._group_commit.when_uncongested(partial(has_room.callback, None))
        return has_room

    def _move_failed(self, failure: Failure) -> None:
        if not isinstance(failure.value, BrokerdError):  # else the log has no room even for this
            self._log.failure("a fault in brokerd", failure, event_id="retention-fault")
        self._failed("move of start offsets", failure.value)

    def _moved(self, _: None) -> None:
        self._group_commit.events_framed = None
        self._starts.clear()
        self._new_letters.clear()
        if not self._timer.is_stopped:
            self._go_on()

    def _failed(self, what: str, error: object) -> None:
        self._errors += 1
        self._last_error = f"{what}: {error}"
        self._log.error(
            "retention failed; the broker tries again in {seconds} s: {problem}",
            seconds=self._settings.check_us // 1_000_000,
            problem=self._last_error,
            event_id="retention-failed",
        )

    # -- dead letters -------------------------------------------------------------------------

    async def _held_back(self, partition: Partition, start: int) -> tuple[int, bool]:
        """Return the highest start offset up to ``start`` below which no dead letter is young.

        Returns also whether another visit may go further. Groups are read in slices; meanwhile
        `_note_new_letters` sees the dead letters that come.
        """
        keep_us = self._settings.dead_letter_us
        old_us = self._time.monotonic_us() - self._time.lead_us() - keep_us
        more = False
        self._new_letters[partition] = END_OF_OFFSETS
        for group in list(partition.topic.groups.values()) if keep_us else ():
            group_partition = group.kept.get(partition.index)
            if group_partition is None:
                continue
            await self._rest()
            if self._timer.is_stopped or partition.topic.deleted:
                break
            if group.deleted or not group_partition.position.dead:
                continue
            letters = group_partition.store.dead_letters(0, start)
            for count, letter in enumerate(letters):
                is_old = letter.last_attempt_us <= old_us
                if not is_old or count >= VISIT_LETTERS_MAX:
                    start, more = letter.offset, is_old
                    break
        return start, more

    def _note_new_letters(self, group_partitions: Collection[GroupPartition]) -> None:
        """Note the first dead letter among the events of a frame, by partition."""
        lowest = self._new_letters
        for group_partition in group_partitions:
            partition = group_partition.partition
            for event in group_partition.waiting_events if partition in lowest else ():
                if event[0] == _DEAD:
                    lowest[partition] = min(lowest[partition], event[1])
