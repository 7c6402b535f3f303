# Tests: tests/admin/test_history_calls.py
"""Reads the events of all groups about one record, for ``brokerctl explain``.

Events come from the archive as far as it has them, then from the journal. A thread searches one
slice at a time, so that other reads come between. One search runs at a time, for all clients. A
cancelled search ends with its slice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from twisted.internet.defer import Deferred, DeferredLock

from brokerd.archive.contract.view import ArchiveUnavailable, EventPlace, EventView
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.archive.refresher import ArchiveRefresher
from brokerd.broker.context import Context
from brokerd.broker.model.topics import Partition
from brokerd.errors import DamagedData, LimitExceeded
from brokerd.wal.read.event_scan import EventScan, RecordEvent, RecordEventFilter
from brokerd.walformat import EventKind
from brokerd.worker_pool import WorkerPool

T = TypeVar("T")

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
    """The search began here. Events below it, if any, are in neither journal nor archive."""
    archive_lsn: int
    """Events below this LSN came from the archive; 0: none."""
    problems: list[str]
    """Parts that could not be read."""


class _Page:
    """Collects the events behind the first ones, up to a limit and one more."""

    def __init__(self, first: int, limit: int) -> None:
        self._left = first
        self._limit = limit
        self.events: list[RecordEvent] = []

    @property
    def is_full(self) -> bool:
        return len(self.events) > self._limit

    def add(self, found: list[RecordEvent]) -> None:
        passed = min(self._left, len(found))
        self._left -= passed
        self.events += found[passed:]


class RecordHistory:
    """Searches the archive by ``archive_reader``, and the journal in ``readers``."""

    def __init__(
        self,
        context: Context,
        read_threads: WorkerPool,
        archive_reader: ArchiveReader,
        refresher: ArchiveRefresher,
    ) -> None:
        self._wal = context.wal
        self._read_threads = read_threads
        self._archive_reader = archive_reader
        self._refresher = refresher
        self._lock = DeferredLock()

    async def read(
        self, partition: Partition, offset: int, first: int, limit: int, exists: bool = False
    ) -> History:
        """Return at most ``limit`` events about a record, without the ``first`` ones.

        ``exists`` tells that the record can be read. Raises `LimitExceeded` if too many searches
        wait, and OSError.
        """
        if len(self._lock.waiting) >= WAITING_MAX:
            raise LimitExceeded(f"{WAITING_MAX} searches of the journal wait already; try later")
        await self._lock.acquire()
        try:
            return await self._search(partition, offset, first, limit, exists)
        finally:
            self._lock.release()

    async def _search(
        self, partition: Partition, offset: int, first: int, limit: int, exists: bool
    ) -> History:
        key = partition.topic.topic_id, partition.index
        from_lsn = self._wal.lsn_before(*key, offset)
        page, events_filter, problems = _Page(first, limit), RecordEventFilter(offset), list[str]()
        archive_lsn = 0
        view: object = self._refresher.last_view
        if isinstance(view, EventView) and from_lsn < view.events_lsn:
            try:
                if exists:
                    found_lsn = await self._ask(partial(view.record_lsn, *key, offset))
                    from_lsn = max(from_lsn, found_lsn)
                await self._search_archive(view, key, offset, from_lsn, page, events_filter)
                archive_lsn = view.events_lsn
            except (DamagedData, ArchiveUnavailable) as error:
                problems.append(f"events below LSN {view.events_lsn} may be missing: {error}")
                page, events_filter = _Page(first, limit), RecordEventFilter(offset)
        journal_lsn = max(from_lsn, archive_lsn)
        scan = self._wal.plan_events(
            *key, offset, journal_lsn, events_filter, follows_archive=archive_lsn > 0
        )
        while not scan.done and not page.is_full:
            page.add(await self._step(scan))
        return History(
            list(map(_info, page.events[:limit])),
            scan.done and not page.is_full,
            from_lsn if archive_lsn else scan.from_lsn,
            archive_lsn,
            [*problems, *scan.problems],
        )

    async def _search_archive(
        self,
        view: EventView,
        key: tuple[int, int],
        offset: int,
        from_lsn: int,
        page: _Page,
        events_filter: RecordEventFilter,
    ) -> None:
        place: EventPlace | None = EventPlace()
        while place is not None and not page.is_full:
            found = await self._ask(partial(view.events, *key, offset, from_lsn, place))
            page.add(
                [
                    RecordEvent(*one)
                    for one in found.events
                    if events_filter.accept(one.group, one.event)
                ]
            )
            place = found.next

    def _ask(self, question: Callable[[], T]) -> Deferred[T]:
        """Run a question about one version of the archive in a thread of the archive."""
        result, done = _deferred()
        self._archive_reader.ask(lambda _: question(), done)
        return result

    def _step(self, scan: EventScan) -> Deferred[list[RecordEvent]]:
        result, done = _deferred()
        self._read_threads.submit(scan.step, done)
        return result


def _deferred() -> tuple[Deferred[Any], Callable[[Any, Exception | None], None]]:
    """Return a Deferred and the callback that fires it, unless it is cancelled before."""
    result: Deferred[Any] = Deferred()

    def done(found: Any, error: Exception | None) -> None:
        if result.called:
            return
        if error is None:
            result.callback(found)
        else:
            result.errback(error)

    return result, done


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
