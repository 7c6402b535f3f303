# Tests: tests/admin/test_audit_calls.py
"""The API's call about the audit trail (docs/security.rst, section "Audit trail")."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from twisted.internet.defer import Deferred

from brokerd.admin.http.routing import Call, NotFound, ReadFailed, Route
from brokerd.admin.shapes.common import Offset, Query, Time, time_of, time_us_of
from brokerd.errors import BrokerdError, InvalidRequest
from brokerd.security import ADMIN
from brokerd.security.audit import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    AuditEvent,
    AuditFilter,
    AuditPage,
    EventType,
    Result,
)

TYPES = [kind.value for kind in EventType]
RESULTS = [result.value for result in Result]


class AuditQuery(Query, frozen=True):
    """Filter for events; an absent field matches everything."""

    start: Time | None = None
    end: Time | None = None
    """Exclusive end."""
    type: str = ""
    """Types, separated by commas, for example ``auth.failure,access.denied``."""
    user: str = ""
    resource: str = ""
    """Part of the resource name."""
    result: str = ""
    client_ip: str = ""
    """The complete address."""
    format: str = ""
    """The wire format, or ``admin``."""
    search: str = ""
    """Part of action, resource, address, format or a detail; case-insensitive."""
    before: Offset | None = None
    """Return only events with a lower id."""
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT


class AuditEventShape(Struct):
    """One event."""

    id: int
    time: Time
    type: str
    user: str
    client_ip: str
    format: str
    resource: str
    action: str
    result: str
    details: dict[str, str]


class AuditEvents(Struct):
    """Events, newest first."""

    events: list[AuditEventShape]
    next: int | None
    """``before`` of the next page; null: no older events."""
    unreadable: int
    """Events in the searched range that are lost to damage."""


async def query_audit(call: Call) -> AuditEvents:
    """Return the events that match.

    Raises `NotFound` without an audit trail, `InvalidRequest` for a filter that cannot match,
    `ReadFailed` and `DamagedData`.
    """
    query: AuditQuery = call.query
    if not call.broker.audit.enabled:
        raise NotFound("the audit trail is off: it needs security.auth and security.audit")
    _check(query)
    query_filter = AuditFilter(
        start_us=0 if query.start is None else time_us_of(query.start),
        end_us=0 if query.end is None else time_us_of(query.end),
        types=frozenset(filter(None, query.type.split(","))),
        user=query.user,
        resource=query.resource,
        result=query.result,
        client_ip=query.client_ip,
        wire_format=query.format,
        search=query.search,
        before=query.before,
        limit=query.limit,
    )
    found: Deferred[tuple[AuditPage | None, Exception | None]] = Deferred()
    call.broker.audit.query(query_filter, lambda *answer: found.callback(answer))
    page, error = await found
    if isinstance(error, BrokerdError):
        raise error
    if page is None:
        raise ReadFailed(f"the audit trail cannot be read: {error}; try again")
    return AuditEvents([_shape(one) for one in page.events], page.next_before, page.unreadable)


def _check(query: AuditQuery) -> None:
    """Refuse a filter that cannot match."""
    for name in filter(None, query.type.split(",")):
        if name not in TYPES:
            raise InvalidRequest(f"type: {name!r} is not one of {', '.join(TYPES)}")
    if query.result and query.result not in RESULTS:
        raise InvalidRequest(f"result: {query.result!r} is not one of {', '.join(RESULTS)}")
    if query.start is not None and query.end is not None and query.start >= query.end:
        raise InvalidRequest(
            f"start: {query.start.isoformat()} is not before the end, {query.end.isoformat()}"
        )


def _shape(event: AuditEvent) -> AuditEventShape:
    return AuditEventShape(
        event.event_id,
        time_of(event.time_us),
        event.type,
        event.user,
        event.client_ip,
        event.wire_format,
        event.resource,
        event.action,
        event.result,
        event.details,
    )


ROUTES = [
    Route(
        "GET",
        "/audit",
        ADMIN,
        "List audit events, newest first",
        query_audit,
        AuditEvents,
        query=AuditQuery,
    )
]
