# Tests: tests/protocols/test_flymq_audit.py
"""FlyMQ's queries of the audit trail (docs/protocols/flymq.rst, 0x80, 0x81, 0xA0, 0xA1).

A query does bounded work (`brokerd.broker.security.audit_search`). An export runs several queries,
one after the other, with other work between them. It ends with the trail or at one of its limits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from brokerd.codecs import flymq
from brokerd.codecs.flymq import AuditEvent, AuditEvents, ExportAudit, QueryAudit
from brokerd.errors import BrokerdError
from brokerd.protocols.base.steps import Done
from brokerd.protocols.flymq.request import RequestConnection
from brokerd.security import ADMIN
from brokerd.security import audit as trail
from brokerd.security.audit import LIMIT_DEFAULT, LIMIT_MAX, SKIP_MAX, AuditFilter, AuditPage

EXPORT_EVENTS_MAX = 10_000
EXPORT_BYTES_MAX = 16 * 1024 * 1024
"""An export ends after the query whose events reach this size."""
EXPORT_QUERIES_MAX = 20
"""Largest number of queries of an export, which bounds a search for rare events."""
SECOND_US = 1_000_000
SECONDS_MAX = 253_402_300_799
"""The end of the year 9999."""


def query(connection: RequestConnection, request: QueryAudit, node_id: str) -> bytes:
    """AUDIT_QUERY: one page of matching events, newest first."""
    limit = request.limit if request.limit > 0 else LIMIT_DEFAULT
    wanted = replace(_filter(request), limit=min(limit, LIMIT_MAX))

    def ask(done: Done[AuditPage]) -> None:
        connection.broker.audit.query(wanted, done)

    connection.access.require_server(ADMIN)  # when it is asked, and when it is answered
    page = connection.await_result(request, ask)
    events = tuple([_event(one, node_id) for one in page.events])
    return flymq.audit_events(AuditEvents(events, page.total, page.more), request.java)


def export(connection: RequestConnection, request: ExportAudit, node_id: str) -> bytes:
    """AUDIT_EXPORT: all matching events, as JSON or CSV."""

    def ask(done: Done[list[bytes]]) -> None:
        _Export(connection, request, node_id, done).run_query()

    connection.access.require_server(ADMIN)  # when it is asked, and when it is answered
    pieces = connection.await_result(request, ask)
    return flymq.exported(request, flymq.joined_pieces(pieces, request.format))


class _Export:
    """An export in progress, one piece per query."""

    def __init__(
        self,
        connection: RequestConnection,
        request: ExportAudit,
        node_id: str,
        done: Done[list[bytes]],
    ) -> None:
        self._connection = connection
        self._form = request.format
        self._node_id = node_id
        self._done = done
        self._wanted = _filter(request.query)
        limit = request.query.limit
        self._events_left = min(limit if limit > 0 else EXPORT_EVENTS_MAX, EXPORT_EVENTS_MAX)
        self._bytes_left = EXPORT_BYTES_MAX
        self._queries_left = EXPORT_QUERIES_MAX
        self._pieces: list[bytes] = []

    def run_query(self) -> None:
        """Run the next query. Raises as `AuditTrail.query`, and `Denied` without ADMIN."""
        self._connection.access.require_server(ADMIN)
        self._queries_left -= 1
        self._wanted = replace(self._wanted, limit=min(self._events_left, LIMIT_MAX))
        taken = partial(self._connection.close_on_fault, self._take)
        self._connection.broker.audit.query(self._wanted, taken)

    def _take(self, page: AuditPage | None, error: Exception | None) -> None:
        if self._connection.gone:
            return
        if page is None:
            self._done(None, error)
            return
        events = [_event(one, self._node_id) for one in page.events]
        self._pieces.append(flymq.export_piece(events, self._form))
        self._events_left -= len(events)
        self._bytes_left -= len(self._pieces[-1])
        left = min(self._events_left, self._bytes_left, self._queries_left)
        if page.next_before is None or left <= 0:
            self._done(self._pieces, None)
            return
        skip = max(0, self._wanted.skip - page.total)
        self._wanted = replace(self._wanted, before=page.next_before, skip=skip)
        try:
            self.run_query()
        except BrokerdError as refusal:
            self._done(None, refusal)


def _filter(request: QueryAudit) -> AuditFilter:
    """Return the filter of a request without its limit. Numbers out of range are clamped."""
    end_us = _microseconds(request.end_seconds)
    return AuditFilter(
        start_us=_microseconds(request.start_seconds),
        end_us=end_us and end_us + 1,
        types=frozenset(request.types),
        user=request.user,
        resource=request.resource,
        result=request.result,
        search=request.search,
        skip=min(max(request.offset, 0), SKIP_MAX),
    )


def _microseconds(seconds: int) -> int:
    return min(max(seconds, 0), SECONDS_MAX) * SECOND_US


def _event(found: trail.AuditEvent, node_id: str) -> AuditEvent:
    """Convert an event to FlyMQ's layout. The client's wire format becomes a detail."""
    details = tuple(found.details.items())
    if found.wire_format:
        details += (("format", found.wire_format),)
    return AuditEvent(
        str(found.event_id),
        found.time_us // 1000,
        found.type,
        found.user,
        found.client_ip,
        found.resource,
        found.action,
        found.result,
        node_id,
        details,
    )
