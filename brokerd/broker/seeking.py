# Tests: tests/broker/test_group_changes.py
"""Offsets by time, for groups that are to go on with everything since then."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.broker.journal import Journal
from brokerd.broker.topics import Partition
from brokerd.errors import UnknownTopic
from brokerd.wal import Committer, Wal

Found = Callable[[int | None, Exception | None], None]


class OffsetFinder:
    """Looks offsets up in the log's indexes; ``pool`` runs the reading."""

    def __init__(self, wal: Wal, journal: Journal, pool: Committer) -> None:
        self._wal = wal
        self._journal = journal
        self._pool = pool

    def offset_at_time(self, partition: Partition, time_us: int, found: Found) -> None:
        """Call ``found(offset, None)`` with the first offset appended at or after a broker time.

        It is the next offset, as it is now, when there is no such record, and never below the start
        offset. ``found(None, error)`` when that cannot be told: `UnknownTopic` if the topic is
        deleted meanwhile, `DamagedData`, ``OSError``. It is never called before this returns.
        """
        end = partition.next_offset

        def ended(offset: int | None, error: Exception | None) -> None:
            if partition.topic.deleted:
                found(None, UnknownTopic(f"topic {partition.topic.name!r} was deleted"))
            elif error is not None:
                found(None, error)
            else:
                found(max(end if offset is None else offset, partition.start_offset), None)

        def look() -> None:
            plan = self._wal.plan_offset_at_time(partition.topic.topic_id, partition.index, time_us)
            self._pool.submit(plan.run, ended)

        ticket = self._journal.ticket()
        if ticket > self._journal.durable_ticket:
            self._journal.when_durable(ticket, look)  # the log tells of durable records only
        else:
            look()
