# Tests: tests/broker/test_group_admin.py, tests/broker/test_cold.py
"""Finds offsets by time, for groups that continue with the records since that time."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.archive.contract.view import ArchiveView
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.group_commit import GroupCommit
from brokerd.broker.model.topics import Partition
from brokerd.errors import UnknownTopic
from brokerd.wal import Wal
from brokerd.worker_pool import WorkerPool

OffsetCallback = Callable[[int | None, Exception | None], None]


def offset_at_time(
    wal: Wal,
    group_commit: GroupCommit,
    pool: WorkerPool,
    archived: ArchiveReader,
    partition: Partition,
    time_us: int,
    found: OffsetCallback,
) -> None:
    """Call ``found(offset, None)`` with the first offset appended at or after a broker time.

    Without such a record it is the current next offset. It is never below the start offset. If the
    search fails, call ``found(None, error)``: `UnknownTopic` if the topic was deleted,
    `DamagedData`, ``OSError`` or `ArchiveUnavailable`. The call never comes before this function
    returns. ``pool`` reads the log.
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

    group_commit.when_all_durable(look)  # the log has the times of durable records only
