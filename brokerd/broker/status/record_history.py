# Tests: tests/admin/test_history_calls.py
"""Reads the events of all groups about one record from the journal, for ``brokerctl explain``.

A read thread searches one slice of the journal at a time, so that other reads come between. One
search runs at a time, for all clients. A cancelled search ends with its slice.
"""

from __future__ import annotations

from typing import NamedTuple

from twisted.internet.defer import Deferred, DeferredLock

from brokerd.broker.context import Context
from brokerd.broker.model.topics import Partition
from brokerd.errors import LimitExceeded
from brokerd.wal.read.event_scan import EventScan, RecordEvent
from brokerd.walformat import EventKind
from brokerd.worker_pool import WorkerPool

WAITING_MAX = 20
"""Most searches that wait for others."""


_LEASES = (EventKind.LEASED, EventKind.EXTENDED)
_DELAYS = (EventKind.FAILED, EventKind.RELEASED, EventKind.EXPIRED)
_COUNTED = (EventKind.LEASED, EventKind.FAILED, EventKind.DEAD)
_TOKENS = (*_LEASES, EventKind.RELEASED, EventKind.EXPIRED)
_RANGES = (EventKind.SETTLED_RANGE, EventKind.REPLAYED, EventKind.PURGED)
_MOVES = (EventKind.SEEK, EventKind.COMMITTED)
_REASONS = (EventKind.FAILED, EventKind.DEAD, EventKind.REPLAYED, EventKind.PURGED)


class EventInfo(NamedTuple):
    """An event of a group about a record; None for fields that its kind does not have."""

    time_us: int
    lsn: int
    group: str
    event: str
    """Name of the kind, in lower case."""
    client: str
    token: int | None
    count: int | None  # type: ignore[assignment]  # tuple.count() gives way to the field
    """Grants of a lease with this one; failures of a record."""
    amount_us: int | None
    """Duration of a lease, or the delay until the record is ready again."""
    reason: str
    first: int | None
    """New position of a seek or commit; first offset of a range."""
    end: int | None
    """End of a range, exclusive."""


class History(NamedTuple):
    """A page of the events about a record, in order."""

    events: list[EventInfo]
    is_last: bool
    from_lsn: int
    """The search began here. Events below it, if any, are only in the archive."""
    problems: list[str]
    """Parts of the journal that could not be read."""


class RecordHistory:
    """Searches the journal in ``readers``."""

    def __init__(self, context: Context, readers: WorkerPool) -> None:
        self._wal = context.wal
        self._readers = readers
        self._lock = DeferredLock()

    async def read(self, partition: Partition, offset: int, first: int, limit: int) -> History:
        """Return at most ``limit`` events about a record, without the ``first`` ones.

        Raises `LimitExceeded` if too many searches wait, and OSError.
        """
        if len(self._lock.waiting) >= WAITING_MAX:
            raise LimitExceeded(f"{WAITING_MAX} searches of the journal wait already; try later")
        await self._lock.acquire()
        try:
            scan = self._wal.plan_events(partition.topic.topic_id, partition.index, offset)
            events: list[RecordEvent] = []
            skipped = 0
            while not scan.done and len(events) <= limit:
                found = await self._step(scan)
                passed = min(first - skipped, len(found))
                skipped += passed
                events += found[passed:]
        finally:
            self._lock.release()
        is_last = scan.done and len(events) <= limit
        return History(list(map(_info, events[:limit])), is_last, scan.from_lsn, scan.problems)

    def _step(self, scan: EventScan) -> Deferred[list[RecordEvent]]:
        result: Deferred[list[RecordEvent]] = Deferred()

        def done(found: list[RecordEvent], error: Exception | None) -> None:
            if result.called:  # cancelled
                return
            if error is None:
                result.callback(found)
            else:
                result.errback(error)

        self._readers.submit(scan.step, done)
        return result


def _info(found: RecordEvent) -> EventInfo:
    kind, offset, amount, token, count, owner, reason = found.event
    return EventInfo(
        time_us=found.time_us,
        lsn=found.lsn,
        group=found.group,
        event=EventKind(kind).name.lower(),
        client=owner,
        token=token if kind in _TOKENS else None,
        count=count if kind in _COUNTED else None,
        amount_us=amount if kind in _LEASES or kind in _DELAYS else None,
        reason=reason if kind in _REASONS else "",
        first=offset if kind in _MOVES or kind in _RANGES else None,
        end=amount if kind in _RANGES else None,
    )
