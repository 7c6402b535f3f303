# Tests: tests/broker/test_retention.py, tests/broker/test_cold.py
"""Finds new start offsets of partitions by age and by size, over log and archive.

A read thread runs plans over the log's indexes first. The broker then asks the archive about
partitions whose oldest records only the archive holds.

Sizes are approximate: the log counts bytes of batches as written, the archive counts bytes of keys,
values and metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from brokerd.archive.contract.view import ArchiveView
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.model.topics import Partition, TopicSettings
from brokerd.errors import DamagedData
from brokerd.wal import OffsetPlan, SizePlan, Wal
from brokerd.worker_pool import WorkerPool


class LimitQuery(NamedTuple):
    """A query for the new start offset of one partition."""

    partition: Partition
    end: int
    """All offsets below this were durable when the plans were made."""
    time_us: int
    by_time: OffsetPlan | None
    by_size: SizePlan | None


class NewStart(NamedTuple):
    """New start offsets by each limit; 0 for a limit that the partition does not have."""

    by_time: int = 0
    by_size: int = 0


Answer = NewStart | DamagedData | OSError | None
"""None: the archive is unavailable now. `ArchiveReader` logs that."""

LimitsCallback = Callable[[list[Answer] | None, Exception | None], None]


class _LogAnswer(NamedTuple):
    """Answer of the log to one query."""

    found: NewStart
    below: int
    """The log holds no records below this offset."""
    left: int
    """Bytes of records below that offset that the size limit still allows."""


class _ArchiveQuestion(NamedTuple):
    """Question to the archive about one query."""

    query: LimitQuery
    in_log: _LogAnswer
    asks_time: bool
    asks_size: bool


class RetentionLimits:
    """Answers many queries at a time; ``readers`` read the log's indexes."""

    def __init__(self, wal: Wal, read_threads: WorkerPool, archive_reader: ArchiveReader) -> None:
        self._wal = wal
        self._read_threads = read_threads
        self._archive_reader = archive_reader

    def query(
        self, partition: Partition, limits: TopicSettings, end: int, time_us: int
    ) -> LimitQuery:
        """Return a query for a partition at ``time_us``; offsets below ``end`` must be durable."""
        key = partition.topic.topic_id, partition.index
        oldest_us = time_us - (limits.retention_us or 0)
        by_time = by_size = None
        if limits.retention_us and oldest_us > 0:
            by_time = self._wal.plan_offset_at_time(*key, oldest_us)
        if limits.retention_bytes:
            by_size = self._wal.plan_offset_of_size(*key, limits.retention_bytes)
        return LimitQuery(partition, end, oldest_us, by_time, by_size)

    def find(self, queries: Sequence[LimitQuery], done: LimitsCallback) -> None:
        """Call ``done`` later, with one answer for each query, or with an error."""

        def on_log_answers(
            found: list[_LogAnswer | DamagedData | OSError] | None, error: Exception | None
        ) -> None:
            for query in queries:
                if query.by_size is not None:
                    query.by_size.remember()
            if found is None or error is not None:
                done(None, error)
            else:
                self._ask_archive(queries, found, done)

        self._read_threads.submit(lambda: [_search_log(query) for query in queries], on_log_answers)

    def _ask_archive(
        self,
        queries: Sequence[LimitQuery],
        found: Sequence[_LogAnswer | DamagedData | OSError],
        done: LimitsCallback,
    ) -> None:
        """Complete the answers of the log with answers of the archive, then call ``done``."""
        answers: list[Answer] = []
        questions: dict[int, _ArchiveQuestion] = {}
        for at, (query, in_log) in enumerate(zip(queries, found, strict=True)):
            if isinstance(in_log, Exception):
                answers.append(in_log)
                continue
            before = partial(self._archive_reader.may_hold_below, query.partition)
            asks_time = before(in_log.found.by_time)
            asks_size = in_log.left > 0 and before(in_log.below)
            if asks_time or asks_size:
                questions[at] = _ArchiveQuestion(query, in_log, asks_time, asks_size)
                answers.append(None)
            else:
                answers.append(in_log.found)

        def on_archive_answers(said: list[Answer] | None, error: Exception | None) -> None:
            for at, answer in zip(questions, said or (), strict=False):
                answers[at] = answer
            done(answers, None)

        if questions:
            self._archive_reader.ask(
                lambda view: [_search_archive(view, one) for one in questions.values()],
                on_archive_answers,
            )
        else:
            done(answers, None)


def _search_log(query: LimitQuery) -> _LogAnswer | DamagedData | OSError:
    """Run the plans of a query. Runs in a read thread."""
    by_time, by_size, below, left = 0, 0, 0, 0
    try:
        if query.by_time is not None:
            found = query.by_time.run()
            by_time = query.end if found is None else found
        if query.by_size is not None:
            found, left = query.by_size.measure()
            by_size, below = (0, query.end) if found is None else (found, found)
    except (DamagedData, OSError) as error:
        return error
    return _LogAnswer(NewStart(by_time, by_size), below, left)


def _search_archive(view: ArchiveView, question: _ArchiveQuestion) -> Answer:
    """Answer a question from the archive. Runs in an archive thread."""
    query, (found, below, left), asks_time, asks_size = question
    key = query.partition.topic.topic_id, query.partition.index
    by_time, by_size = found
    try:
        if asks_time:
            before = view.offset_at_time(*key, query.time_us)
            by_time = by_time if before is None else min(before, by_time)
        if asks_size:
            before = view.offset_of_size(*key, below, left)
            by_size = by_size if before is None else before
    except DamagedData as error:
        return error
    return NewStart(by_time, by_size)
