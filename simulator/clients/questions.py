# Tests: tests/simulator/test_operator.py
"""Ask for the life of a record and for audit events, as ``brokerctl`` does by the admin API."""

from __future__ import annotations

from brokerd.admin.calls.audit import AuditEvents, AuditQuery, query_audit
from brokerd.admin.calls.history import describe_history
from brokerd.admin.shapes.history import History, HistoryQuery
from simulator.clients.handlers import handled
from simulator.clients.registry_calls import UNNUMBERED, RegistryCall
from simulator.history.operations import AuditRow, AuditSearch, Explain, LifeEvent, Place

EVENTS_MAX = 1_000


def explain(client: str, topic: str, place: Place) -> RegistryCall:
    """Ask for all events of all groups about a record."""
    operation = Explain(number=UNNUMBERED, client=client, topic=topic, place=place)
    path = {"topic": topic, "partition": str(place.partition), "offset": str(place.offset)}

    def tell(found: History) -> None:
        operation.exists = found.record is not None
        operation.is_whole = found.next is None and not found.problems
        operation.from_lsn, operation.archive_lsn = found.from_lsn, found.archive_lsn
        operation.events = tuple(
            LifeEvent(one.lsn, one.group, one.event, one.token, one.reason, one.first, one.end)
            for one in found.events
        )

    return handled(operation, describe_history, path, tell, query=HistoryQuery(limit=EVENTS_MAX))


def search_audit(operation: AuditSearch) -> RegistryCall:
    """Ask for a page of the audit events that match a filter."""
    query = AuditQuery(
        type=",".join(operation.types),
        user=operation.user,
        resource=operation.resource,
        before=operation.before,
        limit=operation.limit,
    )

    def tell(found: AuditEvents) -> None:
        operation.rows = tuple(
            AuditRow(one.id, one.type, one.user, one.format, one.resource, one.result)
            for one in found.events
        )
        operation.next_before = found.next
        operation.unreadable = found.unreadable

    return handled(operation, query_audit, {}, tell, query=query)
