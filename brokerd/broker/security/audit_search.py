# Tests: tests/broker/test_audit.py
"""Questions about the audit trail, answered newest first.

The trail has no index: it is read backwards in blocks, one in a turn of the reactor, and no further
than `LOOKS_MAX` events for one question. One question is answered at a time, and `WAITING_MAX` more
may wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from brokerd.broker.context import Context
from brokerd.broker.model.topics import Partition, Topic
from brokerd.broker.records.cold_reader import Unreadable
from brokerd.broker.records.fetch import Fetched
from brokerd.broker.records.offset_at_time import Found
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
LOOKS_MAX = 100_000
"""Events that one question looks at; the next one may go on from there."""

WAITING_MAX = 20

WRITE_DELAY_US = 60_000_000
"""An event may be appended so long after its time, if the log has no room at first."""

Answered = Callable[[AuditPage | None, Exception | None], None]
Fetch = Callable[[Partition, int, int, int, Fetched], None]
"""`Fetcher.fetch`."""
FindTime = Callable[[Partition, int, Found], None]
"""`offset_at_time`, from the partition on."""


class AuditSearcher:
    """Answers questions about the audit trail, one at a time."""

    def __init__(
        self,
        context: Context,
        topic: Callable[[str], Topic | None],
        fetch: Fetch,
        find_time: FindTime,
    ) -> None:
        self.journal = context.journal
        self.clock = context.clock
        self.fetch = fetch
        self.find_time = find_time
        self._topic = topic
        self._waiting: deque[tuple[AuditFilter, Answered]] = deque()
        self._search: _Search | None = None

    def ask(self, wanted: AuditFilter, answered: Answered) -> None:
        """Answer a question when its turn has come. Raises `LimitExceeded`."""
        if len(self._waiting) >= WAITING_MAX:
            raise LimitExceeded(
                f"{WAITING_MAX} questions about the audit trail wait already; ask again later"
            )
        self._waiting.append((wanted, answered))
        self._next()

    def stop(self) -> None:
        """Answer every waiting question with `ShuttingDown`."""
        left = [answered for _, answered in self._waiting]
        self._waiting.clear()
        if self._search is not None:
            left.insert(0, self._search.answered)
            self._search.over = True
            self._search = None
        for answered in left:
            answered(None, ShuttingDown("the broker is shutting down; connect again later"))

    def _next(self) -> None:
        while self._search is None and self._waiting:
            wanted, answered = self._waiting.popleft()
            topic = self._topic(AUDIT_TOPIC)
            if topic is None:
                answered(AuditPage((), 0, False), None)
            else:
                self._search = _Search(self, topic.partition(0), wanted, answered)
                self._search.begin()

    def ended(self, page: AuditPage | None, error: Exception | None) -> None:
        """A search has its answer."""
        assert self._search is not None
        answered, self._search = self._search.answered, None
        self.clock.callLater(0, self._next)
        answered(page, error)


class _Search:
    """One question under way: everything from ``_top`` on has been looked at."""

    def __init__(
        self, searches: AuditSearcher, trail: Partition, wanted: AuditFilter, answered: Answered
    ) -> None:
        self.answered = answered
        self.over = False
        self._searches = searches
        self._trail = trail
        self._wanted = wanted
        self._top = 0
        self._looks_left = LOOKS_MAX
        self._block: list[Record] = []
        self._events: list[AuditEvent] = []
        self._total = 0
        self._unreadable = 0

    def begin(self) -> None:
        """Find the newest event that may be wanted: only what is durable counts."""
        self._searches.journal.when_all_durable(self._find_top)

    def _find_top(self) -> None:
        if self._wanted.end_us:
            latest_us = self._wanted.end_us + WRITE_DELAY_US
            self._searches.find_time(self._trail, latest_us, self._top_found)
        else:
            self._top_found(self._trail.framed, None)

    def _top_found(self, offset: int | None, error: Exception | None) -> None:
        if self.over:
            return
        if offset is None:
            self._end(error)
            return
        before = self._wanted.before
        self._top = offset if before is None else min(offset, before)
        self._read()

    def _read(self) -> None:
        """Read the block below ``_top``, if there is one."""
        if self.over:
            return
        self._block = []
        first = max(self._trail.start_offset, self._top - min(BLOCK_EVENTS, self._looks_left))
        if first >= self._top:
            self._end(None)
        else:
            self._fetch(first, first)

    def _fetch(self, first: int, offset: int) -> None:
        def got(records: Sequence[Record], next_offset: int, error: Exception | None) -> None:
            self._got(first, offset, records, next_offset, error)

        self._searches.fetch(self._trail, offset, self._top - offset, BLOCK_BYTES, got)

    def _got(
        self,
        first: int,
        offset: int,
        records: Sequence[Record],
        next_offset: int,
        error: Exception | None,
    ) -> None:
        if self.over:
            return
        if error is not None and not isinstance(error, Unreadable):
            self._end(error)
            return
        self._block += (record for record in records if record.offset < self._top)
        if offset < next_offset < self._top:
            self._fetch(first, next_offset)
        else:
            self._look(first)

    def _look(self, first: int) -> None:
        """Look at a block, newest first. What is not in it is lost: events do not expire."""
        expected = self._top - max(first, self._trail.start_offset)
        self._unreadable += max(0, expected - len(self._block))
        for record in reversed(self._block):
            try:
                found = decode_event(record.value, record.offset)
            except DamagedData:
                self._unreadable += 1
                continue
            if self._wanted.matches(found):
                self._total += 1
                if self._wanted.skip < self._total <= self._wanted.skip + self._wanted.limit:
                    self._events.append(found)
        oldest = self._block[0] if self._block else None
        self._looks_left -= self._top - first
        self._top = first
        if oldest is not None and oldest.append_time_us < self._wanted.start_us:
            self._top = 0
        if self._looks_left > 0:
            self._searches.clock.callLater(0, self._read)
        else:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        self.over = True
        if error is not None:
            self._searches.ended(None, error)
            return
        next_before = None
        if self._total > self._wanted.skip + self._wanted.limit:
            next_before = self._events[-1].event_id
        elif self._top > self._trail.start_offset:
            next_before = self._top
        page = AuditPage(
            tuple(self._events), self._total, next_before is not None, next_before, self._unreadable
        )
        self._searches.ended(page, None)
