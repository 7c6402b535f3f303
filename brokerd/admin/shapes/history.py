# Tests: tests/admin/test_history_calls.py
"""Requests and answers about the life of a record; see `brokerd.admin.shapes.common`."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from brokerd.admin.shapes.common import Limit, Offset, Query
from brokerd.admin.shapes.topics import RecordShape


class HistoryQuery(Query, frozen=True):
    """A page of the events: the number of events to skip, and the number to return."""

    first: Offset = 0
    limit: Limit = 1_000


class HistoryEvent(Struct):
    """An event of a group about the record."""

    time: datetime
    lsn: int
    group: str
    event: str
    """For example ``leased``: the names of :doc:`wal-format` in lower case."""
    client: str = ""
    """Of a lease."""
    token: int | None = None
    count: int | None = None
    """Grants of a lease with this one; failures of a record."""
    seconds: float | None = None
    """Duration of a lease, or the delay until the record is ready again."""
    reason: str = ""
    first: int | None = None
    """New position of a seek or commit; first offset of a range."""
    end: int | None = None
    """End of a range, exclusive."""


class History(Struct):
    """The life of a record by journal and archive. ``next`` is ``first`` of the next page."""

    topic: str
    partition: int
    offset: int
    record: RecordShape | None
    record_error: str | None
    """Why there is no record."""
    events: list[HistoryEvent]
    next: int | None
    from_lsn: int
    """The search began here; earlier events, if any, are in neither journal nor archive."""
    archive_lsn: int
    """Events below this LSN came from the archive; 0: none."""
    problems: list[str]
    """Parts of journal and archive that could not be read."""
