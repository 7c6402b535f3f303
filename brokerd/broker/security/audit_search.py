# Tests: tests/broker/test_audit.py
"""Queries of the audit trail, answered newest first.

The trail has no index. A query reads it backwards in blocks, one block in a reactor turn, and
examines at most `EXAMINED_MAX` events. One query runs at a time, and `WAITING_MAX` more may wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from brokerd.broker.context import Context
from brokerd.broker.model.topics import Partition, Topic
from brokerd.broker.records.cold_reader import Unreadable
from brokerd.broker.records.fetch import FetchCallback
from brokerd.broker.records.offset_at_time import OffsetCallback
from brokerd.errors import DamagedData, LimitExceeded, ShuttingDown
from brokerd.security.audit import (
    AUDIT_TOPIC,
    AuditEvent,
    AuditFilter,
    AuditPage,
    decode_event,
)
from brokerd.values import Record

BLOCK_EVENTS = 1_000
BLOCK_BYTES = 1 << 20
EXAMINED_MAX = 100_000
"""Events that one query examines. The next query may go on from there."""

WAITING_MAX = 20

WRITE_DELAY_US = 60_000_000
"""An event may be appended this long after its time, if the log has no room at first."""

SearchDone = Callable[[AuditPage | None, Exception | None], None]
Fetch = Callable[[Partition, int, int, int, FetchCallback], None]
"""`RecordReader.fetch`."""
FindTime = Callable[[Partition, int, OffsetCallback], None]
"""`RecordReader.offset_at_time`."""


class AuditSearcher:
    """Answers queries of the audit trail, one at a time.

    :param topic: finds a topic by its name.
    """

    def __init__(
        self,
        context: Context,
        topic: Callable[[str], Topic | None],
        fetch: Fetch,
        find_time: FindTime,
    ) -> None:
        self.group_commit = context.group_commit
        self.clock = context.clock
        self.fetch = fetch
        self.find_time = find_time
        self._topic = topic
        self._waiting: deque[tuple[AuditFilter, SearchDone]] = deque()
        self._search: _Search | None = None

    def ask(self, query: AuditFilter, done: SearchDone) -> None:
        """Queue a query, and answer it after those before it. Raises `LimitExceeded`."""
        if len(self._waiting) >= WAITING_MAX:
            raise LimitExceeded(
                f"{WAITING_MAX} queries of the audit trail wait already; ask again later"
            )
        self._waiting.append((query, done))
        self._next()

    def stop(self) -> None:
        """Answer every query with `ShuttingDown`."""
        left = [done for _, done in self._waiting]
        self._waiting.clear()
        if self._search is not None:
            left.insert(0, self._search.done)
            self._search.is_over = True
            self._search = None
        for done in left:
            done(None, ShuttingDown("the broker is shutting down; connect again later"))

    def _next(self) -> None:
        while self._search is None and self._waiting:
            query, done = self._waiting.popleft()
            topic = self._topic(AUDIT_TOPIC)
            if topic is None:
                done(AuditPage((), 0, False), None)
            else:
                self._search = _Search(self, topic.partition(0), query, done)
                self._search.begin()

    def search_ended(self, page: AuditPage | None, error: Exception | None) -> None:
        """Answer the current query, and start the next one in a later turn."""
        assert self._search is not None
        done, self._search = self._search.done, None
        self.clock.callLater(0, self._next)
        done(page, error)


class _Search:
    """One running query. It has examined all events from offset ``_top`` on."""

    def __init__(
        self, searcher: AuditSearcher, trail: Partition, query: AuditFilter, done: SearchDone
    ) -> None:
        self.done = done
        self.is_over = False
        self._searcher = searcher
        self._trail = trail
        self._query = query
        self._top = 0
        self._events_left = EXAMINED_MAX
        self._block: list[Record] = []
        self._events: list[AuditEvent] = []
        self._total = 0
        self._unreadable = 0

    def begin(self) -> None:
        """Find the newest event that may match. Only durable events count."""
        self._searcher.group_commit.when_all_durable(self._find_top)

    def _find_top(self) -> None:
        if self._query.end_us:
            latest_us = self._query.end_us + WRITE_DELAY_US
            self._searcher.find_time(self._trail, latest_us, self._on_top)
        else:
            self._on_top(self._trail.framed_end, None)

    def _on_top(self, offset: int | None, error: Exception | None) -> None:
        if self.is_over:
            return
        if offset is None:
            self._end(error)
            return
        before = self._query.before
        self._top = offset if before is None else min(offset, before)
        self._read()

    def _read(self) -> None:
        """Read the block below ``_top``, or end at the start of the trail."""
        if self.is_over:
            return
        self._block = []
        first = max(self._trail.start_offset, self._top - min(BLOCK_EVENTS, self._events_left))
        if first >= self._top:
            self._end(None)
        else:
            self._fetch(first, first)

    def _fetch(self, first: int, offset: int) -> None:
        done = partial(self._on_records, first, offset)
        self._searcher.fetch(self._trail, offset, self._top - offset, BLOCK_BYTES, done)

    def _on_records(
        self,
        first: int,
        offset: int,
        records: Sequence[Record],
        next_offset: int,
        error: Exception | None,
    ) -> None:
        if self.is_over:
            return
        if error is not None and not isinstance(error, Unreadable):
            self._end(error)
            return
        self._block += (record for record in records if record.offset < self._top)
        if offset < next_offset < self._top:
            self._fetch(first, next_offset)
        else:
            self._examine(first)

    def _examine(self, first: int) -> None:
        """Examine a block, newest first. A missing event is unreadable: events do not expire."""
        expected = self._top - max(first, self._trail.start_offset)
        self._unreadable += max(0, expected - len(self._block))
        for record in reversed(self._block):
            try:
                event = decode_event(record.value, record.offset)
            except DamagedData:
                self._unreadable += 1
                continue
            if self._query.matches(event):
                self._total += 1
                if self._query.skip < self._total <= self._query.skip + self._query.limit:
                    self._events.append(event)
        oldest = self._block[0] if self._block else None
        self._events_left -= self._top - first
        self._top = first
        if oldest is not None and oldest.append_time_us < self._query.start_us:
            self._top = 0
        if self._events_left > 0:
            self._searcher.clock.callLater(0, self._read)
        else:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        self.is_over = True
        if error is not None:
            self._searcher.search_ended(None, error)
            return
        next_before = None
        if self._total > self._query.skip + self._query.limit:
            next_before = self._events[-1].event_id
        elif self._top > self._trail.start_offset:
            next_before = self._top
        page = AuditPage(
            tuple(self._events), self._total, next_before is not None, next_before, self._unreadable
        )
        self._searcher.search_ended(page, None)
