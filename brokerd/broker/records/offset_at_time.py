# Tests: tests/broker/test_group_admin.py, tests/broker/test_cold.py
"""Offsets by time, for groups that are to go on with everything since then."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.archive.contract.view import ArchiveView
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.journal import Journal
from brokerd.broker.model.topics import Partition
from brokerd.errors import UnknownTopic
from brokerd.wal import Wal, WorkerPool

OffsetCallback = Callable[[int | None, Exception | None], None]


def offset_at_time(
    wal: Wal,
    journal: Journal,
    pool: WorkerPool,
    archived: ArchiveReader,
    partition: Partition,
    time_us: int,
    found: OffsetCallback,
) -> None:
    """Call ``found(offset, None)`` with the first offset appended at or after a broker time.

    It is the next offset, as it is now, when there is no such record, and never below the start
    offset. ``found(None, error)`` when that cannot be told: `UnknownTopic` if the topic is deleted
    meanwhile, `DamagedData`, ``OSError``, `ArchiveUnavailable`. It is never called before this
    returns. ``pool`` runs the reading of the log.
    """
    end = partition.next_offset
    topic_id, index = partition.topic.topic_id, partition.index

    def look() -> None:
        pool.submit(wal.plan_offset_at_time(topic_id, index, time_us).run, looked)

    def looked(offset: int | None, error: Exception | None) -> None:
        in_log = end if offset is None else offset

        def question(view: ArchiveView) -> int:
            before = view.offset_at_time(topic_id, index, time_us)
            return in_log if before is None else min(before, in_log)

        if error is None and archived.may_hold_below(partition, in_log):
            archived.ask(question, ended)
        else:
            ended(in_log, error)

    def ended(offset: int | None, error: Exception | None) -> None:
        if partition.topic.deleted:
            found(None, UnknownTopic(f"topic {partition.topic.name!r} was deleted"))
        elif offset is None or error is not None:
            found(None, error)
        else:
            found(max(offset, partition.start_offset), None)

    journal.when_all_durable(look)  # the log tells of durable records only
