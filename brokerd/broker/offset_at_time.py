# Tests: tests/broker/test_group_changes.py
"""Offsets by time, for groups that are to go on with everything since then."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.broker.journal import Journal
from brokerd.broker.topics import Partition
from brokerd.errors import UnknownTopic
from brokerd.wal import Committer, Wal

Found = Callable[[int | None, Exception | None], None]


def offset_at_time(
    wal: Wal, journal: Journal, pool: Committer, partition: Partition, time_us: int, found: Found
) -> None:
    """Call ``found(offset, None)`` with the first offset appended at or after a broker time.

    It is the next offset, as it is now, when there is no such record, and never below the start
    offset. ``found(None, error)`` when that cannot be told: `UnknownTopic` if the topic is deleted
    meanwhile, `DamagedData`, ``OSError``. It is never called before this returns. ``pool`` runs the
    reading.
    """
    end = partition.next_offset

    def look() -> None:
        plan = wal.plan_offset_at_time(partition.topic.topic_id, partition.index, time_us)
        pool.submit(plan.run, ended)

    def ended(offset: int | None, error: Exception | None) -> None:
        if partition.topic.deleted:
            found(None, UnknownTopic(f"topic {partition.topic.name!r} was deleted"))
        elif error is not None:
            found(None, error)
        else:
            found(max(end if offset is None else offset, partition.start_offset), None)

    journal.when_all_durable(look)  # the log tells of durable records only
