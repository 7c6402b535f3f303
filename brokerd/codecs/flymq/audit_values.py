# Tests: tests/codecs/test_flymq_audits.py
"""Queries of the audit trail and their answers, free of bytes.

Layouts: docs/protocols/flymq.rst, 0x80, 0x81, 0xA0 and 0xA1.
"""

from __future__ import annotations

from typing import NamedTuple


class QueryAudit(NamedTuple):
    """Select events, newest first. An empty field or 0 selects all."""

    start_seconds: int = 0
    """Since the Unix epoch."""
    end_seconds: int = 0
    types: tuple[str, ...] = ()
    user: str = ""
    resource: str = ""
    """Part of the resource's name."""
    result: str = ""
    search: str = ""
    """Part of the action, the resource or a detail, in any case."""
    limit: int = 0
    offset: int = 0
    """Number of the newest matching events to leave out."""
    java: bool = False
    """Whether the layout is that of the Java and Python SDKs (A0, A1), not the Go client's."""


class ExportAudit(NamedTuple):
    query: QueryAudit
    format: str
    """``csv``; anything else is JSON."""


AuditRequest = QueryAudit | ExportAudit


class AuditEvent(NamedTuple):
    """One event. All fields but the time are texts."""

    id: str
    time_ms: int
    """Since the Unix epoch."""
    type: str
    user: str
    client_ip: str
    resource: str
    action: str
    result: str
    node_id: str
    details: tuple[tuple[str, str], ...] = ()


class AuditEvents(NamedTuple):
    """The answer to AUDIT_QUERY."""

    events: tuple[AuditEvent, ...]
    total: int
    """Number of matching events in the part of the trail that was searched."""
    more: bool
    """Whether older events match too."""


class Exported(NamedTuple):
    """The answer to AUDIT_EXPORT."""

    data: bytes
    format: str = ""
    """Empty in the answer to A1, which lacks it."""


AuditAnswer = AuditEvents | Exported
