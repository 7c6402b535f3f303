# Tests: tests/broker/test_retention.py
"""Removes what topics need not keep: moves start offsets, so that segments can be deleted.

A round goes through all partitions that have a limit, some in a step, so that the reactor is never
held up; what a partition may lose is looked up in the log by a read thread. Ages are those of the
records' own append times, and by the time for removal (`BrokerTime.removal_us`).

Dead letters are records that somebody may still want to look at: one that is younger than
``dead_letter_us`` holds back retention of its partition, but nothing that was asked for.

After each round `SegmentCleaner` deletes segments that nobody needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from twisted.logger import Logger

from brokerd.broker.context import Context
from brokerd.broker.journal import Congested, DelayedCall
from brokerd.broker.model.topics import Partition, TopicSettings
from brokerd.broker.retention.limits import Answer, Beginning, Look, RetentionLimits
from brokerd.broker.retention.segment_cleaner import SegmentCleaner
from brokerd.errors import BrokerdError

STEP_LOOKS = 100
"""Partitions that one step looks up."""

STEP_SECONDS = 0.002
"""How long the reactor goes through partitions in one step."""

PAUSE_SECONDS = 0.01
"""Between steps."""

TURN_LOOKS = 10_000
"""What one turn of the reactor spends on moving start offsets, in dead letters looked at; what it
moves is one frame for each reason."""

GROUP_LOOKS = 10
"""What a group costs that has to settle what is removed, in dead letters looked at."""

LETTERS_LOOKS = 1_000
"""Dead letters of a partition, of all its groups, that one look goes past; then others follow."""

DAY_US = 86_400 * 1_000_000

NO_LIMITS = TopicSettings(retention_us=0, retention_bytes=0, ttl_us=0)

Remove = Callable[[list[tuple[Partition, int]], str], int]
"""`TopicAdmin.remove`."""


@dataclass(frozen=True)
class RetentionSettings:
    """What topics keep unless they say otherwise, and how often that is looked at."""

    topics: TopicSettings = NO_LIMITS
    dead_letter_us: int = 7 * DAY_US
    """A dead letter holds back retention for so long after its last attempt."""
    check_us: int = 60 * 1_000_000


class Retention:
    """Goes through the partitions every ``check_us``. ``remove`` moves their start offsets."""

    _log = Logger()

    def __init__(
        self,
        context: Context,
        limits: RetentionLimits,
        remove: Remove,
        sweep: SegmentCleaner,
        settings: RetentionSettings,
    ) -> None:
        self._state = context.state
        self._journal = context.journal
        self._limits = limits
        self._clock = context.clock
        self._time = context.time
        self._remove = remove
        self._sweep = sweep
        self._settings = settings
        self._todo: Iterator[tuple[Partition, TopicSettings] | None] | None = None
        self._call: DelayedCall | None = None
        self._stopped = False
        self._errors = 0
        self._last_error: str | None = None

    def start(self) -> None:
        """Begin the first round after ``check_us``."""
        self._sweep.start()
        self._later(self._settings.check_us / 1e6, self._round)

    def stop(self) -> None:
        """Begin nothing any more; what a thread is at comes to nothing."""
        self._stopped = True
        self._sweep.stop()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        def run() -> None:
            self._call = None
            function()

        if not self._stopped:
            self._call = self._clock.callLater(seconds, run)

    def status(self) -> dict[str, Any]:
        """What failed since the start, what failed last if it did, and what waits for snapshots."""
        return {
            "errors": self._errors + self._sweep.errors,
            "last_error": self._last_error or self._sweep.last_error,
            "waiting_bytes": self._sweep.waiting_bytes,
        }

    # -- a round ------------------------------------------------------------------------------

    def _round(self) -> None:
        self._last_error = None
        self._todo = self._limited()
        self._step()

    def _limited(self) -> Iterator[tuple[Partition, TopicSettings] | None]:
        """The partitions that may have to lose records; None for others that were looked at."""
        for topic in list(self._state.by_id.values()):
            limits = topic.settings.over(self._settings.topics)
            if not (limits.retention_us or limits.retention_bytes):
                yield None
                continue
            for partition in topic.partitions:
                yield (partition, limits) if partition.start_offset < partition.framed else None

    def _step(self) -> None:
        assert self._todo is not None
        wanted: list[tuple[Partition, TopicSettings, int]] = []
        until = self._clock.seconds() + STEP_SECONDS
        for one in self._todo:
            if one is not None:
                wanted.append((*one, one[0].framed))
            if len(wanted) >= STEP_LOOKS or self._clock.seconds() >= until:
                break
        else:
            self._todo = None
        if wanted:
            # An offset is in the index, where the plans look, once it is durable.
            self._journal.when_all_durable(lambda: self._look_up(wanted))
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._todo is not None:
            self._later(PAUSE_SECONDS, self._step)
        else:
            self._sweep.run(lambda: self._later(self._settings.check_us / 1e6, self._round))

    def _look_up(self, wanted: list[tuple[Partition, TopicSettings, int]]) -> None:
        if self._stopped:
            return
        time_us = self._time.removal_us()
        looks = [
            self._limits.look(partition, limits, end, time_us)
            for partition, limits, end in wanted
            if not partition.topic.deleted
        ]
        self._limits.find(looks, lambda found, error: self._found(looks, found, error))

    def _found(
        self, looks: list[Look], found: list[Answer] | None, error: Exception | None
    ) -> None:
        if self._stopped:
            return
        if error is not None:
            self._failed("looking up what is to go", error)
        moves: list[tuple[Partition, Beginning]] = []
        for look, one in zip(looks, found or (), strict=found is not None):
            partition = look.partition
            if isinstance(one, Exception):
                self._failed(f"topic {partition.topic.name!r} partition {partition.index}", one)
            elif one is not None:
                moves.append((partition, one))
        self._move(moves)

    def _move(self, moves: list[tuple[Partition, Beginning]]) -> None:
        """Move start offsets, now or when the log has room, some in a turn, and go on."""
        if self._stopped:
            return
        starts: dict[str, list[tuple[Partition, int]]] = {}
        again: list[tuple[Partition, Beginning]] = []
        done, left = 0, TURN_LOOKS
        while done < len(moves) and left > 0:
            partition, found = moves[done]
            done += 1
            if partition.topic.deleted or max(found) <= partition.start_offset:
                continue
            start, looks, more = self._held_back(partition, max(found))
            is_old = found.by_time >= found.by_size
            reason = "retention_time" if is_old else "retention_bytes"
            starts.setdefault(reason, []).append((partition, start))
            left -= looks
            if more:
                again.append((partition, found))
        try:
            for reason, these in starts.items():
                self._remove(these, reason)
        except Congested:
            self._journal.when_uncongested(lambda: self._move(moves))
            return
        except BrokerdError as why:  # no room in the log, not even for this
            self._failed("moving start offsets", why)
            again, done = [], len(moves)
        rest = again + moves[done:]
        if rest:
            self._later(0, lambda: self._move(rest))
        else:
            self._go_on()

    def _failed(self, what: str, error: Exception) -> None:
        self._errors += 1
        self._last_error = f"{what}: {error}"
        self._log.error(
            "retention failed and is tried again in {seconds} s: {problem}",
            seconds=self._settings.check_us // 1_000_000,
            problem=self._last_error,
            event_id="retention-failed",
        )

    # -- dead letters -------------------------------------------------------------------------

    def _held_back(self, partition: Partition, start: int) -> tuple[int, int, bool]:
        """How far a start offset may move: not past a dead letter that is not old enough.

        Returns that, what it costs in `TURN_LOOKS`, and whether to look again from there on.
        """
        groups = partition.topic.groups.values()
        keep_us = self._settings.dead_letter_us
        old_us = self._time.now_us() - self._time.lead_us() - keep_us
        most = max(1, LETTERS_LOOKS // max(1, len(groups)))
        cost, more = GROUP_LOOKS * (1 + len(groups)), False
        for group in groups if keep_us else ():
            letters = group.partitions[partition.index].store.dead_letters(0, start)
            for looks, letter in enumerate(letters):
                cost += 1
                is_old = letter.last_attempt_us <= old_us
                if not is_old or looks >= most:
                    start, more = letter.offset, is_old
                    break
        return start, cost, more
