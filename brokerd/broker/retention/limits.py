# Tests: tests/broker/test_retention.py, tests/broker/test_cold.py
"""Where the records of partitions should begin, by age and by size, over log and archive.

The log is looked up first, by plans that a read thread runs. What it cannot tell, because records
before those that it has are in the archive alone, the archive is asked.

Sizes are about the same: those of the log are of batches as written, those of the archive are of
keys, values and metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from brokerd.archive.contract.view import ArchiveView
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.model.topics import Partition, TopicSettings
from brokerd.errors import DamagedData
from brokerd.wal import OffsetPlan, SizePlan, Wal, WorkerPool


class Look(NamedTuple):
    """What is looked up of a partition."""

    partition: Partition
    end: int
    """Offsets below this were durable when the plans were made."""
    time_us: int
    by_time: OffsetPlan | None
    by_size: SizePlan | None


class Beginning(NamedTuple):
    """The offsets to begin at, 0 for those that were not asked for."""

    by_time: int = 0
    by_size: int = 0


Answer = Beginning | DamagedData | OSError | None
"""None: not now, because the archive cannot be asked; it says so itself."""

Answers = Callable[[list[Answer] | None, Exception | None], None]


class _InLog(NamedTuple):
    """What the log says of a look."""

    found: Beginning
    below: int
    """Of the records below this, which it has not, so many bytes may stay."""
    left: int


class _Question(NamedTuple):
    """What the archive is asked of a look."""

    look: Look
    in_log: _InLog
    asks_time: bool
    asks_size: bool


class RetentionLimits:
    """Looks up many partitions at a time; ``readers`` read the log's indexes."""

    def __init__(self, wal: Wal, readers: WorkerPool, archived: ArchiveReader) -> None:
        self._wal = wal
        self._readers = readers
        self._archived = archived

    def look(self, partition: Partition, limits: TopicSettings, end: int, time_us: int) -> Look:
        """Plan to look up a partition, of which all below ``end`` is durable, at ``time_us``."""
        key = partition.topic.topic_id, partition.index
        oldest_us = time_us - (limits.retention_us or 0)
        by_time = by_size = None
        if limits.retention_us and oldest_us > 0:
            by_time = self._wal.plan_offset_at_time(*key, oldest_us)
        if limits.retention_bytes:
            by_size = self._wal.plan_offset_of_size(*key, limits.retention_bytes)
        return Look(partition, end, oldest_us, by_time, by_size)

    def find(self, looks: Sequence[Look], done: Answers) -> None:
        """Call ``done`` later, with an answer for each look, or with an error."""

        def looked(
            found: list[_InLog | DamagedData | OSError] | None, error: Exception | None
        ) -> None:
            for look in looks:
                if look.by_size is not None:
                    look.by_size.remember()
            if found is None or error is not None:
                done(None, error)
            else:
                self._ask(looks, found, done)

        self._readers.submit(lambda: [_find(look) for look in looks], looked)

    def _ask(
        self,
        looks: Sequence[Look],
        found: Sequence[_InLog | DamagedData | OSError],
        done: Answers,
    ) -> None:
        """Have the archive asked what the log could not tell."""
        answers: list[Answer] = []
        questions: dict[int, _Question] = {}
        for at, (look, one) in enumerate(zip(looks, found, strict=True)):
            if isinstance(one, Exception):
                answers.append(one)
                continue
            before = partial(self._archived.may_hold_below, look.partition)
            asks_time = before(one.found.by_time)
            asks_size = one.left > 0 and before(one.below)
            if asks_time or asks_size:
                questions[at] = _Question(look, one, asks_time, asks_size)
                answers.append(None)
            else:
                answers.append(one.found)

        def told(said: list[Answer] | None, error: Exception | None) -> None:
            for at, answer in zip(questions, said or (), strict=False):
                answers[at] = answer
            done(answers, None)

        if questions:
            self._archived.ask(
                lambda view: [_answer(view, one) for one in questions.values()], told
            )
        else:
            done(answers, None)


def _find(look: Look) -> _InLog | DamagedData | OSError:
    """Run the plans of a look; in a read thread."""
    by_time, by_size, below, left = 0, 0, 0, 0
    try:
        if look.by_time is not None:
            found = look.by_time.run()
            by_time = look.end if found is None else found
        if look.by_size is not None:
            found, left = look.by_size.measure()
            by_size, below = (0, look.end) if found is None else (found, found)
    except (DamagedData, OSError) as error:
        return error
    return _InLog(Beginning(by_time, by_size), below, left)


def _answer(view: ArchiveView, question: _Question) -> Answer:
    """Ask the archive; in its thread."""
    look, (found, below, left), asks_time, asks_size = question
    key = look.partition.topic.topic_id, look.partition.index
    by_time, by_size = found
    try:
        if asks_time:
            before = view.offset_at_time(*key, look.time_us)
            by_time = by_time if before is None else min(before, by_time)
        if asks_size:
            before = view.offset_of_size(*key, below, left)
            by_size = by_size if before is None else before
    except DamagedData as error:
        return error
    return Beginning(by_time, by_size)
